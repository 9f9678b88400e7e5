"""Every registered method learns with its own defaults on the default data (case 333)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed.data import load
from kinfed.engine import save_model
from kinfed.methods import METHODS
from tests.worlds import card_of, pool

GUESSING = 0.1  # of ten classes

# What tells how good a model is, and not how it is trained: left out where it takes long.
UNASKED: dict[str, Any] = {"evaluate_every": 30, "knn_every": 0, "ft_epochs": 0, "quiet": True}


def a_pool(folder: Path) -> Path:
    """Source models: untrained ones, so that what is learned is learned after the transfer."""
    data = load("digits")
    folder.mkdir()
    for source in pool(data):
        about = {"architecture": "tiny_cnn", "bn": "track", "shape": data.shape, "classes": data.classes}
        card = json.loads(card_of(data, "tiny_cnn").model_dump_json())
        save_model(folder / f"{source.name}.safetensors", source.model.tensors(), about, card, lasting=False)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_with_its_defaults(name: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"sources": str(a_pool(tmp_path / "pool"))} if METHODS[name].needs_sources else {}
    result = kinfed.run(name, out=tmp_path / "out", **UNASKED, **given)
    summary = json.loads((result.path / "summary.json").read_text())
    assert summary["refused"] == summary["untested"] == 0
    assert summary["metrics"]["personal_acc_weighted"] > 4 * GUESSING
    assert summary["metrics"]["global_acc"] is None or summary["metrics"]["global_acc"] > 4 * GUESSING
