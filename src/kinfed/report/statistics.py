"""Paired differences between the rows of a comparison: their intervals, and which rows cannot be told from the best.

Letters: ``S`` seeds, ``N`` clients. ``docs/verdict.md`` says how often these intervals claim a difference in a tie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtr, stdtr, stdtrit

__all__ = [
    "FEW_CLIENTS",
    "LEVEL",
    "MOST_SEEDS",
    "Measured",
    "PairedDifference",
    "alike",
    "client_differences",
    "client_means",
    "compare",
    "holm",
    "seeds_needed",
    "wilcoxon",
]

LEVEL = 0.05  # probability of an error: intervals are of 95 %
POWER = 0.8  # probability that a difference is found with the seeds that are said to be needed
FEW_CLIENTS = 5  # with fewer clients, their spread says nothing about other clients
MOST_SEEDS = 100
DIGITS = 3  # decimals of an accuracy as it is shown

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """The accuracies of one row, by seed and client.

    Attributes:
        seeds: The S seeds, each once.
        accuracies: Accuracy for each seed and client in [0, 1], S×N; NaN without one.
        samples: Number of test samples of each seed and client, S×N.
        weights: Weight of each client in the mean of a seed, S×N.
    """

    seeds: tuple[int, ...]
    accuracies: Array
    samples: Array
    weights: Array

    @classmethod
    def whole(cls, by_seed: Mapping[int, float], samples: float) -> Measured:
        """Return a row of which only one value for each seed is known, as if there were one client.

        Args:
            by_seed: Value of each seed.
            samples: Number of test samples of one seed.

        >>> Measured.whole({0: 0.7, 1: 0.8}, samples=100).mean
        0.75
        """
        values = np.array([*by_seed.values()], dtype=np.float64)[:, None]
        return cls(tuple(by_seed), values, np.full_like(values, samples), np.ones_like(values))

    @property
    def by_seed(self) -> dict[int, float]:
        """The weighted mean over the clients by seed; NaN without an accuracy."""
        means = (_shares(self.accuracies, self.weights) * np.nan_to_num(self.accuracies)).sum(axis=1)
        means[np.isnan(self.accuracies).all(axis=1)] = np.nan
        return dict(zip(self.seeds, means.tolist(), strict=True))

    @property
    def mean(self) -> float:
        """The mean over the seeds of the weighted means over the clients."""
        return math.fsum(self.by_seed.values()) / len(self.seeds)

    def of(self, seeds: Sequence[int]) -> Measured:
        """Return the same row with some of its seeds alone."""
        at = [self.seeds.index(seed) for seed in seeds]
        return Measured(tuple(seeds), self.accuracies[at], self.samples[at], self.weights[at])


@dataclass(frozen=True)
class PairedDifference:
    """The difference between two rows, over the same seeds, clients and test samples.

    Attributes:
        difference: Mean of the one less mean of the other.
        low: Lower end of the 95 % interval.
        high: Upper end.
        p: Probability of a difference at least as large if there is none.
        over: Draws that the interval allows for: ``"seeds and clients"``, ``"seeds and samples"``, ``"seeds"``,
            ``"clients"`` (and their samples) or ``"samples"``.
        seeds: Number of seeds.
        clients: Number of clients.
        samples: Number of test samples of one seed, the mean over the seeds.
        deviation: Sample standard deviation of the difference over the seeds; NaN with one seed.
        lasting: Variance of the difference that more seeds do not reduce.
    """

    difference: float
    low: float
    high: float
    p: float
    over: str
    seeds: int
    clients: int
    samples: int
    deviation: float
    lasting: float


def compare(one: Measured, other: Measured) -> PairedDifference | None:
    """Compare two rows over the seeds and clients that both of them have.

    The difference of a seed is the weighted mean over the clients of the differences at each client. Its interval is
    Student's, and its variance depends on what there is:

    * Two seeds or more: the variance over the seeds, by S - 1 degrees of freedom. With five clients or more, that of
      clients who differ alike in all seeds is added, from the products of a client's deviations in two seeds; it is
      about zero if every seed draws new clients. The degrees of freedom are then at most N - 1. With two to four
      clients that have as many samples in all seeds, the error of the samples is added as with one seed.
    * One seed, five clients or more: the variance over the clients, which has that of their samples in it. Clients
      count as independent. It says nothing about other seeds.
    * One seed, fewer clients: the variance of two proportions of the samples (Agresti and Caffo, 2000), as if the two
      rows had other samples, which is too wide. It says nothing about other seeds or other clients.

    The variance is at least that of the fewest samples, one or more, on which the rows can disagree (McNemar).

    Args:
        one: The one row.
        other: The other row, of the same clients. If it has another number, the means of the seeds are compared.

    Returns:
        The comparison; None if the rows have no seed in common in which a client was tested with both.

    >>> rows = [Measured.whole(dict(enumerate(a)), 10_000) for a in ([0.51, 0.52, 0.53], [0.5, 0.5, 0.5])]
    >>> told = compare(*rows)
    >>> round(told.difference, 3), round(told.low, 3), round(told.high, 3)
    (0.02, -0.005, 0.045)
    """
    pair = _paired(one, other)
    if pair is None:
        return None
    of_seeds = (pair.shares * np.nan_to_num(pair.differences)).sum(axis=1)
    difference, samples = float(of_seeds.mean()), float(pair.samples.sum(axis=1).mean())
    found = _variance(pair, of_seeds)
    error = math.sqrt(max(found.fleeting + found.lasting, _fewest(difference, samples)))
    half = float(stdtrit(found.freedom, 1 - LEVEL / 2)) * error
    return PairedDifference(
        difference=difference,
        low=difference - half,
        high=difference + half,
        p=float(2 * stdtr(found.freedom, -abs(difference) / error)),
        over=found.over,
        seeds=len(of_seeds),
        clients=pair.clients,
        samples=round(samples),
        deviation=float(of_seeds.std(ddof=1)) if len(of_seeds) > 1 else math.nan,
        lasting=found.lasting,
    )


def alike(rows: Mapping[str, Measured]) -> list[str]:
    """Find the best row and the rows that cannot be told from it.

    A row is told from the best if the p-value of their difference, after Holm's correction over all rows, is below
    0.05. Rows with the same mean as it is shown, and rows without a common seed, are not told apart.

    Args:
        rows: Accuracies by name of the row; at least one.

    Returns:
        Names of these rows, the best first.

    >>> rows = {"a": 0.70, "b": 0.50, "c": 0.72}
    >>> alike({row: Measured.whole({0: accuracy}, samples=100) for row, accuracy in rows.items()})
    ['c', 'a']
    """
    best, *others = sorted(rows, key=lambda row: (-rows[row].mean, row))
    told = [compare(rows[best], rows[row]) for row in others]
    adjusted = holm([1.0 if of is None or of.difference <= 0 else of.p for of in told])
    shown = round(rows[best].mean, DIGITS)
    return [
        best,
        *(row for row, p in zip(others, adjusted, strict=True) if p >= LEVEL or round(rows[row].mean, DIGITS) == shown),
    ]


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values for their number, by Holm's method; NaN stays and does not count.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, least = [*p], 0.0
    order = sorted((i for i in range(len(p)) if not math.isnan(p[i])), key=lambda i: p[i])
    for rank, i in enumerate(order):
        least = max(least, min(1.0, p[i] * (len(order) - rank)))
        adjusted[i] = least
    return adjusted


def wilcoxon(one: Measured, other: Measured) -> float:
    """Compute the p-value of Wilcoxon's signed-rank test over the clients, each with its mean over the seeds.

    Clients without a difference are left out. It is 1 if no client has one, and NaN with fewer than two clients.

    >>> rows = [Measured((0,), np.full((1, 6), a), np.ones((1, 6)), np.ones((1, 6))) for a in (0.5, 0.25)]
    >>> wilcoxon(*rows)
    0.03125
    """
    from scipy import stats

    means = client_means(client_differences(one, other))
    means = means[~np.isnan(means)]
    if len(means) < 2:
        return math.nan
    return float(stats.wilcoxon(means[means != 0]).pvalue) if means.any() else 1.0


def client_differences(one: Measured, other: Measured) -> dict[int, Array]:
    """Return the differences at the N clients by common seed; NaN at a client that one of the rows did not test.

    >>> rows = [Measured((0,), np.array([a]), np.ones((1, 2)), np.ones((1, 2))) for a in ([0.75, 0.5], [0.5, np.nan])]
    >>> client_differences(*rows)
    {0: array([0.25,  nan])}
    """
    pair = _paired(one, other)
    return {} if pair is None else dict(zip(pair.seeds, pair.differences, strict=True))


def client_means(differences: Mapping[int, Array]) -> Array:
    """Return the mean over the seeds at each of N clients, NaN at a client without any.

    Means are rounded to twelve decimals: rounding errors are no differences, and break no ties.

    Args:
        differences: Differences at the clients by seed, as `client_differences` returns them.

    >>> client_means({0: np.array([0.25, np.nan, np.nan]), 1: np.array([0.5, -0.5, np.nan])})
    array([ 0.375, -0.5  ,    nan])
    """
    if not differences:
        return np.empty(0)
    stacked = np.stack([*differences.values()])
    known = (~np.isnan(stacked)).sum(axis=0)
    means: Array = np.where(known, np.nan_to_num(stacked).sum(axis=0) / np.maximum(known, 1), np.nan).round(12)
    return means


def seeds_needed(told: PairedDifference) -> int | None:
    """Estimate how many seeds in all would show this difference, with a probability of 80 %.

    It takes the difference and its variance over the seeds as they were found, which few seeds tell only roughly.

    Args:
        told: A comparison over seeds.

    Returns:
        The number of seeds; None if it is more than 100, or there was one seed.

    >>> rows = [Measured.whole(dict(enumerate(a)), 10_000) for a in ([0.51, 0.52, 0.53], [0.5, 0.5, 0.5])]
    >>> seeds_needed(compare(*rows))
    5
    """
    if told.seeds < 2 or told.difference == 0:
        return None
    seeds = np.arange(told.seeds + 1, MOST_SEEDS + 1)
    freedom = np.minimum(seeds, told.clients if told.over == "seeds and clients" else seeds) - 1.0
    critical = stdtrit(freedom, 1 - LEVEL / 2)
    error = np.sqrt(told.deviation**2 / seeds + told.lasting)
    power = 1 - nctdtr(freedom, abs(told.difference) / np.maximum(error, np.finfo(np.float64).tiny), critical)
    enough_samples = abs(told.difference) > critical * math.sqrt(_fewest(told.difference, told.samples))
    enough = seeds[(power >= POWER) & enough_samples]
    return int(enough[0]) if len(enough) else None


@dataclass(frozen=True)
class _Pair:
    """Two rows with the same seeds.

    Attributes:
        seeds: The S seeds.
        differences: Difference for each seed and client, S×N; NaN if a client was not tested with both.
        shares: Share of each client in the mean of a seed, S×N; zero for such a client.
        samples: Number of test samples, S×N; zero for such a client.
        accuracies: Accuracies of the two rows, 2×S×N.
    """

    seeds: tuple[int, ...]
    differences: Array
    shares: Array
    samples: Array
    accuracies: Array

    @property
    def clients(self) -> int:
        """The number of clients that were tested with both in a seed."""
        return int((self.shares > 0).any(axis=0).sum())


@dataclass(frozen=True)
class _Variance:
    """The variance of a difference.

    Attributes:
        fleeting: The part that more seeds reduce; with one seed, all of it.
        lasting: The part that they do not reduce.
        freedom: Degrees of freedom of the estimate.
        over: What it is over (see `PairedDifference`).
    """

    fleeting: float
    lasting: float
    freedom: float
    over: str


def _variance(pair: _Pair, of_seeds: Array) -> _Variance:
    """Estimate the variance of the mean of the S seeds' differences, as `compare` says."""
    seeds, clients = len(of_seeds), pair.clients
    deviations = pair.shares * (np.nan_to_num(pair.differences) - of_seeds[:, None])
    if seeds == 1 and clients < FEW_CLIENTS:
        return _Variance(_of_samples(pair), 0.0, math.inf, "samples")
    if seeds == 1:
        as_many = 1 / float((pair.shares**2).sum())  # clients of equal weight that would vary as much
        return _Variance(_of_clients(deviations, clients), 0.0, max(as_many - 1, 1), "clients")
    over_seeds = float(of_seeds.var(ddof=1)) / seeds
    if clients < FEW_CLIENTS:
        same = clients > 1 and bool((pair.samples == pair.samples[0]).all())  # so are their test samples, most likely
        return _Variance(
            over_seeds, _of_samples(pair) if same else 0.0, seeds - 1, "seeds and samples" if same else "seeds"
        )
    return _Variance(over_seeds, _of_lasting_clients(deviations, clients), min(seeds, clients) - 1, "seeds and clients")


