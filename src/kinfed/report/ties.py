"""Ties in a table: rows that are equal, or whose difference may be chance given their seeds or test samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ERRORS", "Measured", "alike"]

ERRORS = 2  # standard errors within which a difference may be chance


@dataclass(frozen=True)
class Measured:
    """The accuracy of one row, with what its standard error follows from.

    Attributes:
        by_seed: Accuracy by seed, each in [0, 1].
        samples: Number of test samples of one seed.
        digits: Number of decimals that are shown.
    """

    by_seed: Mapping[int, float]
    samples: float
    digits: int = 3

    @property
    def mean(self) -> float:
        """The mean over the seeds, rounded as it is shown."""
        return round(statistics.fmean(self.by_seed.values()), self.digits)

    def differs(self, other: Measured) -> bool:
        """Return True if two accuracies differ by more than two standard errors.

        With two or more common seeds, it is the standard error of the mean difference over these seeds. With fewer, it
        is the standard error of the difference between two proportions of test samples.
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
    """Find the best row and the rows that are equal to it or do not differ from it significantly.

    Args:
        rows: Accuracies by name of the row; at least one.

    Returns:
        Names of these rows, the best first.

    >>> alike({"a": Measured({0: 0.70}, 100), "b": Measured({0: 0.50}, 100), "c": Measured({0: 0.72}, 100)})
    ['c', 'a']
    """
    order = sorted(rows, key=lambda row: -rows[row].mean)
    best = rows[order[0]]
    return [row for row in order if rows[row].mean == best.mean or not rows[row].differs(best)]
