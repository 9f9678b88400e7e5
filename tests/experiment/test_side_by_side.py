"""Runs side by side write the files of runs in turn; a signal ends all, and a lost process is made up for."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import kinfed
from kinfed.display import Display
from kinfed.errors import InputError, RunFailed
from kinfed.methods import Client, ClientState, Message
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedper import FedPer

SMALL: dict[str, Any] = {"clients": 4, "partition": "iid", "rounds": 4, "ft_epochs": 0, "checkpoint_every": 2}
RESULTS = ("metrics.jsonl", "federation.json", "*.safetensors", "confusion.json")


def results(folder: Path) -> dict[str, bytes]:
    """The files of a comparison without times."""
    return {str(path.relative_to(folder)): path.read_bytes() for name in RESULTS for path in folder.rglob(name)}


@pytest.mark.slow
def test_runs_side_by_side_write_the_files_of_runs_in_turn(tmp_path: Path) -> None:
    methods = ["fedavg", "fedper"]
    beside = kinfed.compare(methods, out=tmp_path / "beside", seeds=2, parallel=2, quiet=True, **SMALL)
    in_turn = kinfed.compare(methods, out=tmp_path / "turn", seeds=2, quiet=True, **SMALL)
    assert results(beside.path) == results(in_turn.path)
    order = [[(run["method"], run["seed"]) for run in of.summaries] for of in (beside, in_turn)]
    assert order[0] == order[1]
    assert len(order[0]) == 6


@pytest.mark.slow
def test_a_tuning_side_by_side_chooses_what_one_in_turn_does(tmp_path: Path) -> None:
    for count, name in ((1, "turn"), (2, "beside")):
        kinfed.tune(
            "fedavg",
            over=["lr=0.01,0.1,1000000000"],
            out=tmp_path / name,
            parallel=count,
            quiet=True,
            validation=0.2,
            seeds=1,
            **SMALL,
        )
    told = [json.loads((tmp_path / name / "tuning" / "trials.json").read_text()) for name in ("turn", "beside")]
    assert told[0] == told[1]
    assert results(tmp_path / "turn") == results(tmp_path / "beside")


@dataclass(frozen=True, kw_only=True)
class Struck(FedPer):
    """FedPer whose run's process is killed once, in round 3.

    Attributes:
        mark: File that tells that it has happened.
    """

    mark: str = ""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        if client.round == 3 and self.mark and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().update(client, message, state)


@dataclass(frozen=True, kw_only=True)
class Hopeless(FedAvg):
    """Nobody's work ever ends well."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        raise ZeroDivisionError


@dataclass(frozen=True, kw_only=True)
class Deadly(FedAvg):
    """Every process ends in the first round."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        os._exit(3)


@pytest.mark.slow
def test_a_run_whose_process_is_killed_goes_on_and_one_that_kills_three_has_failed_as_others_do(tmp_path: Path) -> None:
    methods = [Struck(mark=str(tmp_path / "mark")), Hopeless(), Deadly()]
    with pytest.raises(RunFailed) as failed:
        kinfed.compare(methods, out=tmp_path / "out", parallel=2, quiet=True, **SMALL)
    hopeless, deadly = str(failed.value).split("; tests.")[0], str(failed.value)
    assert "Hopeless (seed 0): no client sent a usable update in 3 rounds in a row" in hopeless
    assert "3 processes were lost with it; the last one ended with exit code 3" in deadly
    assert (tmp_path / "mark").exists()
    (struck,) = (tmp_path / "out").glob("*Struck*")
    alone = kinfed.run(Struck(), out=tmp_path / "alone", quiet=True, **SMALL).path
    assert (struck / "metrics.jsonl").read_bytes() == (alone / "metrics.jsonl").read_bytes()


def running(pid: int) -> list[str]:
    """Processes whose parent, or its parent, is a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[stat.parent.name] = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
    children = {of for of, parent in parents.items() if parent == str(pid)}
    return [of for of, parent in parents.items() if parent in children] + [*children]


@pytest.mark.slow
def test_a_signal_ends_all_runs_with_checkpoints_and_the_comparison_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--clients=4", "--partition=iid", "--rounds=30", "--ft-epochs=0", "--parallel=2", f"--out={out}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfed", "compare", "fedavg", "fedprox", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    files = [out / f"{name}-seed0" / "metrics.jsonl" for name in ("fedavg", "fedprox")]
    while process.poll() is None and not all(file.is_file() and file.stat().st_size for file in files):
        time.sleep(0.01)
    others = running(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, told = process.communicate(timeout=100)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert told.count("stops after round") == 2
    for file in files:
        done = len(file.read_text().splitlines())
        assert 0 < done < 30
        assert f"round-{done:06d}" in [path.stem for path in (file.parent / "checkpoints").iterdir()]
    end = time.monotonic() + 30
    while any(Path("/proc", pid).exists() for pid in others) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in others if Path("/proc", pid).exists()]
    fields = SMALL | {"rounds": 30, "checkpoint_every": 10}
    kinfed.resume(out, quiet=True)
    undisturbed = kinfed.compare(["fedavg", "fedprox"], out=tmp_path / "undisturbed", quiet=True, **fields)
    for file in files:
        assert file.read_bytes() == (undisturbed.path / file.relative_to(out)).read_bytes()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"executor": "flower"}, "parallel: 2 is not possible with executor=flower; its sites work side by side"),
        ({"executor": "ray", "workers": 1}, "parallel: 2 is not possible with executor=ray; give the address"),
        ({"executor": kinfed.SerialExecutor()}, "parallel: 2 would do nothing, since an executor is given"),
    ],
)
def test_executors_without_runs_side_by_side_are_told(fields: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{told}"):
        kinfed.compare("fedavg", out=tmp_path / "out", parallel=2, quiet=True, **fields)
    assert not (tmp_path / "out").exists()


def test_one_run_alone_refuses_to_be_side_by_side(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^parallel: 2 would do nothing; it is of several runs, as of compare$"):
        kinfed.run("fedavg", out=tmp_path / "out", parallel=2, quiet=True)


def test_runs_side_by_side_have_a_bar_each_until_they_are_over() -> None:
    with Display(Console(file=io.StringIO(), force_terminal=True, width=100)) as display:

        def shown() -> list[str]:
            return [bar.name for bar in display.bars._bars]

        first = display.run("fedavg", 0, 4)
        first.stay()
        second = display.run("fedavg", 1, 4)
        second.stay()
        assert shown() == ["fedavg (seed 1)", "fedavg (seed 0)"]
        first.over()
        assert shown() == ["fedavg (seed 1)"]
        display.run("fedavg", 2, 4)
        assert shown() == ["fedavg (seed 2)", "fedavg (seed 1)"]
        display.run("fedavg", 3, 4)  # runs in turn take the place of the one before
        assert shown() == ["fedavg (seed 3)", "fedavg (seed 1)"]
    assert shown() == []
