"""Reading of run folders. Reports are made from these files alone."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from kinfed.errors import InputError, check_choice
from kinfed.files import read_json, read_json_lines
from kinfed.labels import folder_name
from kinfed.methods import Picture
from kinfed.models import read_tensors
from kinfed.report.measures import WORDS
from kinfed.report.names import labels

__all__ = ["Run", "read_runs"]

LABEL = 16  # longest label of a client, in characters; less than of other names, since figures have it on both axes


@dataclass(frozen=True)
class Run:
    """The contents of a run folder; of an unfinished run, those of the rounds so far.

    Attributes:
        path: The folder.
        config: Contents of ``config.toml``.
        summary: Contents of ``summary.json``; of an unfinished run those of ``so_far.json``, with ``planned`` rounds.
        lines: Lines of ``metrics.jsonl``, one per round.
        federation: Contents of ``federation.json``: names of the classes, training samples of each client and class,
            test samples of each client, and the groups of a planted shift; of data without labels, the training samples
            of each client, and the labelled data on which representations are tested.
        pictured: Pictures of each round that has any, by name.
        confusion: Contents of ``confusion.json``: true class, answer and number of samples of each cell that is not
            zero, by client; empty for an unfinished run, and for one of a version without it.
        measure: Measure by which the run is compared with others.
    """

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    lines: list[dict[str, Any]]
    federation: dict[str, Any]
    pictured: dict[int, dict[str, Picture]]
    confusion: list[list[list[int]]] = field(default_factory=list)
    measure: str = "accuracy"

    @property
    def pictures(self) -> dict[str, Picture]:
        """The pictures of the last round that has any, by name."""
        return [{}, *self.pictured.values()][-1]

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.summary["method"])

    @property
    def samples(self) -> list[int]:
        """The number of training samples of each client."""
        told: list[int] | None = self.federation.get("samples")
        return [sum(counts) for counts in self.federation["train"]] if told is None else told

    @property
    def unlabelled(self) -> bool:
        """True if the clients' data have no labels."""
        return "labelled" in self.federation

    @property
    def untested(self) -> bool:
        """True if there are no labels at all, so that no model has an accuracy."""
        return self.federation.get("labelled", "") is None

    @property
    def vote_line(self) -> dict[str, Any]:
        """The line of the round in which clients voted for a source model; the run must have had a vote."""
        return next(line for line in self.lines if "ballots" in line)

    def client_name(self, id: int) -> str:
        """Return the name of a client or new client in the data, or its number if the data have no names."""
        return self._client_names[id] if id < len(self._client_names) else str(id)

    @cached_property
    def _client_names(self) -> list[str]:
        return [*(self.federation.get("names") or ()), *self.federation.get("new_names", ())]

    @cached_property
    def client_labels(self) -> list[str]:
        """The names of the clients as printable, short and distinct labels for an axis."""
        return labels(map(self.client_name, range(len(self.samples))), LABEL)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Return the rounds in which a quantity was measured, and its values."""
        told = [(line["round"], line[name]) for line in self.lines if line.get(name) is not None]
        return [r for r, _ in told], [v for _, v in told]

    def of_clients(self, name: str) -> list[float | None]:
        """Return what ``client_acc`` or ``client_measures`` has under a name after the last round, by client."""
        line = self.lines[-1]
        told: list[float | None] = (line["client_acc"] | line.get("client_measures", {})).get(name, [])
        return told

    def client_accuracies(self) -> NDArray[np.float64]:
        """Return the accuracy of each client's primary model after the last round; NaN without test samples."""
        return np.array([np.nan if a is None else a for a in self.of_clients("personal")])

    def client_values(self) -> NDArray[np.float64]:
        """Return the measure of each client's primary model after the last round; NaN where there is none."""
        if self.measure == "accuracy":
            return self.client_accuracies()
        return np.array([np.nan if value is None else value for value in self.of_clients(f"personal_{self.measure}")])


class _Told(BaseModel):
    """Base class of the fields that a report needs from a file.

    Other fields are allowed. Fields with defaults may be missing in older runs.
    """

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
    made: dict[str, str] = {}


class _Line(_Told):
    round: int
    clients: list[int]
    refused: dict[str, str]
    client_acc: dict[str, list[float | None]]
    client_measures: dict[str, list[float | None]] = {}
    down_bytes: int
    up_bytes: int


class _Labelled(_Told):
    name: str
    train: int
    test: int


class _Federation(_Told):
    classes: list[str]
    train: list[list[int]]
    test: list[int]
    names: list[str] | None = None
    new_names: list[str] = []
    groups: list[int] = []
    samples: list[int] | None = None
    labelled: _Labelled | None = None
    remarks: list[str] = []


