"""Which rows of a table are equal, and which cannot be told apart by their seeds or test samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ERRORS", "Measured", "alike"]

ERRORS = 2  # standard errors within which a difference may be chance


@dataclass(frozen=True)
class Measured:
    """An accuracy of one row.

    Attributes:
        by_seed: Of each seed.
        samples: How many test samples it is of, in one seed.
        digits: With how many decimals it is shown.
    """

    by_seed: Mapping[int, float]
    samples: float
    digits: int = 3

    @property
    def mean(self) -> float:
        """Over the seeds, as it is shown."""
        return round(statistics.fmean(self.by_seed.values()), self.digits)

    def differs(self, other: Measured) -> bool:
        """Whether the difference is more than two standard errors: of the differences over the seeds that both have.

        With less than two such seeds it is that of the difference of two shares of the test samples.
        """
        common = [seed for seed in self.by_seed if seed in other.by_seed]
        if len(common) > 1:
            differences = [self.by_seed[seed] - other.by_seed[seed] for seed in common]
            error = statistics.stdev(differences) / math.sqrt(len(common))
            return abs(statistics.fmean(differences)) > ERRORS * error
        shares = [(statistics.fmean(of.by_seed.values()), of.samples) for of in (self, other)]
        error = math.sqrt(math.fsum(share * (1 - share) / max(samples, 1) for share, samples in shares))
        return abs(shares[0][0] - shares[1][0]) > ERRORS * error


def alike(rows: Mapping[str, Measured]) -> list[str]:
    """The best row and those that are equal to it or cannot be told from it, the best first.

    Args:
        rows: By name; not empty.
    """
    order = sorted(rows, key=lambda row: -rows[row].mean)
    best = rows[order[0]]
    return [row for row in order if rows[row].mean == best.mean or not rows[row].differs(best)]
