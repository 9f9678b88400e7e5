"""Ended at random moments: does a resumed comparison end the same, byte for byte, as one that never stopped?

All registered methods run on the digits once without a stop, with partial participation and augmentation, in this
process and in two worker processes. Each trial of ``python benchmarks/kill.py --kills 100`` then draws three of them
(all have their turn before one comes again), starts them with two worker processes or none, and ends that at a moment
drawn evenly from the time that it works, after its start: by SIGKILL to the process, by SIGKILL to its whole group, by
SIGTERM or by SIGHUP. It resumes with `kinfed resume`, ends that likewise half of the time, and compares all files of
the runs but those that tell the time. Afterwards nothing of kinfed's may lie in shared memory. ``--seed`` of a second
call goes on elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from kinfed.engine.exchange import LOCK
from kinfed.methods import METHODS

# Files that tell the time, or, as the config, which sources other methods of the comparison had.
TELL_THE_TIME = (
    "config.toml", "seconds.jsonl", "summary.json", "comparison.json", "report.html", "report.png", ".lock",
)  # fmt: skip
SETTING = [
    "--clients", "8", "--partition", "iid", "--rounds", "6", "--checkpoint-every", "2", "--knn-every", "0",
]  # fmt: skip
SHARED_MEMORY = Path("/dev/shm")
ENDS = ("SIGKILL", "SIGKILL of the group", "SIGTERM", "SIGHUP")
AT_ONCE = 3  # methods


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """The kinfed command, silent, in a process group of its own."""
    command = [sys.executable, "-m", "kinfed", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def files(folder: Path) -> dict[str, bytes]:
    """What must be the same."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in TELL_THE_TIME]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def started(process: subprocess.Popen[bytes], out: Path) -> float:
    """Wait until a comparison has begun or its process has ended; return the seconds that this took."""
    began = time.perf_counter()
    while process.poll() is None and not (out / "comparison.toml").is_file():
        time.sleep(0.05)
    return time.perf_counter() - began


def ended_after(seconds: float, how: str, out: Path, *arguments: str) -> bool:
    """Run a command for some seconds after its start, and end it; return True if it was still running."""
    process = start(*arguments)
    started(process, out)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        if how == "SIGKILL of the group":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.send_signal(signal.Signals[how])
        process.wait(120)
        return True
    return False


def in_shared_memory() -> list[str]:
    """What lies there of kinfed's, but for folders of processes that live: other runs on this machine."""
    left = []
    for path in sorted(SHARED_MEMORY.glob("kinfed-*")):
        with contextlib.suppress(Timeout, FileNotFoundError), FileLock(path / LOCK).acquire(timeout=0):
            left.append(path.name)
    return left


def turns(methods: list[str], rng: random.Random) -> Iterator[list[str]]:
    """Some of the methods, again and again; each has its turn before one comes again."""
    while True:
        order = rng.sample(methods, len(methods))
        yield from (order[at : at + AT_ONCE] for at in range(0, len(order), AT_ONCE))


def comparison(methods: list[str], workers: int, pool: str, out: Path) -> list[str]:
    """The arguments of a comparison of some methods."""
    votes = [of for name in methods if "fedvote" in name for of in ("--set", f"{name}.round=3")]
    sources = ["--sources", pool] if votes else []
    small = [of for name in methods for of in _narrow(name)]
    kinds = [METHODS[name.removeprefix("fedvote+")] for name in methods]
    tuned = ["--ft-epochs", "1"] if any(kind.supervised for kind in kinds) else []
    half = ["--participation", "0.5"] if any(kind.trains == "sampled" for kind in kinds) else []
    what = [*methods, *SETTING, *tuned, *half, *sources, *votes, *small]
    return ["compare", *what, "--workers", str(workers), "--out", str(out)]


def _narrow(name: str) -> list[str]:
    """Small projectors and predictors: what a kill does to a run has nothing to do with their width."""
    if METHODS[name.removeprefix("fedvote+")].supervised:
        return []
    return ["--set", f"{name}.hidden=32", "--set", f"{name}.out=16"]


def never_stopped(
    methods: list[str], pool: str, folder: Path
) -> tuple[dict[int, Path], dict[int, tuple[float, float]]]:
    """The comparison of all methods, by its workers, and how long a few of them take to start and to work."""
    straight, took = {}, {}
    for workers in (0, 2):
        straight[workers] = folder / f"straight-{workers}"
        began = time.perf_counter()
        code = start(*comparison(methods, workers, pool, straight[workers])).wait()
        if code:
            sys.exit(f"the comparison itself fails, with exit code {code}")
        seconds = time.perf_counter() - began
        few = folder / f"few-{workers}"
        process = start(*comparison(methods[:AT_ONCE], workers, pool, few))
        to_start, began = started(process, few), time.perf_counter()
        process.wait()
        took[workers] = (to_start, time.perf_counter() - began)
        print(f"never stopped, {workers} workers: {seconds:.0f} s", flush=True)
    return straight, took


def end_it(
    arguments: list[str], out: Path, seconds: tuple[float, float], rng: random.Random
) -> list[tuple[str, float]]:
    """End a comparison, and half of the time once more while it is resumed: how, and after how many seconds."""
    done, (to_start, to_work) = [], seconds
    for again in range(rng.choice((1, 2))):
        how, moment = rng.choice(ENDS), rng.uniform(0, to_work) + again * to_start  # a resumed one has its folder
        if ended_after(moment, how, out, *arguments):
            done.append((how, moment))
        arguments = ["resume", str(out)]
    return done


def main() -> None:
    """End, resume, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join([*METHODS, "fedvote+fedprox"]))
    given = parser.parse_args()
    rng, methods = random.Random(given.seed), given.methods.split(",")
    folder = Path(tempfile.mkdtemp(prefix="kinfed-kill-"))
    pool = str(folder / "sources")
    for classes in ("0,1,2,3,4", "5,6,7,8,9"):
        train = ["--data", "digits", "--classes", classes, "--model", "tiny_cnn", "--epochs", "1", "--out", pool]
        start("sources", "train", *train).wait()
    straight, took = never_stopped(methods, pool, folder)
    kills: Counter[str] = Counter()
    trials = differ = 0
    for some in turns(methods, rng):
        if sum(kills.values()) >= given.kills:
            break
        workers, out = rng.choice((0, 2)), folder / f"trial-{trials}"
        trials += 1
        done = end_it(comparison(some, workers, pool, out), out, took[workers], rng)
        kills.update(how for how, _ in done)
        code = start("resume", str(out)).wait()
        runs = [f"{name}-seed0" for name in some]
        same = code == 0 and all(files(out / run) == files(straight[workers] / run) for run in runs)
        left = in_shared_memory()
        differ += not same or bool(left)
        verdict = f"LEFT in shared memory: {left}" if left else "same" if same else f"DIFFERENT, exit code {code}"
        told = " and ".join(f"{how} after {moment:.1f} s" for how, moment in done)
        print(f"trial {trials}, {', '.join(some)}, {workers} workers, {told}: {verdict}", flush=True)
        if same:
            shutil.rmtree(out)
    counted = ", ".join(f"{count} by {how}" for how, count in sorted(kills.items()))
    print(f"{sum(kills.values())} ends ({counted}) in {trials} comparisons of {AT_ONCE} of {len(methods)} methods:")
    print(f"{differ} ended differently or left something behind")
    if differ:
        print(f"what differs is kept in {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
