"""The tree of kin and the best clusters in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kinfed.learning import adjusted_rand_index
from kinfed.methods.kin import best_cut, kin_tree, strays

Levels = NDArray[np.int64]


def planted(sizes: list[int], apart: float = 3.0) -> tuple[NDArray[np.float64], list[int]]:
    """Clients around the means of their groups; ``apart`` is the length of a mean, 1 that of a client's own part."""
    stream, groups = np.random.default_rng(0), [group for group, size in enumerate(sizes) for _ in range(size)]
    means = stream.normal(size=(len(sizes), 100)) / 10 * apart
    return means[groups] + stream.normal(size=(len(groups), 100)) / 10, groups


def test_every_cluster_is_within_one_of_the_level_before() -> None:
    levels = kin_tree(planted([3, 4, 5, 8])[0], most=16)
    assert [len({*level}) for level in levels.T.tolist()] == [1, 2, 3, 4, 6, 8, 11, 15, 16]
    for coarse, fine in itertools.pairwise(levels.T.tolist()):
        assert len({*zip(coarse, fine, strict=True)}) == len({*fine})


@pytest.mark.parametrize("sizes", [[10, 10], [5, 5, 5, 5], [2, 4, 6, 8], [1, 1, 17]], ids=str)
def test_planted_groups_are_a_level_of_the_tree(sizes: list[int]) -> None:
    points, groups = planted(sizes)
    levels = kin_tree(points, most=8)
    assert max(adjusted_rand_index(level, groups) for level in levels.T.tolist()) == 1


def test_the_tree_does_not_depend_on_the_place_or_direction_of_the_points() -> None:
    points, _ = planted([5, 5, 5])
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(100, 100)))[0]
    assert np.array_equal(kin_tree(points @ turn + 7, 8), kin_tree(points, 8))


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_few_clients_have_a_tree(clients: int) -> None:
    levels = kin_tree(np.arange(clients, dtype=np.float64)[:, None], most=16)
    assert len({*levels[:, 0].tolist()}) == 1
    assert len({*levels[:, -1].tolist()}) == clients


def cuts(levels: Levels, members: list[int], level: int = 0) -> Iterator[list[tuple[list[int], int]]]:
    """All ways to divide a cluster into clusters of the tree, each with its level."""
    yield [(members, level)]
    if level + 1 < levels.shape[1]:
        parts: dict[int, list[int]] = {}
        for i in members:
            parts.setdefault(int(levels[i, level + 1]), []).append(i)
        for chosen in itertools.product(*(cuts(levels, part, level + 1) for part in parts.values())):
            yield [cluster for of_part in chosen for cluster in of_part]


@given(st.integers(0, 10**6), st.integers(2, 7))
def test_no_other_clusters_of_the_tree_cost_less(seed: int, clients: int) -> None:
    stream = np.random.default_rng(seed)
    levels = kin_tree(stream.normal(size=(clients, 3)), most=4)
    costs = stream.uniform(size=levels.shape)
    labels = best_cut(levels, costs, np.ones_like(costs), np.zeros_like(costs))
    least = min(sum(costs[own, level].sum() for own, level in cut) for cut in cuts(levels, [*range(clients)]))
    found = [[i for i in range(clients) if labels[i] == label] for label in range(labels.max() + 1)]
    own = [cut for cut in cuts(levels, [*range(clients)]) if sorted(own for own, _ in cut) == sorted(found)]
    assert min(sum(costs[own, level].sum() for own, level in cut) for cut in own) == pytest.approx(least)


def test_of_equal_costs_the_larger_cluster_stays() -> None:
    levels = kin_tree(planted([2, 2])[0], most=4)
    costs = np.ones(levels.shape)
    assert not best_cut(levels, costs, costs, np.zeros_like(costs)).any()


LEVELS = np.array([[0, 0], [0, 0], [0, 0], [0, 1]])  # three clients and one that may be a stranger
LESS = np.array([[5.0, 4.0]] * 4)  # all do better apart


@pytest.mark.parametrize(
    ("prefer", "apart"),
    [
        ([0.3, 0.3, 0.3, 0.3], True),  # both parts prefer themselves
        ([0.6, 0.6, 0.6, 0.0], True),  # one part prefers itself, and the other one does not mind
        ([0.3, 0.3, 0.3, -0.3], False),  # the model of one part is better for all
        ([0.9, 0.0, 0.0, -0.3], False),  # likewise: the mean counts, not the number of clients
        ([0.2, 0.2, 0.2, 0.2], False),  # not sure
    ],
    ids=["both", "one", "the better model", "mean", "not sure"],
)
def test_a_cluster_is_divided_if_its_parts_surely_prefer_themselves(prefer: list[float], apart: bool) -> None:
    """The squared error of the sum is 0.01 / 3 + 0.01 / 1, so that of five standard errors is 0.577."""
    preferences = np.array([[0.0, value] for value in prefer])
    labels = best_cut(LEVELS, LESS, preferences, np.full((4, 2), 0.01))
    assert labels.tolist() == ([0, 0, 0, 1] if apart else [0, 0, 0, 0])


def test_parts_that_prefer_themselves_stay_together_if_all_of_them_lose_nothing_by_that() -> None:
    apart, errors = np.array([[0.0, 1.0]] * 4), np.full((4, 2), 1e-4)
    assert not best_cut(LEVELS, LESS[:, ::-1], apart, errors).any()


def test_a_client_that_has_told_nothing_follows_the_others_of_its_cluster() -> None:
    levels, told = np.array([[0, 0], [0, 0], [0, 1], [0, 1]]), np.array([True, False, True, False])
    losses = np.where(told[:, None], [[5.0, 1.0]] * 4, -1.0)
    apart, errors = told[:, None] * [0.0, 1.0], told[:, None] * [0.0, 0.01]
    assert best_cut(levels, losses, apart, errors).tolist() == [0, 0, 1, 1]


def test_a_part_of_which_nobody_has_told_anything_is_not_divided_off() -> None:
    levels = np.array([[0, 0], [0, 1]])
    losses, told = np.array([[5.0, 1.0], [-1.0, -1.0]]), np.array([[0.0, 1.0], [0.0, 0.0]])
    assert not best_cut(levels, losses, told, told / 100).any()


@given(better=st.lists(st.integers(-9, 9), min_size=3, max_size=3), seed=st.integers(0, 99))
def test_a_better_model_makes_no_client_a_stray(better: list[int], seed: int) -> None:
    """Which group a client is closer to does not depend on how good the groups' models are."""
    stream, groups = np.random.default_rng(seed), np.repeat(np.arange(3), 4)
    apart = stream.normal(0.5, 1, size=(12, 3))
    apart[np.arange(12), groups] = 0
    errors = np.full((12, 3), 0.04)
    losses = -np.array(better, dtype=float)
    shifted = apart + losses[None, :] - losses[groups][:, None]
    assert strays(groups, shifted, errors).tolist() == strays(groups, apart, errors).tolist()


def test_clients_do_not_change_to_a_group_from_which_nobody_has_answered() -> None:
    groups, apart = np.array([1, 1, 2]), np.array([[-9.0, 0, 1], [-9.0, 0, -3], [-9.0, 2, 0]])
    assert strays(groups, apart, np.zeros((3, 3))).tolist() == [1, 2, 2]
