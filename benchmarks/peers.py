"""Seconds that a round takes in kinfed and in other simulators: the table of docs/performance.md.

``python benchmarks/peers.py [--work DIR] [--rounds R] [--quick] [--only NAME]...``

W1: CIFAR-10's first 10,000 training images over 10 clients; W2: over 100. FedCKA's small CNN, one local epoch in
batches of 50, SGD with momentum, then a test of the average on 2,000 images; FedAvg, FedProx and MOON. Every system has
an environment of its own, made in the work folder (`python -m venv`, pip), and one thread; those with two processes
are compared with one another. They take turns, a round each, so that whatever else the machine does falls on all of
them alike. Start: from the start of the process to its first round. Memory: of all its processes, shared pages divided
(PSS).

Without CIFAR-10 in ``$KINFED_DATA`` the images are noise. Linux only, since the CPU time and the memory of processes
are read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import torch

from round import BATCH, TEST, TRAIN, dataset

HERE = Path(__file__).resolve().parent
MARK = "PEERS_CONTESTANT"  # environment variable by which the processes of a system are found
PATIENCE = 600.0  # seconds for a start or a round


@dataclass(frozen=True)
class System:
    """A simulator, or a way of using it.

    Attributes:
        name: Its name in the table.
        adapter: Script in ``peer_adapters``.
        package: What pip installs for it; None for the environment of this script.
        methods: Methods that it has.
        more: Further arguments of the adapter.
        processes: How many processes work at once.
    """

    name: str
    adapter: str
    package: str | None
    methods: tuple[str, ...]
    more: tuple[str, ...] = ()
    processes: int = 1


ALL = ("fedavg", "fedprox", "moon")
SYSTEMS = (
    System("loop by hand", "run_ours.py", None, ("fedavg",), ("by hand",)),
    System("kinfed", "run_ours.py", None, ALL, ("kinfed",)),
    System("fluke", "run_fluke.py", "fluke-fl==0.8.1", ALL),
    System("FedLab", "run_fedlab.py", "fedlab==1.3.0", ("fedavg", "fedprox")),
    System("pfl-research", "run_pfl.py", "pfl[pytorch]==0.6.0", ("fedavg", "fedprox")),
    System("kinfed, 2 workers", "run_ours.py", None, ALL, ("kinfed, 2 workers",), 2),
    System("Flower's simulation", "run_flower.py", "flwr[simulation]==1.42.0", ("fedavg", "fedprox"), (), 2),
)
WORKS = {
    "W1, FedAvg": ("fedavg", 10), "W1, FedProx": ("fedprox", 10), "W1, MOON": ("moon", 10),
    "W2, FedAvg": ("fedavg", 100),
}  # fmt: skip


@dataclass
class Times:
    """What was measured of a system on one work, in seconds, MiB and fractions."""

    start: float = 0.0
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: float = 0.0
    accuracy: float = 0.0


class Contestant:
    """A system at work, which runs a round whenever it is told to."""

    def __init__(self, system: System, python: str, method: str, clients: int, rounds: int, work: Path) -> None:
        self.mark = "-".join((Path(system.adapter).stem, *system.more, method, str(clients))).replace(" ", "-")
        self.pipe, theirs = Pipe()
        variables = {
            "PEERS_IMAGES": str(work / "images.npz"),
            "PEERS_PIPE": str(theirs.fileno()),
            MARK: self.mark,
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(work / "flwr"),
            **({"PYTHONPATH": str(HERE)} if system.package is None else {}),
        }
        adapter = str(HERE / "peer_adapters" / system.adapter)
        self.log = work / f"{self.mark}.log"
        self.times = Times()
        self.began = time.perf_counter()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, adapter, method, str(clients), str(rounds), *system.more],
                env={**os.environ, **variables}, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        theirs.close()

    def start(self) -> None:
        """Wait until it is ready for its first round."""
        self.reported()
        self.times.start = time.perf_counter() - self.began

    def reported(self) -> float | None:
        """Return what the system says at the end of a round: its test accuracy, if it has one."""
        if not self.pipe.poll(PATIENCE):
            raise SystemExit(f"{self.mark}: no round in {PATIENCE:.0f} seconds; see {self.log}")
        try:
            accuracy: float | None = self.pipe.recv()
        except EOFError:
            raise SystemExit(f"{self.mark} ended early; see {self.log}") from None
        return accuracy

    def round(self) -> None:
        """Let it run a round."""
        cpu, began = self.cpu(), time.perf_counter()
        self.pipe.send("go")
        self.times.accuracy = self.reported() or 0.0
        self.times.wall.append(time.perf_counter() - began)
        self.times.cpu.append(self.cpu() - cpu)
        self.times.memory = max(self.times.memory, self.memory())

    def processes(self) -> Iterator[Path]:
        """Yield the folders in /proc of its processes."""
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and f"{MARK}={self.mark}\0".encode() in (folder / "environ").read_bytes():
                    yield folder
            except OSError:  # it has ended, or is not ours
                continue

    def told(self, name: str) -> Iterator[str]:
        """Yield a file of each of its processes in /proc."""
        for folder in self.processes():
            with suppress(OSError):  # it has ended since
                yield (folder / name).read_text()

    def cpu(self) -> float:
        """Return the CPU seconds of its processes and of those that they have waited for."""
        fields = (text.rpartition(")")[2].split() for text in self.told("stat"))
        return sum(int(ticks) for of in fields for ticks in of[11:15]) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return the memory of its processes in MiB."""
        lines = (line for text in self.told("smaps_rollup") for line in text.splitlines())
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024

    def end(self) -> None:
        """Let it go after its last round."""
        with suppress(OSError):  # it has ended
            self.pipe.send("end")
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            for folder in self.processes():
                os.kill(int(folder.name), signal.SIGKILL)


