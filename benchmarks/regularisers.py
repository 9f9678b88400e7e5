"""CPU seconds of local training with a regulariser, against FedAvg's.

``python benchmarks/regularisers.py [--repeats R] [--images N] [--only WORD...] [--resnet]``

One of 10 clients of CIFAR-10 makes a round's ten local epochs in batches of 128 with FedCKA's small CNN, by every
method in turn, so that whatever else the machine does falls on all alike. Every image costs the same, so a client
of 1,408 images, 11 batches, stands for one of 5,000; one of fewer than 1,280 gets its frozen Grams cheaper. Without
CIFAR-10 in ``$KINFED_DATA`` the images are noise, which takes as long. With ``--resnet``: ResNet-50 on 64×64 noise, one
batch of 4.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kinfed.data import Normalisation, Samples, load
from kinfed.engine.malloc import keep_freed_memory
from kinfed.learning import LocalTraining
from kinfed.methods import METHODS, Client, ClientState, Method, Server
from kinfed.models import build


@dataclass(frozen=True)
class Scale:
    """A network, and what a client trains on."""

    model: str
    samples: Samples
    training: LocalTraining


def methods() -> dict[str, Method]:
    """What is compared, FedAvg first; those that this version does not have are left out."""
    wanted = {
        "fedavg": ("fedavg", {}),
        "fedprox": ("fedprox", {}),
        "scaffold": ("scaffold", {}),
        "moon": ("moon", {}),
        "fedcka": ("fedcka", {}),
        "fedcka, after pooling": ("fedcka", {"tap": "pool"}),
        "fedcka, rbf, after pooling": ("fedcka", {"tap": "pool", "metric": "rbf"}),
        "fedcka, cosine": ("fedcka", {"metric": "cosine"}),
        "fedcka, frobenius": ("fedcka", {"metric": "frobenius"}),
    }
    return {label: METHODS[name](**fields) for label, (name, fields) in wanted.items() if name in METHODS}


def cifar(images: int) -> Scale:
    """FedCKA's experiment."""
    training = LocalTraining(lr=0.01, epochs=10, batch_size=128, weight_decay=1e-5)
    return Scale("small_cnn", stored("cifar10", images, (3, 32, 32)), training)


def resnet() -> Scale:
    """A network whose first two layers are little of it."""
    return Scale("resnet50", noise(4, (3, 64, 64)), LocalTraining(lr=0.01, epochs=10, batch_size=4, weight_decay=1e-5))


def stored(name: str, images: int, shape: tuple[int, int, int]) -> Samples:
    """The first images of a data set in ``$KINFED_DATA``, or noise of their shape."""
    if (Path(os.environ.get("KINFED_DATA", "")) / name).is_dir():
        return load(name).train.take(range(images))
    return noise(images, shape)


def noise(count: int, shape: tuple[int, int, int]) -> Samples:
    """Images that take as long as any."""
    stream = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=stream)
    labels = torch.randint(0, 10, (count,), generator=stream)
    return Samples(pixels, labels, Normalisation.of(pixels))


def measured(scale: Scale, compared: dict[str, Method], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of every repeat, by method."""
    shape = tuple(scale.samples.inputs.shape[1:])
    model = build(scale.model, shape, 10, 0)
    model.prefer_channels_last()
    initial = model.tensors()
    client = Client(model=model, seed=0, round=2, rounds=10, id=0, train=scale.samples, training=scale.training)
    received, kept = {}, {}
    for name, method in compared.items():
        model.load(initial)
        server = Server(model=model, seed=0, round=0, rounds=10, clients=10, cohort=10, public_images=None)
        received[name] = method.download(method.init(server), 0)
        earlier = replace(client, round=1, training=replace(scale.training, epochs=1))
        _, kept[name] = method.update(earlier, received[name], ClientState())
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(repeats):
        for name, method in compared.items():
            began = time.process_time()
            method.update(client, received[name], kept[name])
            seconds[name].append(time.process_time() - began)
    return seconds


def show(seconds: dict[str, list[float]], reference: str) -> None:
    """Print medians, and the ratios to one of the methods, which are taken repeat by repeat."""
    print(f"  {'':30}{'CPU seconds':>12}{'ratio':>8}{'range':>14}")
    for name, own in seconds.items():
        ratios = sorted(a / b for a, b in zip(own, seconds[reference], strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"  {name:30}{statistics.median(own):12.2f}{statistics.median(ratios):8.2f}{spread:>14}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--images", type=int, default=1408, help="of the client (CIFAR-10)")
    parser.add_argument("--only", nargs="*", default=[], help="words in the names of those to compare")
    parser.add_argument("--resnet", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    scale = resnet() if arguments.resnet else cifar(arguments.images)
    only = arguments.only or [""]
    compared = {n: m for n, m in methods().items() if n == "fedavg" or any(word in n for word in only)}
    print(f"torch {torch.__version__}, {scale.model}, {arguments.repeats} repeats")
    show(measured(scale, compared, arguments.repeats), "fedavg")


if __name__ == "__main__":
    main()
