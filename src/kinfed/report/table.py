"""The table of a comparison: one row per method, with the best results of each column marked."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from rich.cells import cell_len, chop_cells
from rich.table import Table as RichTable
from rich.text import Text

from kinfed.errors import plain
from kinfed.report.folders import Run
from kinfed.report.measures import WORDS
from kinfed.report.rows import ceilings, in_rows, seeds_of
from kinfed.report.statistics import Measured, alike

__all__ = ["NEW_CLIENTS", "Cell", "Table", "columns_of", "table"]

Summary = dict[str, Any]

NARROW = {
    "refreshed": "re-\nfreshed",
    "validation": "vali-\ndation",
    "re-fitted": "re-\nfitted",
    "fine-tuned": "fine-\ntuned",
}  # headings broken for a terminal

SHORTEST = 16  # characters to which a line of a name is shortened, if not all columns fit otherwise
PAGE_ONLY = {"mean over clients", "refreshed"}  # headings for which a terminal has no room


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        heading: Heading of the column.
        meaning: Explanation of the quantity, shown for the heading.
        read: Function that reads the quantity from a summary; it returns None if the run does not have it.
        digits: Number of decimals that are shown.
        accuracy: True if the quantity is an accuracy or another measure, so that spreads and best values are shown.
        share: Function that returns, from a summary, the fraction of the test samples that the accuracy is based on.
        clients: Name of the clients' accuracies (`Run.of_clients`) of which it is the mean; empty if it is not the mean
            of any, or they share their test samples.
        weighted: True if clients count by their test samples in that mean, False if they count alike.
        measure: The measure in words, as in ``macro F1``; empty if the heading names the quantity.
    """

    heading: str
    meaning: str
    read: Callable[[Summary], float | None]
    digits: int = 3
    accuracy: bool = True
    share: Callable[[Summary], float] = lambda s: 1.0
    clients: str = ""
    weighted: bool = True
    measure: str = ""

    def of(self, group: Sequence[Run]) -> Measured | None:
        """Return the values of a row, by seed and, where they are known, by client; None if a run has no value."""
        told = {run.summary["seed"]: self.read(run.summary) for run in group}
        known = {seed: value for seed, value in told.items() if value is not None}
        if len(known) < len(told):
            return None
        first = group[0].summary
        return self._of_clients(group) or Measured.whole(known, self.share(first) * first["data"]["test"])

    def _of_clients(self, group: Sequence[Run]) -> Measured | None:
        """Return the values of a row by seed and client; None if a run does not have them, or has other clients."""
        told = [run.of_clients(self.clients) for run in group]
        tested = [run.federation.get("test", ()) for run in group]
        if len({*map(len, told), *map(len, tested)}) > 1 or not told[0]:
            return None
        accuracies, samples = np.array(told, dtype=np.float64), np.array(tested, dtype=np.float64)
        seeds = tuple(run.summary["seed"] for run in group)
        return Measured(seeds, accuracies, samples, samples if self.weighted else np.ones_like(samples))


def _has_no_labels(s: Summary) -> bool:
    """Return True if the data have no labels, and there are no other data with labels."""
    return s["data"].get("labelled", "") is None


WITHOUT_LABELS = (
    Column("own view nearer", "without labels: how often another random view of an image is nearer to it, by cosine of "
                              "the representations, than a view of another image; 0.5 by chance; mean over the models",
           lambda s: s["metrics"].get("views_acc_mean"), accuracy=False),
    Column("spread", "spread of the networks' outputs in the last training, 0 if they are the same for all images",
           lambda s: s.get("spread") if _has_no_labels(s) else None, 2, accuracy=False),
    Column("loss", "mean loss of the last round's training, which differs in kind between self-supervised losses",
           lambda s: s["train_loss"] if _has_no_labels(s) else None, accuracy=False),
)  # fmt: skip

PRIVACY = (
    Column("ε", "privacy loss after the last round: one client's samples change the probability of what the server "
                "publishes by a factor of e^ε at most, but for the δ of the method; smaller protects more",
           lambda s: s.get("epsilon"), 2, accuracy=False),
)  # fmt: skip