def environment(system: System, work: Path) -> str:
    """Return the Python of a system's environment, which is made if it is not there."""
    if system.package is None:
        return sys.executable
    folder = work / "environments" / Path(system.adapter).stem.removeprefix("run_")
    python, done = folder / "bin" / "python", folder / "installed.txt"
    if not done.is_file() or done.read_text() != system.package:
        print(f"installing {system.package}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        of_torch = f"torch=={torch.__version__.partition('+')[0]}"
        subprocess.run([str(python), "-m", "pip", "install", "-q", system.package, of_torch], check=True)
        done.write_text(system.package)
    return str(python)


def store_images(path: Path) -> str:
    """Store the images of the work as NumPy arrays, which every system can read, and return the name of the data."""
    data = dataset()
    train, test = data.train, data.test
    assert train.labels is not None
    assert test.labels is not None
    np.savez(
        path, mean=np.array(train.normalise.mean, np.float32), std=np.array(train.normalise.std, np.float32),
        train_images=train.inputs.numpy(), train_labels=train.labels.numpy(),
        test_images=test.inputs.numpy(), test_labels=test.labels.numpy(),
    )  # fmt: skip
    return data.name


def measured(systems: list[System], method: str, clients: int, rounds: int, work: Path) -> dict[str, Times]:
    """Return the times of the systems that have a method; a first round of each warms up and does not count."""
    with ExitStack() as ends:
        contestants: dict[str, Contestant] = {}
        for system in systems:
            if method in system.methods:
                made = Contestant(system, environment(system, work), method, clients, rounds + 1, work)
                ends.callback(made.end)
                made.start()
                contestants[system.name] = made
        for number in range(rounds + 1):
            for contestant in contestants.values():
                contestant.round()
                if number == 0:
                    contestant.times.wall.clear()
                    contestant.times.cpu.clear()
        return {name: contestant.times for name, contestant in contestants.items()}


def tables(results: dict[str, dict[str, Times]], systems: list[System]) -> str:
    """Return the tables in Markdown: seconds a round, start, memory and accuracy, each for one and two processes."""
    lines = []
    for processes in (1, 2):
        chosen = [s for s in systems if s.processes == processes and any(s.name in times for times in results.values())]
        if not chosen:
            continue
        one = processes == 1
        lines += ["", "One process: CPU seconds a round" if one else "Two processes: seconds a round (CPU seconds)", ""]
        lines += ["| | " + " | ".join((*results, "start, s", "memory, MiB")) + " |"]
        lines += ["|---" * (len(results) + 3) + "|"]
        for system in chosen:
            cells = []
            for times in results.values():
                found = times.get(system.name)
                wall, cpu = (statistics.median(found.wall), statistics.median(found.cpu)) if found else (0.0, 0.0)
                cells.append("–" if not found else f"{cpu:.2f}" if one else f"{wall:.2f} ({cpu:.2f})")
            first = next(times[system.name] for times in results.values() if system.name in times)
            cells += [f"{first.start:.1f}", f"{first.memory:.0f}"]
            lines.append(f"| {system.name} | " + " | ".join(cells) + " |")
    lines += ["", "Test accuracy after the last round:"]
    for work, times in results.items():
        lines.append(f"{work}: " + ", ".join(f"{name} {of.accuracy:.3f}" for name, of in times.items()))
    return "\n".join(lines)


def processor() -> str:
    """Return the name of the processor."""
    named = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{named[0].partition(': ')[2] if named else platform.machine()}, {os.cpu_count()} cores"


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/peers"), help="folder of the environments (runs/peers)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each system that count (default 7)")
    parser.add_argument("--quick", action="store_true", help="2 rounds, W1 with FedAvg only")
    parser.add_argument("--only", action="append", choices=[s.name for s in SYSTEMS], help="only this system")
    parser.add_argument("--json", type=Path, help="file to which all seconds are written")
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else arguments.rounds
    systems = [s for s in SYSTEMS if not arguments.only or s.name in arguments.only]
    work: Path = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    for system in systems:
        environment(system, work)
    name = store_images(work / "images.npz")
    print(f"{processor()}; torch {torch.__version__}; {name}, {TRAIN} and {TEST} images, batches of {BATCH}")
    print("; ".join(s.package for s in systems if s.package))
    results = {}
    for title, (method, clients) in list(WORKS.items())[: 1 if arguments.quick else None]:
        results[title] = measured(systems, method, clients, rounds, work)
        print(f"{title}: measured", flush=True)
    print(tables(results, systems))
    if arguments.json:
        stored = {title: {name: vars(times) for name, times in of.items()} for title, of in results.items()}
        arguments.json.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
