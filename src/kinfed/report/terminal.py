"""The table in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kinfed.report.folders import read_runs
from kinfed.report.table import NEW_CLIENTS, notes, setting, table, target_table, verdict
from kinfed.report.targets import targets

__all__ = ["show"]

PLAIN_WIDTH = 120  # where the output is no terminal and has no width of its own


def show(paths: Sequence[Path], console: Console | None = None) -> None:
    """Print what was run, the table, which method serves these clients best, and what must be known of the numbers."""
    runs = read_runs(paths)
    console = console or Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(f"\n{setting(runs)}\n", highlight=False)
    console.print(table(runs).rich())
    if (new := table(runs, new_clients=True)).rows:
        console.print(f"\n{NEW_CLIENTS}\n", highlight=False)
        console.print(new.rich())
    for target in targets([run.summary for run in runs]):
        console.print()
        console.print(target_table(runs, target).rich())
    for line in (verdict(runs), *notes(runs)):
        if line:
            console.print(f"\n{line}", highlight=False)
