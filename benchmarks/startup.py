"""CPU and wall seconds until a command answers, workers are ready, and a demo has its first round.

``python benchmarks/startup.py [--repeats R]``

Each line is the median of R new processes, which take turns. CPU seconds are those of all processes of a command
together; on a busy machine they say more than wall seconds. The demo is `make demo` until the first round is written.
Start it once before, so that the disk is warm and the bytecode is there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

KINFED = [sys.executable, "-m", "kinfed"]
COMMANDS = (
    "--help", "run --help", "methods", "models", "datasets", "run fedavgg", "run fedavg --data digts",
    "run fedavg --lr x", "run fedavg --lrr 1", "methods fedshibu",
)  # fmt: skip
DEMO = (
    "compare fedavg fedper fedshibu fedkin local --data digits --train-images 600 --public 64 --clients 20 "
    "--partition iid --shift permute_labels:4 --rounds 30 --local-epochs 3 --batch-size 8 --workers 2 --quiet --out"
)
WORKERS = """
import sys, time
from kinfed.engine import ProcessExecutor
ProcessExecutor(int(sys.argv[1]))
open(sys.argv[2], "w").write("ready")
time.sleep(600)
"""
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_of(group: int) -> float:
    """CPU seconds of the processes of a group so far, with those of children that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def until(command: list[str], done: Callable[[], bool]) -> tuple[float, float]:
    """CPU and wall seconds of a command in a session of its own until something is done; then it is killed."""
    start = time.perf_counter()
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not done():
        if process.poll() is not None:
            raise RuntimeError(f"{command} ended with exit code {process.returncode}")
        time.sleep(0.01)
    took = cpu_of(process.pid), time.perf_counter() - start
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return took


def answered(arguments: str) -> tuple[float, float]:
    """CPU and wall seconds of a whole command."""
    start = time.perf_counter()
    process = subprocess.Popen([*KINFED, *arguments.split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = os.wait4(process.pid, 0)[2]
    return used.ru_utime + used.ru_stime, time.perf_counter() - start


def workers_ready(count: int) -> tuple[float, float]:
    """CPU and wall seconds until a program has started some workers."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready"
        return until([sys.executable, "-c", WORKERS, str(count), str(ready)], ready.exists)


def first_round() -> tuple[float, float]:
    """CPU and wall seconds until the demo has written its first round."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        return until(
            [*KINFED, *DEMO.split(), str(out)], lambda: any(p.stat().st_size for p in out.glob("*/metrics.jsonl"))
        )


def main() -> None:
    """Measure in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    measured: dict[str, Callable[[], tuple[float, float]]] = {
        f"`kinfed {command}`": functools.partial(answered, command) for command in COMMANDS
    }
    measured |= {
        f"a program until {n} {'worker is' if n == 1 else 'workers are'} ready": functools.partial(workers_ready, n)
        for n in (1, 2, 4)
    }
    measured["the demo until its first round"] = first_round
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in measured}
    for _ in range(repeats):
        for name, measure in measured.items():
            taken[name].append(measure())
    print("| | CPU seconds | wall seconds |\n|---|---|---|")
    for name, each in taken.items():
        cpu, wall = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"| {name} | {cpu:.2f} | {wall:.1f} |")


if __name__ == "__main__":
    main()
