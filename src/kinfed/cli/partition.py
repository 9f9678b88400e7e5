"""``kinfed partition``: who gets what, before anything is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from kinfed.errors import InputError
from kinfed.experiment.config import Config

__all__ = ["show_partition"]


def show_partition(fields: Mapping[str, Any], out: Path) -> None:
    """Print the clients of a config and write ``partition.json``, ``partition.png`` and ``rows.json``.

    Args:
        fields: Of the `Config`; the method does not matter.
        out: A folder that is not there yet, or empty.

    Raises:
        InputError: If a field is wrong, the data do not allow the partition, the folder has something in it, or it
            cannot be written.
    """
    from rich.console import Console

    from kinfed.experiment.run import OWN_FIELD, federation_of
    from kinfed.report.partition import SHOWN_CLIENTS, Holdings, client_table, save_holdings, summary_table

    config = Config.checked(fields)
    with _one_line(out):
        if out.exists() and (out.is_file() or any(out.iterdir())):
            raise InputError(f"out: {str(out)!r} exists; name another one")
    federation = federation_of(config)
    with _one_line(out):
        out.mkdir(parents=True, exist_ok=True)
    own = OWN_FIELD.get(config.partition)
    given = f" ({own} {getattr(config, own)})" if own and getattr(config, own) is not None else ""
    holdings = Holdings.of(federation, f"{config.data}, partition {config.partition}{given}, seed {config.seed}")
    sizes = f"{int(holdings.counts.sum()):,} training and {int(holdings.tests.sum()):,} test samples"
    new = f", {holdings.new:,} of them new ones that never train" if holdings.new else ""
    split = "; a fifth of every client's own samples is for tests" if federation.partition.pooled else ""
    console = Console(highlight=False)
    console.print(
        f"{holdings.about}: {sizes} over {len(holdings.names):,} clients{new}; {holdings.probe:,} withheld as the "
        f"server's probe set{split}\n",
        markup=False,
    )
    console.print(summary_table(holdings))
    if len(holdings.names) <= SHOWN_CLIENTS:
        terminal = console.is_terminal and console.encoding.startswith("utf")
        console.print()
        console.print(client_table(holdings, terminal=terminal))
    for warning in holdings.warnings(config.batch_size):
        console.print(f"\nwarning: {warning}", style="yellow", markup=False)
    console.print()
    with _one_line(out):
        for path in save_holdings(holdings, federation, out, config.batch_size):
            typer.echo(path)


@contextlib.contextmanager
def _one_line(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"out: {str(out)!r} cannot be written: {error.strerror or error}") from error
