"""Every method learns with its defaults on the default data."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinfed
from kinfed.methods import METHODS

GUESSING = 0.1  # ten classes
CLEARLY = 4 * GUESSING


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.supervised and name != "fedvote"])
def test_a_method_learns_with_its_defaults_on_the_default_data(name: str, out: Path) -> None:  # case 333
    needed = {"shift": "rotate:2"} if name == "oracle_groups" else {}
    (summary,) = kinfed.run(name, out=out, evaluate_every=30, ft_epochs=0, quiet=True, **needed).summaries
    assert summary["rounds"] == 30
    assert summary["metrics"]["personal_acc_weighted"] > CLEARLY


@pytest.mark.slow
def test_fedvote_learns_with_its_defaults_on_the_default_data(out: Path, tmp_path: Path) -> None:
    pool = kinfed.train_sources(["digits"], out=tmp_path / "pool", model="tiny_cnn", epochs=1, quiet=True)
    (summary,) = kinfed.run("fedvote", out=out, sources=str(pool), evaluate_every=30, ft_epochs=0, quiet=True).summaries
    assert summary["metrics"]["personal_acc_weighted"] > CLEARLY


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if not kind.supervised])
def test_a_representation_learned_with_the_defaults_tells_the_classes_apart(name: str, out: Path) -> None:
    """Of 3 rounds: 30 take minutes, and a linear probe of any encoder but a collapsed one is far above guessing."""
    (summary,) = kinfed.run(name, out=out, rounds=3, quiet=True).summaries
    assert summary["metrics"]["linear_global_acc_mean"] > 3 * GUESSING  # central_byol had 0.385 on one processor
    assert not summary["collapsed"]
