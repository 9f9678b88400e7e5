"""What it costs to work in one process, in two worker processes and with two actors of Ray; and runs side by side.

``python benchmarks/executors.py`` prints two tables.

Executors: FedAvg with ten clients of small_cnn or ResNet-18, each in a process of its own. Start is from the making of
the executor to the first answer; a client that only sends returns the message that it got, so that all of its time is
overhead; memory is the sum of the proportional shares (PSS) of all processes together.

Comparisons: FedAvg and FedProx with two seeds each, of ten clients with 100 images each, in a new process: with the
clients of a round side by side (``--workers 2``) or the runs (``--parallel 2``).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfed.data import Dataset, Federation, Normalisation, Partition, Samples
from kinfed.engine import (
    ClientRuntime,
    NoCallback,
    ProcessExecutor,
    RoundSettings,
    RunFolder,
    SerialExecutor,
    TaskRunner,
    run_rounds,
)
from kinfed.learning import LocalTraining
from kinfed.methods import Client, ClientState, Message
from kinfed.methods.fedavg import FedAvg
from kinfed.models import build
from kinfed.settings import own_settings

CLIENTS, ROUNDS = 10, 6
EXECUTORS = ("one process", "2 workers", "ray, 2 actors")
MODELS = ("small_cnn", "resnet18")
WAYS = {"in turn": [], "--workers 2": ["--workers=2"], "--parallel 2": ["--parallel=2"]}
MIB = 2**20


class Sending(FedAvg):
    """FedAvg whose clients send a copy of what they got."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Return a copy of the message."""
        numbers = {"samples": float(len(client.train)), "steps": 1.0, "loss": 0.0, "cross_entropy": 0.0}
        return Message({name: tensor.clone() for name, tensor in message.tensors.items()}, numbers), ClientState()


def runtime(model: str) -> ClientRuntime:
    """Make the runtime of ten clients that only send."""
    images = torch.zeros(1000, 3, 32, 32, dtype=torch.uint8)
    samples = Samples(images, torch.arange(1000) % 10, Normalisation((127.5,) * 3, (74.0,) * 3))
    data = Dataset("blank", samples, samples.take(range(100)),
                   tuple("0123456789"))  # fmt: skip
    cut = Partition(np.array_split(np.arange(1000), CLIENTS), np.array_split(np.arange(100), CLIENTS))
    settings = RoundSettings(
        rounds=ROUNDS, training=LocalTraining(lr=0.01, batch_size=50), lr_schedule="constant", participation=1.0,
        seed=0, checkpoint_every=ROUNDS, evaluate_every=ROUNDS + 1,
    )  # fmt: skip
    return ClientRuntime(Sending(), Federation(data, cut, np.arange(0)), (build(model, (3, 32, 32), 10, 0),), settings)


def memory() -> float:
    """Sum of the proportional shares of memory of this process and all below it, MiB."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    own = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in own} - own:
        own |= more
    total = 0
    for process in own:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1024


def executor(name: str, model: str) -> dict[str, float]:
    """Do a run with an executor in this process, and tell what it took."""
    began = time.perf_counter()
    if name == "one process":
        ready: Any = SerialExecutor()
    elif name == "2 workers":
        ready = ProcessExecutor(2)
    else:
        from kinfed.engine.ray_executor import RayExecutor

        ready = RayExecutor(None, 2)
    told: dict[str, float] = {}

    class Timed(NoCallback):
        def working(self, what: str, done: int, total: int) -> None:
            told.setdefault("start", time.perf_counter() - began)

        def round(self, line: dict[str, Any]) -> None:
            if line["round"] == ROUNDS - 1:
                told["MiB"] = memory()

    with tempfile.TemporaryDirectory() as path, own_settings(), contextlib.closing(ready):
        here, folder = runtime(model), RunFolder(Path(path))
        ready.start(functools.partial(runtime, model), TaskRunner(here, folder.client_states))
        run_rounds(here, ready, folder, Timed())
        seconds = [line["train"] for line in folder.lines("seconds.jsonl")][1:]
    return told | {"ms": 1000 * statistics.median(seconds) / CLIENTS}


def comparison(options: list[str]) -> float:
    """Seconds of a comparison of four runs in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "kinfed", "compare", "fedavg", "fedprox", "--data=digits", "--train-images=1000",
            "--clients=10", "--partition=iid", "--model=small_cnn", "--image-size=28", "--rounds=10", "--seeds=2",
            "--ft-epochs=0", "--evaluate-every=10", f"--out={folder}/out", "--quiet", *options,
        ]  # fmt: skip
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--executor", nargs=2, metavar=("NAME", "MODEL"), help="one executor, as JSON")
    given = parser.parse_args()
    if given.executor:
        print(json.dumps(executor(*given.executor)))
        return
    print(f"{'':<16}{'model':<12}{'start, s':>10}{'ms a client that only sends':>30}{'MiB':>8}")
    for model in MODELS:
        for name in EXECUTORS:
            command = [sys.executable, __file__, "--executor", name, model]
            runs = [
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
                for _ in range(given.repeats)
            ]
            start, ms, mib = (statistics.median(run[of] for run in runs) for of in ("start", "ms", "MiB"))
            print(f"{name:<16}{model:<12}{start:>10.1f}{ms:>30.1f}{mib:>8.0f}", flush=True)
    print(f"\n{'a comparison of 4 runs':<24}{'seconds':>8}")
    taken = {way: [comparison(options) for _ in range(given.repeats)] for way, options in WAYS.items()}
    for way, seconds in taken.items():
        print(f"{way:<24}{statistics.median(seconds):>8.1f}   ({min(seconds):.1f} to {max(seconds):.1f})")


if __name__ == "__main__":
    main()