COST = (
    Column("MB", "megabytes (10⁶) sent in both directions, all rounds",
           lambda s: (s["communication"]["down_bytes"] + s["communication"]["up_bytes"]) / 1e6, 1, accuracy=False),
    Column("s", "seconds of the whole run", lambda s: s["seconds"]["total"], 1, accuracy=False),
)  # fmt: skip


def columns_of(measure: str) -> tuple[Column, ...]:
    """Return the columns of the table for a measure; what is only known as an accuracy has no column for another one.

    >>> [column.heading for column in columns_of("macro_f1")][:3]
    ['linear probe', 'own test', 'validation']
    """
    key, what = ("acc" if measure == "accuracy" else measure), WORDS[measure]
    clients = "personal" if measure == "accuracy" else f"personal_{measure}"
    probe = Column(
        "linear probe",
        f"{what} of a linear classifier on the frozen representation, fitted to all training "
        "samples and tested on the whole test set; mean over the clients' models",
        lambda s: s["metrics"].get(f"linear_global_{key}_mean"),
    )
    own = Column(
        "own test",
        f"{what} on the clients' own test samples, weighted by their number, before fine-tuning",
        lambda s: s["metrics"].get(f"personal_{key}_weighted"),
        clients=clients,
    )
    validation = Column(
        "validation",
        f"{what} on validation samples, weighted by their number at each client, after the last round",
        lambda s: s["metrics"].get(f"validation_personal_{key}_weighted"),
        accuracy=False,
    )
    over_clients = (
        Column(
            "mean over clients",
            f"own test {what}, unweighted mean over clients",
            lambda s: s["metrics"].get(f"personal_{key}_mean"),
            clients=clients,
            weighted=False,
        ),
        Column(
            "sd over clients",
            f"spread of this {what} over clients (population standard deviation)",
            lambda s: s["metrics"].get(f"personal_{key}_std"),
            accuracy=False,
        ),
        Column(
            "worst tenth",
            f"mean {what} of the tenth of the clients with the lowest one",
            lambda s: s["metrics"].get(f"personal_{key}_worst_tenth"),
            share=lambda s: 0.1,
        ),
    )
    pooled = Column(
        "pooled test",
        f"{what} of the global model on the pooled test set",
        lambda s: None if "labelled" in s["data"] else s["metrics"].get(f"global_{key}"),
    )
    if measure != "accuracy":
        accuracy = Column(
            "accuracy",
            "accuracy on the clients' own test samples, weighted by their number",
            lambda s: s["metrics"]["personal_acc_weighted"],
            clients="personal",
        )
        return (
            *_measuring(what, probe, own, validation, *over_clients, pooled),
            accuracy,
            *WITHOUT_LABELS,
            *PRIVACY,
            *COST,
        )
    accuracies = _measuring(
        what,
        probe,
        Column("local probe", "the same, fitted and tested on samples of the client's own classes only",
               lambda s: s["metrics"].get("linear_local_acc_mean")),
        own,
        Column("own classes", "own test accuracy if the answers are limited to the classes that the client itself has",
               lambda s: s["metrics"].get("own_classes_acc_weighted"), clients="own_classes"),
        Column("re-fitted", "own test accuracy of the body alone: with the initial head, which each client trains on "
                            "its own samples on the frozen body, for 10 epochs with the learning rate of the first "
                            "round",
               lambda s: s["metrics"].get("refit_acc_weighted"), clients="refit"),
        Column("at chosen round", "own test accuracy after the round with the best accuracy on validation samples",
               lambda s: (s.get("chosen") or {}).get("personal_acc_weighted")),
        validation,
        *over_clients,
        Column("refreshed", "own test accuracy after each client has trained its own head further on the latest body, "
                            "with the learning rate of the last round",
               lambda s: s["metrics"].get("refreshed_acc_weighted"), clients="refreshed"),
        Column("fine-tuned", "own test accuracy after each client has fine-tuned a copy of the tested model",
               lambda s: s["metrics"].get("fine_tuned_acc_weighted"), clients="fine_tuned"),
        pooled,
    )  # fmt: skip
    return (*accuracies, *WITHOUT_LABELS, *PRIVACY, *COST)


