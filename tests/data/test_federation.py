from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfed.data import (
    IID,
    ByColumn,
    DirichletClients,
    Federation,
    Partition,
    Partitioner,
    load,
    make_federation,
    subsample,
)
from kinfed.errors import InputError
from tests.builders import dataset, federation


def test_the_probe_is_balanced_and_nobody_elses() -> None:
    data = load("digits")
    fed = make_federation(data, IID(), clients=5, public=128, seed=0)
    counts = np.bincount(data.train.labels.numpy()[fed.public_rows], minlength=10)  # type: ignore[union-attr]
    assert counts.sum() == 128
    assert counts.max() - counts.min() <= 1
    assert not set(fed.public_rows) & set(np.concatenate(fed.partition.train))
    assert len(np.concatenate(fed.partition.train)) == len(data.train) - 128
    assert fed.public_images is not None
    assert fed.public_images.labels is None


def test_a_probe_larger_than_a_class_allows_takes_the_rest_from_others() -> None:
    data = dataset()
    labels = torch.zeros(240, dtype=torch.int64)
    labels[:3] = 1
    skewed = replace(data, train=replace(data.train, labels=labels))
    rows = make_federation(skewed, IID(), clients=2, public=20, seed=0).public_rows
    assert np.bincount(labels.numpy()[rows]).tolist() == [17, 3]


def test_no_probe_means_none() -> None:
    assert make_federation(dataset(), IID(), clients=2, public=0, seed=0).public_images is None


def test_a_probe_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="240 is not allowed; must be less than 240"):
        make_federation(dataset(), IID(), clients=2, public=240, seed=0)


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
    fed = federation(clients=4, public=24)
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
    first, again = (make_federation(dataset(), IID(), clients=3, public=24, seed=5) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first.partition.train, again.partition.train, strict=True))
    other = make_federation(dataset(), IID(), clients=3, public=24, seed=6)
    assert not np.array_equal(first.partition.train[0], other.partition.train[0])


def test_clients_have_ids_from_0_to_the_last_one() -> None:  # case 34
    fed = federation(clients=4)
    for client in (4, -1):
        for read in (fed.train, fed.test):
            with pytest.raises(IndexError, match=rf"client: {client} is not allowed; must be from 0 to 3"):
                read(client)


def test_new_clients_hold_samples_that_nobody_trains_on() -> None:
    whole = make_federation(dataset(), IID(), clients=6, public=24, seed=0)
    fed = make_federation(dataset(), IID(), clients=6, public=24, seed=0, new_clients=2)
    assert (len(fed), len(fed.new_clients)) == (4, 2)
    split = {tuple(rows) for rows in fed.partition.train}, {tuple(rows) for rows in fed.new_clients.train}
    assert not split[0] & split[1]
    assert split[0] | split[1] == {tuple(rows) for rows in whole.partition.train}
    assert fed.new_class_counts().sum() == sum(len(rows) for rows in fed.new_clients.train)
    assert [len(fed.train(4 + i)) for i in range(2)] == [len(rows) for rows in fed.new_clients.train]
    assert torch.equal(fed.test(5).inputs, fed.dataset.test.take(fed.new_clients.test[1]).inputs)
    assert fed.unused == whole.unused == 0
    held = np.concatenate(fed.new_clients.train)
    assert not set(held) & set(fed.pooled().partition.train[0])
    other = make_federation(dataset(), IID(), clients=6, public=24, seed=1, new_clients=2)
    assert {tuple(rows) for rows in other.new_clients.train} != split[1]


def test_somebody_must_train() -> None:
    with pytest.raises(InputError, match="new_clients: 6 is not allowed; must be less than 6"):
        make_federation(dataset(), IID(), clients=6, public=24, seed=0, new_clients=6)


def test_samples_split_locally_are_rows_of_both_sets_together() -> None:
    data = dataset()
    fed = make_federation(data, DirichletClients(alpha=0.5), clients=5, public=24, seed=0)
    rows = np.concatenate([*fed.partition.train, *fed.partition.test, fed.public_rows])
    assert sorted(rows.tolist()) == list(range(360))
    inputs = torch.cat([data.train.inputs, data.test.inputs])
    labels = torch.cat([data.train.labels, data.test.labels])  # type: ignore[list-item]
    for samples, mine in ((fed.train(3), fed.partition.train[3]), (fed.test(3), fed.partition.test[3])):
        assert torch.equal(samples.inputs, inputs[torch.as_tensor(mine)])
        assert torch.equal(samples.labels, labels[torch.as_tensor(mine)])  # type: ignore[arg-type]
    assert fed.class_counts()[3].tolist() == np.bincount(fed.train(3).labels.numpy(), minlength=10).tolist()  # type: ignore[union-attr]


def test_a_global_model_is_tested_on_what_nobody_trains_on() -> None:
    whole = federation()
    assert (whole.tested.samples, whole.tested.test) == (whole.dataset.test, whole.partition.test)
    fed = make_federation(dataset(), DirichletClients(alpha=0.5), clients=5, public=24, seed=0)
    tested, own = fed.tested.samples, fed.tested.test
    assert len(tested) == sum(len(rows) for rows in fed.partition.test)
    for client in range(5):
        assert torch.equal(tested.take(own[client]).inputs, fed.test(client).inputs)


def test_a_sample_in_the_training_and_the_test_rows_of_split_clients_is_an_error() -> None:  # case 42
    cut = Partition([np.arange(3)], [np.arange(2, 4)], pooled=True)
    with pytest.raises(ValueError, match="a pooled sample belongs to two clients"):
        Federation(dataset(), cut, np.arange(0))


def test_clients_by_a_column() -> None:
    data = replace(dataset(), columns={"writer": (np.arange(240) % 6, np.arange(120) % 3)})
    fed = make_federation(data, ByColumn("writer"), clients=4, public=24, seed=0)
    assert len(fed) == 4
    for name, train, test in zip(fed.partition.names, fed.partition.train, fed.partition.test, strict=True):
        assert set(train % 6) == {int(name)}
        assert set(test % 3) <= {int(name)}
    assert fed.unused > 0


def test_a_client_without_training_samples_is_refused() -> None:
    class Nobody(Partitioner):
        def __call__(self, *given: object) -> Partition:
            return Partition([np.arange(3), np.arange(0)], [np.arange(0)] * 2)

    with pytest.raises(InputError, match="client 1 of 2 gets no training sample"):
        make_federation(dataset(), Nobody(), clients=2, public=0, seed=0)


@pytest.mark.parametrize(("field", "value"), [("clients", 0), ("public", -1), ("new_clients", -1)])
def test_numbers_of_clients_and_images_are_checked(field: str, value: int) -> None:  # case 339
    with pytest.raises(InputError, match=f"^{field}: {value} is not allowed; must be {value + 1} or more"):
        make_federation(dataset(), IID(), **{"clients": 2, "public": 0, "seed": 0, field: value})
    with pytest.raises(InputError, match=r"^train_images: 0 is not allowed"):
        subsample(dataset(), 0, seed=0)


def test_clients_by_a_column_that_are_split_locally_are_tested_on_classes_that_they_train_on() -> None:  # case 329
    who = (np.arange(240) % 40, np.full(120, -1))
    fed = make_federation(replace(dataset(), columns={"who": who}), ByColumn("who"), clients=40, public=0, seed=0)
    trained, tested = fed.class_counts(), fed.test_class_counts()
    assert tested.sum(axis=1).tolist() == [1] * 40
    twice = (trained + tested).max(axis=1) > 1
    assert twice.sum() > 20
    assert not np.where(trained == 0, tested, 0)[twice].any()
