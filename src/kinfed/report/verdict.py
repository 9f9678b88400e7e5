"""The conclusion of a comparison in one sentence: the best method, compared with training alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinfed.report.folders import Run
from kinfed.report.rows import in_rows, is_supervised
from kinfed.report.style import REFERENCES
from kinfed.report.table import COLUMNS
from kinfed.report.ties import Measured, alike

__all__ = ["verdict"]

ALONE = ("local", "local_ssl")
NO_GAIN = " Training alone is among them: these results do not show that federation helps."


def verdict(runs: Sequence[Run]) -> str:
    """Return a sentence that names the method with the best mean accuracy on the clients' own test sets.

    It says if several methods are tied, and compares the best one with training alone. If any method learns without
    labels, all are compared by linear probe instead, since the own test accuracy of such a method is that of a
    classifier fitted to the labels of all clients.

    Args:
        runs: Runs of the comparison.

    Returns:
        The text; empty if fewer than two methods have this accuracy.
    """
    labelled = all(is_supervised(run) for run in runs)
    (column,) = (column for column in COLUMNS if column.heading == ("own test" if labelled else "linear probe"))
    found = {row: column.of(group) for row, group in in_rows(runs).items()}
    told = {row: measured for row, measured in found.items() if measured is not None}
    if len(told) < 2:
        return ""
    means = {row: measured.mean for row, measured in told.items()}
    measured = "on their own test samples" if labelled else "with a linear probe"
    first = alike(told)
    alone = max((row for row in ALONE if row in means), key=lambda row: means[row], default=None)
    against = f", against {means[alone]:.3f} when each client trains alone" if alone and alone not in first else ""
    if len(first) > 1:
        return f"{_tie(told, first, measured)}{against}.{NO_GAIN if alone in first else ''}"
    order = sorted(means, key=lambda method: -means[method])
    federated = [row for row in order if row.split()[0] not in REFERENCES]
    best = order[0]
    what = "serves these clients best" if labelled else "has the best representations"
    if best.split()[0] not in ALONE or not federated:
        return f"{best} {what}: {means[best]:.3f} {measured}{against}."
    return (
        f"Training alone {what} ({means[best]:.3f} {measured}); "
        f"the best federated method is {federated[0]} ({means[federated[0]]:.3f})."
    )


def _tie(told: Mapping[str, Measured], rows: Sequence[str], measured: str) -> str:
    """Return the text that some methods have equal accuracies, or accuracies that do not differ significantly."""
    best = told[rows[0]]
    *others, last = rows
    if all(told[row].mean == best.mean for row in rows):
        return f"{', '.join(others)} and {last} are a tie: {best.mean:.3f} {measured}"
    *others, last = (f"{row} ({told[row].mean:.3f})" for row in rows)
    several = min(len(told[row].by_seed) for row in rows) > 1
    by = "these seeds" if several else f"one seed and {best.samples:,.0f} test samples"
    return f"{', '.join(others)} and {last} cannot be told apart by {by} ({measured}, within two standard errors)"
