"""How long several runs still take, from the pace of the rounds that this process has done."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

__all__ = ["TimeLeft"]


class TimeLeft:
    """The rounds that are left, and about how long they take.

    A round of one method may take ten times as long as one of another. So each method's rounds are expected to take as
    long as its own ones so far, on average, with the tests after the last round of its finished runs; those of a method
    that has done none, the mean over the methods that have.

    Args:
        rounds: Number of rounds to do by method.

    >>> left = TimeLeft({"fedavg": 10, "moon": 10})
    >>> left.round("fedavg", seconds=2.0)
    >>> left.round("moon", seconds=6.0)
    >>> left.rounds, left.seconds
    (18, 72.0)
    """

    def __init__(self, rounds: Mapping[str, int]) -> None:
        self._left = {**rounds}
        self._taken: dict[str, list[float]] = {}

    @property
    def rounds(self) -> int:
        """Number of rounds that are left."""
        return sum(self._left.values())

    @property
    def seconds(self) -> float | None:
        """Estimated seconds of these rounds; None before the first round."""
        if not self._taken:
            return None
        pace = {method: statistics.fmean(taken) for method, taken in self._taken.items()}
        usual = statistics.fmean(pace.values())
        return sum(rounds * pace.get(method, usual) for method, rounds in self._left.items())

    def round(self, method: str, seconds: float) -> None:
        """Note a round that is done."""
        self._taken.setdefault(method, []).append(seconds)
        self.drop(method, 1)

    def drop(self, method: str, rounds: int) -> None:
        """Note rounds that need not be done, such as those of a run that ended early."""
        self._left[method] = max(self._left[method] - rounds, 0)  # a killed run repeats rounds after its checkpoint
