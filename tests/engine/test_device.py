"""Methods on the device in $KINFED_TEST_DEVICE, by default the CPU: near the CPU's results, and the same bits twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import kinfed
from kinfed.models import read_tensors, saved_models

DEVICE = os.environ.get("KINFED_TEST_DEVICE", "cpu")
FIELDS: dict[str, Any] = {
    "data": "digits", "train_images": 200, "model": "tiny_cnn", "clients": 4, "partition": "iid", "public": 16,
    "rounds": 2, "lr": 0.02, "ft_epochs": 0, "quiet": True,
}  # fmt: skip
ALL = ("fedavg", "scaffold", "fedcka", "fedper", "fedshibu", "fedkin", "fedcrc", "hetero_ssfl")
DRY = (pytest.param("fedavg", marks=pytest.mark.slow), "fedshibu")
METHODS = DRY if DEVICE == "cpu" else ALL


def models_of(run: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of all saved models of a run."""
    found = {}
    for name in saved_models(run / "models"):
        tensors = read_tensors(run / "models" / f"{name}.safetensors")[0]
        found |= {f"{name}/{key}": tensor.double() for key, tensor in tensors.items()}
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_near_that_on_the_processor_and_has_the_same_bits_twice(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DEVICE.startswith("cuda"):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    fields = FIELDS | ({"linear_probe": True} if method == "hetero_ssfl" else {})
    first, second = (models_of(kinfed.run(method, out=tmp_path / n, device=DEVICE, **fields).path) for n in "ab")
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    workers = 2 if DEVICE == "cpu" else 0  # the dry run compares with other processes
    other = models_of(kinfed.run(method, out=tmp_path / "cpu", workers=workers, **fields).path)
    for name, tensor in first.items():
        difference = (tensor - other[name]).abs().max().item()
        assert difference <= 1e-3 * max(1.0, other[name].abs().max().item()), name