def _fewest(difference: float, samples: float) -> float:
    """Return the variance of a difference if the rows disagree on the fewest samples that it allows, at least one."""
    return max(abs(difference) * samples, 1) / max(samples, 1) ** 2


def _paired(one: Measured, other: Measured) -> _Pair | None:
    """Pair two rows over their common seeds in which a client was tested with both; None if there are none."""
    if one.accuracies.shape[1] != other.accuracies.shape[1]:
        one, other = (Measured.whole(row.by_seed, float(row.samples.sum(axis=1).mean())) for row in (one, other))
    common = [seed for seed in one.seeds if seed in other.seeds]
    one, other = one.of(common), other.of(common)
    differences = one.accuracies - other.accuracies
    at = np.flatnonzero(~np.isnan(differences).all(axis=1))
    if not len(at):
        return None
    one, other, differences = one.of([common[i] for i in at]), other.of([common[i] for i in at]), differences[at]
    return _Pair(
        one.seeds,
        differences,
        _shares(differences, one.weights),
        np.where(np.isnan(differences), 0, one.samples),
        np.stack([one.accuracies, other.accuracies]),
    )


def _shares(values: Array, weights: Array) -> Array:
    """Return the weights of each seed with a sum of 1, S×N, and zero for a client without a value."""
    known = np.where(np.isnan(values), 0, weights)
    shares: Array = known / np.maximum(known.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return shares


def _of_clients(deviations: Array, clients: int) -> float:
    """Return the variance of a weighted mean over clients from their weighted deviations, 1×N."""
    return float((deviations**2).sum()) * clients / (clients - 1)


def _of_lasting_clients(deviations: Array, clients: int) -> float:
    """Return the variance of the mean that is due to clients who deviate alike in all seeds.

    It is estimated from the products of a client's deviations in two different seeds, which are zero on average if
    each seed has clients of its own.

    Args:
        deviations: Weighted deviation from the mean of the seed, S×N.
        clients: Number of clients.
    """
    seeds = len(deviations)
    products = float((deviations.sum(axis=0) ** 2 - (deviations**2).sum(axis=0)).sum())
    return max(products, 0.0) / (seeds * (seeds - 1)) * clients / (clients - 1)


def _of_samples(pair: _Pair) -> float:
    """Return the variance of the difference that is due to the test samples, the same ones in all seeds.

    Each proportion gets a success and a failure more, so that one of 0 or 1 has a variance as well.
    """
    right = np.nan_to_num(pair.accuracies) * pair.samples + 1
    proportions = right / (pair.samples + 2)
    variances = (proportions * (1 - proportions) / (pair.samples + 2)).sum(axis=0)
    return float((pair.shares**2 * variances).sum(axis=1).mean())
