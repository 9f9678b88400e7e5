"""Methods' notes on their rounds: numbers as curves, texts and single values as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from kinfed.engine.lines import AGREEMENT, Line, is_note
from kinfed.report.document import Panel
from kinfed.report.folders import Run
from kinfed.report.style import styled
from kinfed.report.table import Cell, Table

__all__ = ["note_curves", "note_table"]

Curve = list[tuple[int, float]]


def note_curves(group: Sequence[Run]) -> list[Panel]:
    """Draw a panel for each note that is a number in several rounds, one line per seed; none without such notes."""
    return [
        Panel(_curves(group, of_seeds), _words(name))
        for name, of_seeds in _numbers(group).items()
        if max(map(len, of_seeds)) > 1
    ]


def _curves(group: Sequence[Run], of_seeds: Sequence[Curve]) -> go.Figure:
    figure = go.Figure()
    for run, curve in zip(group, of_seeds, strict=True):
        figure.add_scatter(
            x=[round for round, _ in curve],
            y=[value for _, value in curve],
            name=f"seed {run.summary['seed']}",
            mode="lines",
            line={"color": "#0072B2", "width": 1.5},
            showlegend=False,
            hovertemplate="%{y:.4g}",
        )
    figure.update_xaxes(title_text="round")
    return styled(figure, height=260)


def note_table(group: Sequence[Run]) -> Table:
    """Make a table of the last values of the other notes of the first seed: texts, booleans, numbers of one round."""
    run = group[0]
    single = {name: of_seeds[0] for name, of_seeds in _numbers(group).items() if max(map(len, of_seeds)) == 1}
    last: dict[str, tuple[int, Any]] = {name: curve[-1] for name, curve in single.items() if curve}
    for line in run.lines:
        told = {name: value for name, value in line.items() if is_note(name) and isinstance(value, str | bool)}
        last |= {name: (line["round"], value) for name, value in told.items()}
    rows = [
        (Cell(_words(name)), Cell(f"{value:.4g}" if isinstance(value, float) else str(value)), Cell(str(round)))
        for name, (round, value) in last.items()
    ]
    return Table(
        ("note", "value", "round"),
        ("", f"value for seed {run.summary['seed']}", "last round with this note"),
        tuple(rows),
    )


def _numbers(group: Sequence[Run]) -> dict[str, list[Curve]]:
    """Return the rounds and values of each note that is a number, for each run, by name of the note.

    The number of the groups that a method has formed, and their agreement with planted ones, count as notes.
    """
    lines = [[_with_number_of_groups(line) for line in run.lines] for run in group]
    names = dict.fromkeys(
        name
        for of_run in lines
        for line in of_run
        for name, value in line.items()
        if (is_note(name) or name in AGREEMENT) and _is_number(value)
    )
    return {
        name: [[(line["round"], line[name]) for line in of_run if _is_number(line.get(name))] for of_run in lines]
        for name in names
    }


def _with_number_of_groups(line: Line) -> Line:
    return {**line, "number_of_groups": len({*line["groups"]})} if "groups" in line else line


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(name: str) -> str:
    return name.replace("_", " ")
