"""CPU seconds of a round's local work where clients keep heads of their own, against methods without.

``python benchmarks/personalised.py [--repeats R] [--images N] [--data mnist|cifar10]``

FedBABU's and FedCRC's four-convolution CNN, batches of 50, the methods of a table in turn, so that whatever else the
machine does falls on all alike. FedCRC makes FedBABU's five epochs and two heads beside them; FedRep makes five epochs
of a head and one of a body where FedAvg makes six of both. Every image costs the same, so a client of 600 stands for
any. Without the data in ``$KINFED_DATA`` the images are noise, which takes as long.
"""

from __future__ import annotations

import argparse

import torch

from kinfed.engine.malloc import keep_freed_memory
from kinfed.learning import LocalTraining
from kinfed.methods import METHODS
from regularisers import Scale, measured, show, stored

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
TABLES = {("fedbabu", "fedcrc"): 5, ("fedavg", "fedper", "fedrep"): 6}  # epochs; the first is the reference


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--images", type=int, default=600, help="of the client")
    parser.add_argument("--data", choices=SHAPES, default="cifar10")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    samples = stored(arguments.data, arguments.images, SHAPES[arguments.data])
    print(f"torch {torch.__version__}, cnn4, {arguments.data}, {arguments.repeats} repeats")
    for names, epochs in TABLES.items():
        scale = Scale("cnn4", samples, LocalTraining(lr=0.05, epochs=epochs, batch_size=50))
        show(measured(scale, {name: METHODS[name]() for name in names}, arguments.repeats), names[0])


if __name__ == "__main__":
    main()
