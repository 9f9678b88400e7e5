"""Runs of a paper's table, its numbers beside ours."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinfed.engine.files import write_whole
from kinfed.errors import InputError
from kinfed.experiment.config import EXECUTION, Config, read_toml
from kinfed.experiment.run import COMPARISON, Watcher, compare, nobody, resume
from kinfed.experiment.tables import CELLS, TABLES, Fields, PaperTable, Row

__all__ = ["Comparison", "comparisons", "reproduce"]

Cells = Mapping[str, list[float]]  # of a column: row → one a seed


@dataclass(frozen=True)
class Comparison:
    """The runs of some rows of a column, and the name of their folder.

    Attributes:
        folder: Its name.
        rows: Which.
        own: What sets their config apart from that of the column's other rows.
        config: Of the runs.
    """

    folder: str
    rows: Sequence[Row]
    own: Fields
    config: Config


def reproduce(name: str, scale: str, out: Path, given: Fields, watcher: Watcher = nobody) -> Path:
    """Run what is still to do of a table, and write ``table.json`` and ``table.md`` with the paper's numbers beside.

    Args:
        name: One of `TABLES`.
        scale: One of the table's.
        out: Folder; gets a comparison folder a column, and one for every row that has a method with other settings than
            a row above.
        given: Fields of the config that overrule the table's, ``seeds`` or ``workers``, say.
        watcher: Looks at the runs.

    Returns:
        ``table.md``.

    Raises:
        InputError: If there is no such table or scale, or a field is wrong.
    """
    if name not in TABLES:
        raise InputError(f"table: {name!r} is not known; allowed: {', '.join(TABLES)}")
    table = TABLES[name]
    if scale not in table.scales:
        raise InputError(f"scale: {scale!r} is not known; allowed: {', '.join(table.scales)}")
    table = table.at(scale)
    columns = {column: comparisons(table, scale, column, given) for column in table.scales[scale].columns}
    for of_column in columns.values():
        for comparison in of_column:
            _go_on(comparison.config, out / comparison.folder, watcher)
    found = {}
    for of, quantities in table.quantities().items():
        found[of] = {column: _measured(out, of_column, quantities) for column, of_column in columns.items()}
    write_whole(out / "table.json", json.dumps({"table": name, "scale": scale, **found}, indent=1) + "\n")
    write_whole(out / "table.md", markdown(table, columns, found))
    return out / "table.md"


def comparisons(table: PaperTable, scale: str, column: str, given: Fields) -> list[Comparison]:
    """The runs of a column; a comparison has a method once, and one config, so that other settings need another.

    Args:
        table: As it is at the scale.
        scale: Its name.
        column: One of the scale's.
        given: Fields that overrule the table's.
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
    found = []
    for folder, rows in folders.items():
        apart = own.get(rows[0].label, {})
        layers = [table.fields, table.columns[column], table.scales[scale].fields, apart]
        found.append(Comparison(folder, rows, apart, _config(table, layers, rows, given)))
    return found


def _config(table: PaperTable, layers: Sequence[Fields], rows: Sequence[Row], given: Fields) -> Config:
    """Of the runs of some rows; later layers overrule earlier ones, and so do a method's settings one by one."""
    fields = {name: value for layer in [*layers, given] for name, value in layer.items()}
    wanted = given.get("settings", {})
    settings: dict[str, dict[str, Any]] = {}
    for row in rows:
        of_layers = [layer.get("settings", {}).get(row.method, {}) for layer in layers]
        own = [*of_layers, row.settings, wanted.get(row.method, {})]
        settings[row.method] = {name: value for layer in own for name, value in layer.items()}
    # A method that no row is of is left for the config to refuse.
    unknown = {name: wanted[name] for name in wanted.keys() - {row.method for row in table.rows}}
    return Config.checked({**fields, "methods": (*settings,), "settings": settings | unknown})


def _go_on(config: Config, folder: Path, watcher: Watcher) -> None:
    """Run a comparison, or what is left of it, now with as many workers and seeds as this config has.

    One that was begun with a config of other results is refused.
    """
    if not (folder / COMPARISON).is_file():
        compare(config, folder, watcher)
        return
    begun = Config.checked(read_toml(folder / COMPARISON))  # also one from before a field was there
    if begun.model_dump(exclude=EXECUTION) != config.model_dump(exclude=EXECUTION):
        raise InputError(f"out: {str(folder)!r} was begun with another config; name another folder")
    write_whole(folder / COMPARISON, config.toml())
    resume(folder, watcher)


