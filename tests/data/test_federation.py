from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfed.data import Federation, Partition, federate, iid, load
from kinfed.errors import InputError
from tests.worlds import dataset, federation


def test_the_probe_is_balanced_and_nobody_elses() -> None:
    data = load("digits")
    fed = federate(data, iid, clients=5, probe=128, seed=0)
    counts = np.bincount(data.train.labels.numpy()[fed.probe_rows], minlength=10)  # type: ignore[union-attr]
    assert counts.sum() == 128
    assert counts.max() - counts.min() <= 1
    assert not set(fed.probe_rows) & set(np.concatenate(fed.partition.train))
    assert len(np.concatenate(fed.partition.train)) == len(data.train) - 128
    assert fed.probe is not None
    assert fed.probe.labels is None


def test_a_probe_larger_than_a_class_allows_takes_the_rest_from_others() -> None:
    data = dataset()
    labels = torch.zeros(240, dtype=torch.int64)
    labels[:3] = 1
    skewed = replace(data, train=replace(data.train, labels=labels))
    rows = federate(skewed, iid, clients=2, probe=20, seed=0).probe_rows
    assert np.bincount(labels.numpy()[rows]).tolist() == [17, 3]


def test_no_probe_means_none() -> None:
    assert federate(dataset(), iid, clients=2, probe=0, seed=0).probe is None


def test_a_probe_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="240 leaves none of the 240"):
        federate(dataset(), iid, clients=2, probe=240, seed=0)


@pytest.mark.parametrize(
    ("train", "probe"),
    [([[0, 1], [1, 2]], []), ([[0], [1]], [1]), ([[0], [240]], []), ([[0], [-1]], [])],
    ids=["two clients", "client and server", "beyond the end", "before the start"],
)
def test_a_sample_held_twice_or_not_there_is_an_error(train: list[list[int]], probe: list[int]) -> None:
    cut = Partition([np.array(rows) for rows in train], [np.array([0]), np.array([1])])
    with pytest.raises(ValueError, match="training sample"):
        Federation(dataset(), cut, np.array(probe, dtype=np.int64))


def test_pooled_data_are_those_of_the_clients() -> None:
    fed = federation(clients=4, probe=24)
    pooled = fed.pooled()
    assert len(pooled) == 1
    assert pooled.partition.train[0].tolist() == list(range(24, 240))
    assert pooled.partition.test[0].tolist() == list(range(120))
    assert pooled.class_counts().tolist() == [fed.class_counts().sum(axis=0).tolist()]


def test_test_samples_come_from_the_test_set() -> None:  # case 41
    fed = federation()
    own = fed.test(1)
    assert torch.equal(own.inputs, fed.dataset.test.inputs[torch.as_tensor(fed.partition.test[1])])
    assert len(own) == len(fed.partition.test[1])


def test_the_same_seed_gives_the_same_clients_whatever_else_differs() -> None:
    first, again = (federate(dataset(), iid, clients=3, probe=24, seed=5) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first.partition.train, again.partition.train, strict=True))
    other = federate(dataset(), iid, clients=3, probe=24, seed=6)
    assert not np.array_equal(first.partition.train[0], other.partition.train[0])
