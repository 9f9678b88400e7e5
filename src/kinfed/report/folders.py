"""Run folders, read back. The report sees these files and nothing else."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from kinfed.errors import InputError
from kinfed.files import read_json, read_json_lines
from kinfed.labels import folder_name
from kinfed.methods import Picture
from kinfed.models import read_tensors

__all__ = ["Run", "read_runs"]


@dataclass(frozen=True)
class Run:
    """One run: all of its rounds if it is finished, else those that are done.

    Attributes:
        path: The folder.
        config: ``config.toml``, parsed.
        summary: ``summary.json``; of a run that is not finished ``so_far.json``, which names the rounds ``planned``.
        lines: One a round.
        federation: Class names, training samples by client and class, test samples by client.
        pictured: Pictures by name, by the rounds for which there are any, in order.
    """

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    lines: list[dict[str, Any]]
    federation: dict[str, Any]
    pictured: dict[int, dict[str, Picture]]

    @property
    def pictures(self) -> dict[str, Picture]:
        """The pictures of the last round for which there are any."""
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


class _Told(BaseModel):
    """What a report needs to find in a file; there may be more, and older runs may lack what has a default."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Data(_Told):
    name: str
    clients: int
    partition: str
    train: int
    test: int
    probe: int


class _Summary(_Told):
    version: int
    method: str = Field(pattern=r"^[\w+:.=,<> -]+$")
    seed: int
    rounds: int = Field(ge=1)
    planned: int | None = None
    tested: str
    model: str
    data: _Data
    metrics: dict[str, float | None]
    rounds_to_target: dict[str, Any] | None = None
    vote: dict[str, Any] | None = None
    train_loss: float | None
    communication: dict[str, int]
    seconds: dict[str, float]
    refused: int
    untested: int = 0
    skipped_samples: int
    zero_step_clients: int


class _Line(_Told):
    round: int
    clients: list[int]
    refused: dict[str, str]
    client_acc: dict[str, list[float | None]]
    down_bytes: int
    up_bytes: int


class _Federation(_Told):
    classes: list[str]
    train: list[list[int]]
    test: list[int]
    names: list[str] | None = None


class _Words(BaseModel):
    """Words of a picture (`kinfed.methods.Picture.words`)."""

    title: str
    rows: Literal["clients", "classes"] | list[str]
    columns: Literal["clients", "classes"] | list[str]
    low: float | None = None
    high: float | None = None
    similarity: bool = False


class _Named(_Told):
    method: str = Field(pattern=r"^[\w+:.=,<> -]+$")
    seed: int


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """All runs in some run folders, and the finished ones in some comparison folders, in the order of the comparison.

    Raises:
        InputError: If a folder holds no run, or one of which nothing was tested yet, or a file of one is damaged.
    """
    return [_read(folder) for path in paths for folder in _folders(path)]


def _folders(path: Path) -> list[Path]:
    """The run folders that a path means: itself, or those of a comparison."""
    if (path / "config.toml").is_file():
        return [path]
    file = path / "comparison.json"
    if not file.is_file():
        raise InputError(f"run: {str(path)!r} is no run folder; it has neither config.toml nor comparison.json")
    runs = _checked(TypeAdapter(list[_Named]), read_json(file), file)
    if not runs:
        raise InputError(f"{file}: names no run; go on with the comparison: kinfed resume {path}")
    return [path / folder_name(run["method"], run["seed"]) for run in runs]


def _read(path: Path) -> Run:
    finished = (path / "summary.json").is_file()
    file = path / ("summary.json" if finished else "so_far.json")
    if not file.is_file():
        raise InputError(f"run: {str(path)!r} has no results yet; go on with it: kinfed resume {path}")
    summary = _checked(TypeAdapter(_Summary), read_json(file), file)
    told = read_json_lines(path / "metrics.jsonl", cut=not finished)  # somebody may be writing the last one
    lines = _checked(TypeAdapter(list[_Line]), told if finished else told[: summary["rounds"]], path / "metrics.jsonl")
    if [line["round"] for line in lines] != [*range(1, summary["rounds"] + 1)]:
        raise InputError(
            f"{path / 'metrics.jsonl'}: does not have the {summary['rounds']} rounds of the run, a line each"
        )
    federation = _checked(TypeAdapter(_Federation), read_json(path / "federation.json"), path / "federation.json")
    if not len(federation["train"]) == len(federation["test"]) == summary["data"]["clients"]:
        raise InputError(
            f"{path / 'federation.json'}: does not have the {summary['data']['clients']} clients of the run"
        )
    return Run(
        path,
        _config(path / "config.toml"),
        summary,
        lines,
        federation,
        _pictured(path / "pictures", summary["data"]["clients"]),
    )


def _checked(adapter: TypeAdapter[Any], value: Any, path: Path) -> Any:
    """A value as it was read, if it has what is needed of it."""
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: is damaged: {where and f'{where}: '}{first['msg'].lower()}") from error
    return value


def _config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no TOML: {error}") from error


def _pictured(folder: Path, clients: int) -> dict[int, dict[str, Picture]]:
    pictured = {}
    for path in sorted(folder.glob("round-*.safetensors")):
        try:
            matrices, about = read_tensors(path)
            words = TypeAdapter(dict[str, _Words]).validate_python(about.get("pictures", {}))
            pictured[int(about["round"])] = {
                name: Picture(matrix, **words[name].model_dump()) if name in words else _unnamed(name, matrix, clients)
                for name, matrix in matrices.items()
                if matrix.ndim == 2
            }
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: cannot be used: {error}") from error
    return pictured


def _unnamed(name: str, matrix: Tensor, clients: int) -> Picture:
    """A picture without words, as older runs have them: N×N is of the clients, and may be their similarity."""
    if tuple(matrix.shape) != (clients, clients):
        rows, columns = ([str(i) for i in range(size)] for size in matrix.shape)
        return Picture(matrix, name, rows, columns)
    known = matrix.nan_to_num()
    similarity = torch.allclose(known, known.T) and set(known.diagonal().round(decimals=6).tolist()) <= {0.0, 1.0}
    return Picture(matrix, name.upper() if similarity else name, "clients", "clients", similarity=similarity)