class _Confusion(_Told):
    clients: list[list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=3, max_length=3)]]]


class _Words(BaseModel):
    """The words of a picture (`kinfed.methods.Picture.words`)."""

    title: str
    rows: Literal["clients", "classes"] | list[str]
    columns: Literal["clients", "classes"] | list[str]
    low: float | None = None
    high: float | None = None
    similarity: bool = False


class _Named(_Told):
    method: str = Field(pattern=r"^[\w+:.=,<> -]+$")
    seed: int


def read_runs(paths: Sequence[Path], measure: str | None = None) -> list[Run]:
    """Read runs from run folders and from comparison folders, in the order of the comparison.

    Args:
        paths: The folders.
        measure: Measure by which the runs are compared; that of the first run's config if not given.

    Raises:
        InputError: If there is no such measure, a folder holds no run or a run without results, or a file is damaged.
    """
    if measure is not None:
        check_choice("measure", measure, [*WORDS])
    runs = [_read(folder) for path in paths for folder in _folders(path)]
    by = measure or (runs[0].config.get("measure", "accuracy") if runs else "accuracy")
    return [replace(run, measure=by) for run in runs]


def _folders(path: Path) -> list[Path]:
    """Return the run folders of a path: the path itself, or the run folders of a comparison."""
    if (path / "config.toml").is_file():
        return [path]
    file = path / "comparison.json"
    if not file.is_file():
        raise InputError(f"run: {str(path)!r} is not a run folder; it has neither config.toml nor comparison.json")
    runs = _checked(TypeAdapter(list[_Named]), read_json(file), file)
    if not runs:
        raise InputError(f"{file}: lists no runs; continue the comparison with: kinfed resume {path}")
    return [path / folder_name(run["method"], run["seed"]) for run in runs]


def _read(path: Path) -> Run:
    finished = (path / "summary.json").is_file()
    file = path / ("summary.json" if finished else "so_far.json")
    if not file.is_file():
        raise InputError(f"run: {str(path)!r} has no results yet; continue it with: kinfed resume {path}")
    summary = _checked(TypeAdapter(_Summary), read_json(file), file)
    told = read_json_lines(path / "metrics.jsonl", cut=not finished)  # the last line may be incomplete
    lines = _checked(TypeAdapter(list[_Line]), told if finished else told[: summary["rounds"]], path / "metrics.jsonl")
    if [line["round"] for line in lines] != [*range(1, summary["rounds"] + 1)]:
        raise InputError(
            f"{path / 'metrics.jsonl'}: must have one line for each of the {summary['rounds']} rounds of the run"
        )
    federation = _checked(TypeAdapter(_Federation), read_json(path / "federation.json"), path / "federation.json")
    listed = [len(federation[name]) for name in ("train", "test", "groups", "samples") if name in federation]
    if {*listed} != {summary["data"]["clients"]}:
        raise InputError(f"{path / 'federation.json'}: must list the {summary['data']['clients']} clients of the run")
    return Run(
        path,
        _config(path / "config.toml"),
        summary,
        lines,
        federation,
        _pictured(path / "pictures", summary["data"]["clients"]),
        _confusion(path / "confusion.json", federation) if finished else [],
    )


def _confusion(path: Path, federation: dict[str, Any]) -> list[list[list[int]]]:
    """Read the confusion matrices of the clients; empty if the run has none."""
    if not path.is_file():
        return []
    told: list[list[list[int]]] = _checked(TypeAdapter(_Confusion), read_json(path), path)["clients"]
    classes, clients = len(federation["classes"]), len(federation["train"])
    if len(told) != clients or any(of >= classes for cells in told for cell in cells for of in cell[:2]):
        raise InputError(f"{path}: is damaged: the run has {clients} clients and {classes} classes")
    return told


def _checked(adapter: TypeAdapter[Any], value: Any, path: Path) -> Any:
    """Return a value from a file unchanged, after a check of its fields."""
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
        raise InputError(f"{path}: is not valid TOML: {error}") from error


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
    """Make a picture from a matrix without words, as in older runs.

    A matrix N×N is taken to be of the clients, and to be a similarity if it is symmetric with a diagonal of 0 or 1.
    """
    if tuple(matrix.shape) != (clients, clients):
        rows, columns = ([str(i) for i in range(size)] for size in matrix.shape)
        return Picture(matrix, name, rows, columns)
    known = matrix.nan_to_num()
    similarity = torch.allclose(known, known.T) and set(known.diagonal().round(decimals=6).tolist()) <= {0.0, 1.0}
    return Picture(matrix, name.upper() if similarity else name, "clients", "clients", similarity=similarity)
