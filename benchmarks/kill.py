"""kill -9 at random moments: does a resumed comparison end the same, byte for byte, as one that never stopped?

Every method that is registered runs on the digits, with partial participation and augmentation, in one comparison.
``python benchmarks/kill.py --kills 50`` starts it, kills it at a moment drawn evenly from the time that it takes,
resumes it with `kinfed resume`, kills that again half of the time, and compares all files but those that tell the time.
Every fifth comparison has two worker processes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kinfed.methods import METHODS

TELL_THE_TIME = ("seconds.jsonl", "summary.json", "comparison.json", "report.html", "report.png")
SETTING = [
    "--clients", "8", "--partition", "iid", "--rounds", "6", "--participation", "0.5",
    "--checkpoint-every", "2", "--augment", "crop_flip",
]  # fmt: skip


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """The kinfed command, silent."""
    return subprocess.Popen(
        [sys.executable, "-m", "kinfed", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def files(folder: Path) -> dict[str, bytes]:
    """What must be the same."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in TELL_THE_TIME]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def killed_after(seconds: float, *arguments: str) -> bool:
    """Run the command for so long; whether it was still running."""
    process = start(*arguments)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def main() -> None:
    """Kill, resume, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(METHODS))
    given = parser.parse_args()
    rng = random.Random(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="kinfed-kill-"))
    pool = str(folder / "sources")
    for classes in ("0,1,2,3,4", "5,6,7,8,9"):
        train = ["--data", "digits", "--classes", classes, "--model", "tiny_cnn", "--epochs", "1", "--out", pool]
        start("sources", "train", *train).wait()
    methods = given.methods.split(",")
    votes = [argument for name in methods if "fedvote" in name for argument in ("--set", f"{name}.round=3")]
    comparison = ["compare", *methods, *SETTING, "--sources", pool, *votes]
    straight: dict[int, dict[str, bytes]] = {}
    took: dict[int, float] = {}
    for workers in (0, 2):
        out = folder / f"straight-{workers}"
        began = time.perf_counter()
        code = start(*comparison, "--workers", str(workers), "--out", str(out)).wait()
        took[workers], straight[workers] = time.perf_counter() - began, files(out)
        if code:
            sys.exit(f"the comparison itself fails, with exit code {code}")
        print(f"never stopped, {workers} workers: {took[workers]:.1f} s, {len(straight[workers])} files", flush=True)
    kills = trials = differ = nothing = 0
    while kills < given.kills:
        workers = 2 if trials % 5 == 4 else 0
        out = folder / f"trial-{trials}"
        trials += 1
        moments = [rng.uniform(0, took[workers])]
        kills += killed_after(moments[0], *comparison, "--workers", str(workers), "--out", str(out))
        if not out.exists() or not any(out.iterdir()):
            nothing += 1  # killed before there was a folder to resume
            print(f"trial {trials}, {workers} workers, killed after {moments[0]:.2f} s: no folder yet", flush=True)
            continue
        if rng.random() < 0.5:
            moments.append(rng.uniform(0, took[workers]))
            kills += killed_after(moments[1], "resume", str(out))
        code = start("resume", str(out)).wait()
        same = code == 0 and files(out) == straight[workers]
        differ += not same
        when = " and ".join(f"{moment:.2f}" for moment in moments)
        print(
            f"trial {trials}, {workers} workers, killed after {when} s: {'same' if same else 'DIFFERENT'}", flush=True
        )
        if same:
            shutil.rmtree(out)
    print(f"{kills} kills in {trials} comparisons of {given.methods}: {differ} ended differently,")
    print(
        f"{nothing} had no folder yet; what differs is kept in {folder}" if differ else f"{nothing} had no folder yet"
    )
    if not differ:
        shutil.rmtree(folder)
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
