"""What comparisons cost: runs and rounds, how many are left, and about how long they take; who is told."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kinfed.engine import Callback, RunFolder
from kinfed.engine.folder import SECONDS
from kinfed.experiment.config import Config
from kinfed.experiment.folders import SUMMARY
from kinfed.experiment.run import nobody
from kinfed.labels import folder_name

__all__ = ["UNSEEN", "Cost", "Spectator", "UnseenRuns", "cost_of"]


@dataclass(frozen=True)
class Cost:
    """Runs and rounds of comparisons, such as those of a paper's table.

    Attributes:
        runs: Number of all runs.
        rounds: Number of the rounds of all runs.
        left_runs: Number of runs that have not ended.
        left: Number of rounds that they still have to do, by method.
        seconds: Estimated seconds of these rounds, at the mean pace of the method's rounds so far, or of all rounds
            for a method that has none; None if no round has been done.
    """

    runs: int
    rounds: int
    left_runs: int
    left: Mapping[str, int]
    seconds: float | None

    @property
    def left_rounds(self) -> int:
        """Number of rounds of all methods that are still to be done."""
        return sum(self.left.values())


class Spectator(Protocol):
    """Observer of the runs of a table or figure."""

    def cost(self, cost: Cost) -> None:
        """Report what is to be done, before it begins."""

    def run(self, method: str, seed: int, rounds: int, /) -> Callback:
        """Return the observer of one run."""

    def source(self, name: str, seed: int, epochs: int, /) -> Callback:
        """Return the observer of the training of one source model, whose rounds are epochs."""


class UnseenRuns:
    """Observer of runs that does nothing."""

    run = source = staticmethod(nobody)

    def cost(self, cost: Cost) -> None:
        """Do nothing."""

    def runs(self, cost: Cost) -> None:
        """Do nothing."""


UNSEEN = UnseenRuns()


def cost_of(comparisons: Mapping[Path, Config], *, anew: bool = False) -> Cost:
    """Count the runs and rounds of comparisons, and what is left of them.

    Args:
        comparisons: Config of each comparison by its folder, which need not exist yet.
        anew: True if the comparisons begin from the start, whatever is in their folders.
    """
    rounds, left_runs = 0, 0
    left: dict[str, int] = {}
    taken: dict[str, list[float]] = {}
    for folder, config in comparisons.items():
        for method in config.methods:
            for seed in range(config.seed, config.seed + config.seeds):
                run = RunFolder(folder / folder_name(method, seed))
                lines = [] if anew else run.lines(SECONDS)
                ended = not anew and (run.path / SUMMARY).is_file()
                taken.setdefault(method, []).extend(sum(line.values()) - line["round"] for line in lines)
                left[method] = left.get(method, 0) + (0 if ended else config.rounds - len(lines))
                rounds += config.rounds
                left_runs += not ended
    of_all = [seconds for of_method in taken.values() for seconds in of_method]
    pace = {method: statistics.fmean(own or of_all) for method, own in taken.items()} if of_all else {}
    return Cost(
        runs=sum(len(config.methods) * config.seeds for config in comparisons.values()),
        rounds=rounds,
        left_runs=left_runs,
        left=left,
        seconds=sum(count * pace[method] for method, count in left.items()) if pace else None,
    )
