"""Descriptions of the figures of papers, and the numbers that were measured for one: curves or matrices."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kinfed.experiment.papers.table import Fields, PaperTable, Row, Scale

__all__ = [
    "CLASS_COUNTS", "CRSM", "HEAD_DISTANCE", "LAYERS", "MATRICES", "NUMBERS", "PANELS", "ROUND", "SPEED_UP", "Curve",
    "Matrix", "Measured", "PaperFigure", "Place", "numbers",
]  # fmt: skip

ROUND, PANELS = "round", "panels"  # what an x-axis can have, besides the values of a field
HEAD_DISTANCE, SPEED_UP = "head_distance", "speed_up"
CRSM, LAYERS, CLASS_COUNTS = "crsm", "layer_similarity", "class_counts"

NUMBERS = {  # quantities that are drawn as curves, in words
    "global_acc": "accuracy of the global model on the whole test set, percent",
    "global_acc_mean": "accuracy of the global model, mean over the clients' test samples, percent",
    "stale_acc_mean": "accuracy of the clients' own models, mean over clients, percent",
    "personal_acc_mean": "accuracy of each client's model, mean over clients, percent",
    "personal_acc_weighted": "accuracy of each client's model, mean over clients, percent",
    HEAD_DISTANCE: "L2 distance between two clients' heads",
    SPEED_UP: "speed-up: rounds of the baseline / rounds of the transfer",
}
MATRICES = {  # quantities that are drawn as matrices, in words
    CRSM: "similarity of clients",
    LAYERS: "CKA of each client's local model with the global one",
    CLASS_COUNTS: "training samples",
}

SHOWN = 10  # largest number of rounds in a table of numbers
WIDEST = 12  # largest number of columns of a matrix that is written as a table


@dataclass(frozen=True)
class Place:
    """Where a figure shows the runs of one row and one column of its table.

    Attributes:
        panel: Heading of the panel.
        curve: Name of the curve; the runs of several places with the same panel, curve and x are averaged.
        x: Value on the x-axis; None if it has the rounds.
        column: Heading of the column.
        row: The row.
        paper: The paper's number, if it prints one.
    """

    panel: str
    curve: str
    x: float | str | None
    column: str
    row: Row
    paper: float | None = None


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """One figure of a paper: which quantity of which runs, over what.

    Attributes:
        title: Title of the figure: the paper, and the subject.
        shows: What the paper's figure shows, in words, and which claim it supports.
        quantity: Quantity that is drawn, one of `NUMBERS` or `MATRICES`, or an accuracy.
        fields: Fields of the config of all runs.
        rows: Curves of the figure. Their printed numbers are those of the panels, and in each of the x-values.
        panels: Further fields of the config by heading of the panel; in the paper's order.
        over: What the x-axis has: ``round``, ``panels``, a field of the config, or ``METHOD.FIELD``.
        values: Values of that field, by name of the scale.
        joined: Panels and rows that are averaged, with the name of their mean. Joined panels are curves of one panel.
        scales: Sizes at which the figure can be run, by name; their columns are panels, and their rows may be, too.
        sources: Source models, which are trained first: fields of their training by name, by name of the scale. In
            each panel, the clients vote for one of those that do not have the panel's name.
        start: Name of the source model whose weights all runs start with; empty if they start at random.
        matrix: True to draw a matrix instead of curves, with a row for each curve and a column for each x-value.
        note: Remarks that a reader of the figure needs.
    """

    title: str
    shows: str
    quantity: str
    fields: Fields
    rows: tuple[Row, ...]
    panels: Mapping[str, Fields]
    over: str = ROUND
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    joined: Mapping[str, str] = field(default_factory=dict)
    scales: Mapping[str, Scale]
    sources: Mapping[str, Mapping[str, Fields]] = field(default_factory=dict)
    start: str = ""
    matrix: bool = False
    note: str = ""

    @property
    def _varied(self) -> tuple[str, str]:
        """The method and the name of the field on the x-axis; empty if it is none of a method, or none at all."""
        method, _, name = self.over.rpartition(".")
        return method, "" if self.over in (ROUND, PANELS) else name

    def table(self, scale: str, further: Mapping[str, Fields] | None = None) -> PaperTable:
        """Return the runs of the figure as a table: a column for each panel or each value of the config's field.

        Args:
            scale: Name of the scale.
            further: Further fields of the config, by heading of the panel or label of the row.
        """
        places, own, given = [*self.places(scale)], self.scales[scale], further or {}
        method, name = self._varied
        columns: dict[str, Fields] = {}
        for place in places:
            panel = next(panel for panel in own.columns if place.column in (panel, self._heading(panel, place.x)))
            varied = {name: place.x} if name and not method else {}
            columns[place.column] = {**self.panels[panel], **own.rows.get(panel, {}), **given.get(panel, {}), **varied}
        rows = {place.row.label: place.row for place in places}
        apart = {label: {**own.rows.get(label, {}), **given.get(label, {})} for label in rows}
        of_rows = {label: fields for label, fields in apart.items() if fields}
        ran = replace(own, columns=(*columns,), rows=of_rows, instead=(), sources={})
        return PaperTable(self.title, self.quantity, self.fields, columns, (*rows.values(),), {scale: ran}, self.note)

    def places(self, scale: str) -> Iterator[Place]:
        """Yield the places of a scale, panel by panel, and curve by curve."""
        own, (method, name) = self.scales[scale], self._varied
        for panel, row in itertools.product(own.columns, own.instead or self.rows):
            for x in self.values[scale] if name else [panel if self.over == PANELS else None]:
                own_row, column = row, panel
                if name and method == row.method:
                    settings = {**row.settings, name: x}
                    own_row = replace(row, label=f"{row.label} {name}={x:g}", settings=settings)
                elif name and not method:
                    column = self._heading(panel, x)
                curve = self.joined.get(row.label, row.label)
                shown = "" if panel in self.joined or self.over == PANELS else panel
                if panel in self.joined:
                    curve = f"{curve}, {self.joined[panel]}"
                yield Place(shown, curve, x, column, own_row, self._printed(row, panel, x))

    def _heading(self, panel: str, x: float | str | None) -> str:
        return f"{panel}, {self.over}={x}"

    def _printed(self, row: Row, panel: str, x: float | str | None) -> float | None:
        """Return the paper's number of a row, if it prints one."""
        values = self.values.get("paper", ()) if self._varied[1] else [x]
        cells = [*itertools.product(self.panels, values)] if self.over != PANELS else [(p, p) for p in self.panels]
        return dict(zip(cells, row.printed, strict=False)).get((panel, x))


