"""The results of runs as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kinfed.errors import plain
from kinfed.experiment.targets import targets
from kinfed.report.ballots import outcomes, vote_table, voted, votes
from kinfed.report.folders import read_runs
from kinfed.report.notes import notes
from kinfed.report.reached import target_table
from kinfed.report.rows import setting
from kinfed.report.table import NEW_CLIENTS, Table, table
from kinfed.report.tuning import read_tuning, tuning_notes
from kinfed.report.verdict import verdict
from kinfed.report.width import NOTEBOOK_WIDTH, PLAIN_WIDTH

__all__ = ["show"]


def show(paths: Sequence[Path], console: Console | None = None, *, measure: str | None = None) -> None:
    """Print the setting, the tables, the best method, and notes on how to read the numbers.

    Args:
        paths: Run folders and comparison folders.
        console: Console to print to; standard output if not given.
        measure: Measure by which the runs are compared (see `read_runs`).
    """
    runs = read_runs(paths, measure)
    console = console or Console()
    if not console.is_terminal:
        console.width = NOTEBOOK_WIDTH if console.is_jupyter else PLAIN_WIDTH
    _say(console, setting(runs), "")
    _print(console, table(runs))
    if (new := table(runs, new_clients=True)).rows:
        _say(console, NEW_CLIENTS, "")
        _print(console, new)
    for target in targets([run.summary for run in runs]):
        console.print()
        _print(console, target_table(runs, target))
    for row, group in votes(runs).items():
        _say(console, f"The vote of {row}", *outcomes(group))
        if voted(group[0]):
            console.print()
            _print(console, vote_table(group[0]))
    tuned = [line for path in paths if (told := read_tuning(path)) for line in tuning_notes(told)]
    for line in (verdict(runs), *tuned, *notes(runs)):
        if line:
            _say(console, line)


def _print(console: Console, shown: Table) -> None:
    """Print a table, with an empty line between its parts."""
    for number, part in enumerate(shown.fitted(console.width)):
        console.print(*(["\n"] if number else []), part, sep="")


def _say(console: Console, *lines: str) -> None:
    """Print lines after an empty line, literally: brackets are no markup."""
    console.print("", *map(plain, lines), sep="\n", highlight=False, markup=False, emoji=False)
