from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfed.data import IID, Dirichlet, Shards
from kinfed.data.partitions import make_partition
from kinfed.errors import InputError
from kinfed.streams import numpy_stream


def rng(seed: int = 0) -> np.random.Generator:
    return numpy_stream(seed, "partition")


def balanced(classes: int, each: int, seed: int = 0) -> np.ndarray:
    return rng(seed).permutation(np.repeat(np.arange(classes), each))


def assert_cover(cut: list[np.ndarray], size: int) -> None:
    assert sorted(np.concatenate(cut).tolist()) == list(range(size))


@given(train=st.integers(20, 300), test=st.integers(0, 100), clients=st.integers(1, 20), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_iid_deals_every_sample_once_in_sizes_that_differ_by_one(
    train: int, test: int, clients: int, seed: int
) -> None:
    cut = IID()(np.zeros(train, int), np.zeros(test, int), clients, rng(seed))
    assert_cover(cut.train, train)
    assert_cover(cut.test, test)
    sizes = [len(rows) for rows in cut.train]
    assert max(sizes) - min(sizes) <= 1


def test_iid_of_103_samples_over_7_clients_has_five_15s_and_two_14s() -> None:  # case 30
    assert Counter(len(rows) for rows in IID()(np.zeros(103, int), [0] * 7, 7, rng()).train) == {15: 5, 14: 2}


def test_pooled_iid_deals_both_sets_and_holds_out_a_fifth() -> None:  # specification F.3
    cut = make_partition("iid:pooled=true")(balanced(10, 60), balanced(10, 10), 7, rng())
    assert cut.pooled
    assert_cover([*cut.train, *cut.test], 700)
    assert [(len(own), len(tested)) for own, tested in zip(cut.train, cut.test, strict=True)] == [(80, 20)] * 7
    with pytest.raises(InputError, match="clients: 4 is too many; iid gives each one 2 of the 7 samples or more"):
        IID(pooled=True)([0] * 5, [0, 0], 4, rng())


def test_iid_shuffles_sorted_labels() -> None:  # case 38: hypergeometric, mean 50, sd 3.54
    labels = np.repeat([0, 1], 100)
    assert 33 <= (labels[IID()(labels, labels, 2, rng()).train[0]] == 0).sum() <= 67


@given(per_client=st.sampled_from([1, 2, 3, 5]), size=st.integers(1, 9), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_shards_give_the_test_set_the_same_class_table(per_client: int, size: int, seed: int) -> None:
    shards_of_class = 2 * per_client  # 20 clients, 10 classes
    train, test = balanced(10, shards_of_class * size, seed), balanced(10, shards_of_class * 2, seed + 1)
    cut = Shards(per_client)(train, test, 20, rng(seed))
    for mine, own_test in zip(cut.train, cut.test, strict=True):
        table_row = np.bincount(train[mine], minlength=10) / size
        assert table_row.sum() == per_client
        assert np.array_equal(table_row, np.bincount(test[own_test], minlength=10) / 2)


@given(each=st.integers(20, 60), of_test=st.integers(0, 25), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_shards_cover_when_classes_cannot_be_cut_evenly(each: int, of_test: int, seed: int) -> None:
    train, test = balanced(10, each, seed), balanced(10, of_test, seed + 1)
    cut = Shards(5)(train, test, 20, rng(seed))
    assert_cover(cut.train, len(train))
    assert_cover(cut.test, len(test))


def test_shards_of_cifar100_size_have_250_samples() -> None:  # specification F.1
    cut = Shards(2)(balanced(100, 500), balanced(100, 100), 100, rng())
    assert {len(rows) for rows in cut.train} == {500}
    assert {len(rows) for rows in cut.test} == {100}


def test_shards_that_cannot_be_dealt_evenly_are_refused() -> None:
    with pytest.raises(InputError, match=r"7 clients × 2 shards = 14 is no multiple of the 10 classes"):
        Shards(2)(balanced(10, 50), balanced(10, 5), 7, rng())
    with pytest.raises(InputError, match="class 0 has 3 training samples for 4 shards"):
        Shards(2)(balanced(10, 3), balanced(10, 5), 20, rng())


@given(alpha=st.sampled_from([0.05, 0.1, 0.5, 5.0, 100.0]), clients=st.integers(1, 12), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_dirichlet_covers_and_leaves_nobody_with_fewer_than_ten(alpha: float, clients: int, seed: int) -> None:
    train, test = balanced(10, 60, seed), balanced(10, 13, seed + 1)
    cut = Dirichlet(alpha)(train, test, clients, rng(seed))
    assert_cover(cut.train, len(train))
    assert_cover(cut.test, len(test))
    assert min(len(rows) for rows in cut.train) >= 10


def test_dirichlet_with_a_large_alpha_is_near_iid() -> None:  # case 45
    labels = balanced(10, 1000)
    cut = Dirichlet(1e4)(labels, balanced(10, 10), 10, rng())
    counts = np.stack([np.bincount(labels[rows], minlength=10) for rows in cut.train])
    assert np.abs(counts - 100).max() <= 6


def test_dirichlet_tests_a_client_on_the_classes_it_trains_on() -> None:
    train, test = balanced(10, 400), balanced(10, 400, 1)
    cut = Dirichlet(0.3)(train, test, 5, rng())
    for mine, own_test in zip(cut.train, cut.test, strict=True):
        counts = [np.bincount(labels[rows], minlength=10) for labels, rows in ((train, mine), (test, own_test))]
        assert np.abs(counts[0] - counts[1]).max() <= 1


def test_small_alpha_is_more_skewed_than_a_large_one() -> None:
    labels = balanced(10, 300)

    def largest_share(alpha: float) -> float:
        cut = Dirichlet(alpha)(labels, labels, 10, rng())
        return float(np.mean([np.bincount(labels[rows], minlength=10).max() / len(rows) for rows in cut.train]))

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)


def test_an_infeasible_dirichlet_ends_with_what_is_feasible() -> None:  # case 29
    with pytest.raises(InputError, match="suffice for 100 clients, not for 101"):
        Dirichlet(0.5)(balanced(10, 100), [0], 101, rng())
    with pytest.raises(InputError, match="only fewer clients are feasible"):
        Dirichlet(0.01)(balanced(2, 100), [0], 20, rng())
