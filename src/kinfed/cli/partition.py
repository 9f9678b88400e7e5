"""The command ``kinfed partition``: show the samples of every client without training anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from kinfed.errors import plain
from kinfed.files import output

__all__ = ["show_partition"]


def show_partition(fields: Mapping[str, Any], file: Path | None, out: Path) -> None:
    """Print the clients of a config and write ``partition.json``, ``partition.png``, ``rows.json`` and ``samples.png``.

    Args:
        fields: Fields of the `Config`, the same as for a run, so that a command line can be tried before it is run.
            Fields that a method would read are allowed and have no effect.
        file: TOML file with more fields.
        out: Folder for the files; must be new or empty.

    Raises:
        InputError: If a field is wrong, the data do not allow the partition, or the folder is not empty or cannot be
            written.
    """
    from rich.console import Console

    from kinfed.experiment.assemble import federation_of
    from kinfed.experiment.configure import configure
    from kinfed.experiment.uses import OF_CLIENTS
    from kinfed.report.partition import SHOWN_CLIENTS, Holdings, client_table, save_holdings, summary_table

    config = configure({**fields, "methods": "local"}, file, uses=OF_CLIENTS)
    federation = federation_of(config)
    own = {option: getattr(config, option) for option in config.partition_options}
    told = ", ".join(f"{option} {value}" for option, value in own.items() if value is not None)
    given = f" ({told})" if told else ""
    shift = f", shift {config.shift}" if config.shift is not None else ""
    holdings = Holdings.of(federation, f"{config.data}, partition {config.partition}{given}{shift}, seed {config.seed}")
    sizes = f"{int(holdings.samples.sum()):,} training and {int(holdings.tests.sum()):,} test samples"
    if not holdings.classes:
        sizes = f"{int(holdings.samples.sum()):,} images without labels"
    new = f", {holdings.new:,} of them new clients, which do not train" if holdings.new else ""
    split = "; a fifth of every client's own samples is its test set" if federation.partition.pooled else ""
    console = Console(highlight=False, emoji=False)
    console.print(
        f"{plain(holdings.about)}: {sizes} over {len(holdings.names):,} clients{new}; {holdings.public:,} set aside "
        f"as public images{split}",
        markup=False,
    )
    console.print(f"found: {holdings.found}\n", markup=False)
    console.print(summary_table(holdings))
    if len(holdings.names) <= SHOWN_CLIENTS:
        terminal = console.is_terminal and console.encoding.startswith("utf")
        console.print()
        console.print(client_table(holdings, terminal=terminal))
    for warning in holdings.warnings(config.batch_size):
        console.print(f"\nwarning: {plain(warning)}", style="yellow", markup=False)
    console.print()
    with output(out):
        for path in save_holdings(holdings, federation, out, config.batch_size):
            typer.echo(plain(path))
