"""How many images a second each architecture trains on and tests: the table of docs/performance.md.

``python benchmarks/throughput.py [--repeats R] [--model NAME]... [--device cuda]``

FedAvg's local training (batches of 50, SGD with momentum) and a test, one thread, float32, noise in the usual size of
the architecture. A round then takes about

    clients × (images × epochs / trained a second + 1 ms) + test images / tested a second

of one core. Methods that train more cost more: docs/performance.md says how much.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import torch

from kinfed.engine.malloc import keep_freed_memory
from kinfed.learning import LocalTraining
from kinfed.learning.evaluation import scores
from kinfed.learning.phases import Phase
from kinfed.learning.training import train
from kinfed.models import build
from peers import processor
from regularisers import noise

SIZES = {
    "mlp": ((1, 28, 28), 4000),
    "tiny_cnn": ((1, 8, 8), 8000),
    "mcmahan_cnn": ((1, 28, 28), 1000),
    "small_cnn": ((3, 32, 32), 2000),
    "cnn4_half": ((3, 32, 32), 1000),
    "cnn4": ((3, 32, 32), 500),
    "resnet18": ((3, 32, 32), 100),
    "resnet34": ((3, 32, 32), 50),
    "resnet50": ((3, 32, 32), 50),
    "vgg16": ((3, 32, 32), 100),
}
"""Shape of the images of each architecture, and how many of them one measurement has."""
TRAINING, EVERYTHING = LocalTraining(lr=0.01, epochs=1, batch_size=50, momentum=0.9), Phase()


def speed(images: int, work: Callable[[], object], repeats: int, wait: Callable[[], object]) -> float:
    """Return the images a second of some work: the median of several repeats, after one that warms up."""
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - began)
    return images / statistics.median(seconds[1:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", action="append", choices=SIZES, help="only this architecture")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    keep_freed_memory()
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    print(f"{where}; torch {torch.__version__}; one thread, float32, batches of 50; medians of {arguments.repeats}\n")
    print("| model | images | trained a second | tested a second |\n|---|---|---|---|")
    for name in arguments.model or SIZES:
        shape, count = SIZES[name]
        samples = noise(count, shape).to(device)
        model = build(name, shape, 10, seed=0).to(device)
        model.prefer_channels_last()
        work = functools.partial(train, model, samples, EVERYTHING, TRAINING, torch.Generator().manual_seed(0))
        trained = speed(count, work, arguments.repeats, wait)
        tested = speed(count, functools.partial(scores, model, samples), arguments.repeats, wait)
        print(f"| `{name}` | {'×'.join(map(str, shape))} | {trained:,.0f} | {tested:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