@dataclass(frozen=True)
class Curve:
    """One curve of a figure.

    Attributes:
        x: Rounds, values of a field, or names of panels.
        values: Values at each x, one per seed; None if there is none.
        paper: The paper's number at each x; None if it prints none.
    """

    x: Sequence[float | str]
    values: Sequence[Sequence[float | None]]
    paper: Sequence[float | None] = ()

    @property
    def means(self) -> list[float | None]:
        """The mean over the seeds at each x; None if a seed has no value."""
        return [statistics.fmean(known) if (known := _known(of)) else None for of in self.values]

    @property
    def spreads(self) -> list[float]:
        """The sample standard deviation over the seeds at each x; 0 with one seed."""
        return [statistics.stdev(known) if len(known := _known(of)) > 1 else 0.0 for of in self.values]


@dataclass(frozen=True)
class Matrix:
    """One matrix of a figure.

    Attributes:
        rows: Names of the rows.
        columns: Names of the columns.
        values: Values, rows × columns; None if there is none.
        told: A number that sums the matrix up, in words; empty for none.
        similarity: True if it is of all pairs of clients, so that alike clients are drawn side by side.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    told: str = ""
    similarity: bool = False

    @property
    def decimals(self) -> int:
        """The number of decimals with which the values are written: 0 if all are whole, else 2."""
        return 0 if all(float(value).is_integer() for row in self.values for value in _known(row)) else 2


@dataclass(frozen=True)
class Measured:
    """The numbers of a figure, as ``figure.json`` has them.

    Attributes:
        figure: Name of the figure.
        scale: Name of the scale.
        title: Title of the figure.
        shows: What the paper's figure shows.
        run: What was run, in words.
        note: Remarks.
        other_setting: Given fields in which the setting differs from the figure's, with their values.
        x: What the x-axis or the columns are.
        y: What the y-axis is, or the numbers of the matrices.
        curves: Curves by name, by heading of the panel.
        matrices: Matrices by heading.
    """

    figure: str
    scale: str
    title: str
    shows: str
    run: str
    note: str
    other_setting: Mapping[str, object]
    x: str
    y: str
    curves: Mapping[str, Mapping[str, Curve]]
    matrices: Mapping[str, Matrix]


def numbers(measured: Measured) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the tables of a figure's numbers: heading and rows, the first of which are the headings of the columns.

    Of many rounds, ten are shown; of wide matrices, none.
    """
    for heading, curves in measured.curves.items():
        xs = [*dict.fromkeys(x for curve in curves.values() for x in curve.x)]
        count = min(SHOWN, len(xs))
        shown = [xs[round(i * (len(xs) - 1) / max(count - 1, 1))] for i in range(count)]
        rows = [[measured.x, *(f"{x}" if isinstance(x, str) else f"{x:g}" for x in shown)]]
        for name, curve in curves.items():
            rows.append([name, *(_cell(curve, x) for x in shown)])
            if any(number is not None for number in curve.paper):
                printed = dict(zip(curve.x, curve.paper, strict=True))
                rows.append([f"{name}, paper", *(_text(printed.get(x)) for x in shown)])
        yield heading, rows
    for heading, matrix in measured.matrices.items():
        told = f"{heading} ({matrix.told})" if matrix.told else heading
        if len(matrix.columns) > WIDEST:
            yield told, []
            continue
        lines = [["", *matrix.columns]]
        for name, row in zip(matrix.rows, matrix.values, strict=True):
            lines.append([name, *(_text(value, matrix.decimals) for value in row)])
        yield told, lines


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _cell(curve: Curve, x: float | str) -> str:
    if x not in curve.x:
        return "–"
    at = [*curve.x].index(x)
    mean, spread = curve.means[at], curve.spreads[at]
    return f"{_text(mean)} ± {_text(spread)}" if spread else _text(mean)


def _text(number: float | None, decimals: int = 2) -> str:
    return "–" if number is None else f"{number:.{decimals}f}"