def _measured(out: Path, comparisons: Sequence[Comparison], quantities: Mapping[str, str]) -> Cells:
    """Accuracies in a column, one a seed, in percent, of the rows that have a quantity."""
    found = {}
    for comparison in comparisons:
        summaries = json.loads((out / comparison.folder / "comparison.json").read_text())
        for row in comparison.rows:
            if row.label in quantities:
                metrics = [summary["metrics"] for summary in summaries if summary["method"] == row.method]
                seeds = [of_seed.get(quantities[row.label]) for of_seed in metrics]
                found[row.label] = [100 * accuracy for accuracy in seeds if accuracy is not None]
    return found


def markdown(
    table: PaperTable, columns: Mapping[str, Sequence[Comparison]], found: Mapping[str, Mapping[str, Cells]]
) -> str:
    """The table with the paper's numbers beside ours, and what was run.

    Args:
        table: Which.
        columns: Its runs.
        found: ``cells``, and by quantity what the paper does not print.
    """
    lines = [f"# {table.title}", "", _what_was_run(table, columns), ""]
    lines += [table.note, ""] if table.note else []
    lines += _header([f"{column}: {of}" for column in columns for of in ("here", "paper")])
    for row in table.rows:
        printed = {column: f"{number:.2f}" for column, number in zip(table.columns, row.printed, strict=False)}
        beside = [f"{_cell(found[CELLS][column], row)} | {printed.get(column, '–')}" for column in columns]
        lines.append(f"| {row.label} | {' | '.join(beside)} |")
    for also in [of for of in found if of != CELLS]:
        lines += ["", f"The same runs, {also}:", "", *_header([*columns])]
        of_rows = [
            [row.label, *(_cell(cells, row) for cells in found[also].values())]
            for row in table.rows
            if row.also == also
        ]
        lines += [f"| {' | '.join(row)} |" for row in of_rows]
    return "\n".join(lines) + "\n"


def _what_was_run(table: PaperTable, columns: Mapping[str, Sequence[Comparison]]) -> str:
    """The setting, and which quantities are shown."""
    configs = [of_column[0].config for of_column in columns.values()]
    config = configs[0]
    data, partition, model = (
        "/".join(dict.fromkeys(str(value) for value in values))
        for values in zip(*((c.data, c.partition, c.models or c.model) for c in configs), strict=True)
    )
    others: dict[str, list[str]] = {}
    for row in table.rows:
        if row.quantity:
            others.setdefault(row.quantity, []).append(row.label)
    of_others = "".join(f"; of {' and '.join(labels)}, {quantity}" for quantity, labels in others.items())
    apart = [
        f"; {row.label}: {', '.join(f'{name} {value}' for name, value in own.items() if value is not None)}"
        for comparison in next(iter(columns.values()))
        if (own := {name: getattr(comparison.config, name) for name in comparison.own})
        for row in comparison.rows
    ]
    seeds = f"seeds {config.seed} to {config.seed + config.seeds - 1}" if config.seeds > 1 else f"seed {config.seed}"
    tuned = any(row.also is not None and row.also.startswith("fine_tuned") for row in table.rows)
    tuning = f", fine-tuning of {config.ft_epochs} epochs with lr {config.ft_lr}" if tuned else ""
    spread = "; ± is the sample standard deviation over seeds" if config.seeds > 1 else ""
    return (
        f"{data}, {config.clients} clients, partition {partition}, model {model}, {config.rounds} rounds of "
        f"{config.local_epochs} local epochs, batch {config.batch_size}, lr {config.lr}{tuning}, "
        f"{seeds}{''.join(apart)}. "
        f"The numbers are {table.quantity} at the last round, in percent{of_others}{spread}."
    )


def _header(heads: Sequence[str]) -> list[str]:
    return [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]


def _cell(cells: Mapping[str, list[float]], row: Row) -> str:
    """Mean over seeds with its spread."""
    ours = cells.get(row.label, [])
    spread = f" ± {statistics.stdev(ours):.2f}" if len(ours) > 1 else ""
    return f"{statistics.fmean(ours):.2f}{spread}" if ours else "–"
