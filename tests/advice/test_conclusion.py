"""The paragraph from runs made by hand, and the command that it ends with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfed.advice.conclusion import best_first, command, conclusion, with_settings
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.configure import configure
from kinfed.report.folders import Run
from tests.report.test_table import made

CLIENTS = 6
SIZES = [20, 20, 20, 50, 50, 50]


def row(method: str, accuracy: float, *, mb: float = 1.0, spread: float = 0.0, few: float = 0.0) -> list[Run]:
    """Three seeds of a method: ``few`` is added for clients with few samples, ``spread`` times the seed for all."""
    runs = []
    for seed in range(3):
        own = accuracy + spread * (seed - 1) + few * (np.array(SIZES) < 30)
        more: dict[str, Any] = {"communication": {"down_bytes": int(mb * 5e5), "up_bytes": int(mb * 5e5)}}
        line = {"round": 3, "client_acc": {"personal": own.tolist()}}
        run = made(method, float(own.mean()), seed, lines=[line], summary=more)
        run.federation.update(test=[100] * CLIENTS, train=[[size, 0] for size in SIZES])
        runs.append(run)
    return runs


def test_the_best_method_is_used_where_all_others_are_worse() -> None:
    runs = [*row("fedper", 0.8, mb=2.5), *row("fedavg", 0.6), *row("local", 0.7, mb=0), *row("central", 0.9, mb=0)]
    assert best_first(runs) == ["fedper"]
    assert conclusion(runs, {"fedper": "fedper:lr=0.03"}) == (
        "Use fedper:lr=0.03: 0.800 on the clients' own test samples. Each of the others that were compared is "
        "worse, with a 95 % interval that leaves out zero. Against training alone (0.700), fedper is at +0.100 (95 % "
        "interval +0.044 to +0.156). Of 6 clients, 6 gain and none loses. Clients with up to 35 training samples are "
        "at +0.100, the others at +0.100. A run sends 2.5 MB over all rounds and clients and takes 1.3 s; training "
        "alone takes 1.3 s. With all data at one place, central has 0.900. All of this is measured with 3 fresh seeds "
        "that chose no setting, on 600 test samples in each."
    )


def test_the_best_of_those_that_cannot_be_told_apart_is_used_and_the_cheapest_is_named() -> None:
    runs = [*row("fedper", 0.81, mb=2, spread=0.03), *row("fedproto", 0.80, mb=0.02), *row("local", 0.5, mb=0)]
    assert best_first(runs) == ["fedper", "fedproto"]
    assert (
        "Use fedper: 0.810 on the clients' own test samples. fedper (0.810) and fedproto (0.800) cannot be told "
        "apart: the 95 % interval of each difference to the best has zero in it. Of these, fedproto costs the least. "
        "Against training alone (0.500), fedper is at +0.310"
    ) in conclusion(runs, {})
    assert "A run sends 2.0 MB over all rounds and clients" in conclusion(runs, {})


def test_training_alone_is_named_if_no_method_is_known_to_be_better() -> None:
    runs = [*row("fedper", 0.81, spread=0.05), *row("local", 0.80, mb=0)]
    assert best_first(runs) == ["fedper", "local"]
    told = conclusion(runs, {"fedper": "fedper:lr=0.3"})
    assert told.startswith(
        "Use fedper:lr=0.3: 0.810 on the clients' own test samples. fedper (0.810) and local (0.800)"
    )
    assert "Of these, local sends nothing. Against training alone (0.800), fedper is at +0.010" in told


def test_training_alone_is_used_if_it_is_best() -> None:
    told = conclusion([*row("fedper", 0.79, spread=0.05), *row("local", 0.80, mb=0)], {"local": "local:lr=0.3"})
    assert told.startswith("Use local:lr=0.3: 0.800 on the clients' own test samples.")
    assert "A run sends nothing and takes 1.3 s." in told


def test_pooled_data_are_never_the_advice() -> None:
    assert best_first([*row("central", 0.99, mb=0), *row("fedavg", 0.5), *row("local", 0.4, mb=0)]) == ["fedavg"]
    with pytest.raises(InputError, match="no method has an accuracy"):
        best_first(row("central", 0.99))


def test_the_gain_is_told_by_the_clients_sizes() -> None:
    runs = [*row("fedper", 0.8, few=0.1), *row("local", 0.7, mb=0)]
    assert "Clients with up to 35 training samples are at +0.200, the others at +0.100." in conclusion(runs, {})


def test_the_intervals_are_those_of_single_differences() -> None:
    """Correction for many rows would call a tie what is most likely worse."""
    others = [of for n in range(12) for of in row(f"fedprox:mu={n}", 0.3)]
    runs = [*row("fedper", 0.8, spread=0.045), *row("local", 0.65, mb=0), *others]
    assert best_first(runs) == ["fedper"]


def fields(text: str) -> dict[str, Any]:
    words = shlex.split(text)
    assert words[:2] == ["kinfed", "run"]
    options = {name.removeprefix("--").replace("-", "_"): v for name, v in zip(words[3::2], words[4::2], strict=True)}
    return {"methods": words[2], **options}


@pytest.mark.parametrize("method", ["fedprox", "local", "fedshibu", "scaffold", "fedbyol"])
def test_the_command_gives_the_config_of_the_advice(method: str) -> None:
    given = {
        "clients": 8, "shift": "rotate:2", "partition": "dirichlet:alpha=0.3", "validation": 0.2, "seeds": 5, "seed": 3,
        "rounds": 7, "lr": 0.2, "momentum": 0.5, "ft_epochs": 0, "knn_every": 2, "evaluate_every": 2, "log": None,
    }  # fmt: skip
    settings = {method: {"lr": 0.03, **({"mu": 1.0} if method == "fedprox" else {})}}
    asked = Config.checked({**given, "methods": (method,), "settings": settings})
    made = configure(fields(str(command(asked, method))))  # refuses what the method does not read
    (label,) = made.methods
    assert made.method(label) == asked.method(method)
    assert made.own_training(label) == {"lr": 0.03}
    for name in ("clients", "shift", "partition", "rounds", "momentum"):
        assert getattr(made, name) == getattr(asked, name)
    assert (made.validation, made.seed, made.seeds) == (0.0, 0, 1)


def test_early_stopping_keeps_its_validation_samples() -> None:
    asked = Config.checked({"methods": ("fedavg",), "validation": 0.2, "patience": 3})
    assert command(asked, "fedavg") == "kinfed run fedavg --validation 0.2 --patience 3"


def test_the_command_of_one_run_asks_for_no_others_beside_it() -> None:
    asked = Config.checked({"methods": ("fedavg",), "parallel": 2, "workers": 2})
    assert command(asked, "fedavg") == "kinfed run fedavg --workers 2"


def test_a_command_quotes_and_python_objects_have_none(tmp_path: Path) -> None:
    (tmp_path / "my weights.safetensors").touch()
    path = str(tmp_path / "my weights.safetensors")
    assert f"--weights '{path}'" in str(command(Config.checked({"methods": ("fedavg",), "weights": path}), "fedavg"))
    own = Config.checked({"methods": ("fedavg",), "model": "<net>"}, {"<net>": lambda shape, classes: None})
    assert command(own, "fedavg") is None
    assert with_settings(own, "fedavg") == "fedavg"


def test_the_clients_that_data_define_need_no_partition_in_the_command(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,ward,id,ill\n")
    given = {"methods": ("fedavg",), "data": str(tmp_path / "t.csv"), "label": "ill", "client": "ward"}
    told = command(Config.checked({**given, "drop": "id,ill on"}), "fedavg")
    assert told == f"kinfed run fedavg --data {tmp_path}/t.csv --label ill --client ward --drop 'id,ill on'"
    of_column = Config.checked({**given, "client": None, "partition": "by:ward"})
    assert command(of_column, "fedavg") == f"kinfed run fedavg --data {tmp_path}/t.csv --label ill --partition by:ward"
