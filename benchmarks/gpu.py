"""What a GPU gains: rounds of FedAvg by precision and executor, and small clients trained in lockstep.

``python benchmarks/gpu.py [--device cuda] [--quick]``, or ``benchmarks/gpu.sh`` on a bare machine, which installs all.

Rounds: W1 (10 clients of 1,000 images of 3×32×32) and W2 (100 of 100) with ``small_cnn``, and 100 clients of 20 images
with ResNet-18, in batches of 50; random images, since only the time counts. Float32, TF32 and bfloat16; clients one
after another, and in worker processes. Lockstep: as many clients at once as fit into one batch of models
(``torch.func``), against the same clients one after another. Medians of several rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from kinfed.data import IID, Dataset, Normalisation, Samples, make_federation
from kinfed.engine import (
    ClientRuntime,
    Executor,
    NoCallback,
    ProcessExecutor,
    RoundSettings,
    RunFolder,
    SerialExecutor,
    TaskRunner,
    run_rounds,
)
from kinfed.learning import LocalTraining
from kinfed.methods import METHODS
from kinfed.models import build
from kinfed.settings import own_settings

WORKS = {"W1": (10, 1000, "small_cnn"), "W2": (100, 100, "small_cnn"), "ResNet-18": (100, 20, "resnet18")}
QUICK = {"W1": (2, 50, "small_cnn"), "W2": (4, 10, "small_cnn"), "ResNet-18": (1, 2, "resnet18")}
PRECISIONS = ("float32", "TF32", "bfloat16")
SHAPE, CLASSES, BATCH, LR = (3, 32, 32), 10, 50, 0.01


def runtime(device: str, work: tuple[int, int, str], precision: str, rounds: int) -> ClientRuntime:
    """FedAvg over equal clients with random images."""
    clients, images, name = work
    rng = np.random.default_rng(0)

    def samples(count: int) -> Samples:
        inputs = torch.from_numpy(rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8))
        return Samples(inputs, torch.arange(count) % CLASSES, Normalisation((127.5,) * 3, (74.0,) * 3))

    data = Dataset("random", samples(clients * images), samples(100), tuple("0123456789"))
    model = build(name, SHAPE, CLASSES, seed=0).to(device)
    model.body.in_bfloat16 = precision == "bfloat16"
    training = LocalTraining(lr=LR, epochs=1, batch_size=BATCH, momentum=0.9)
    settings = RoundSettings(
        rounds=rounds, training=training, lr_schedule="constant", participation=1.0, seed=0, checkpoint_every=rounds,
        evaluate_every=rounds + 1,
    )  # fmt: skip
    federation = make_federation(data, IID(), clients=clients, public=0, seed=0)
    return ClientRuntime(METHODS["fedavg"](), federation, (model,), settings)


class Clock(NoCallback):
    """Seconds between two rounds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def started(self, done: int) -> None:
        """Start the clock."""
        self._last = time.perf_counter()

    def round(self, line: dict[str, Any]) -> None:
        """Stop it and start it again."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


@contextlib.contextmanager
def computing(precision: str) -> Iterator[None]:
    """Compute with kinfed's own settings, and in TF32 if it is asked for."""
    with own_settings():
        if precision == "TF32":
            torch.set_float32_matmul_precision("high")
        yield


def seconds_a_round(
    device: str, work: tuple[int, int, str], precision: str, executor_of: Callable[[], Executor], rounds: int
) -> float:
    """Median seconds of the rounds after the first one, and before the last one, which is tested."""
    make, clock = functools.partial(runtime, device, work, precision, rounds + 2), Clock()
    with tempfile.TemporaryDirectory() as out, contextlib.closing(executor_of()) as executor, computing(precision):
        shop, folder = make(), RunFolder(Path(out))
        executor.start(make, TaskRunner(shop, folder.client_states))
        run_rounds(shop, executor, folder, clock)
    return statistics.median(clock.seconds[1:-1])


def lockstep(device: str, name: str, clients: int, steps: int) -> tuple[float, float]:
    """Seconds of some steps of all clients, one after another and in lockstep."""
    models = [build(name, SHAPE, CLASSES, seed=0).to(device) for _ in range(clients)]
    x = torch.randn(clients, BATCH, *SHAPE, device=device)
    y = torch.arange(clients * BATCH, device=device).view(clients, BATCH) % CLASSES
    wait: Callable[[], None] = torch.cuda.synchronize if device.startswith("cuda") else lambda: None

    def one_by_one() -> None:
        for at, model in enumerate(models):
            for _ in range(steps):
                model.zero_grad()
                functional.cross_entropy(model(x[at]), y[at]).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.sub_(parameter.grad, alpha=LR)  # type: ignore[arg-type]

    weights, buffers = stack_module_state(models)

    def loss(own: dict[str, torch.Tensor], kept: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> Any:
        return functional.cross_entropy(functional_call(models[0], (own, kept), (x,)), y)

    gradients = vmap(grad(loss))

    def together() -> None:
        own = {key: tensor.detach() for key, tensor in weights.items()}
        for _ in range(steps):
            found = gradients(own, buffers, x, y)
            own = {key: tensor - LR * found[key] for key, tensor in own.items()}

    took = []
    for work in (one_by_one, together):
        work()
        wait()
        began = time.perf_counter()
        work()
        wait()
        took.append(time.perf_counter() - began)
    return took[0], took[1]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="little work, to see that it runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    where = torch.cuda.get_device_name(given.device) if given.device.startswith("cuda") else given.device
    works, rounds = (QUICK, 1) if given.quick else (WORKS, 5)
    print(f"torch {torch.__version__}, {where}, medians of {rounds} rounds, seconds a round")
    print(f"{'':12}" + "".join(f"{precision:>12}" for precision in PRECISIONS))
    for name, work in works.items():
        times = [seconds_a_round(given.device, work, precision, SerialExecutor, rounds) for precision in PRECISIONS]
        print(f"{name:12}" + "".join(f"{seconds:12.3f}" for seconds in times), flush=True)
    print("\nin worker processes, float32")
    for count in (2,) if given.quick else (2, 4, 8):
        workers = functools.partial(ProcessExecutor, count)
        print(
            f"  W2, {count} workers {seconds_a_round(given.device, works['W2'], 'float32', workers, rounds):.3f}",
            flush=True,
        )
    print("\nsteps of many clients: one after another, in lockstep, ratio")
    for name, clients in (("tiny_cnn", 32), ("small_cnn", 32)):
        alone, joint = lockstep(given.device, name, 4 if given.quick else clients, 2 if given.quick else 20)
        print(f"  {name:12}{alone:10.3f}{joint:10.3f}{alone / joint:8.2f}", flush=True)


if __name__ == "__main__":
    main()
