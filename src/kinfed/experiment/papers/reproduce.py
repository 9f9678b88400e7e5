"""Reproduction of the papers' tables: the runs of a table, and their results beside the paper's numbers."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from kinfed.errors import InputError, check_choice, plain
from kinfed.experiment.config import EXECUTION, Config
from kinfed.experiment.config_file import tables, with_present_names
from kinfed.experiment.cost import UNSEEN, Spectator, cost_of
from kinfed.experiment.folders import COMPARISON_SUMMARIES
from kinfed.experiment.papers import FIGURES, TABLES
from kinfed.experiment.papers.identification import PAPER, another_setting, identify
from kinfed.experiment.papers.table import (
    CELLS,
    ROUNDS,
    SECONDS,
    Fields,
    IdentificationTable,
    PaperTable,
    Row,
    chosen,
    refuse_choice,
)
from kinfed.experiment.run import MakeCallback, go_on
from kinfed.experiment.sources import train_sources
from kinfed.experiment.targets import Reach, speed_up
from kinfed.experiment.training import Training
from kinfed.experiment.uses import NO_SETTING, OF_CLIENTS, OF_METHODS, OF_VERDICTS, overruled, refuse_idle
from kinfed.fields import short
from kinfed.files import claimed, read_json, write_whole

__all__ = [
    "Columns", "Comparison", "by_column", "by_folder", "comparisons", "other_setting", "reproduce", "run_missing",
    "setting_of",
]  # fmt: skip

# Fields that the experiment of an `IdentificationTable` sets itself.
OF_IDENTIFICATION = ("methods", "settings", *OF_CLIENTS, "partition", "save_local", "new_clients", "train_images")

Cells = Mapping[str, list[float | None]]  # cells of a column: row → a value per seed; None: the target was not reached


@dataclass(frozen=True)
class Comparison:
    """The runs of some rows of a column, which are one comparison.

    Attributes:
        folder: Name of the comparison's folder.
        rows: Rows of the table that the runs belong to.
        own: Fields in which the config differs from that of the column's other rows.
        config: Config of the comparison.
    """

    folder: str
    rows: Sequence[Row]
    own: Fields
    config: Config


Columns = Mapping[str, Sequence[Comparison]]  # comparisons by heading of the column


def reproduce(
    name: str,
    scale: str,
    out: Path,
    given: Fields,
    spectator: Spectator = UNSEEN,
    columns: str | Sequence[str] | None = None,
    rows: str | Sequence[str] | None = None,
) -> Path:
    """Run the missing experiments of a table, and write ``table.json`` and ``table.md`` with the paper's numbers.

    Args:
        name: Name of a table in `TABLES`.
        scale: Name of one of the table's scales.
        out: Folder for the results. It gets a comparison folder for each column, and one for each row whose method has
            other settings than in a row above.
        given: Fields of the config that overrule the table's, such as ``seeds`` or ``workers``; not those in which
            columns or rows differ. A field that changes the setting is named above the paper's numbers.
        spectator: Observer of the runs.
        columns: Labels of the columns to run, as for `chosen`; by default all of the scale.
        rows: Labels of the rows to run; by default all. Where numbers are compared with those of the first row, that
            is run as well. Runs of other columns and rows that the folder holds are kept.

    Returns:
        Path of ``table.md``.

    Raises:
        InputError: If there is no such table, scale, column or row, or a field is wrong, would have no effect, or is
            one in which columns or rows differ.
    """
    check_choice("table", name, [*TABLES, *FIGURES])
    table = TABLES[name]
    check_choice("scale", scale, [*table.scales])
    given = cast(Fields, with_present_names(given))
    with claimed(out):
        if isinstance(table, IdentificationTable):
            _refuse_own(given, OF_IDENTIFICATION, "is set by the experiment")
            refuse_choice(columns, rows, f"{name} is one experiment")
            return identify(table, scale, out, given, spectator.run)
        return _reproduce(name, table.at(scale), scale, out, given, spectator, columns, rows)


def _reproduce(
    name: str,
    table: PaperTable,
    scale: str,
    out: Path,
    given: Fields,
    spectator: Spectator,
    columns: str | Sequence[str] | None,
    rows: str | Sequence[str] | None,
) -> Path:
    """Reproduce a table whose columns are comparisons; see `reproduce`."""
    own = table.scales[scale]
    own = replace(own, columns=tuple(chosen("columns", columns, own.columns)))
    table = replace(table, scales={scale: own})
    labels = chosen("rows", rows, [row.label for row in table.rows])
    if table.quantity in (ROUNDS, SECONDS):
        labels = [*dict.fromkeys([table.rows[0].label, *labels])]
    # The folder is a placeholder, so that all fields are checked before a source is trained.
    placed = replace(table, fields={"sources": os.curdir, **table.fields}) if table.sources else table
    other = other_setting(placed, scale, given, labels)
    planned = by_column(placed, scale, given, labels)
    spectator.cost(cost_of(by_folder(planned, out)))
    if table.sources and "sources" not in given and _need_sources(planned):
        given = {**given, "sources": str(_sources(table, given, out, spectator.source))}
    of_columns = by_column(table, scale, given, labels)
    run_missing(of_columns, out, spectator.run)
    table = replace(table, rows=tuple(row for row in table.rows if row.label in labels))
    found = {}
    for of, quantities in table.quantities().items():
        found[of] = {column: _measured(out, of_column, quantities) for column, of_column in of_columns.items()}
    told = {"table": name, "scale": scale, "other_setting": other, **found}
    write_whole(out / "table.json", json.dumps(told, indent=1) + "\n")
    votes = [told for of_column in of_columns.values() for comparison in of_column for told in _votes(out, comparison)]
    write_whole(out / "table.md", markdown(table, of_columns, found, other) + "".join(f"\n{told}\n" for told in votes))
    return out / "table.md"


def other_setting(
    table: PaperTable, scale: str, given: Fields, labels: Collection[str] | None = None
) -> dict[str, Any]:
    """Check the given fields, and return those in which the setting differs from the table's, with their values.

    Raises:
        InputError: If a field is wrong, would have no effect, or is one in which columns or rows differ.
    """
    _refuse_own(given, _apart(table, scale), "differs between the columns or rows of this table")
    configs = _configs(by_column(table, scale, given, labels))
    refuse_idle(given, configs, {**OF_CLIENTS, **OF_METHODS, **OF_VERDICTS})
    none = NO_SETTING - ({"target_acc", "evaluate_every"} if table.quantity == ROUNDS else set())
    without = {name: value for name, value in given.items() if name in none}
    base = _configs(by_column(table, scale, without, labels))
    return overruled({name: value for name, value in given.items() if name not in none}, configs, base)


def by_column(
    table: PaperTable, scale: str, given: Fields, labels: Collection[str] | None = None
) -> dict[str, list[Comparison]]:
    """Return the comparisons of each column of a scale; see `comparisons`."""
    return {column: comparisons(table, scale, column, given, labels) for column in table.scales[scale].columns}


def _configs(columns: Columns) -> list[Config]:
    return [comparison.config for of_column in columns.values() for comparison in of_column]


def by_folder(columns: Columns, out: Path) -> dict[Path, Config]:
    """Return the config of each comparison by its folder."""
    return {out / c.folder: c.config for of_column in columns.values() for c in of_column}


def run_missing(columns: Columns, out: Path, make_callback: MakeCallback) -> None:
    """Run the missing runs of all comparisons."""
    for folder, config in by_folder(columns, out).items():
        go_on(config, folder, make_callback)


def _apart(table: PaperTable, scale: str) -> set[str]:
    """Return the fields in which the columns of a table differ, and the methods' fields in which its rows differ.

    A field that the scale sets for all columns alike is not one of them. A partition is one if its fields are, since
    with another partition they would not be read, and all columns would be the same.
    """
    of_columns = [*table.columns.values(), *({"settings": {row.method: row.settings}} for row in table.rows)]
    own = {f"{method}.{name}" for of in of_columns for method, s in of.get("settings", {}).items() for name in s}
    fields = {name for of in of_columns for name in of} - {"settings", *table.scales[scale].fields}
    if fields & OF_CLIENTS.keys():
        fields.add("partition")
    if "model" in fields:
        fields.add("models")
    return {"methods", *own, *fields}


def _refuse_own(given: Fields, names: Collection[str], why: str) -> None:
    """Refuse given fields that must not be overruled.

    Args:
        given: Given fields of the config.
        names: Names of the fields that must not be overruled; a method's field as ``METHOD.FIELD``.
        why: Reason, as the message says it after "it".
    """
    settings = tables(given.get("settings", {}))
    own = {f"{method}.{name}": value for method, of in settings.items() for name, value in of.items()}
    for name, value in {**given, **own}.items():
        if name in names:
            raise InputError(f"{name}: {short(value)} is not allowed; it {why}; use kinfed compare for other settings")


def _need_sources(columns: Columns) -> bool:
    """Return True if a method of the comparisons transfers a source model."""
    return any(config.method(label).requires.source_models for config in _configs(columns) for label in config.methods)


def _sources(table: PaperTable, given: Fields, out: Path, make_callback: MakeCallback) -> Path:
    """Train the source models that rows name, each on the data set of that name, and return their pool's folder."""
    named = dict.fromkeys(row.settings["source"] for row in table.rows if "source" in row.settings)
    like = {"like": given["data"]} if "data" in given else {}
    train_sources(Training.checked({**table.sources, **like, "data": (*named,)}), out / "sources", make_callback)
    return out / "sources"


