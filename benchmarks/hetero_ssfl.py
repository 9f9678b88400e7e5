"""CPU seconds of Hetero-SSFL's local round, against local SSL's: what the CKA term on the RAD costs.

``python benchmarks/hetero_ssfl.py [--repeats R] [--images N] [--probe L] [--model NAME] [--hidden H] [--out D]``

One of 5 clients trains an epoch in batches of 200, images of 32×32, by each in turn, so that whatever else the machine
does falls on all alike. What is sent at the end of a round, the network's view of all L images, is a part of the time;
a round has E epochs, so one with E = 1 is the dearest. The images are noise, which takes as long as any.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from kinfed.data import Normalisation, Samples
from kinfed.engine.malloc import keep_freed_memory
from kinfed.learning import LocalTraining
from kinfed.methods import Client, ClientState, Method, Server
from kinfed.methods.hetero_ssfl import HeteroSSFL
from kinfed.methods.local_ssl import LocalSSL
from kinfed.models import build

BATCH, SIDE = 200, 32


def noise(count: int, seed: int) -> Samples:
    """Images that take as long as any."""
    stream = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=stream)
    return Samples(pixels, None, Normalisation.of(pixels))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--images", type=int, default=2000, help="of the client")
    parser.add_argument("--probe", type=int, default=500, help="images of the RAD")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--model", default="cnn4")
    parser.add_argument("--hidden", type=int, default=512, help="width of projector and predictor")
    parser.add_argument("--out", type=int, default=128, help="their outputs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    model = build(arguments.model, (3, SIDE, SIDE), 10, 0)
    model.prefer_channels_last()
    initial = model.tensors()
    sizes = {"hidden": arguments.hidden, "out": arguments.out}
    methods: dict[str, Method] = {
        "local_ssl": LocalSSL(**sizes),
        "hetero_ssfl, RAD batch of 100": HeteroSSFL(rad_batch=BATCH // 2, **sizes),
        "hetero_ssfl, RAD batch of 200": HeteroSSFL(rad_batch=BATCH, **sizes),
        "hetero_ssfl, mu=0": HeteroSSFL(mu=0.0, **sizes),
    }
    images, training = (
        noise(arguments.probe, 1),
        LocalTraining(lr=0.032, batch_size=BATCH, epochs=arguments.epochs, weight_decay=5e-4),
    )
    server = Server(model=model, seed=0, round=0, rounds=10, clients=5, public_images=images)
    client = Client(
        model=model,
        seed=0,
        round=1,
        rounds=10,
        id=0,
        train=noise(arguments.images, 0),
        training=training,
        public_images=images,
    )
    taken: dict[str, list[float]] = {name: [] for name in methods}
    received = {}
    for name, method in methods.items():
        model.load(initial)
        received[name] = method.download(method.init(server), 0)
    for repeat in range(arguments.repeats + 1):
        for name, method in methods.items():
            model.load(initial)
            began = time.process_time()
            method.update(client, received[name], ClientState())
            if repeat:  # the first warms up
                taken[name].append(time.process_time() - began)
    print(
        f"torch {torch.__version__}, {arguments.model}, {arguments.images} images, {arguments.epochs} epochs, "
        f"RAD of {arguments.probe}, {arguments.repeats} repeats, one thread"
    )
    print(f"  {'':32}{'CPU seconds':>12}{'ratio':>8}{'range':>14}{'down':>12}")
    for name, own in taken.items():
        ratios = sorted(a / b for a, b in zip(own, taken["local_ssl"], strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        down = f"{received[name].nbytes / 2**20:.1f} MiB"
        print(f"  {name:32}{statistics.median(own):12.2f}{statistics.median(ratios):8.2f}{spread:>14}{down:>12}")


if __name__ == "__main__":
    main()