def _measuring(measure: str, *columns: Column) -> tuple[Column, ...]:
    """Return columns of a measure, which is given in words."""
    return tuple(replace(column, measure=measure) for column in columns)


def _of_new(s: Summary) -> float:
    """Return the ratio of new clients to training clients, which is about the ratio of their test samples."""
    return float(s["data"].get("new_clients", 0) / s["data"]["clients"])


NEW_COLUMNS = (
    Column("as it is", "accuracy of the given model, weighted by the new clients' numbers of test samples",
           lambda s: s["metrics"].get("new_global_acc_weighted"), share=_of_new),
    Column("own head", "accuracy after each client has fitted a new head on the frozen body of that model",
           lambda s: s["metrics"].get("new_head_acc_weighted"), share=_of_new),
    Column("fine-tuned", "accuracy after each client has fine-tuned that model on its own training samples",
           lambda s: s["metrics"].get("new_fine_tuned_acc_weighted"), share=_of_new),
)  # fmt: skip

SECOND = (
    ("model tested", "the model whose accuracy is measured"),
    (
        "model given",
        "the method's global model; or the mean of all its clients' models, or of those in the group (kin) "
        "that the method finds for a new client",
    ),
)


NEW_CLIENTS = (
    "Accuracy of clients that took no part in training, on their own test samples: with the unchanged global model, "
    "with their own head on its body, and with that model fine-tuned. If a method has no global model, they get the "
    "mean of its clients' models (if only the heads differ: the shared body and the mean head)."
)


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text, often a number.
        spread: Spread over the seeds; empty for one seed.
        best: True if the number is the best of its column or cannot be told from it (`alike`); never with pooled data.
    """

    text: str
    spread: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        headings: Headings of the columns.
        meanings: Explanations of the headings.
        rows: Cells of each row, one per column.
        measures: Measure of each column in words, or empty; none if no column has one.
    """

    headings: tuple[str, ...]
    meanings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    measures: tuple[str, ...] = ()

    @property
    def full_headings(self) -> list[str]:
        """Headings that name the measure, for a table that stands alone: ``own test (macro F1)``."""
        measures = self.measures or ("",) * len(self.headings)
        return [f"{of} ({measure})" if measure else of for of, measure in zip(self.headings, measures, strict=True)]

    def fitted(self, width: int) -> list[RichTable]:
        """Return the table for a terminal, in several parts if its columns do not fit beside each other.

        Every part begins with the first column. Columns that only a page has room for are left out. The best values are
        bold and have a star, which is visible without colours. Only the first two columns are wrapped, so that no
        number is ever cut.

        Args:
            width: Width of the terminal in characters.
        """
        kept = [i for i, heading in enumerate(self.headings) if heading not in PAGE_ONLY]
        names, second, *numbers = [self._column(i) for i in kept]
        word = max(cell_len(word) for cell in second for word in ["", *cell.plain.split()])
        for longest in (_width(names), SHORTEST):
            label = min(_width(names), longest)
            parts, room = [[second]], width - label - 1 - word
            for column in numbers:
                if parts[-1] and room < _width(column) + 1:
                    parts, room = [*parts, []], width - label
                parts[-1].append(column)
                room -= _width(column) + 1
            if len(parts) == 1:
                break
        names = [_broken(cell, label) for cell in names]
        return [_part([names, *part], width, second=part[0] is second) for part in parts]

    def _column(self, i: int) -> list[Text]:
        """Return the heading of a column and its cells as texts for a terminal."""
        heading = Text(NARROW.get(self.headings[i], self.headings[i].replace(" ", "\n")))
        room = " " if any(row[i].best for row in self.rows) else ""
        return [heading, *(_shown(row[i], room) for row in self.rows)]


