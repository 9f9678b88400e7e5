from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from kinfed.report.statistics import (
    Measured,
    PairedDifference,
    alike,
    client_differences,
    client_means,
    compare,
    holm,
    seeds_needed,
    wilcoxon,
)


def measured(accuracies: Any, samples: Any = 50, seeds: tuple[int, ...] | None = None) -> Measured:
    """A row of S×N accuracies, whose clients count by their test samples."""
    values = np.array(accuracies, dtype=np.float64)
    sizes = np.broadcast_to(np.array(samples, dtype=np.float64), values.shape)
    return Measured(seeds or tuple(range(len(values))), values, sizes, sizes)


def compared(one: Measured, other: Measured) -> PairedDifference:
    told = compare(one, other)
    assert told is not None
    return told


def test_over_seeds_the_interval_is_student_s_by_hand() -> None:
    one, other = ({0: 0.51, 1: 0.52, 2: 0.53}, dict.fromkeys(range(3), 0.5))
    told = compared(Measured.whole(one, 9000), Measured.whole(other, 9000))
    half = 4.302652729749464 * 0.01 / math.sqrt(3)  # differences of 1, 2 and 3 hundredths, two degrees of freedom
    assert (told.difference, told.low, told.high) == pytest.approx((0.02, 0.02 - half, 0.02 + half))
    assert told.p == pytest.approx(stats.ttest_1samp([0.01, 0.02, 0.03], 0).pvalue)
    assert (told.seeds, told.clients, told.samples, told.over) == (3, 1, 9000, "seeds")
    assert told.deviation == pytest.approx(0.01)


def test_over_clients_of_equal_size_the_interval_is_student_s_too() -> None:
    stream = np.random.default_rng(0)
    one, other = 0.5 + 0.1 * stream.random((1, 12)), 0.4 + 0.1 * stream.random((1, 12))
    told = compared(measured(one, 5000), measured(other, 5000))
    by_hand = stats.ttest_rel(one[0], other[0])
    assert told.p == pytest.approx(by_hand.pvalue)
    assert (told.low, told.high) == pytest.approx(tuple(by_hand.confidence_interval()))
    assert (told.seeds, told.clients, told.samples, told.over) == (1, 12, 60_000, "clients")
    assert math.isnan(told.deviation)


def test_few_clients_of_one_seed_have_the_error_of_their_samples() -> None:  # Agresti and Caffo, by hand
    told = compared(Measured.whole({0: 0.7}, 98), Measured.whole({0: 0.5}, 98))
    right = (0.7 * 98 + 1) / 100, 0.5
    error = math.sqrt(sum(p * (1 - p) / 100 for p in right))
    assert (told.low, told.high) == pytest.approx((0.2 - 1.959964 * error, 0.2 + 1.959964 * error))
    assert told.over == "samples"
    seeds = [
        measured([[0.7, 0.6, 0.9], [0.75, 0.65, 0.9]], sizes)
        for sizes in ([[50, 40, 30]], [[50, 40, 30], [40, 50, 30]])
    ]
    same, others = (compared(row, measured(np.full((2, 3), 0.5), row.samples)) for row in seeds)
    assert (same.over, others.over) == ("seeds and samples", "seeds")
    once = compared(seeds[0].of([0]), measured(np.full((1, 3), 0.5), seeds[0].samples[:1]))
    assert same.lasting == pytest.approx(((once.high - once.low) / 2 / 1.959964) ** 2, rel=0.1)
    assert others.lasting == 0
    assert compared(measured([[0.7, 0.6, 0.9, 0.8]]), measured([[0.5, 0.6, 0.7, 0.8]])).over == "samples"


def test_clients_that_differ_alike_in_all_seeds_widen_the_interval() -> None:
    of_clients = 0.1 * np.array([1, -1, 2, -2, 0.5, -0.5])
    of_seeds = np.array([[0.05], [0.06], [0.07]])
    lasting = compared(measured(0.5 + of_seeds + of_clients), measured(np.full((3, 6), 0.5)))
    assert lasting.over == "seeds and clients"
    assert lasting.lasting == pytest.approx(of_clients.var(ddof=1) / 6)
    turned = np.stack([np.roll(of_clients, 2 * i) for i in range(3)])  # as if each seed had other clients
    fleeting = compared(measured(0.5 + of_seeds + turned), measured(np.full((3, 6), 0.5)))
    assert fleeting.lasting < lasting.lasting
    assert fleeting.high - fleeting.low < lasting.high - lasting.low


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (2, 1), (2, 8), (3, 8)])
def test_identical_rows_are_a_tie_and_not_a_certain_one(shape: tuple[int, int]) -> None:
    row = measured(np.full(shape, 0.7))
    told = compared(row, row)
    assert (told.difference, told.p) == (0, 1)
    assert told.low < 0 < told.high
    assert alike({"a": row, "b": row}) == ["a", "b"]
    assert seeds_needed(told) is None


