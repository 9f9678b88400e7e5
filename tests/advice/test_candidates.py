"""Which methods are raced on which federation, and the reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kinfed.advice import Excess, Traits, able, candidates
from kinfed.errors import InputError
from kinfed.experiment.assemble import runtime_of
from kinfed.experiment.config import Config
from kinfed.methods import METHODS

NONE = Excess(0.1, chance=0.1, most=0.2)
ALIKE = Traits(4, 40, 50.0, 200, 10, 9.5, NONE, NONE, NONE)
SKEWED = replace(ALIKE, own_classes=2.0, label_skew=Excess(0.8, chance=0.1, most=0.12))
SHIFTED = replace(ALIKE, feature_skew=Excess(0.35, chance=0.1, most=0.12))
CONTRARY = replace(ALIKE, conflict=Excess(0.6, chance=0.0, most=0.05))
UNLABELLED = replace(ALIKE, own_classes=None, label_skew=None, conflict=None)

COMMON_MODEL = {"fedprox", "fedavgm", "fedadam", "fedyogi", "scaffold", "moon", "fedcka"}
OWN_MODELS = {
    "fedper", "fedrep", "fedbabu", "fedshibu", "fedavg_crsm", "fedcrc", "ditto", "fedproto", "lg_fedavg",
    "fedkin", "cfl", "ifca",
}  # fmt: skip
REFERENCES = {"fedavg", "local", "central"}
SMALL: dict[str, Any] = {"clients": 4, "partition": "iid", "train_images": 200, "rounds": 2}


def judged(traits: Traits, **fields: Any) -> dict[str, tuple[bool, str]]:
    given = {**SMALL, **fields}
    config = Config.checked({**given, "methods": able(given, labelled=traits.labelled)})
    found = candidates(traits, config, runtime_of(config.of("local" if traits.labelled else "local_ssl", 0)))
    assert [of.label for of in found] == [*METHODS]
    return {of.label: (of.raced, of.reason) for of in found}


def raced(traits: Traits, **fields: Any) -> set[str]:
    return {label for label, (races, _) in judged(traits, **fields).items() if races}


@pytest.mark.parametrize(
    ("traits", "others"),
    [
        (ALIKE, set()),
        (SKEWED, COMMON_MODEL | OWN_MODELS),
        (SHIFTED, COMMON_MODEL | OWN_MODELS),
        (CONTRARY, OWN_MODELS),
        (replace(SHIFTED, conflict=Excess(0.17, chance=0.0, most=0.05)), COMMON_MODEL | OWN_MODELS),
    ],
    ids=["alike", "label skew", "feature skew", "conflict", "a little conflict"],
)
def test_what_is_raced_follows_from_the_traits(traits: Traits, others: set[str]) -> None:
    assert raced(traits) == REFERENCES | others


def test_without_labels_the_methods_that_read_none_are_raced() -> None:
    assert raced(UNLABELLED) == {name for name in METHODS if not METHODS[name].supervised}
    assert judged(UNLABELLED)["fedavg"] == (False, "reads labels")


def test_reasons_have_the_measured_numbers() -> None:
    assert (
        "a client has 2.0 of 10 classes, and would have to exchange 80% of its samples" in judged(SKEWED)["fedper"][1]
    )
    assert "35% of nearest neighbours are at a sample's own client (by chance 10%)" in judged(SHIFTED)["ditto"][1]
    assert "more often at its own client than at others, by 0.60" in judged(CONTRARY)["fedprox"][1]
    assert judged(ALIKE)["fedper"][1].endswith("the clients differ no more than by chance")


def test_what_cannot_run_is_left_out_with_the_reason() -> None:
    told = judged(SKEWED, public=0)
    assert told["fedvote"][0] is told["fedshibu"][0] is False
    assert told["fedvote"][1].startswith("cannot run: sources: fedvote needs a folder of source models")
    assert told["fedshibu"][1].startswith("cannot run: public: 0 is too few")
    mixed = judged(SKEWED, models="mlp:0.5,tiny_cnn:0.5")
    assert {label for label, (races, _) in mixed.items() if races} == {"local"}
    assert mixed["fedavg"][1].startswith("cannot run: models: fedavg needs one architecture")
    assert mixed["fedproto"][1].startswith("cannot run: models: ")  # the widths differ, which only the models tell


def test_few_training_images_leave_too_few_public_ones() -> None:
    told = judged(SKEWED, train_images=30)  # a tenth is three, which only the data tell
    assert told["fedshibu"] == (False, told["fedavg_crsm"][1].replace("fedavg_crsm", "fedshibu"))
    assert "cannot run: public: 3 is too few" in told["fedshibu"][1]


def test_a_wrong_field_is_refused_whatever_the_method() -> None:
    with pytest.raises(InputError, match=r"^clients: .* greater than or equal to 1"):
        able({"clients": 0})
