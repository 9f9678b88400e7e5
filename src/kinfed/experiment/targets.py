"""How soon runs reach a target accuracy, and how much sooner than those without a transfer (METHODS.md E.3)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Reach", "SpeedUp", "as_text", "mean_text", "reach", "reference", "rounds_to", "speed_up", "targets"]

Summary = dict[str, Any]

TRANSFERS = "fedvote"  # the methods that a speed-up is told of: this, and this+NAME


@dataclass(frozen=True)
class Reach:
    """How soon the runs of one row reached a target.

    Attributes:
        rounds: The first round that did, one a seed; None where none did.
        limit: How many rounds were run.
    """

    rounds: tuple[int | None, ...]
    limit: int

    @property
    def by_all(self) -> bool:
        """Whether every seed reached it, so that there is a mean."""
        return None not in self.rounds

    @property
    def mean(self) -> float:
        """Rounds, mean over the seeds; one that did not reach it counts as ``limit``, and the true mean is more."""
        return statistics.fmean(self.limit if round is None else round for round in self.rounds)

    def __str__(self) -> str:
        """The mean, after ``>`` where it is more than that."""
        return f"{'' if self.by_all else '>'}{mean_text(self.mean)}"


@dataclass(frozen=True)
class SpeedUp:
    """How many times fewer rounds a transfer took; ``<`` or ``>`` where ``times`` is only a bound of that."""

    times: float
    bound: Literal["", "<", ">"] = ""

    @property
    def negative(self) -> bool:
        """Whether it took more rounds for certain; a speed-up is less than its upper bound."""
        return self.times < 1 if self.bound == "" else self.times <= 1 and self.bound == "<"

    def __str__(self) -> str:
        """As the papers print it: 5.03×."""
        return f"{self.bound}{self.times:.2f}×"


def rounds_to(curve: Sequence[float | None], target: float) -> int | None:
    """The first round whose accuracy is the target or more (METHODS.md E.3); later dips do not matter.

    Args:
        curve: Accuracy after each round, from the first one on; None where it was not measured.
        target: In (0, 1].

    Returns:
        From 1 to as many rounds as there are; None if it was not reached.
    """
    reached = (round for round, acc in enumerate(curve, 1) if acc is not None and acc >= target)
    return next(reached, None)


def mean_text(rounds: float) -> str:
    """Rounds with one decimal, where that is not 0."""
    return f"{round(rounds, 1):g}"


def as_text(target: float) -> str:
    """A target with two decimals, or more if it has more."""
    return max(f"{target:.2f}", f"{target:g}", key=len)


def targets(summaries: Sequence[Summary]) -> list[float]:
    """What runs were asked for, from the lowest on."""
    asked = [summary.get("rounds_to_target") for summary in summaries]
    return sorted({told["target"] for told in asked if told is not None})


def reach(summaries: Sequence[Summary]) -> Reach | None:
    """Of a row's runs, one a seed, that were all asked for one target; None where there is no global model."""
    if any(summary["metrics"]["global_acc"] is None for summary in summaries):
        return None
    return Reach(tuple(summary["rounds_to_target"]["round"] for summary in summaries), summaries[0]["rounds"])


def reference(method: str) -> str | None:
    """The method that is the same without the transfer; None of those that transfer nothing."""
    name, _, trained_by = method.partition("+")
    return (trained_by or "fedavg") if name == TRANSFERS else None


def speed_up(own: Reach, without: Reach) -> SpeedUp | None:
    """The mean rounds without the transfer, divided by those with it; None where neither mean is known.

    A bound where one of them is not, since some or all seeds did not reach the target: above it without the transfer,
    below it with the transfer.
    """
    if not (own.by_all or without.by_all):
        return None
    bound: Literal["", "<", ">"] = "" if own.by_all and without.by_all else ">" if own.by_all else "<"
    return SpeedUp(without.mean / own.mean, bound)
