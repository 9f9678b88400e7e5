"""What holds of every recipe, and of those that `test_partition` does not have."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfed.data import (
    IID,
    ByColumn,
    Dirichlet,
    DirichletClients,
    Disjoint,
    Partition,
    Partitioner,
    Quantity,
    Shards,
    SortedShards,
    TwoGroups,
)
from kinfed.data.partitions.dirichlet import SMALLEST
from kinfed.errors import InputError
from tests.data.test_partition import assert_cover, balanced, rng

RECIPES: dict[str, Callable[..., Partition]] = {
    "iid": IID(),
    "shards": Shards(2),
    "dirichlet": Dirichlet(1.0),
    "dirichlet_clients": DirichletClients(1.0),
    "disjoint": Disjoint(),
    "sort": SortedShards(),
    "groups": TwoGroups(),
    "quantity": Quantity(1.0),
    "by:COLUMN": ByColumn("column"),
}
every = pytest.mark.parametrize("name", RECIPES)


def counts_of(labels: np.ndarray, cut: list[np.ndarray], classes: int = 10) -> np.ndarray:
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in cut])


def digest(cut: Partition) -> str:
    rows = [[mine.tolist() for mine in split] for split in (cut.train, cut.test)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@every
@given(train=st.integers(103, 300), test=st.integers(0, 90), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_every_sample_is_dealt_once(name: str, train: int, test: int, seed: int) -> None:  # case 30
    labels, test_labels = np.arange(train) % 7, np.arange(test) % 7
    cut = RECIPES[name](labels, test_labels, 7, rng(seed))
    assert len(cut.train) == len(cut.test) == 7
    if cut.pooled:
        assert_cover([*cut.train, *cut.test], train + test)
    else:
        assert_cover(cut.train, train)
        assert_cover(cut.test, test)
    assert all(len(rows) and (np.diff(rows) > 0).all() for rows in cut.train)


@every
def test_any_container_of_labels_gives_the_same_partition(name: str) -> None:  # case 44
    labels = balanced(10, 40)
    containers = (list, tuple, np.asarray, lambda x: x.astype(np.uint8), torch.as_tensor)
    cuts = [RECIPES[name](into(labels), into(labels), 10, rng()) for into in containers]
    assert len({digest(cut) for cut in cuts}) == 1


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "by:COLUMN"])
def test_more_clients_than_samples_are_refused_with_both_numbers(name: str) -> None:  # case 40
    with pytest.raises(InputError, match=r"^clients: 10 is .* (5 training|7) samples") as told:
        RECIPES[name]([0, 0, 1, 1, 1], [0, 1], 10, rng())
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("kind", [Dirichlet, DirichletClients, Quantity])
@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_an_illegal_alpha_is_refused(kind: Callable[[float], Partitioner], alpha: float) -> None:  # case 32
    allowed = "a finite number" if alpha == float("inf") else "greater than 0"
    with pytest.raises(InputError, match=rf"^\w+\.alpha: {alpha} is not allowed; must be {allowed}$"):
        kind(alpha)


@pytest.mark.slow
def test_another_process_and_another_hash_seed_cut_alike() -> None:  # case 37
    code = (
        "from tests.data.test_partition_recipes import *\n"
        "print(*(digest(recipe(balanced(10, 40), balanced(10, 9), 10, rng(3))) for recipe in RECIPES.values()))"
    )
    here = [digest(recipe(balanced(10, 40), balanced(10, 9), 10, rng(3))) for recipe in RECIPES.values()]
    for hash_seed in "01":
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert told.stdout.split() == here


@pytest.mark.slow
@every
@pytest.mark.parametrize(("samples", "clients", "allowed"), [(50_000, 100, 0.1), (1_000_000, 10_000, 5.0)])
def test_it_is_fast(name: str, samples: int, clients: int, allowed: float) -> None:
    labels = np.arange(samples) % 10
    column = np.arange(samples) % clients if name == "by:COLUMN" else labels
    spent = []
    for _ in range(3):  # the machine may have other work
        start = time.process_time()
        RECIPES[name](column, column[:10_000], clients, rng())
        spent.append(time.process_time() - start)
        if min(spent) < allowed:
            return
    raise AssertionError(spent)


GOLDEN = {  # rows that must not change, whatever else does
    "iid": "efc19e73af5a",
    "shards": "992b59de014a",
    "dirichlet": "fbbf74de6593",
    "disjoint": "08c6684a35de",
    "sort": "11aa6906183c",
    "groups": "bd1d92741b99",
    "quantity": "a7ce2bb9848b",
    "by:COLUMN": "30bde73df3a9",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_recipe_gives_the_rows_that_it_always_gave(name: str) -> None:
    assert digest(RECIPES[name](balanced(10, 40), balanced(10, 9), 10, rng(3))).startswith(GOLDEN[name])


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "by:COLUMN"])
@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["cat", "dog"] * 20, "'cat'"),
        (np.arange(-1, 9).repeat(4), "-1 to 8"),
        ([0, 10**9] * 20, "0 to 1000000000"),
    ],
    ids=["text", "negative", "large"],
)
def test_labels_that_are_not_numbered_are_refused(name: str, labels: object, told: str) -> None:  # case 339
    with pytest.raises(
        InputError, match=f"^labels: {told} is not allowed; recipes take the numbers of classes, 0..K-1$"
    ):
        RECIPES[name](labels, [0], 4, rng())
    with pytest.raises(InputError, match=f"^labels: {told} is not allowed"):
        RECIPES[name]([0, 1] * 20, labels, 4, rng())


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "by:COLUMN"])
def test_labels_that_are_fractions_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"training labels: the label 0\.5 is not allowed"):
        RECIPES[name]([0.5, 1.0] * 20, [0], 4, rng())


@every
@pytest.mark.parametrize("clients", [0, -3])
def test_less_than_one_client_is_refused(name: str, clients: int) -> None:  # case 339
    with pytest.raises(InputError, match=f"^clients: {clients} is not allowed; 1 or more$"):
        RECIPES[name](balanced(10, 40), [0], clients, rng())


@pytest.mark.parametrize("per_client", [0, -2])
def test_less_than_one_shard_is_refused(per_client: int) -> None:
    with pytest.raises(InputError, match=rf"^Shards\.per_client: {per_client} is not allowed; must be greater than"):
        Shards(per_client)


# -- Dirichlet --------------------------------------------------------------------------------------------------------


def test_a_dirichlet_without_a_chance_ends_at_once_and_says_how_far_off_it_is() -> None:  # case 29
    start = time.process_time()
    with pytest.raises(InputError, match=r"alpha: 0.01 left some of 90 clients .* of 20 draws") as told:
        Dirichlet(0.01)(balanced(10, 100), [0], 90, rng())
    assert time.process_time() - start < 1
    assert "\n" not in str(told.value)
    hint = str(told.value).split("alpha ")[-1].split()[0]
    assert_cover(Dirichlet(float(hint))(balanced(10, 100), [0], 90, rng()).train, 1000)
    with pytest.raises(InputError, match="only fewer clients are feasible"):
        Dirichlet(0.01)(balanced(2, 500), [0], 100, rng())


def test_per_client_dirichlet_goes_on_when_a_class_runs_out() -> None:  # case 33
    for alpha in (100.0, 0.01):
        cut = DirichletClients(alpha)(balanced(10, 50), [], 2, rng())
        assert [len(a) + len(b) for a, b in zip(cut.train, cut.test, strict=True)] == [250, 250]
        assert_cover([*cut.train, *cut.test], 500)


@given(
    samples=st.integers(20, 300), clients=st.integers(1, 10), alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e4]),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_per_client_dirichlet_has_equal_sizes_and_a_fifth_to_test(
    samples: int, clients: int, alpha: float, seed: int
) -> None:
    cut = DirichletClients(alpha)(np.arange(samples) % 5, np.arange(7) % 5, clients, rng(seed))
    sizes = [len(a) + len(b) for a, b in zip(cut.train, cut.test, strict=True)]
    assert max(sizes) - min(sizes) <= 1
    assert [len(rows) for rows in cut.test] == [max(1, round(0.2 * size)) for size in sizes]


def test_clients_of_their_own_proportions_are_tested_on_what_they_train_on() -> None:  # case 329
    train, test = balanced(100, 500), balanced(100, 100, 1)
    pool = np.concatenate([train, test])
    cut = DirichletClients(0.5)(train, test, 100, rng())
    trained, tested = counts_of(pool, cut.train, 100), counts_of(pool, cut.test, 100)
    assert not tested[trained == 0].any()
    assert tested.sum(axis=1).tolist() == [120] * 100
    assert np.abs(tested - 0.2 * (trained + tested)).max() < 1.5  # and every class in its proportion
    other = DirichletClients(0.5)(train, test, 100, rng(1))
    assert digest(cut) == digest(DirichletClients(0.5)(train, test, 100, rng())) != digest(other)


def test_per_client_dirichlet_reaches_its_proportions() -> None:  # specification J.11
    seed = rng(5)
    labels = np.arange(400_000) % 4
    cut = DirichletClients(0.5)(labels, [], 4, rng(5))
    wanted = seed.dirichlet(np.full(4, 0.5), 4)
    first = seed.permutation(4)[0]  # it finds every class whole, and here takes no class's last sample
    shares = counts_of(labels, cut.train, 4)[first] / len(cut.train[first])
    assert wanted[first].max() < 1
    assert np.abs(shares - wanted[first]).max() < 0.01


def test_per_client_dirichlet_uses_the_test_set_too() -> None:  # CRC-2
    cut = DirichletClients(0.5)(np.zeros(70, int), np.zeros(30, int), 3, rng())
    assert any((rows >= 70).any() for rows in cut.train)
    assert any((rows < 70).any() for rows in cut.test)


# -- disjoint classes -------------------------------------------------------------------------------------------------


@given(clients=st.integers(1, 9), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_disjoint_clients_have_whole_classes_that_nobody_else_has(clients: int, seed: int) -> None:
    train, test = balanced(10, 12, seed), balanced(10, 3, seed)
    cut = Disjoint()(train, test, clients, rng(seed))
    counts = counts_of(train, cut.train)
    assert set(np.unique(counts)) <= {0, 12}
    assert ((counts > 0).sum(axis=0) == 1).all()
    held = (counts > 0).sum(axis=1)
    assert held.max() - held.min() <= 1
    assert np.array_equal(counts_of(test, cut.test), counts // 4)


def test_disjoint_gives_five_clients_two_classes_of_cifar10_and_twenty_of_cifar100() -> None:  # specification F.4
    for classes, each in ((10, 2), (100, 20)):
        labels = balanced(classes, 10)
        counts = counts_of(labels, Disjoint()(labels, labels, 5, rng()).train, classes)
        assert (counts > 0).sum(axis=1).tolist() == [each] * 5


def test_twenty_clients_with_five_classes_of_a_hundred_share_none() -> None:  # HSSFL-8
    labels = balanced(100, 10)
    counts = counts_of(labels, Disjoint(5)(labels, labels, 20, rng()).train, 100)
    assert (counts > 0).sum(axis=1).tolist() == [5] * 20
    assert (counts > 0).sum(axis=0).tolist() == [1] * 100


def test_as_many_clients_as_classes_or_more_share_each_class_equally() -> None:  # HSSFL-8: a fifth of the classes
    for classes, clients, each, piece in ((10, 20, 2, 15), (10, 10, 2, 30), (100, 100, 20, 3)):
        labels = balanced(classes, 60)
        counts = counts_of(labels, Disjoint()(labels, labels, clients, rng()).train, classes)
        assert (counts > 0).sum(axis=1).tolist() == [each] * clients
        assert set(np.unique(counts)) == {0, piece}


def test_five_clients_with_two_classes_each_hold_at_most_two_labels() -> None:  # case 35
    labels = balanced(10, 10)
    cut = Disjoint(2)(labels, labels, 5, rng())
    assert (counts_of(labels, cut.train) > 0).sum(axis=1).tolist() == [2] * 5
    assert_cover(cut.train, 100)


@pytest.mark.parametrize(
    ("clients", "each", "allowed"),
    [(4, 2, "each has 3 to 10$"), (7, 2, "each has 3 to 10$"), (5, 12, "each has 2 to 10$")],
)
def test_classes_that_cannot_be_shared_equally_are_refused(clients: int, each: int, allowed: str) -> None:  # case 36
    with pytest.raises(InputError, match=f"classes_per_client: {each} is not allowed; {clients} clients .*{allowed}"):
        Disjoint(each)(balanced(10, 100), [0], clients, rng())


@pytest.mark.parametrize(("clients", "each", "size", "pieces"), [(5, 3, 60, [30, 30, 60]), (4, 3, 100, [50, 100, 100])])
def test_classes_that_not_all_have_as_often_are_dealt_in_unequal_parts(
    clients: int, each: int, size: int, pieces: list[int]
) -> None:  # cases 36, 340
    labels, test = balanced(10, size), balanced(10, size // 2, 1)
    cut = Disjoint(each)(labels, test, clients, rng())
    for split, of in ((cut.train, labels), (cut.test, test)):
        counts = counts_of(of, split)
        for mine in counts:
            held = np.sort(mine[mine > 0])
            assert (held * size * 10 // len(of)).tolist() == pieces
        assert_cover(split, len(of))
    assert np.array_equal(counts_of(labels, cut.train) > 0, counts_of(test, cut.test) > 0)
    others = {digest(Disjoint(each)(labels, test, clients, rng(seed))) for seed in range(5)}
    assert len(others) == 5
    assert digest(cut) in others


@given(classes=st.integers(2, 12), clients=st.integers(1, 15), seed=st.integers(0, 99), data=st.data())
@settings(deadline=None, max_examples=60)
def test_every_number_of_classes_that_is_not_refused_is_dealt(
    classes: int, clients: int, seed: int, data: st.DataObject
) -> None:  # case 340
    each = data.draw(st.integers(1, classes))
    labels = balanced(classes, 60, seed)
    groups = np.gcd(classes, clients)  # of clients that share classes among themselves
    if clients * each < clients + classes - groups:
        with pytest.raises(InputError, match=r"share .* classes equally if each has"):
            Disjoint(each)(labels, [0], clients, rng(seed))
        return
    cut = Disjoint(each)(labels, [0], clients, rng(seed))
    assert_cover(cut.train, len(labels))
    assert ((counts_of(labels, cut.train, classes) > 0).sum(axis=1) == each).all()
    sizes = [len(rows) for rows in cut.train]
    assert max(sizes) - min(sizes) <= (2 if clients * each % classes else 60)


def test_unequal_classes_are_cut_in_equal_shares() -> None:  # case 340
    sizes = np.array([60, 600, 60, 60, 120, 60, 60, 240, 60, 60])
    labels = rng().permutation(np.repeat(np.arange(10), sizes))
    shares = counts_of(labels, Disjoint(3)(labels, [0], 5, rng()).train) / sizes
    assert shares.sum(axis=1) == pytest.approx([2] * 5)  # each has two classes' worth


def test_a_class_with_fewer_samples_than_clients_is_refused() -> None:
    with pytest.raises(InputError, match="class 0 has 3 training samples for 4 clients"):
        Disjoint(2)(balanced(10, 3), [0], 20, rng())


# -- shards, groups, sizes --------------------------------------------------------------------------------------------


@given(clients=st.integers(1, 20), samples=st.integers(40, 300), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_sorted_shards_have_equal_sizes_and_few_classes(clients: int, samples: int, seed: int) -> None:
    labels = rng(seed).integers(0, 10, samples)
    cut = SortedShards()(labels, labels, clients, rng(seed))
    sizes = [len(rows) for rows in cut.train]
    assert max(sizes) - min(sizes) <= 2
    shards_of = np.array_split(np.sort(labels), 2 * clients)
    most = 2 * max(len(np.unique(shard)) for shard in shards_of)
    counts = counts_of(labels, cut.train)
    assert (counts > 0).sum(axis=1).max() <= most
    assert np.array_equal(counts_of(labels, cut.test), counts)  # tested in the proportions of training


def test_shards_fewer_than_clients_are_refused() -> None:  # case 39
    with pytest.raises(InputError, match="clients: 60 is too many; sort makes 120 shards of 100 training samples"):
        SortedShards()(balanced(10, 10), [0], 60, rng())
    with pytest.raises(InputError, match="class 0 has 10 training samples for 12 shards"):
        Shards(2)(balanced(10, 10), [0], 60, rng())


def test_which_shard_of_a_class_a_client_gets_is_random() -> None:
    labels = balanced(2, 40)
    orders = []
    for seed in range(60):
        cut = Shards(1)(labels, labels, 8, rng(seed))
        firsts = [[rows.min() for rows in split if labels[rows[0]] == 0] for split in (cut.train, cut.test)]
        orders += [tuple(np.argsort(first).tolist()) for first in firsts]  # of the four clients that hold class 0
    assert len({*orders}) == 24  # every order of the four shards occurs
    assert max(Counter(orders).values()) < 15  # of 120, and none is preferred
    assert any(train != test for train, test in zip(orders[::2], orders[1::2], strict=True))


def test_the_two_groups_of_fedshibus_figure() -> None:  # specification F.7
    train, test = balanced(10, 50), balanced(10, 10, 1)
    cut = TwoGroups()(train, test, 10, rng())
    for labels, split in ((train, cut.train), (test, cut.test)):
        counts = counts_of(labels, split)
        assert not counts[:5, 5:].any()
        assert not counts[5:, :5].any()
        assert set(counts.sum(axis=1)) == {len(labels) // 10}
    assert (counts_of(train, cut.train)[:5, :5] > 0).all()  # IID inside a group


def test_groups_need_two_clients_and_two_classes() -> None:
    for labels, clients in ((balanced(10, 5), 1), (np.zeros(9, int), 3)):
        with pytest.raises(InputError, match="groups needs 2 clients and 2 classes"):
            TwoGroups()(labels, labels, clients, rng())
    with pytest.raises(InputError, match="a group of 3 is more than its 1 training samples"):
        TwoGroups()([0, 1, 1, 1, 1, 1], [], 6, rng())


@given(alpha=st.sampled_from([1e-3, 0.1, 0.5, 5.0]), clients=st.integers(1, 20), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_quantity_skew_leaves_everybody_ten_samples(alpha: float, clients: int, seed: int) -> None:
    cut = Quantity(alpha)(np.zeros(400, int), np.zeros(200, int), clients, rng(seed))
    assert_cover(cut.train, 400)
    sizes = np.array([len(rows) for rows in cut.train])
    assert sizes.min() >= SMALLEST
    assert np.abs(np.array([len(rows) for rows in cut.test]) - sizes / 2).max() <= 1


def test_quantity_skew_differs_in_sizes_not_in_classes() -> None:
    labels = balanced(2, 5000)
    counts = counts_of(labels, Quantity(0.5)(labels, labels, 10, rng()).train, 2)
    assert counts.sum(axis=1).max() > 5 * counts.sum(axis=1).min()
    large = counts[counts.sum(axis=1) > 500]
    assert np.abs(large / large.sum(axis=1, keepdims=True) - 0.5).max() < 0.1


def test_quantity_skew_without_ten_samples_for_everybody_is_refused() -> None:
    with pytest.raises(InputError, match=r"quantity gives every client at least 10 samples, and 100 .* 10 clients"):
        Quantity(0.5)(balanced(10, 10), [], 11, rng())


# -- natural clients --------------------------------------------------------------------------------------------------


def test_natural_clients_are_the_values_in_order() -> None:
    train, test = np.array(["b", "a", "c", "b"]), np.array(["c", "d", "b"])
    cut = ByColumn("column")(train, test, 20, rng())
    assert cut.names == ("a", "b", "c")
    assert [rows.tolist() for rows in cut.train] == [[1], [0, 3], [2]]
    assert [rows.tolist() for rows in cut.test] == [[], [2], [0]]
    assert not cut.pooled


def test_at_most_so_many_natural_clients_are_drawn() -> None:
    column = np.repeat(np.arange(50), 4)
    first, again, other = (ByColumn("column")(column, column, 8, rng(seed)) for seed in (0, 0, 1))
    assert len(first) == 8
    assert first.names == again.names != other.names
    assert [int(name) for name in first.names] == sorted(int(name) for name in first.names)
    assert all((column[rows] == int(name)).all() for rows, name in zip(first.train, first.names, strict=True))


def test_natural_clients_that_the_test_set_does_not_know_are_split_locally() -> None:  # case 42
    cut = ByColumn("column")(np.repeat([3, 5, 9], [57, 1, 20]), np.repeat([4, 6], 30), 20, rng())
    assert cut.pooled
    assert Counter(map(len, cut.train)) == Counter([46, 1, 16])
    assert [len(rows) for rows in cut.test] == [11, 0, 4]
    assert_cover([*cut.train, *cut.test], 78)  # the official test samples go to nobody


def test_natural_clients_are_tested_on_what_they_train_on() -> None:  # cases 50, 329
    column = np.repeat([1, 2, 3], [10, 9, 5])
    labels = np.concatenate([[0] * 9 + [1], [0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 1, 2, 3, 4]])
    for seed in range(10):
        cut = ByColumn("column")(column, np.zeros(4, int), 9, rng(seed), labels=np.append(labels, [0] * 4))
        tested = [sorted(labels[rows].tolist()) for rows in cut.test]
        assert tested[0] == [0, 0]  # train 8, test 2, and the only sample of class 1 is trained on
        assert len(set(tested[1])) == 2
        assert len(tested[2]) == 1  # of this one no class has two samples
    labels = np.append(labels, 0)
    assert len({digest(ByColumn("column")(column, [0], 9, rng(seed), labels)) for seed in range(5)}) == 5


def test_a_class_with_many_samples_makes_up_for_those_with_one() -> None:  # case 329
    labels = np.append(np.zeros(20, int), np.arange(1, 21))
    cut = ByColumn("column")(np.zeros(40, int), [1], 9, rng(), labels=np.append(labels, 0))
    assert np.bincount(labels[cut.test[0]]).tolist() == [8]


def test_a_column_without_values_is_refused() -> None:
    for column in (np.full(3, np.nan), np.zeros(0)):
        with pytest.raises(InputError, match=r"partition: the column .* has no value in the training set"):
            ByColumn("column")(column, [1.0], 3, rng())


def test_natural_clients_by_values_of_mixed_kind() -> None:
    column = np.array(["x", None, "y", "x"], dtype=object)
    assert ByColumn("column")(column, column[:0], 9, rng()).names == ("None", "x", "y")
    numbers = np.array([2.0, np.nan, 1.0, 2.0])
    cut = ByColumn("column")(numbers, numbers, 9, rng())
    assert cut.names == ("1.0", "2.0")
    assert sum(map(len, cut.train)) == 3  # the sample of an unknown writer is not used
