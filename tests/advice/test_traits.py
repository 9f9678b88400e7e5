"""Traits of planted federations: what is planted is found, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinfed.advice import Excess, Traits, traits
from kinfed.data import Federation, Partition, from_arrays, load, make_federation, with_shift


def of_digits(partition: str = "iid", shift: str | None = None, seed: int = 0, clients: int = 10) -> Traits:
    dataset = load("digits", channels=3 if shift and shift.startswith("colour") else None)
    return traits(with_shift(make_federation(dataset, partition, clients=clients, seed=seed), shift, seed), seed)


def found(told: Traits) -> tuple[bool, bool, bool]:
    assert told.label_skew is not None
    assert told.conflict is not None
    return told.label_skew.found, told.feature_skew.found, told.conflict.size >= 0.2


@pytest.mark.parametrize(
    ("partition", "shift", "label_skew", "feature_skew", "conflict"),
    [
        ("iid", None, False, False, False),
        ("iid", "rotate:4", False, True, False),
        ("iid", "invert:4", False, True, False),
        ("iid", "colour:4", False, True, False),
        ("iid", "permute_labels:4", False, False, True),
        ("shards", None, True, False, False),
        ("dirichlet:alpha=0.1", None, True, False, False),
    ],
)
def test_what_is_planted_is_found_and_nothing_else(
    partition: str, shift: str | None, label_skew: bool, feature_skew: bool, conflict: bool
) -> None:
    assert found(of_digits(partition, shift)) == (label_skew, feature_skew, conflict)


def test_labels_conflict_under_label_skew_too() -> None:
    assert found(of_digits("dirichlet:alpha=0.1", "permute_labels:4"))[2]


def federation(inputs: list[float], labels: list[int], *rows: list[int]) -> Federation:
    dataset = from_arrays([[value] for value in inputs], labels, [[0.0], [0.0]], [0, 1])
    train = [np.array(own, dtype=np.int64) for own in rows]
    test = [np.arange(0, dtype=np.int64) for _ in rows]
    return Federation(dataset, Partition(train, test), np.arange(0, dtype=np.int64))


def test_sizes_and_classes_by_hand() -> None:
    told = traits(federation([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 0, 1], [0, 1], [2, 3, 4, 5]), seed=0)
    assert (told.clients, told.samples, told.least, told.median, told.classes) == (2, 6, 2, 3.0, 2)
    assert told.own_classes is not None
    assert told.label_skew is not None
    # the first client has one class; the other's shares are 1/4 and 3/4, with the entropy exp(0.5623)
    assert told.own_classes == pytest.approx((1 + 1.7547) / 2, abs=1e-4)
    assert told.label_skew.value == pytest.approx((2 * 0.5 + 4 * 0.25) / 6)


def test_neighbours_by_hand() -> None:
    far = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 9.0, 9.01, 9.02, 9.03, 9.04, 9.05]  # the five nearest are the own ones
    rows = [*range(6)], [*range(6, 12)]
    assert traits(federation(far, [0, 1] * 6, *rows), seed=0).feature_skew.value == 1.0
    mixed = [*range(0, 12, 2)], [*range(1, 12, 2)]
    # of a sample's five neighbours two or three are at its own client, and all of those have its label
    told = traits(federation(far, [0, 1] * 6, *mixed), seed=0)
    assert told.feature_skew.value == pytest.approx(2 / 5)
    assert told.conflict is not None
    assert told.conflict.value == 1.0


def test_without_labels_none_are_read() -> None:
    plain = make_federation(load("digits"), "shards", clients=10, seed=0)
    train = plain.dataset.train
    assert train.labels is not None
    other = replace(plain, dataset=replace(plain.dataset, train=replace(train, labels=train.labels.flip(0))))
    told = traits(plain, 0, labelled=False)
    assert told == traits(other, 0, labelled=False)
    assert not told.labelled
    assert told.own_classes is told.label_skew is told.conflict is None
    assert told.feature_skew.found  # label skew, which nobody can tell from feature skew without labels


def test_one_client_and_one_sample_are_enough() -> None:
    told = traits(federation([0.0, 1.0], [0, 1], [0, 1]), seed=0)
    assert not any(found(told))
    assert not any(found(traits(federation([0.0, 1.0], [0, 1], [0], [1]), seed=0)))
    assert traits(federation([0.0, 1.0], [0, 1], [0]), seed=0).feature_skew == Excess(0.0, 0.0, 0.0)


def test_the_same_seed_gives_the_same_traits() -> None:
    assert of_digits(seed=1) == of_digits(seed=1) != of_digits(seed=2)
