"""The differences between the rows of a comparison and its best one, as a table and as a pandas DataFrame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from kinfed.errors import InputError
from kinfed.report.folders import Run
from kinfed.report.rows import ceilings, in_rows, is_supervised
from kinfed.report.statistics import LEVEL, Measured, PairedDifference, compare, holm, wilcoxon
from kinfed.report.table import Cell, Table, columns_of

__all__ = ["DIFFERENCES", "Difference", "compared", "difference_frame", "difference_table", "differences"]

DIFFERENCES = (
    "Each difference is over the same seeds, clients and test samples. A row is told from the best one if its p-value "
    "is below 0.05. docs/verdict.md says what the intervals allow for."
)


@dataclass(frozen=True)
class Difference:
    """The difference between a row and the one that it is compared with.

    Attributes:
        row: Name of the row.
        against: Name of the one that it is compared with.
        told: The comparison, the row less the other; None without a common seed.
        p: Its p-value after Holm's correction over the rows; NaN without a common seed.
        wilcoxon: That of Wilcoxon's test over the clients, corrected alike; NaN with fewer than two clients.
    """

    row: str
    against: str
    told: PairedDifference | None
    p: float
    wilcoxon: float


def compared(runs: Sequence[Run]) -> dict[str, Measured]:
    """Return the accuracies, or the values of another measure, by which methods are compared, by name of the row.

    They are those on the clients' own test samples. If any method learns without labels, they are linear probes, since
    the own test accuracy of such a method is that of a classifier fitted to the labels of all clients.
    """
    heading = "own test" if all(map(is_supervised, runs)) else "linear probe"
    (column,) = (column for column in columns_of(runs[0].measure) if column.heading == heading)
    found = {row: column.of(group) for row, group in in_rows(runs).items()}
    return {row: measured for row, measured in found.items() if measured is not None}


def differences(runs: Sequence[Run], against: str | None = None) -> list[Difference]:
    """Compare every row with one of them.

    Args:
        runs: Runs of the comparison.
        against: Name of a row; the best one that is no ceiling if not given.

    Returns:
        A difference for each other row that is no ceiling, the best first.

    Raises:
        InputError: If there is no such row, or it has no accuracy.
    """
    told = compared(runs)
    order = sorted((row for row in told if row not in ceilings(runs)), key=lambda row: (-told[row].mean, row))
    if against is not None and against not in told:
        raise InputError(f"against: {against!r} is not allowed; rows with an accuracy: {', '.join(told) or 'none'}")
    to = against or next(iter(order), "")
    others = [row for row in order if row != to]
    found = [compare(told[row], told[to]) for row in others]
    by_t = holm([math.nan if of is None else of.p for of in found])
    by_clients = holm([wilcoxon(told[row], told[to]) for row in others])
    return [
        Difference(row, to, of, p, by_client)
        for row, of, p, by_client in zip(others, found, by_t, by_clients, strict=True)
    ]


def difference_table(runs: Sequence[Run]) -> Table:
    """Make the table of the differences to the best row; without rows if there are fewer than two."""
    told = differences(runs)
    columns = (
        ("method", ""),
        ("told apart", "whether the p-value is below 0.05"),
        ("difference", f"mean less that of {told[0].against if told else ''}"),
        ("95 % interval", "of this difference alone, by Student's t"),
        ("p", "probability of such a difference in a tie, with Holm's correction over the rows"),
        ("p by clients", "the same by Wilcoxon's signed-rank test over the clients, each with its mean over the seeds"),
        ("over", "the draws that the interval allows for"),
        ("seeds", "common seeds"),
        ("clients", "clients with test samples; 1 if accuracies by client are not known"),
        ("samples", "test samples of one seed"),
    )
    headings, meanings = zip(*columns, strict=True)
    return Table(headings, meanings, tuple(map(_cells, told)))


def _cells(of: Difference) -> tuple[Cell, ...]:
    """Return the row of a difference."""
    if of.told is None:
        return (Cell(of.row), Cell("no common seed"), *[Cell("–")] * 8)
    return tuple(
        map(
            Cell,
            (
                of.row,
                "yes" if of.p < LEVEL else "no",
                f"{of.told.difference:+.3f}",
                f"{of.told.low:+.3f} to {of.told.high:+.3f}",
                _p(of.p),
                _p(of.wilcoxon),
                of.told.over,
                f"{of.told.seeds}",
                f"{of.told.clients}",
                f"{of.told.samples:,}",
            ),
        )
    )


def _p(p: float) -> str:
    """Return a p-value as text."""
    return "–" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def difference_frame(runs: Sequence[Run], against: str | None = None) -> pd.DataFrame:
    """Return the differences as a DataFrame (see `kinfed.Result.differences`)."""
    names = ["method", "against", "difference", "low", "high", "p", "wilcoxon", "over", "seeds", "clients", "samples"]
    rows = [
        {**({} if of.told is None else asdict(of.told)), "method": of.row, "against": of.against, "p": of.p,
         "wilcoxon": of.wilcoxon}
        for of in differences(runs, against)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=names)
