"""The table of a comparison: a row a method, the best value of each column marked."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table as RichTable

from kinfed.report.folders import Run

__all__ = ["Cell", "Table", "notes", "setting", "table", "verdict"]

Summary = dict[str, Any]

NO_BEARING = ("seed", "workers", "device", "checkpoint_every")  # on the numbers of a row
SHARED = ("data", "rounds", "model")  # what runs must agree in to be compared


@dataclass(frozen=True)
class Column:
    """One quantity: its heading, what it is, how it is read from a summary, and whether it is an accuracy."""

    heading: str
    meaning: str
    read: Callable[[Summary], float | None]
    accuracy: bool = True


COLUMNS = (
    Column("own test", "accuracy on the clients' own test samples, weighted by their number",
           lambda s: s["metrics"]["personal_acc_weighted"]),
    Column("client mean", "the same, plain mean over clients", lambda s: s["metrics"]["personal_acc_mean"]),
    Column("client sd", "its spread over clients (population standard deviation)",
           lambda s: s["metrics"]["personal_acc_std"], accuracy=False),
    Column("worst tenth", "mean accuracy of the tenth of the clients served worst",
           lambda s: s["metrics"]["personal_acc_worst_tenth"]),
    Column("fine-tuned", "own test accuracy after each client has fine-tuned its model",
           lambda s: s["metrics"]["fine_tuned_acc_weighted"]),
    Column("pooled test", "accuracy of the one global model on the pooled test set",
           lambda s: s["metrics"]["global_acc"]),
    Column("MB", "megabytes (10⁶) sent in both directions, all rounds",
           lambda s: (s["communication"]["down_bytes"] + s["communication"]["up_bytes"]) / 1e6, accuracy=False),
    Column("s", "seconds of the whole run", lambda s: s["seconds"]["total"], accuracy=False),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A number as it is shown, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Headings with their meanings, and rows of cells; the first two columns are the method and the model tested."""

    headings: tuple[str, ...]
    meanings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def rich(self) -> RichTable:
        """For the terminal: the best value bold and starred, so that it shows without colours too."""
        shown = RichTable(box=None, pad_edge=False, header_style="bold")
        for i, heading in enumerate(self.headings):
            shown.add_column(heading, justify="left" if i < 2 else "right", no_wrap=True)
        for row in self.rows:
            shown.add_row(*(f"[bold green]{cell.text}*[/]" if cell.best else cell.text for cell in row))
        return shown


def table(runs: Sequence[Run]) -> Table:
    """One row a method; over several seeds mean ± sample standard deviation. Columns that nobody fills are left out."""
    grouped = in_rows(runs)
    read = {
        column: {method: _mean_sd([column.read(run.summary) for run in group]) for method, group in grouped.items()}
        for column in COLUMNS
    }
    shown = [column for column in COLUMNS if any(value is not None for value in read[column].values())]
    best = {
        column: max(round(value[0], 4) for value in read[column].values() if value is not None)
        for column in shown
        if column.accuracy
    }
    rows = []
    for method, group in grouped.items():
        cells = [Cell(method), Cell(group[0].summary["tested"])]
        for column in shown:
            value = read[column][method]
            cells.append(
                Cell("–") if value is None else Cell(_text(value, column), round(value[0], 4) == best.get(column))
            )
        rows.append(tuple(cells))
    return Table(
        ("method", "model tested", *(column.heading for column in shown)),
        ("", "which model a client's accuracy is measured with", *(column.meaning for column in shown)),
        tuple(rows),
    )


def in_rows(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each row, in the order in which they first appear: a method's seeds together.

    Runs of one method that differ in more than the seed are kept apart, under the names of their folders.
    """
    variants: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        known = variants.setdefault(run.method, [])
        if _but_seed(run) not in known:
            known.append(_but_seed(run))
    rows: dict[str, list[Run]] = {}
    for run in runs:
        rows.setdefault(run.method if len(variants[run.method]) == 1 else run.path.name, []).append(run)
    return rows


def _but_seed(run: Run) -> dict[str, Any]:
    """What of a run's config bears on its numbers, the seed aside."""
    return {name: value for name, value in run.config.items() if name not in NO_BEARING}


def setting(runs: Sequence[Run]) -> str:
    """What every number stands for: data, clients, partition, rounds, seeds and model."""
    first = runs[0].summary
    data = first["data"]
    how = {"shards": lambda: f"{data['shards']} shards a client", "dirichlet": lambda: f"Dirichlet α={data['alpha']}"}
    seeds = sorted({run.summary["seed"] for run in runs})
    return (
        f"{data['name']}: {data['train']:,} training and {data['test']:,} test samples over {data['clients']} clients "
        f"({how.get(data['partition'], lambda: 'IID')()}), {data['probe']} withheld as the server's probe set; "
        f"{first['model']}, {first['rounds']} rounds, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}. Accuracies are fractions of 1 after the last round."
    )


def verdict(runs: Sequence[Run]) -> str:
    """Which method serves these clients best by own test accuracy, and how that compares with training alone."""
    means = {
        method: value[0]
        for method, group in in_rows(runs).items()
        if (value := _mean_sd([run.summary["metrics"]["personal_acc_weighted"] for run in group])) is not None
    }
    if len(means) < 2:
        return ""
    order = sorted(means, key=lambda method: -means[method])
    federated = [method for method in order if method not in ("local", "central")]
    best = order[0]
    if best != "local" or not federated:
        text = f"{best} serves these clients best: {means[best]:.3f} on their own test samples"
        return f"{text}, against {means['local']:.3f} when each trains alone." if "local" in means else f"{text}."
    return (
        f"These clients are served best by training alone ({means['local']:.3f} on their own test samples); "
        f"the best federated method is {federated[0]} ({means[federated[0]]:.3f})."
    )


def notes(runs: Sequence[Run]) -> list[str]:
    """What a reader of the numbers must know: what was refused or left out, and training that went nowhere."""
    said = []
    for what in SHARED:
        told = [run.summary[what] for run in runs]
        if any(value != told[0] for value in told):
            said.append(f"These runs differ in more than the method, in {what}: their numbers are no comparison.")
    for run in runs:
        s, name = run.summary, f"{run.method}, seed {run.summary['seed']}"
        for count, what in (
            (s["refused"], "uploads were refused; metrics.jsonl says why"),
            (s["skipped_samples"], "times a sample was left out, alone in a batch where BatchNorm needs two"),
            (s["zero_step_clients"], "times a client made no training step"),
        ):
            if count:
                said.append(f"{name}: {count} {what}.")
        guessing = math.log(len(run.federation["classes"]))
        if s["train_loss"] is not None and s["train_loss"] > 0.95 * guessing:
            said.append(
                f"{name}: the training loss of the last round, {s['train_loss']:.2f}, is that of guessing "
                f"({guessing:.2f}): it did not learn. A smaller --lr may help."
            )
    return said


def _mean_sd(values: Sequence[float | None]) -> tuple[float, float | None] | None:
    """Mean, and sample standard deviation if there are several; None if any is missing."""
    told = [value for value in values if value is not None]
    if len(told) < len(values) or not told:
        return None
    return statistics.fmean(told), statistics.stdev(told) if len(told) > 1 else None


def _text(value: tuple[float, float | None], column: Column) -> str:
    mean, sd = value
    digits = 3 if column.accuracy or column.heading == "client sd" else 1
    return f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if sd is not None else "")
