"""Seconds that a round of FedAvg takes, against loops written by hand: the table of docs/performance.md.

``python benchmarks/round.py [--rounds R] [--quick] [--model cnn4]``

CIFAR-10's first 10,000 training images over 10 clients, and over 100, with FedCKA's small CNN (or ``cnn4``): one local
epoch in batches of 50, then a test of the average on 2,000 images. Without CIFAR-10 in ``$KINFED_DATA`` the images are
noise, which takes as long. kinfed runs its whole round loop and writes a run folder; the loops by hand train, average
and test, and do nothing else. Every contestant is a process of its own with one thread (or two such processes), and
they take turns, a round each, so that whatever else the machine does falls on all of them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinfed import FedAvg
from kinfed.data import IID, Dataset, Normalisation, Samples, load, make_federation
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
from kinfed.errors import InputError
from kinfed.experiment.device import Precision, computed_in
from kinfed.learning import LocalTraining
from kinfed.methods import Method
from kinfed.models import build
from kinfed.settings import own_settings

TRAIN, TEST, BATCH, LR, MOMENTUM = 10_000, 2_000, 50, 0.01, 0.9

Turn = Callable[[float | None], None]  # is told the test accuracy after a round, None before the first
# model, clients, rounds, what to call before the first round and after each
Contestant = Callable[[str, int, int, Turn], None]
ServerState = dict[str, Tensor]


def dataset() -> Dataset:
    """The first images of CIFAR-10, or noise of the same shape."""
    try:
        whole = load("cifar10")
    except InputError:
        stream = torch.Generator().manual_seed(0)
        train, test = (
            Samples(
                torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=stream),
                torch.arange(n) % 10,
                Normalisation((125.0,) * 3, (64.0,) * 3),
            )
            for n in (TRAIN, TEST)
        )
        return Dataset("noise", train, test, tuple("0123456789"))
    return replace(whole, train=whole.train.take(range(TRAIN)), test=whole.test.take(range(TEST)), columns={})


# -- by hand ----------------------------------------------------------------------------------------------------------


def network(model: str) -> nn.Module:
    """The same network as kinfed's, as a plain sequence."""
    if model != "small_cnn":
        made = build(model, (3, 32, 32), 10, seed=0)
        return nn.Sequential(*made.body.children(), made.head).to(memory_format=torch.channels_last)

    def conv(inputs: int, outputs: int) -> Iterable[nn.Module]:
        return nn.Conv2d(inputs, outputs, 5), nn.ReLU(), nn.MaxPool2d(2)

    def dense(inputs: int, outputs: int) -> Iterable[nn.Module]:
        return nn.Linear(inputs, outputs), nn.ReLU()

    return nn.Sequential(
        *(*conv(3, 16), *conv(16, 32), nn.Flatten()),
        *(*dense(800, 120), *dense(120, 84), *dense(84, 84), nn.Linear(84, 256), nn.Linear(256, 10)),
    ).to(memory_format=torch.channels_last)


