"""Golden traces: a short run a method, its numbers committed as hexadecimal floats.

A refactoring leaves them as they are; a change of the mathematics changes them, with its reason in the commit:
``KINFED_UPDATE_GOLDEN=1 pytest tests/methods/test_golden.py`` writes them anew. Bits are the same on one kind of
machine with one version of torch only; elsewhere the traces are compared to within rounding.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch

from kinfed.methods import METHODS
from tests.worlds import run, workshop

GOLDEN = Path(__file__).parent / "golden"


def machine() -> str:
    """What the bits depend on: torch's version and the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    told = cpuinfo.read_text().split("\n\n")[0].splitlines() if cpuinfo.is_file() else []
    kept = sorted(line for line in told if line.split("\t")[0].strip() in ("vendor_id", "cpu family", "model", "flags"))
    return f"torch {torch.__version__}, processor {hashlib.sha256(''.join(kept).encode()).hexdigest()[:16]}"


@pytest.mark.parametrize("name", METHODS)
def test_trace(name: str, tmp_path: Path) -> None:
    lines = run(workshop(name, rounds=6, participation=0.5), tmp_path / "out").lines
    told = ("train_loss", "personal_acc_mean") if METHODS[name].supervised else ("train_loss",)
    trace = [[line[quantity] for quantity in told] for line in lines]
    path = GOLDEN / f"{name}.json"
    if os.environ.get("KINFED_UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        hexadecimal = [[value.hex() for value in row] for row in trace]
        path.write_text(json.dumps({"machine": machine(), "loss and accuracy": hexadecimal}, indent=1) + "\n")
    golden = json.loads(path.read_text())
    expected = [[float.fromhex(value) for value in row] for row in golden["loss and accuracy"]]
    if golden["machine"] == machine():
        assert trace == expected
    else:
        assert [row[0] for row in trace] == pytest.approx([row[0] for row in expected], rel=1e-3)
