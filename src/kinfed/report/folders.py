"""Run folders, read back. The report sees these files and nothing else."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from kinfed.errors import InputError

__all__ = ["Run", "read_runs"]


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        path: The folder.
        config: ``config.toml``, parsed.
        summary: ``summary.json``.
        lines: One a round.
        federation: Class names, training samples by client and class, test samples by client.
        pictured: Matrices by name, by the rounds for which there are any, in order.
    """

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    lines: list[dict[str, Any]]
    federation: dict[str, Any]
    pictured: dict[int, dict[str, NDArray[Any]]]

    @property
    def pictures(self) -> dict[str, NDArray[Any]]:
        """The matrices of the last round for which there are any."""
        return [{}, *self.pictured.values()][-1]

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.summary["method"])

    @property
    def vote_line(self) -> dict[str, Any]:
        """That of the round in which clients voted for a source model; only of a run whose summary has a vote."""
        return next(line for line in self.lines if "ballots" in line)

    def client_name(self, id: int) -> str:
        """What the data call a client, or else its number."""
        names = self.federation.get("names")
        return str(names[id] if names else id)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """A quantity by round, where it was measured."""
        told = [(line["round"], line[name]) for line in self.lines if line.get(name) is not None]
        return [r for r, _ in told], [v for _, v in told]

    def client_accuracies(self) -> NDArray[np.float64]:
        """Headline accuracy of every client at the last round; NaN without test samples."""
        return np.array([np.nan if a is None else a for a in self.lines[-1]["client_acc"].get("personal", [])])


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """All finished runs in some run and comparison folders, in the order of the comparison.

    Raises:
        InputError: If a folder holds no run, or a run that is not finished.
    """
    return [_read(folder) for path in paths for folder in _folders(path)]


def _folders(path: Path) -> list[Path]:
    """The run folders that a path means: itself, or those of a comparison."""
    if (path / "config.toml").is_file():
        return [path]
    if not (path / "comparison.json").is_file():
        raise InputError(f"run: {str(path)!r} is no run folder; it has neither config.toml nor comparison.json")
    return [path / f"{s['method']}-seed{s['seed']}" for s in json.loads((path / "comparison.json").read_text())]


def _read(path: Path) -> Run:
    if not (path / "summary.json").is_file():
        raise InputError(f"run: {str(path)!r} is not finished; go on with it: kinfed resume {path}")
    return Run(
        path,
        tomllib.loads((path / "config.toml").read_text()),
        json.loads((path / "summary.json").read_text()),
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()],
        json.loads((path / "federation.json").read_text()),
        {
            int(of.stem.removeprefix("round-")): load_file(of)
            for of in sorted((path / "pictures").glob("round-*.safetensors"))
        },
    )
