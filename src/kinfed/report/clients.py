"""The table of all clients: their data, the measure of each method, and the gain over training alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinfed.report.folders import Run
from kinfed.report.measures import WORDS
from kinfed.report.rows import in_rows, learns_alone
from kinfed.report.table import Cell, Table

__all__ = ["MOST", "client_table"]

MOST = 500  # largest number of lines on a page


def client_table(runs: Sequence[Run]) -> Table:
    """Make the table of the clients, a line for each client of each seed, in the order of seeds and clients.

    Without a method that trains alone, there are no gains. The table has at most `MOST` lines, and none if no client
    has a model of which the measure is known.
    """
    grouped = in_rows(runs)
    alone = next(filter(learns_alone, grouped), None)
    seeds = sorted({run.summary["seed"] for run in runs})
    what, against = WORDS[runs[0].measure], f" less that of {alone}" if alone else ""
    columns = {"client": "name of the client, or its number", "seed": "seed that drew the clients",
               "samples": "training samples", "classes": "classes of its training samples"}  # fmt: skip
    for row in grouped:
        columns[row] = f"{what} on the client's own test samples"
        if alone and row != alone:
            columns[f"{row}, gain"] = f"{what} of {row}{against}"
    lines: list[tuple[Cell, ...]] = []
    for seed in seeds:
        runs_of = {row: run for row, group in grouped.items() for run in group if run.summary["seed"] == seed}
        values = {row: of.client_values() for row, of in runs_of.items()}
        run = next(iter(runs_of.values()))
        for id, name in enumerate(run.client_labels):
            cells = [name, str(seed), str(run.samples[id]), _classes(run, id)]
            own = {row: float(values[row][id]) if id < len(values.get(row, ())) else np.nan for row in grouped}
            for row, value in own.items():
                cells.append(_number(value, ".3f"))
                if alone and row != alone:
                    cells.append(_number(value - own[alone], "+.3f"))
            lines.append(tuple(map(Cell, cells)))
    known = any(cell.text != "n/a" for line in lines for cell in line[4:])
    return Table((*columns,), (*columns.values(),), (*lines[:MOST],) if known else ())


def _classes(run: Run, id: int) -> str:
    """Return the number of classes of a client's training samples."""
    return "n/a" if run.unlabelled else str(sum(count > 0 for count in run.federation["train"][id]))


def _number(value: float, form: str) -> str:
    return "n/a" if np.isnan(value) else format(value, form)
