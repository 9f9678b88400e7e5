"""A stranger's method, in one file that knows nothing but kinfed's public modules, comes in by every door."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kinfed
from tests.builders import write_package

FILE = Path(__file__).with_name("feddyn.py")
FIELDS = ["--clients", "5", "--rounds", "3", "--train-images", "200", "--ft-epochs", "0", "--public", "0"]

SCRIPT = '''
from mymod import FedDyn as Theirs
import kinfed
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class FedDyn(Theirs):
    """A class of the program itself, as in a cell of a notebook."""

small = dict(clients=5, rounds=3, train_images=200, ft_epochs=0, public=0, quiet=True)
kinfed.run(Theirs(alpha=0.3), out="object", **small)
executor = kinfed.ProcessExecutor(2)
kinfed.run(FedDyn(alpha=0.3), out="cell", executor=executor, **small)
executor.close()
result = kinfed.compare([FedDyn(alpha=0.3), Theirs(alpha=0.3), Theirs(alpha=1.0), "fedavg"], out="both", **small)
result.report()
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the method in a file of its own, which is also installed as a package's entry point."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copy(FILE, folder / "mymod.py")
    write_package(folder / "site", "kinfed-feddyn", "0.1", "[kinfed.methods]\nfeddyn = mymod:FedDyn\n")
    return folder


def run(place: Path, *arguments: str, stdin: str | None = None) -> str:
    """Output of a command of Python's in that directory."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        input=stdin,
        text=True,
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{Path(kinfed.__file__).parents[1]}:{place / 'site'}:{place}"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def curve(folder: Path) -> str:
    """The rounds of a run."""
    return (folder / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_by_import_path_entry_point_object_and_class_of_the_program(place: Path) -> None:
    alpha = ["--set", "mymod:FedDyn.alpha=0.3"]
    shown = run(place, "-m", "kinfed", "run", "mymod:FedDyn", *alpha, "--out", "path", *FIELDS)
    assert "mymod:FedDyn" in shown
    run(place, "-m", "kinfed", "run", "feddyn:alpha=0.3", "--out", "name", "--workers", "2", *FIELDS)
    assert "feddyn" in (listed := run(place, "-m", "kinfed", "methods"))
    assert "[kinfed-feddyn 0.1]" in listed
    run(place, "-", stdin=SCRIPT)
    folders = ["path", "name", "object", "cell", "both/FedDyn-seed0", "both/feddyn-alpha=0.3-seed0"]
    assert len({curve(place / folder) for folder in folders}) == 1
    assert curve(place / "both" / "feddyn-alpha=1.0-seed0") != curve(place / "path")
    assert curve(place / "both" / "fedavg-seed0") != curve(place / "path")
    summaries = json.loads((place / "both" / "comparison.json").read_text())
    assert [summary["method"] for summary in summaries] == [
        "<FedDyn>",
        "feddyn:alpha=0.3",
        "feddyn:alpha=1.0",
        "fedavg",
    ]
    page = (place / "both" / "report.html").read_text()
    assert "feddyn:alpha=1.0" in page
    assert "&lt;FedDyn&gt;" in page


@pytest.mark.slow
def test_what_was_stopped_goes_on_to_the_same_bytes_once_its_code_is_allowed(place: Path) -> None:
    run(place, "-m", "kinfed", "run", "mymod:FedDyn", "--checkpoint-every", "1", "--out", "whole", *FIELDS)
    shutil.copytree(place / "whole", place / "stopped")
    for gone in ("summary.json", "checkpoints/round-000003.safetensors"):
        (place / "stopped" / gone).unlink()
    with pytest.raises(AssertionError, match="--allow-code"):
        run(place, "-m", "kinfed", "resume", "stopped")
    run(place, "-m", "kinfed", "resume", "stopped", "--allow-code")
    for name in ("metrics.jsonl", "models/global.safetensors", "checkpoints/round-000003.safetensors"):
        assert (place / "stopped" / name).read_bytes() == (place / "whole" / name).read_bytes()
