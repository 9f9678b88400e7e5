"""Descriptions of the tables of papers: printed numbers, and the experiments that should give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from kinfed.errors import InputError, check_choice
from kinfed.fields import short

__all__ = [
    "CELLS",
    "ROUNDS",
    "SECONDS",
    "Fields",
    "IdentificationTable",
    "PaperTable",
    "Row",
    "Scale",
    "chosen",
    "refuse_choice",
]

# The quantities that are no accuracies; both are compared with those of the first row.
ROUNDS, SECONDS = "rounds_to_target", "seconds_per_round"
CELLS = "cells"  # key of table.json for the cells that the paper prints

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One row of a table: a quantity of the runs of one method.

    Attributes:
        label: Name of the row in the table.
        method: Name of the method. Rows of the same method with the same settings share their runs.
        printed: The paper's numbers in the first columns, accuracies in percent; empty for a row that the paper lacks.
        quantity: Metric of the runs' summaries that the row shows, if it is not the table's.
        settings: Fields of the method.
        also: Further metric, which the paper does not print and which is shown in a table of its own.
    """

    label: str
    method: str
    printed: tuple[float, ...] = ()
    quantity: str | None = None
    settings: Fields = field(default_factory=dict)
    also: str | None = None


@dataclass(frozen=True)
class Scale:
    """The size at which a table is run.

    Attributes:
        columns: Headings of the columns that are run.
        fields: Fields of the config that overrule the table's.
        rows: Fields that overrule these, by label of the row that they apply to.
        instead: Rows that replace the table's, if this scale has other models or source models.
        sources: Settings of the source models that overrule the table's.
    """

    columns: tuple[str, ...]
    fields: Fields
    rows: Mapping[str, Fields] = field(default_factory=dict)
    instead: tuple[Row, ...] = ()
    sources: Fields = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """One table of a paper.

    Attributes:
        title: Title of the table: the paper, and the subject.
        quantity: Metric of the runs' summaries that the cells show, unless a row names another.
        fields: Fields of the config for all cells.
        columns: Further fields of the config by heading of the column. The columns that the paper prints come first.
        rows: Rows from top to bottom.
        scales: Sizes at which the table can be run, by name.
        note: Remarks that a reader of the table needs.
        sources: Settings for the training of the source models that rows name (`kinfed.experiment.training.Training`).
    """

    title: str
    quantity: str
    fields: Fields
    columns: Mapping[str, Fields]
    rows: tuple[Row, ...]
    scales: Mapping[str, Scale]
    note: str = ""
    sources: Fields = field(default_factory=dict)

    def at(self, scale: str) -> Self:
        """Return the table with the rows and the source models of a scale."""
        own = self.scales[scale]
        return replace(self, rows=own.instead or self.rows, sources={**self.sources, **own.sources})

    def quantities(self) -> dict[str, dict[str, str]]:
        """Return the metric of each row by its label: for the ``cells``, and for each further metric."""
        main = {row.label: row.quantity or self.quantity for row in self.rows}
        further: dict[str, dict[str, str]] = {}
        for row in self.rows:
            if row.also is not None:
                further.setdefault(row.also, {})[row.label] = row.also
        return {CELLS: main, **further}


@dataclass(frozen=True)
class IdentificationTable:
    """A table like SFTL's Table 1, which compares measures: how often each finds the right source model.

    Attributes:
        title: Title of the table: the paper, and the subject.
        fields: Fields of the config of the runs.
        printed: The paper's number of each measure, in percent.
        scales: Fields that overrule these, by name of the scale.
        note: Remarks that a reader of the table needs.
    """

    title: str
    fields: Fields
    printed: Mapping[str, str]
    scales: Mapping[str, Fields]
    note: str


def chosen(what: str, given: str | Sequence[str] | None, labels: Sequence[str]) -> list[str]:
    """Return the labels that were asked for, in their own order; all labels if none was.

    Args:
        what: ``columns`` or ``rows``, for the message.
        given: Labels, or one text of labels with commas between them. A label may contain a comma itself.
        labels: Labels of the table.

    Raises:
        InputError: If a label is not known; the message has all labels and the nearest one.

    >>> chosen("rows", "printed, erased,FedAvg", ["FedAvg", "printed", "printed, erased"])
    ['FedAvg', 'printed, erased']
    """
    if given is None:
        return [*labels]
    if isinstance(given, str):
        parts, given = [part.strip() for part in given.split(",")], []
        while parts:
            fits = (n for n in range(len(parts), 0, -1) if ", ".join(parts[:n]) in labels)
            length = next(fits, 1)
            given.append(", ".join(parts[:length]))
            parts = parts[length:]
    if not (isinstance(given, Sequence) and given and all(isinstance(label, str) for label in given)):
        raise InputError(f"{what}: {short(given)} is not allowed; must be labels of the table")
    for label in given:
        check_choice(what, label, labels)
    return [label for label in labels if label in given]


def refuse_choice(columns: str | Sequence[str] | None, rows: str | Sequence[str] | None, why: str) -> None:
    """Refuse chosen columns or rows of what has none to choose from; ``why`` says so."""
    for what, given in (("columns", columns), ("rows", rows)):
        if given is not None:
            raise InputError(f"{what}: {short(given)} would do nothing; {why}")
