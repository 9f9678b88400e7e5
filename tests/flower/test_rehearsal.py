"""A real SuperLink with two nodes on loopback, with keys and encryption."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from kinfed.engine import RunFolder
from kinfed.models import read_tensors
from kinfed.testing import same

COMMAND = (sys.executable, "-m", "kinfed", "run", "fedper", "--data", "digits", "--clients", "2", "--partition", "iid",
           "--rounds", "1", "--ft-epochs", "0", "--json")  # fmt: skip


def ours() -> set[str]:
    """Command lines of the processes of this machine that belong to a rehearsal."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return {line.replace(b"\0", b" ").decode() for line in lines if b"kinfed-flower-" in line}


@pytest.mark.slow
def test_a_real_superlink_gives_the_same_bits_and_leaves_no_process(tmp_path: Path) -> None:
    before = ours()
    for out, more in (("sites", ["--executor", "flower"]), ("here", [])):
        done = subprocess.run(
            [*COMMAND, "--out", str(tmp_path / out), *more], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert ours() == before
    one, other = (
        read_tensors(tmp_path / out / "checkpoints" / "round-000001.safetensors")[0] for out in ("sites", "here")
    )
    assert same(one, other)
    assert RunFolder(tmp_path / "sites").lines("metrics.jsonl") == RunFolder(tmp_path / "here").lines("metrics.jsonl")
    assert not [*(tmp_path / "sites").rglob("client-*")]  # what is private is at the sites
    assert len([*tmp_path.glob("sites-sites/site-*/state/runs/*/models/client-*-personal.safetensors")]) == 2
    assert json.loads((tmp_path / "sites" / "federation.json").read_text())["names"] == ["0", "1"]