def comparisons(
    table: PaperTable, scale: str, column: str, given: Fields, labels: Collection[str] | None = None
) -> list[Comparison]:
    """Group the rows of a column into comparisons.

    A comparison has one config, and each method once. Rows with another config, or with the same method and other
    settings, need another comparison.

    Args:
        table: Table at the scale, as `PaperTable.at` returns it.
        scale: Name of the scale.
        column: Heading of the column.
        given: Fields that overrule the table's.
        labels: Labels of the rows that are run; all if not given. The folder of a row does not depend on them.
    """
    own = table.scales[scale].rows
    folders: dict[str, list[Row]] = {column: []}
    for row in table.rows:
        fitting = (
            folder
            for folder, there in folders.items()
            if all(own.get(other.label) == own.get(row.label) for other in there)
            and all(other.settings == row.settings for other in there if other.method == row.method)
        )
        folders.setdefault(next(fitting, f"{column}, {row.label}"), []).append(row)
    run = [row for row in table.rows if labels is None or row.label in labels]
    found = []
    for folder, there in folders.items():
        if rows := [row for row in there if row in run]:
            apart = own.get(rows[0].label, {})
            layers = [table.fields, table.columns[column], table.scales[scale].fields, apart]
            found.append(Comparison(folder, rows, apart, _config(run, layers, rows, given)))
    return found