def _part(columns: Sequence[Sequence[Text]], width: int, *, second: bool) -> RichTable:
    """Return a table for a terminal; with ``second``, the second column is of words and gets the room that is left."""
    shown = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    others = sum(_width(column) + 1 for i, column in enumerate(columns) if not (second and i == 1))
    for i, (heading, *_) in enumerate(columns):
        words = second and i == 1
        room = min(_width(columns[i]), max(width - others, 1)) if words else _width(columns[i])
        justify: Literal["left", "right"] = "left" if words or i == 0 else "right"
        shown.add_column(heading, justify=justify, overflow="fold", no_wrap=not words, width=room)
    for row in [*zip(*columns, strict=True)][1:]:
        shown.add_row(*row)
    return shown


def _width(column: Sequence[Text]) -> int:
    """Return the width of the widest line of a column in cells."""
    return max(cell_len(line) for cell in column for line in cell.plain.split("\n"))


def _broken(label: Text, width: int) -> Text:
    r"""Break a label into lines of at most a width, after one of the signs between its parts if possible.

    >>> _broken(Text("fedkin+fedper:lr=0.01,tau=0.99"), 20).plain
    'fedkin+fedper:\nlr=0.01,tau=0.99'
    """
    lines = [""]
    for piece in re.findall(r"[^ ,:+]*[ ,:+]?", label.plain):
        if lines[-1] and cell_len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    folded = [part for line in lines for part in chop_cells(line, width)]
    return Text("\n".join(folded), label.style)


def _shown(cell: Cell, room: str) -> Text:
    """Return a cell as text for a terminal; ``room`` is a space if other cells of the column have a star."""
    text = plain(cell.text)
    shown = Text(f"{text}*", "bold green") if cell.best else Text(f"{text}{room}")
    if not cell.spread:
        return shown
    return Text.assemble(shown, "\n", (cell.spread.replace("±0.", "±."), "dim"), room)


def table(runs: Sequence[Run], *, new_clients: bool = False) -> Table:
    """Make the table of a comparison, one row per method.

    Several seeds are shown as mean ± sample standard deviation. Columns without values are left out. If the rows have
    different seeds, a column shows their number.

    Args:
        runs: Runs of the comparison.
        new_clients: True for the results of the new clients, which never train, instead of the others; the table then
            has no rows if there are no such results.
    """
    grouped = in_rows(runs)
    second = _given if new_clients else lambda run: run.summary["tested"]
    cells: dict[str, list[Cell]] = {row: [Cell(row), Cell(second(group[0]))] for row, group in grouped.items()}
    headings, meanings = ["method", SECOND[new_clients][0]], ["", SECOND[new_clients][1]]
    if len({*seeds_of(grouped).values()}) > 1:
        headings, meanings = [*headings, "seeds"], [*meanings, "number of seeds of the row"]
        for row, seeds in seeds_of(grouped).items():
            cells[row].append(Cell(f"{len(seeds)}"))
    measures = [""] * len(headings)
    shown = False
    for column in NEW_COLUMNS if new_clients else columns_of(runs[0].measure):
        found = {row: column.of(group) for row, group in grouped.items()}
        told = {row: measured for row, measured in found.items() if measured is not None}
        if not told:
            continue
        shown = True
        headings.append(column.heading)
        meanings.append(column.meaning)
        measures.append(column.measure)
        ranked = {row: measured for row, measured in told.items() if row not in ceilings(runs)}
        best = alike(ranked) if column.accuracy and ranked else []
        for row, measured in found.items():
            cells[row].append(Cell("–") if measured is None else _number(measured, column, row in best))
    rows = tuple(tuple(row) for row in cells.values()) if shown else ()
    return Table(tuple(headings), tuple(meanings), rows, tuple(measures))


def _number(measured: Measured, column: Column, best: bool) -> Cell:
    """Return the cell of a mean and its spread over the seeds."""
    values = [*measured.by_seed.values()]
    spread = f"±{statistics.stdev(values):.{column.digits}f}" if column.accuracy and len(values) > 1 else ""
    return Cell(f"{measured.mean:.{column.digits}f}", spread, best)


def _given(run: Run) -> str:
    """Name the model that new clients are given: ``global``, ``mean`` without a global model, or ``kin``."""
    if "new_groups" in run.lines[-1]:
        return "kin"
    return "mean" if run.summary["metrics"]["global_acc"] is None else "global"
