"""Rounds until a target accuracy is reached, and the speed-up by a transfer (specification E.3).

A transfer is FedVote's: the body of a pre-trained source model replaces that of the server's model.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Reach", "SpeedUp", "as_text", "mean_text", "reach", "reference", "rounds_to", "speed_up", "targets"]

Summary = dict[str, Any]

TRANSFERS = "fedvote"  # the methods with a speed-up are this one and this+NAME


@dataclass(frozen=True)
class Reach:
    """The rounds in which the runs of one row reached a target.

    Attributes:
        rounds: First round of each seed that reached the target; None if no round did.
        limit: Number of rounds that were run.

    >>> str(Reach((12, 15), limit=30)), str(Reach((12, None), limit=30))
    ('13.5', '>21')
    """

    rounds: tuple[int | None, ...]
    limit: int

    @property
    def by_all(self) -> bool:
        """True if every seed reached the target."""
        return None not in self.rounds

    @property
    def mean(self) -> float:
        """The mean number of rounds over the seeds.

        A seed that did not reach the target counts as ``limit``, so that the true mean is larger.
        """
        return statistics.fmean(self.limit if round is None else round for round in self.rounds)

    def __str__(self) -> str:
        """Return the mean as text, after ``>`` if the true mean is larger."""
        return f"{'' if self.by_all else '>'}{mean_text(self.mean)}"


@dataclass(frozen=True)
class SpeedUp:
    """The speed-up by a transfer: the ratio of the rounds without it and with it.

    Attributes:
        times: The ratio, or a bound of it.
        bound: ``<`` if the ratio is less than ``times``, ``>`` if it is more, and empty if it is equal.
    """

    times: float
    bound: Literal["", "<", ">"] = ""

    @property
    def negative(self) -> bool:
        """True if the transfer certainly took more rounds: the ratio, or its upper bound, shows that it is below 1."""
        return self.times < 1 if self.bound == "" else self.times <= 1 and self.bound == "<"

    def __str__(self) -> str:
        """Return the ratio as the papers print it, such as ``5.03×``."""
        return f"{self.bound}{self.times:.2f}×"


def rounds_to(curve: Sequence[float | None], target: float) -> int | None:
    """Find the first round whose accuracy is the target or more (specification E.3).

    Args:
        curve: Accuracy after each round, in [0, 1]; None if it was not measured.
        target: Target accuracy, in (0, 1].

    Returns:
        Number of the round, from 1 on; None if no round reached the target.

    >>> rounds_to([0.5, None, 0.91, 0.89], 0.9)
    3
    """
    reached = (round for round, acc in enumerate(curve, 1) if acc is not None and acc >= target)
    return next(reached, None)


def mean_text(rounds: float) -> str:
    """Return a mean number of rounds as text, with one decimal if that is not 0."""
    return f"{round(rounds, 1):g}"


def as_text(target: float) -> str:
    """Return a target accuracy as text, with two decimals or more if it has more."""
    return max(f"{target:.2f}", f"{target:g}", key=len)


def targets(summaries: Sequence[Summary]) -> list[float]:
    """Return the target accuracies of runs, in ascending order."""
    asked = [summary.get("rounds_to_target") for summary in summaries]
    return sorted({told["target"] for told in asked if told is not None})


def reach(summaries: Sequence[Summary]) -> Reach | None:
    """Return the rounds in which the runs of one row reached their common target.

    Args:
        summaries: Summaries of the runs, one per seed.

    Returns:
        The rounds; None if the method has no global model.
    """
    if any(summary["metrics"]["global_acc"] is None for summary in summaries):
        return None
    return Reach(tuple(summary["rounds_to_target"]["round"] for summary in summaries), summaries[0]["rounds"])


def reference(method: str) -> str | None:
    """Return the name of the same method without the transfer; None for a method that transfers nothing.

    >>> reference("fedvote+fedprox"), reference("fedvote"), reference("fedprox")
    ('fedprox', 'fedavg', None)
    """
    name, _, trained_by = method.partition("+")
    return (trained_by or "fedavg") if name == TRANSFERS else None


def speed_up(own: Reach, without: Reach) -> SpeedUp | None:
    """Compute the speed-up by a transfer: mean rounds without it, divided by mean rounds with it.

    If some seed did not reach the target, one of the means is a lower bound, and so the ratio is a bound as well: a
    lower one if it happened without the transfer, an upper one if it happened with it.

    Args:
        own: Rounds of the runs with the transfer.
        without: Rounds of the runs without it.

    Returns:
        The speed-up; None if both means are only bounds.
    """
    if not (own.by_all or without.by_all):
        return None
    bound: Literal["", "<", ">"] = "" if own.by_all and without.by_all else ">" if own.by_all else "<"
    return SpeedUp(without.mean / own.mean, bound)