def _config(run: Sequence[Row], layers: Sequence[Fields], rows: Sequence[Row], given: Fields) -> Config:
    """Make the config of some rows; later layers overrule earlier ones, and a method's settings one by one.

    Args:
        run: All rows of the table that are run.
        layers: Fields from the most general to the most specific.
        rows: Rows of the config.
        given: Given fields, which overrule all layers.
    """
    fields = {name: value for layer in [*layers, given] for name, value in layer.items()}
    wanted = given.get("settings", {})
    settings: dict[str, dict[str, Any]] = {}
    for row in rows:
        of_layers = [layer.get("settings", {}).get(row.method, {}) for layer in layers]
        own = [*of_layers, row.settings, wanted.get(row.method, {})]
        settings[row.method] = {name: value for layer in own for name, value in layer.items()}
    # Settings of a method that no row has are passed on, so that the config refuses them.
    unknown = {name: wanted[name] for name in wanted.keys() - {row.method for row in run}}
    return Config.checked({**fields, "methods": (*settings,), "settings": settings | unknown})


def _measured(out: Path, comparisons: Sequence[Comparison], quantities: Mapping[str, str]) -> Cells:
    """Read the cells of a column from its runs.

    Args:
        out: Folder of the table.
        comparisons: Comparisons of the column.
        quantities: Quantity of each row that has one (a metric of the summary), by the row's label.

    Returns:
        Values of each seed by row; see `_read`.
    """
    found = {}
    for comparison in comparisons:
        summaries = _summaries(out, comparison)
        for row in comparison.rows:
            if row.label in quantities:
                own = [summary for summary in summaries if summary["method"] == row.method]
                found[row.label] = _read(own, quantities[row.label])
    return found