class ByHand:
    """Plain PyTorch: one module, images in memory, no loader."""

    def __init__(self, clients: int, model: str) -> None:
        data = dataset()
        self.train, self.test = (
            s.inputs.contiguous(memory_format=torch.channels_last) for s in (data.train, data.test)
        )
        assert data.train.labels is not None
        assert data.test.labels is not None
        self.train_labels, self.test_labels = data.train.labels, data.test.labels
        self.mean, self.std = (torch.tensor(v).view(1, 3, 1, 1) for v in vars(data.train.normalise).values())
        self.clients = torch.arange(TRAIN).split(TRAIN // clients)
        self.net = network(model)
        self.state = self.copy()

    def copy(self) -> ServerState:
        """The weights as they are now."""
        return {name: tensor.clone() for name, tensor in self.net.state_dict().items()}

    def logits(self, images: Tensor) -> Tensor:
        """Of stored images."""
        made: Tensor = self.net((images.float() - self.mean) / self.std)
        return made

    def trained(self, state: ServerState, clients: range) -> ServerState:
        """Sum over some clients of their weights after an epoch, times their sample counts."""
        total = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        for client in clients:
            self.net.load_state_dict(state)
            optimiser = torch.optim.SGD(self.net.parameters(), lr=LR, momentum=MOMENTUM)
            own = self.clients[client]
            for rows in own[torch.randperm(len(own))].split(BATCH):
                optimiser.zero_grad()
                functional.cross_entropy(self.logits(self.train[rows]), self.train_labels[rows]).backward()
                optimiser.step()
            for name, tensor in self.net.state_dict().items():
                total[name] += len(own) * tensor
        return total

    @torch.no_grad()
    def hits(self, state: ServerState, rows: range) -> int:
        """How many of some test images a model gets right."""
        self.net.load_state_dict(state)
        parts = torch.arange(rows.start, rows.stop).split(500)
        return sum(int((self.logits(self.test[p]).argmax(1) == self.test_labels[p]).sum()) for p in parts)


def plain(model: str, clients: int, rounds: int, turn: Turn) -> None:
    """One process."""
    hand = ByHand(clients, model)
    turn(None)
    for _ in range(rounds):
        hand.state = {name: total / TRAIN for name, total in hand.trained(hand.state, range(clients)).items()}
        turn(hand.hits(hand.state, range(TEST)) / TEST)


def two_plain(model: str, clients: int, rounds: int, turn: Turn) -> None:
    """Two processes: this one, and a helper that does the other half."""
    hand = ByHand(clients, model)
    here, there = multiprocessing.Pipe()
    helper = multiprocessing.get_context("spawn").Process(target=help_out, args=(there, model, clients, rounds))
    helper.start()
    here.recv()
    turn(None)
    for _ in range(rounds):
        here.send(as_arrays(hand.state))
        mine, other = hand.trained(hand.state, range(clients // 2)), here.recv()
        hand.state = {name: (total + torch.from_numpy(other[name])) / TRAIN for name, total in mine.items()}
        here.send(as_arrays(hand.state))
        turn((hand.hits(hand.state, range(TEST // 2)) + here.recv()) / TEST)
    helper.join()


def help_out(pipe: Connection, model: str, clients: int, rounds: int) -> None:
    """The helper's half of every round."""
    torch.set_num_threads(1)
    hand = ByHand(clients, model)

    def received() -> ServerState:
        return {name: torch.from_numpy(array) for name, array in pipe.recv().items()}

    pipe.send("ready")
    for _ in range(rounds):
        pipe.send(as_arrays(hand.trained(received(), range(clients // 2, clients))))
        pipe.send(hand.hits(received(), range(TEST // 2, TEST)))


def as_arrays(state: ServerState) -> dict[str, Any]:
    """Weights that are copied through a pipe; torch would send file handles instead."""
    return {name: tensor.numpy() for name, tensor in state.items()}


# -- kinfed -----------------------------------------------------------------------------------------------------------


class Turns(NoCallback):
    """Lets a run wait for its turn between two rounds."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn

    def started(self, done: int) -> None:
        """Before the first round."""
        self.turn(None)

    def round(self, line: dict[str, Any]) -> None:
        """After each."""
        self.turn(line["global_acc"])


def runtime(method: Method, model: str, precision: Precision, clients: int, rounds: int) -> ClientRuntime:
    """A method on equal clients."""
    federation = make_federation(dataset(), IID(), clients=clients, public=0, seed=0)
    built = build(model, federation.dataset.shape, 10, seed=0)
    built.body.in_bfloat16 = precision == "bfloat16"
    return ClientRuntime(
        method,
        federation,
        (built,),
        RoundSettings(
            rounds=rounds,
            training=LocalTraining(lr=LR, epochs=1, batch_size=BATCH, momentum=MOMENTUM),
            lr_schedule="constant",
            participation=1.0,
            seed=0,
            checkpoint_every=10,
        ),
    )


def kinfed(
    executor_of: Callable[[], Executor],
    precision: Precision,
    model: str,
    clients: int,
    rounds: int,
    turn: Turn,
    method: Method = FedAvg(),  # noqa: B008
) -> None:
    """A whole run."""
    make = functools.partial(runtime, method, model, precision, clients, rounds)
    shop = make()
    with tempfile.TemporaryDirectory() as out, contextlib.closing(executor_of()) as executor, own_settings():
        folder = RunFolder(Path(out))
        executor.start(make, TaskRunner(shop, folder.client_states))
        run_rounds(shop, executor, folder, Turns(turn))


CONTESTANTS: dict[str, Contestant] = {
    "by hand": plain,
    "kinfed": functools.partial(kinfed, SerialExecutor, "float32"),
    "kinfed, bfloat16": functools.partial(kinfed, SerialExecutor, "bfloat16"),
    "two processes by hand": two_plain,
    "kinfed, 2 workers": functools.partial(kinfed, functools.partial(ProcessExecutor, 2), "float32"),
}


# -- the measurement --------------------------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """Of this process and its children; those of the children in hundredths, and on Linux alone."""
    ticks = 0
    for child in multiprocessing.active_children():
        stat = Path(f"/proc/{child.pid}/stat")
        if stat.is_file():
            ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def take_part(pipe: Connection, contestant: Contestant, model: str, clients: int, rounds: int) -> None:
    """Run a contestant in this process, one round whenever the pipe says so."""
    torch.set_num_threads(1)

    def turn(accuracy: float | None) -> None:
        del accuracy
        pipe.send(cpu_seconds())
        pipe.recv()

    contestant(model, clients, rounds, turn)


def measured(model: str, clients: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Median seconds a round of each contestant, of the wall and of the CPU; the first round warms up."""
    spawn = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes: list[Any] = []
    cpu: dict[str, float] = {}
    for name, contestant in CONTESTANTS.items():
        pipes[name], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=take_part, args=(theirs, contestant, model, clients, rounds + 1)))
        processes[-1].start()
        cpu[name] = pipes[name].recv()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(rounds + 1):
        for name, pipe in pipes.items():
            began, before = time.perf_counter(), cpu[name]
            pipe.send("go")
            cpu[name] = pipe.recv()
            times[name].append((time.perf_counter() - began, cpu[name] - before))
    for pipe in pipes.values():
        pipe.send("end")
    for process in processes:
        process.join()
    return {
        name: (statistics.median(w for w, _ in rows[1:]), statistics.median(c for _, c in rows[1:]))
        for name, rows in times.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each contestant that count (default 9)")
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    parser.add_argument("--model", default="small_cnn", choices=("small_cnn", "cnn4"))
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else arguments.rounds
    print(f"torch {torch.__version__}, {dataset().name}, {arguments.model}, medians of {rounds} rounds")
    print(computed_in("auto", "cpu")[1])
    for clients in (10, 100):
        print(f"\n{clients} clients of {TRAIN // clients} images: seconds a round")
        print(f"  {'':28}{'wall':>8}{'CPU':>8}{'ratio':>8}")
        times = measured(arguments.model, clients, rounds)
        for name, (wall, cpu) in times.items():
            alone = "process" not in name and "worker" not in name
            ratio = cpu / times["by hand"][1] if alone else wall / times["two processes by hand"][0]
            kind = "of the CPU" if alone else "of the wall"
            print(f"  {name:28}{wall:8.3f}{cpu:8.3f}{ratio:8.2f}  {kind}")


if __name__ == "__main__":
    main()