def test_equal_differences_are_no_certainty() -> None:
    one, other = (Measured.whole(dict.fromkeys(range(2), of), 100) for of in (0.72, 0.70))
    assert compared(one, other).p > 0.2  # two samples more in each of two seeds
    clients = [measured(np.full((1, 6), of), 50) for of in (0.52, 0.50)]
    assert compared(*clients).p > 0.05  # one sample more at each of six clients


def test_clients_without_an_accuracy_are_left_out_pairwise() -> None:
    one = measured([[0.9, np.nan, 0.5]], [[10, 10, 30]])
    other = measured([[0.7, 0.9, 0.5]], [[10, 10, 30]])
    told = compared(one, other)
    assert told.difference == pytest.approx(0.2 * 10 / 40)
    assert (told.clients, told.samples) == (2, 40)
    assert np.isnan(client_differences(one, other)[0]).tolist() == [False, True, False]
    assert compare(measured([[0.9, np.nan]]), measured([[np.nan, 0.9]])) is None


def test_only_common_seeds_are_compared() -> None:
    one, other = Measured.whole({0: 0.9, 1: 0.8, 2: 0.5}, 100), Measured.whole({2: 0.4, 0: 0.7}, 100)
    told = compared(one, other)
    assert told.difference == pytest.approx((0.2 + 0.1) / 2)
    assert told.seeds == 2
    assert compare(one, Measured.whole({7: 0.5}, 100)) is None
    assert alike({"a": one, "b": Measured.whole({7: 0.1}, 100)}) == ["a", "b"]


def test_rows_of_other_numbers_of_clients_are_compared_by_their_means() -> None:
    told = compared(measured([[0.5, 0.7], [0.6, 0.6]]), Measured.whole({0: 0.4, 1: 0.5}, 100))
    assert told.difference == pytest.approx(0.15)
    assert told.clients == 1


def test_the_mean_is_weighted_as_the_column_is() -> None:
    assert measured([[0.5, 1.0, np.nan]], [[30, 10, 0]]).mean == pytest.approx(0.625)


def test_a_clear_winner_is_alone_and_the_order_of_the_rows_does_not_matter() -> None:
    stream = np.random.default_rng(1)
    rows = {
        name: measured(mean + 0.02 * stream.random((3, 20))) for name, mean in zip("abc", (0.6, 0.8, 0.5), strict=True)
    }
    assert alike(rows) == ["b"]
    close = rows | {"d": measured(rows["b"].accuracies + 0.002 * stream.standard_normal((3, 20)))}
    assert {*alike(close)} == {"b", "d"}
    assert alike(close) == alike(dict(reversed(close.items())))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, math.nan, 0.9])[0] == 1.0
    assert math.isnan(holm([math.nan])[0])
    assert holm([]) == []


def test_wilcoxon_is_scipy_s_over_the_clients() -> None:
    stream = np.random.default_rng(0)
    one, other = measured(stream.random((3, 15))), measured(stream.random((3, 15)))
    expected = stats.wilcoxon((one.accuracies - other.accuracies).mean(axis=0)).pvalue
    assert wilcoxon(one, other) == pytest.approx(expected)
    assert wilcoxon(one, one) == 1.0
    assert math.isnan(wilcoxon(Measured.whole({0: 0.5}, 9), Measured.whole({0: 0.4}, 9)))
    assert math.isnan(wilcoxon(Measured.whole({0: 0.5}, 9), Measured.whole({1: 0.4}, 9)))
    assert not len(client_means({}))


def test_as_many_seeds_as_are_said_to_be_needed_show_a_difference() -> None:
    seen = compared(*(Measured.whole(dict(enumerate(of)), 10_000) for of in ([0.50, 0.54, 0.52], [0.5, 0.5, 0.5])))
    assert seen.p > 0.05
    needed = seeds_needed(seen)
    assert needed is not None
    stream = np.random.default_rng(0)
    differences = 0.02 + seen.deviation * stream.standard_normal((4000, needed))
    found = (stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05).mean()
    assert 0.78 < found < 0.9
    assert seeds_needed(compared(Measured.whole({0: 0.5}, 9), Measured.whole({0: 0.4}, 9))) is None
    small = [Measured.whole(dict(enumerate(of)), 10_000) for of in ([0.501, 0.54, 0.46], [0.5, 0.5, 0.5])]
    assert seeds_needed(compared(*small)) is None


@pytest.mark.parametrize(("seeds", "same"), [(1, True), (3, False), (5, False), (5, True)])
def test_ties_seldom_have_a_winner(seeds: int, same: bool) -> None:  # benchmarks/verdict.py measures more
    stream = np.random.default_rng(0)
    named = 0
    for _ in range(500):
        cells = (1 if same else seeds, 20)
        expected = 0.75 + 0.1 * stream.standard_normal(cells) + 0.03 * stream.standard_normal((2, *cells))
        of_seeds = 0.01 * stream.standard_normal((2, seeds, 1)) * (seeds > 1)
        right = stream.binomial(50, (expected + of_seeds).clip(0, 1))
        named += len(alike({name: measured(own / 50) for name, own in zip("ab", right, strict=True)})) == 1
    assert named / 500 <= 0.06
