"""Tables of the papers as experiments: the paper's numbers, and the configs that should give them (METHODS.md H)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfed.engine.files import write_whole
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.run import COMPARISON, Watcher, compare, nobody, resume

__all__ = ["TABLES", "PaperTable", "Scale", "reproduce"]

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much of a table is run.

    Attributes:
        columns: Which of the table's.
        fields: Of the config, over those of the table.
    """

    columns: tuple[str, ...]
    fields: Fields


@dataclass(frozen=True)
class PaperTable:
    """One table of a paper.

    Attributes:
        title: What it shows.
        quantity: Which metric of a run's summary the numbers are.
        fields: Of the config, for all cells.
        columns: Heading → what the config of its cells has beyond that.
        printed: Method → its numbers in the paper, in percent, one a column.
        scales: By name.
        beside: Quantities of methods whose accuracy is of another kind and stands beside for reference.
    """

    title: str
    quantity: str
    fields: Fields
    columns: Mapping[str, Fields]
    printed: Mapping[str, tuple[float, ...]]
    scales: Mapping[str, Scale]
    beside: Mapping[str, str] = field(default_factory=dict)


def _fedcka(alpha: float, *, fedprox: float, moon: float, fedcka: float) -> Fields:
    """A column of FedCKA's Table 2 with the μ that the paper found best; its SCAFFOLD must be NIID-Bench's."""
    mu = {"fedprox": fedprox, "moon": moon, "fedcka": fedcka}
    return {"alpha": alpha, "settings": {"scaffold": {"denom": "steps"}, **{name: {"mu": m} for name, m in mu.items()}}}


TABLES: dict[str, PaperTable] = {
    "fedcka-table2": PaperTable(
        title="FedCKA (Son et al. 2021), Table 2: CIFAR-10 by how much the clients' labels differ",
        quantity="global_acc",
        fields={
            "data": "cifar10", "model": "small_cnn", "clients": 10, "partition": "dirichlet", "probe": 0,
            "local_epochs": 10, "batch_size": 128, "lr": 0.01, "lr_schedule": "constant", "momentum": 0.9,
            "weight_decay": 1e-5, "checkpoint_every": 1,
        },
        columns={
            "α=5": _fedcka(5.0, fedprox=0.001, moon=0.1, fedcka=5),
            "α=0.5": _fedcka(0.5, fedprox=0.1, moon=10, fedcka=3),
            "α=0.1": _fedcka(0.1, fedprox=0.001, moon=10, fedcka=3),
        },
        printed={
            "fedavg": (64.37, 59.81, 50.43),
            "fedprox": (64.58, 59.98, 51.07),
            "scaffold": (64.33, 59.47, 40.53),
            "moon": (65.25, 60.65, 51.63),
            "fedcka": (67.86, 61.13, 52.35),
        },
        scales={
            "small": Scale(("α=5", "α=0.1"), {"rounds": 5}),
            "paper": Scale(("α=5", "α=0.5", "α=0.1"), {"rounds": 100, "seeds": 3}),
        },
        beside={"local": "personal_acc_weighted"},
    ),
}  # fmt: skip


def reproduce(name: str, scale: str, out: Path, given: Fields, watcher: Watcher = nobody) -> Path:
    """Run what is still to do of a table, and write ``table.json`` and ``table.md`` with the paper's numbers beside.

    Args:
        name: One of `TABLES`.
        scale: One of the table's.
        out: Folder; gets a comparison folder a column.
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
    chosen = table.scales[scale]
    methods = (*table.printed, *table.beside)
    configs = {
        column: Config.checked({**table.fields, **table.columns[column], **chosen.fields, **given, "methods": methods})
        for column in chosen.columns
    }
    for column, config in configs.items():
        folder = out / column
        if (folder / COMPARISON).is_file():
            _check_same(config, folder)
            resume(folder, watcher)
        else:
            compare(config, folder, watcher)
    cells = {column: _measured(out / column, table) for column in configs}
    write_whole(out / "table.json", json.dumps({"table": name, "scale": scale, "cells": cells}, indent=1) + "\n")
    write_whole(out / "table.md", markdown(table, cells, configs))
    return out / "table.md"


def _check_same(config: Config, folder: Path) -> None:
    """Refuse to go on with a column that was begun with another config."""
    if (folder / COMPARISON).read_text() != config.with_local().toml():
        raise InputError(f"out: {str(folder)!r} was begun with another config; name another folder")


def _measured(folder: Path, table: PaperTable) -> dict[str, list[float]]:
    """Each method's accuracies, one a seed, in percent."""
    summaries = json.loads((folder / "comparison.json").read_text())
    found: dict[str, list[float]] = {}
    for summary in summaries:
        quantity = table.beside.get(summary["method"], table.quantity)
        found.setdefault(summary["method"], []).append(100 * summary["metrics"][quantity])
    return found


def markdown(table: PaperTable, cells: Mapping[str, Mapping[str, list[float]]], configs: Mapping[str, Config]) -> str:
    """The table with the paper's numbers beside ours, and what was run."""
    config = next(iter(configs.values()))
    seeds = f"seeds {config.seed} to {config.seed + config.seeds - 1}" if config.seeds > 1 else f"seed {config.seed}"
    heads = [f"{column}: {of}" for column in cells for of in ("here", "paper")]
    lines = [
        f"# {table.title}",
        "",
        f"{config.data}, {config.clients} clients, partition {config.partition}, model {config.model}, "
        f"{config.rounds} rounds of {config.local_epochs} local epochs, batch {config.batch_size}, lr {config.lr}, "
        f"{seeds}. The numbers are {table.quantity} at the last round, in percent"
        + "".join(f"; of {method}, {quantity}" for method, quantity in table.beside.items())
        + ("; ± is the sample standard deviation over seeds." if config.seeds > 1 else "."),
        "",
        f"| | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    for method in (*table.printed, *table.beside):
        row = [_cell(table, cells, column, method) for column in cells]
        lines.append(f"| {method} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _cell(table: PaperTable, cells: Mapping[str, Mapping[str, list[float]]], column: str, method: str) -> str:
    """Mean over seeds with its spread, and the paper's number."""
    ours, printed = cells[column].get(method, []), table.printed.get(method)
    spread = f" ± {statistics.stdev(ours):.2f}" if len(ours) > 1 else ""
    mean = f"{statistics.fmean(ours):.2f}{spread}" if ours else "–"
    return f"{mean} | {printed[[*table.columns].index(column)]:.2f}" if printed else f"{mean} | –"
