"""Settings of the local training that a method has for itself, as in ``fedprox:lr=0.03``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed import LocalTraining
from kinfed.engine import RunFolder
from kinfed.engine.evaluator import Evaluator
from kinfed.errors import InputError
from kinfed.experiment.assemble import runtime_of
from kinfed.experiment.config import Config
from kinfed.experiment.configure import configure
from kinfed.experiment.objects import as_fields
from kinfed.learning import Phase
from kinfed.methods.fedprox import FedProx
from kinfed.models import ALL, Tensors
from kinfed.tuning import spaces_of
from tests.builders import build_runtime, federation, same

SMALL: dict[str, Any] = {"data": "digits", "clients": 5, "rounds": 2, "public": 0}


def test_a_number_of_a_methods_own_replaces_that_of_the_experiment() -> None:
    config = configure({**SMALL, "methods": ["fedavg", "fedprox:lr=0.03,mu=1"], "lr": 0.2, "momentum": 0.5})
    assert config.method("fedprox:lr=0.03,mu=1") == FedProx(mu=1.0)
    rates = {label: runtime_of(config.of(label, 0)).settings.training for label in config.methods}
    assert [(of.lr, of.momentum) for of in rates.values()] == [(0.2, 0.5), (0.03, 0.5)]


def test_all_settings_are_read() -> None:
    own = {"lr": 0.01, "optimizer": "sgd", "momentum": 0.3, "weight_decay": 0.1, "local_epochs": 3, "batch_size": 7}
    config = configure({**SMALL, "methods": ["fedavg"], "settings": {"fedavg": own}})
    training = runtime_of(config.of("fedavg", 0)).settings.training
    read = (
        training.lr, training.optimizer, training.momentum, training.weight_decay, training.epochs, training.batch_size,
    )  # fmt: skip
    assert read == tuple(own.values())


@pytest.mark.slow
def test_a_run_with_its_own_rate_is_the_run_with_that_rate_for_all(tmp_path: Path) -> None:
    one = kinfed.run("fedavg:lr=0.03", **SMALL, out=tmp_path / "own", quiet=True)
    all_ = kinfed.run("fedavg", **SMALL, lr=0.03, out=tmp_path / "all", quiet=True)
    lines = [RunFolder(of.path).lines("metrics.jsonl") for of in (one, all_)]
    for line in (line for of in lines for line in of):  # heads are re-fitted with the rate of the experiment
        line["client_acc"].pop("refit", None)
    assert [{k: v for k, v in line.items() if "refit" not in k} for line in lines[0]] == [
        {k: v for k, v in line.items() if "refit" not in k} for line in lines[1]
    ]
    assert Config.read(one.path / "config.toml").own_training("fedavg:lr=0.03") == {"lr": 0.03}


@pytest.mark.slow
def test_variants_in_their_rate_are_rows_of_one_comparison(tmp_path: Path) -> None:
    result = kinfed.compare(["fedavg:lr=0.03", "fedavg:lr=0.3"], **SMALL, out=tmp_path / "out", quiet=True)
    assert [of["method"] for of in result.summaries] == ["fedavg:lr=0.03", "fedavg:lr=0.3"]
    kinfed.resume(tmp_path / "out", quiet=True)


def test_local_ssl_joins_with_the_rate_of_the_first_method_without_labels() -> None:
    config = configure({**SMALL, "methods": ["fedbyol:lr=0.02"]}, alone=True)
    assert config.own_training("local_ssl") == {"lr": 0.02}


@pytest.mark.parametrize(
    ("label", "line"),
    [
        ("fedavg:lr=0", r"fedavg\.lr: '0' is not allowed; must be greater than 0"),
        ("fedavg:batch_size=2.5", r"fedavg\.batch_size: .*"),
        ("fedrep:local_epochs=2", r"fedrep\.local_epochs: 2 would do nothing; it is of methods .*"),
        ("fedavg:rounds=3", r"set: fedavg: 'rounds' .*"),
    ],
)
def test_a_number_that_is_not_allowed_is_refused(label: str, line: str) -> None:
    with pytest.raises(InputError, match=f"^{line}"):
        configure({**SMALL, "methods": [label]})


def test_heads_are_refitted_alike_whatever_the_methods_own_rate() -> None:
    config = configure({**SMALL, "methods": ["fedavg:lr=0.1,momentum=0.9", "fedper"], "lr": 0.2})
    settings = [runtime_of(config.of(label, 0)).settings for label in config.methods]
    assert settings[0].refitting == settings[1].refitting == settings[1].training
    assert settings[0].training.lr == 0.1


def test_a_number_for_all_is_refused_if_every_method_has_its_own() -> None:
    with pytest.raises(InputError, match=r"^local_epochs: 2 would do nothing; every method has its own$"):
        configure({**SMALL, "methods": ["fedavg:local_epochs=1", "fedprox:local_epochs=3"], "local_epochs": 2})
    with pytest.raises(InputError, match=r"^lr: 0\.2 would do nothing; every method has its own$"):
        configure({**SMALL, "methods": ["central:lr=0.1"], "lr": 0.2})
    configure({**SMALL, "methods": ["fedavg:lr=0.1"], "lr": 0.2})  # heads are re-fitted with it


# -- the optimiser ----------------------------------------------------------------------------------------------------


def trainings(methods: list[str], **given: Any) -> dict[str, LocalTraining]:
    config = configure({**SMALL, "methods": methods, **given})
    return {label: runtime_of(config.of(label, 0)).settings.training for label in config.methods}


def test_an_optimiser_has_its_own_default_learning_rate() -> None:
    of = trainings(["fedavg", "fedavg:optimizer=adam", "fedavg:optimizer=adamw,lr=0.01"], lr=0.2)
    assert [(t.optimizer, t.lr) for t in of.values()] == [("sgd", 0.2), ("adam", 0.001), ("adamw", 0.01)]
    of = trainings(["fedavg", "fedavg:optimizer=adamw", "fedavg:optimizer=sgd"], optimizer="adam")
    assert [(t.optimizer, t.lr) for t in of.values()] == [("adam", 0.001), ("adamw", 0.001), ("sgd", 0.1)]
    of = trainings(["fedavg", "fedavg:optimizer=adamw"], optimizer="adam", lr=0.004)
    assert [t.lr for t in of.values()] == [0.004, 0.004]  # for both Adams


def test_heads_are_refitted_and_models_fine_tuned_with_the_optimiser_of_the_experiment(tmp_path: Path) -> None:
    adam = {"optimizer": "adam", "lr": 0.01, "ft_lr": 0.01}
    fed = federation()

    def tuned(common: LocalTraining, own: LocalTraining) -> Tensors:
        runtime = build_runtime(
            "fedper", fed, training=own, refitting=common, fine_tuning=Phase(train=ALL, epochs=1, lr=0.01)
        )
        return Evaluator(runtime).fine_tune(0, 1, runtime.initial[0])[0].tensors

    sgd, other = LocalTraining(lr=0.1), LocalTraining(lr=0.001, optimizer="adam")
    assert same(tuned(sgd, sgd), tuned(sgd, other))
    assert not same(tuned(sgd, sgd), tuned(other, sgd))
    config = configure({**SMALL, "methods": ["fedavg:optimizer=sgd", "fedper"], **adam})
    refitting = [runtime_of(config.of(label, 0)).settings.refitting for label in config.methods]
    assert refitting[0] == refitting[1] == LocalTraining(lr=0.01, optimizer="adam", batch_size=16)


@pytest.mark.parametrize(
    ("methods", "given"),
    [
        (["fedavg"], {"optimizer": "adam", "momentum": 0.5}),
        (["fedavg:optimizer=adam,momentum=0.5"], {}),
        (["fedavg", "fedper:optimizer=adamw,momentum=0.5"], {}),
        (["central:optimizer=adam"], {"momentum": 0.5}),  # no head is re-fitted
    ],
)
def test_momentum_is_refused_where_nothing_trains_with_sgd(methods: list[str], given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"momentum: 0\.5 would do nothing; "):
        configure({**SMALL, "methods": methods, **given})


@pytest.mark.parametrize(
    ("methods", "given"),
    [
        (["fedavg", "fedavg:optimizer=adam"], {"momentum": 0.5}),
        (["fedavg:optimizer=adam"], {"momentum": 0.5}),  # of the re-fitted heads
        (["fedavg", "scaffold:optimizer=sgd"], {"optimizer": "adam", "momentum": 0.5}),
        (["fedavg:optimizer=sgd,momentum=0.5"], {"optimizer": "adam"}),
    ],
)
def test_momentum_is_allowed_where_something_trains_with_sgd(methods: list[str], given: dict[str, Any]) -> None:
    assert configure({**SMALL, "methods": methods, **given})


def test_control_variates_are_refused_beside_adam() -> None:
    for methods, given in ((["scaffold"], {"optimizer": "adam"}), (["scaffold:optimizer=adamw"], {})):
        with pytest.raises(InputError, match=r"^optimizer: 'adamw?' is not allowed; scaffold.* needs sgd"):
            configure({**SMALL, "methods": methods, **given})


def test_an_optimiser_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match=r"^optimizer: 'lion' is not allowed; must be 'sgd', 'adam' or 'adamw'$"):
        configure({**SMALL, "methods": ["fedavg"], "optimizer": "lion"})


def test_a_local_training_in_python_may_have_adam() -> None:
    fields, _ = as_fields({"methods": ["fedavg"], "training": LocalTraining(lr=0.01, optimizer="adam")})
    assert configure(fields).training("fedavg")["optimizer"] == "adam"
    with pytest.raises(InputError, match=r"^momentum: 0\.5 would do nothing"):
        configure(
            as_fields({"methods": ["fedavg"], "training": LocalTraining(lr=0.01, optimizer="adam", momentum=0.5)})[0]
        )


def test_the_rates_that_are_tuned_suit_the_optimiser() -> None:
    config = configure({**SMALL, "methods": ["fedavg", "fedavg:optimizer=adam"]})
    first, second = (space.fields["lr"] for space in spaces_of(config, []).values())
    assert (first, second) == ((0.01, 0.03, 0.1, 0.3), (0.0001, 0.0003, 0.001, 0.003))
