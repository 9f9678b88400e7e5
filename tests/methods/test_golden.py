"""Golden traces: a short run a method, its numbers committed as hexadecimal floats, for each kind of machine.

A refactoring leaves them as they are; a change of the mathematics changes them, with its reason in the commit:
``KINFED_UPDATE_GOLDEN=1 pytest tests/methods/test_golden.py`` writes those of this machine, and drops those of others
that are not within rounding of them. Bits are the same on one kind of machine with one version of torch and one choice
of instructions only; elsewhere the traces are compared to within rounding.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch

from kinfed.methods import METHODS
from tests.builders import build_runtime, run

GOLDEN = Path(__file__).parent / "golden"

# What tells libraries which instructions to use, whatever the processor has.
INSTRUCTIONS = (
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR",
    "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES",
)  # fmt: skip

Trace = list[list[float]]


def machine() -> str:
    """What the bits depend on: torch's version, the processor, and the instructions that may be used of it."""
    cpuinfo = Path("/proc/cpuinfo")
    told = cpuinfo.read_text().split("\n\n")[0].splitlines() if cpuinfo.is_file() else []
    kept = sorted(line for line in told if line.split("\t")[0].strip() in ("vendor_id", "cpu family", "model", "flags"))
    limits = [f"{name}={os.environ[name]}" for name in INSTRUCTIONS if os.environ.get(name)]
    processor = hashlib.sha256("".join(kept).encode()).hexdigest()[:16]
    return ", ".join([f"torch {torch.__version__}", f"processor {processor}", *limits])


def within_rounding(trace: Trace, other: Trace, supervised: bool) -> bool:
    """Whether the losses agree to within what rounding, enlarged by some rounds of SGD, makes of them.

    BYOL enlarges it most: 1e-7 in the first round were 1.3 % in the fifth between two processors.
    """
    late = 1e-3 if supervised else 0.03
    close = [
        row[0] == pytest.approx(of[0], rel=late if at else 1e-3)
        for at, (row, of) in enumerate(zip(trace, other, strict=False))
    ]
    return len(trace) == len(other) and all(close)


@pytest.mark.parametrize("name", METHODS)
def test_trace(name: str, tmp_path: Path) -> None:
    lines = run(build_runtime(name, rounds=6, participation=0.5), tmp_path / "out").lines
    supervised = METHODS[name].supervised
    told = ("train_loss", "personal_acc_mean") if supervised else ("train_loss",)
    trace = [[line[quantity] for quantity in told] for line in lines]
    path = GOLDEN / f"{name}.json"
    golden: dict[str, Trace] = {}
    if path.is_file():
        kept = json.loads(path.read_text())["loss and accuracy"]
        golden = {of: [[float.fromhex(value) for value in row] for row in rows] for of, rows in kept.items()}
    if os.environ.get("KINFED_UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        golden = {of: rows for of, rows in golden.items() if within_rounding(trace, rows, supervised)} | {
            machine(): trace
        }
        hexadecimal = {of: [[value.hex() for value in row] for row in rows] for of, rows in golden.items()}
        path.write_text(json.dumps({"loss and accuracy": hexadecimal}, indent=1) + "\n")
    assert golden, "no trace is committed"
    if machine() in golden:
        assert trace == golden[machine()]
    for of, rows in golden.items():  # another release of torch may compute late rounds otherwise
        rounds = len(trace) if of.startswith(f"torch {torch.__version__.partition('+')[0]}") else 1
        assert within_rounding(trace[:rounds], rows[:rounds], supervised)