def _summaries(out: Path, comparison: Comparison) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_json(out / comparison.folder / COMPARISON_SUMMARIES)
    return found


def _read(summaries: Sequence[Mapping[str, Any]], quantity: str) -> list[float | None]:
    """Read a quantity from the summaries of all seeds: rounds to the target, seconds, or accuracies in percent.

    An accuracy that a run does not have is left out; a target that a run did not reach is None.
    """
    if quantity == ROUNDS:
        return [summary[ROUNDS]["round"] for summary in summaries]
    if quantity == SECONDS:
        return [summary["seconds"]["train"] / summary["rounds"] for summary in summaries]
    accuracies = [summary["metrics"].get(quantity) for summary in summaries]
    return [100 * accuracy for accuracy in accuracies if accuracy is not None]


def markdown(
    table: PaperTable,
    columns: Columns,
    found: Mapping[str, Mapping[str, Cells]],
    other: Mapping[str, Any],
) -> str:
    """Return the table as Markdown: the setting, and the results beside the paper's numbers.

    Args:
        table: Table that was reproduced.
        columns: Comparisons by column.
        found: Results by quantity, column and row; ``cells`` are those that the paper prints.
        other: Fields that differ from the table's, with their values.
    """
    lines = [f"# {table.title}", "", _what_was_run(table, columns), ""]
    lines += [table.note, ""] if table.note else []
    lines += another_setting(other)
    lines += _header([f"{column}: {of}" for column in columns for of in ("here", PAPER[bool(other)])])
    for row in table.rows:
        printed = _printed(table, row)
        beside = [
            f"{_of_rounds(found[CELLS][column], table, row, of_column[0].config.rounds)} | {printed.get(column, '–')}"
            if table.quantity == ROUNDS
            else f"{_cell(found[CELLS][column], row)}{_times(found[CELLS][column], table, row)} | "
            f"{printed.get(column, '–')}"
            for column, of_column in columns.items()
        ]
        lines.append(f"| {row.label} | {' | '.join(beside)} |")
    for also in [of for of in found if of != CELLS]:
        lines += ["", f"{also} of the same runs:", "", *_header([*columns])]
        of_rows = [
            [row.label, *(_cell(cells, row) for cells in found[also].values())]
            for row in table.rows
            if row.also == also
        ]
        lines += [f"| {' | '.join(row)} |" for row in of_rows]
    return "\n".join(lines) + "\n"


def _what_was_run(table: PaperTable, columns: Columns) -> str:
    """Describe the setting of the runs and the quantities that are shown."""
    config = next(iter(columns.values()))[0].config
    others: dict[str, list[str]] = {}
    for row in table.rows:
        if row.quantity:
            others.setdefault(row.quantity, []).append(row.label)
    of_others = "".join(f"; for {' and '.join(labels)}, {quantity}" for quantity, labels in others.items())
    spread = "; ± is the sample standard deviation over seeds" if config.seeds > 1 else ""
    return f"{setting_of(table, columns)}. {_quantity(table, config)}{of_others}{spread}."


def setting_of(table: PaperTable, columns: Columns) -> str:
    """Describe the setting of the runs; a part in which columns differ has all values, with ``/`` between them."""
    configs = [of_column[0].config for of_column in columns.values()]
    config = configs[0]
    data, clients, partition, model, rounds = (
        "/".join(dict.fromkeys(plain(value) for value in values))
        for values in zip(
            *((c.data, c.clients, c.partition, c.models or c.model, c.rounds) for c in configs), strict=True
        )
    )
    apart = [
        f"; {row.label}: {', '.join(f'{name} {value}' for name, value in own.items() if value is not None)}"
        for comparison in next(iter(columns.values()))
        if (own := {name: getattr(comparison.config, name) for name in comparison.own if name not in EXECUTION})
        for row in comparison.rows
    ]
    some = f" ({config.participation:.0%} of them per round)" if config.participation < 1 else ""
    seeds = f"seeds {config.seed} to {config.seed + config.seeds - 1}" if config.seeds > 1 else f"seed {config.seed}"
    tuned = any(row.also is not None and row.also.startswith("fine_tuned") for row in table.rows)
    tuning = f", fine-tuning for {config.ft_epochs} epochs with lr {config.ft_lr}" if tuned and config.ft_epochs else ""
    return (
        f"{data}, {clients} clients{some}, partition {partition}, model {model}, {rounds} rounds of "
        f"{config.local_epochs} local epochs, batch {config.batch_size}, lr {config.lr}{tuning}, "
        f"{seeds}{''.join(apart)}"
    )


