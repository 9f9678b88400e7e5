"""Start weights that differ by client: a folder with a file for each one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import kinfed
from kinfed.errors import InputError
from kinfed.models import build

SMALL: dict[str, Any] = {
    "data": "digits", "clients": 3, "partition": "iid", "rounds": 1, "model": "mlp", "ft_epochs": 0, "quiet": True,
}  # fmt: skip


def written(folder: Path, *names: str, model: str = "mlp") -> Path:
    """Write a file of random weights for each name."""
    folder.mkdir()
    for seed, name in enumerate(names):
        save_file(build(model, (1, 8, 8), 10, seed=100 + seed).tensors(), folder / f"{name}.safetensors")
    return folder


def test_each_client_starts_from_its_own_file(tmp_path: Path) -> None:
    folder = written(tmp_path / "w", "0", "1", "2")
    kinfed.run("local", out=tmp_path / "run", weights=folder, lr=1e-12, **SMALL)  # so small that weights hardly move
    for id in range(3):
        saved = load_file(tmp_path / f"run/models/client-{id:05d}-personal.safetensors")
        begun = load_file(folder / f"{id}.safetensors")
        assert all(torch.allclose(saved[name], begun[name], atol=1e-6) for name in begun)
    assert not torch.equal(load_file(folder / "0.safetensors")["head.weight"], begun["head.weight"])


@pytest.mark.slow
def test_workers_and_resumed_runs_start_from_the_same_files(tmp_path: Path) -> None:
    folder = written(tmp_path / "w", "0", "1", "2")
    kinfed.run("local", out=tmp_path / "whole", weights=folder, **{**SMALL, "rounds": 2, "lr_schedule": "constant"})
    kinfed.run("local", out=tmp_path / "two", weights=folder, workers=2, **{**SMALL, "lr_schedule": "constant"})
    kinfed.resume(tmp_path / "two", rounds=2, quiet=True)
    lines = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("whole", "two")]
    assert lines[0].splitlines()[-1] == lines[1].splitlines()[-1]


def test_files_may_be_of_different_architectures(tmp_path: Path) -> None:
    folder = written(tmp_path / "w", "0", "1", "2")
    save_file(build("tiny_cnn", (1, 8, 8), 10, seed=7).tensors(), folder / "0.safetensors")
    how = {**SMALL, "models": "tiny_cnn:0.4,mlp:0.6"}
    del how["model"]
    result = kinfed.run("local", out=tmp_path / "run", weights=folder, **how)
    assert "personal_acc_mean_of_tiny_cnn" in result.summaries[0]["metrics"]


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = written(tmp_path / "w", "0", "1", "north")
    with pytest.raises(InputError, match=r"^weights: '.*w' has no file for client 2; it has 0, 1, north, and"):
        kinfed.run("local", out=tmp_path / "run", weights=folder, **SMALL)
    with pytest.raises(InputError, match=r"^weights: '.*w' is a folder, but fedper starts all clients from"):
        kinfed.run("fedper", out=tmp_path / "run", weights=folder, **SMALL)
    with pytest.raises(InputError, match=r"^weights: .*north.safetensors' is of one architecture; models"):
        kinfed.run(
            "local", out=tmp_path / "run", weights=folder / "north.safetensors", models="mlp:0.5,tiny_cnn:0.5",
            data="digits",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
