"""Differential privacy for all methods of an experiment: what is joined with it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kinfed
from kinfed.errors import InputError
from kinfed.experiment.configure import configure
from kinfed.methods.privacy_loss import epsilon
from kinfed.report.folders import read_runs
from kinfed.report.table import table

SMALL = {
    "data": "digits", "model": "tiny_cnn", "train_images": 200, "public": 0, "clients": 5, "rounds": 2, "ft_epochs": 0,
    "lr_schedule": "constant",
}  # fmt: skip


def test_every_method_that_sends_something_is_protected_and_training_alone_is_not() -> None:
    config = configure({"methods": ("fedprox:mu=1", "local"), "dp": "noise=2,clip=0.5"})
    assert config.methods == ("dp+fedprox:mu=1", "local")
    own = config.settings["dp+fedprox:mu=1"]
    assert (own["noise"], own["clip"], own["mu"]) == (2.0, 0.5, 1.0)


def test_settings_of_a_method_stay_with_it() -> None:
    config = configure({"methods": ("fedprox",), "settings": {"fedprox": {"mu": "3"}}, "dp": "epsilon=8"})
    assert (config.settings["dp+fedprox"]["mu"], config.settings["dp+fedprox"]["epsilon"]) == (3.0, 8.0)


@pytest.mark.parametrize(
    ("methods", "dp", "message"),
    [
        (("fedavg",), "noise", "dp: 'noise' must have the form FIELD=VALUE"),
        (("local",), "noise=1", "dp: 'noise=1' would have no effect"),
        (("fedshibu",), "noise=1", "'dp\\+fedshibu' is not allowed; noise protects a method whose server"),
        (("fedavg",), "noise=-1", "dp\\+fedavg.noise: '-1' is not allowed; must be greater than 0"),
        (("fedavg",), "epsilon=8,noise=2", "noise"),
        (("fedavg",), "sigma=1", "'sigma' is not known"),
    ],
)
def test_what_cannot_be_protected_is_refused_in_one_line(methods: tuple[str, ...], dp: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        configure({"methods": methods, "dp": dp})
    assert "\n" not in str(error.value)


def test_the_loss_is_in_summary_and_table(tmp_path: Path) -> None:
    result = kinfed.run("fedavg", dp="noise=2,clip=0.5", out=tmp_path / "run", quiet=True, **SMALL)  # type: ignore[arg-type]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["epsilon"] == epsilon(2.0, 1e-5, 2, 5, 5)
    assert summary["delta"] == 1e-5
    assert "ε" in table(read_runs([result.path])).headings


def test_a_run_that_was_resumed_for_more_rounds_tells_the_loss_of_all(tmp_path: Path) -> None:
    kinfed.run("fedavg", dp="noise=2,clip=0.5", out=tmp_path / "run", quiet=True, **SMALL)  # type: ignore[arg-type]
    kinfed.resume(tmp_path / "run", rounds=3, quiet=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["epsilon"] == epsilon(2.0, 1e-5, 3, 5, 5)