def _quantity(table: PaperTable, config: Config) -> str:
    if table.quantity == ROUNDS:
        return f"The numbers are rounds until the global model reaches {config.target_acc} on the whole test set"
    if table.quantity == SECONDS:
        return "The numbers are seconds of local training per round, and their ratio to the first row's"
    return f"The numbers are {table.quantity} after the last round, in percent"


def _header(heads: Sequence[str]) -> list[str]:
    return [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]


def _printed(table: PaperTable, row: Row) -> dict[str, str]:
    """Return the paper's numbers of a row as text, by column."""
    numbers = dict(zip(table.columns, row.printed, strict=False))
    if table.quantity == SECONDS:
        of_columns: list[Cells] = [
            {of.label: [of.printed[at]] for of in table.rows if at < len(of.printed)} for at in range(len(numbers))
        ]
        return {
            column: f"{_cell(cells, row)}{_times(cells, table, row)}"
            for column, cells in zip(numbers, of_columns, strict=True)
        }
    if table.quantity != ROUNDS:
        return {column: f"{number:.2f}" for column, number in numbers.items()}
    first = dict(zip(table.columns, table.rows[0].printed, strict=False))
    reaches = {
        column: [Reach((int(n),), int(n)) for n in (number, first[column])] for column, number in numbers.items()
    }
    return {column: _beside_first(own, base, row is table.rows[0]) for column, (own, base) in reaches.items()}


def _of_rounds(cells: Cells, table: PaperTable, row: Row, limit: int) -> str:
    """Return the rounds to the target of a row as text.

    Args:
        cells: Rounds of each seed by row; None if the seed did not reach the target.
        table: Table of the row; its first row is the baseline of the speed-up.
        row: The row.
        limit: Number of rounds that were run.
    """
    own, base = (
        Reach(tuple(None if r is None else int(r) for r in cells[of.label]), limit) for of in (row, table.rows[0])
    )
    return _beside_first(own, base, row is table.rows[0])


def _beside_first(own: Reach, first: Reach, is_first: bool) -> str:
    """Return the mean rounds over the seeds with their standard deviation, and the speed-up over the first row."""
    rounds = [round for round in own.rounds if round is not None]
    spread = f" ± {statistics.stdev(rounds):.1f}" if own.by_all and len(rounds) > 1 else ""
    times = None if is_first else speed_up(own, first)
    return f"{own}{spread}{'' if times is None else f' ({times})'}"


def _times(cells: Cells, table: PaperTable, row: Row) -> str:
    """Return the ratio of a row's mean seconds to those of the first row as text; empty for other quantities."""
    if table.quantity != SECONDS or row is table.rows[0]:
        return ""
    own, first = ([s for s in cells.get(of.label, []) if s is not None] for of in (row, table.rows[0]))
    return f" ({statistics.fmean(own) / statistics.fmean(first):.2f}×)" if own and first else ""


def _votes(out: Path, comparison: Comparison) -> list[str]:
    """Describe the result of each vote in a comparison, one line per run with a vote."""
    told = []
    for summary in _summaries(out, comparison):
        vote = summary.get("vote")
        if vote is not None and vote["voted"]:
            order = sorted(zip(vote["votes"], vote["points"], vote["sources"], strict=True), reverse=True)
            counted = ", ".join(f"{name} {votes} ({points} points)" for votes, points, name in order)
            told.append(
                f"{comparison.folder}, seed {summary['seed']}: {vote['ballots']} clients voted in round "
                f"{vote['round']}; votes: {counted}; transferred: {vote['transferred']}."
            )
    return told


def _cell(cells: Cells, row: Row) -> str:
    """Return the mean over the seeds with the sample standard deviation, as text."""
    ours = [accuracy for accuracy in cells.get(row.label, []) if accuracy is not None]
    spread = f" ± {statistics.stdev(ours):.2f}" if len(ours) > 1 else ""
    return f"{statistics.fmean(ours):.2f}{spread}" if ours else "–"
