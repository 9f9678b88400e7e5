"""A run's folder: metrics, checkpoints, models. Whatever is there is whole, whenever the run was killed."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfed.engine.client_store import FILES as MEMORY_FILES
from kinfed.engine.client_store import ClientStore, StoredRounds
from kinfed.engine.executor import Failure
from kinfed.errors import InputError
from kinfed.files import delete, read_json_lines, saving, sync, write_whole
from kinfed.methods import Picture, ServerState
from kinfed.models import Tensors, read_tensors, save_tensors, told_in

__all__ = ["CHECKPOINT_VERSION", "MODEL_VERSION", "Checkpoint", "RunFolder", "save_model"]

CHECKPOINT_VERSION = 2
MODEL_VERSION = 1
KEPT_CHECKPOINTS = 2  # if the last one should be damaged, the one before still serves
METRICS, SECONDS, ERRORS = "metrics.jsonl", "seconds.jsonl", "errors.log"

# What a run writes into its folder, by the paths in it; nothing else there is ever deleted.
RUN_FILES = re.compile(
    r"config\.toml|federation\.json|metrics\.jsonl|seconds\.jsonl|errors\.log|(?:summary|so_far)\.json|mlflow_run_id"
    rf"|(?:checkpoints|pictures)/round-\d+\.safetensors|memories/{MEMORY_FILES.pattern}"
    r"|models/(?:global|client-\d+-\w+)\.(?:safetensors|json)|tensorboard/events\.out\.tfevents\.[^/]+"
    r"|vote\.(?:json|png)|report(?:-(?:kinship|vote)-[^/]+)?\.(?:html|png)"
    r"|(?:checkpoints|pictures|models|memories/\d+)/\.tmp\w+"  # what safetensors calls a file until it is whole
)

Line = dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """Everything that the rounds after ``round`` depend on; the random streams have addresses and need no saving.

    Attributes:
        round: The last one that was done.
        state: The server's.
        kept: Of which round each client's memory is; the memories are files of their own.
    """

    round: int
    state: ServerState
    kept: StoredRounds


@dataclass(frozen=True)
class RunFolder:
    """What the rounds write: ``metrics.jsonl``, ``seconds.jsonl``, and files in folders of their own.

    ``metrics.jsonl`` has one line a round and nothing that differs from one execution to the next; how long the rounds
    took stands in ``seconds.jsonl``.

    Attributes:
        path: The folder; it must be there.
        identity: What the run is of (its config, say): a checkpoint that was saved with another one is refused.
        about: What every saved model says of the run.
    """

    path: Path
    identity: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def memories(self) -> ClientStore:
        """What the clients keep."""
        return ClientStore(self.path / "memories")

    # -- history ------------------------------------------------------------------------------------------------------

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Add one line to a .jsonl file."""
        path = self.path / name
        with saving(path), path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self, name: str) -> list[Line]:
        """The whole lines of a .jsonl file, a round each; one that a kill cut short is left out.

        Raises:
            InputError: If the file is damaged; the message names it.
        """
        path = self.path / name
        lines = read_json_lines(path, cut=True) if path.exists() else []
        for number, line in enumerate(lines, start=1):
            if type(line.get("round")) is not int:
                raise InputError(f"{path}, line {number}: names no round")
        return lines

    def forget_after(self, round: int) -> None:
        """Drop the lines of rounds after the one from which the run goes on."""
        for name in (METRICS, SECONDS):
            self.rewrite(name, [line for line in self.lines(name) if line["round"] <= round])

    def rewrite(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write a .jsonl file anew."""
        write_whole(self.path / name, "".join(json.dumps(line) + "\n" for line in lines))

    def note_failure(self, failure: Failure, where: str) -> None:
        """Write down a traceback in ``errors.log``, the first one of each reason."""
        path = self.path / ERRORS
        heading = f"{failure.reason}\n"
        if failure.details and heading not in (path.read_text("utf-8", "replace") if path.is_file() else ""):
            with saving(path), path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{where}: {heading}{failure.details}\n")

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: Checkpoint) -> list[int]:
        """Write a checkpoint, then delete all but the last two; returns the rounds of those that are there.

        The metrics of its rounds are made to last with it.
        """
        for name in (METRICS, SECONDS):
            if (path := self.path / name).is_file():
                with saving(path):
                    sync(path)
        about = {
            "version": CHECKPOINT_VERSION,
            "identity": dict(self.identity),
            "round": checkpoint.round,
            "numbers": checkpoint.state.numbers,
            "kept": {str(id): round for id, round in checkpoint.kept.items()},
        }
        path = self.path / "checkpoints" / f"round-{checkpoint.round:06d}.safetensors"
        save_tensors(path, checkpoint.state.tensors, about)
        there = self._checkpoints()
        delete(there[KEPT_CHECKPOINTS:], self.path, RUN_FILES)
        return [_round_of(path) for path in there[:KEPT_CHECKPOINTS]]

    def last_checkpoint(self) -> Checkpoint | None:
        """The checkpoint of the latest round, or the one before if that cannot be used; None if there is none.

        Raises:
            InputError: If there are checkpoints and none of them can be used; the message says why.
        """
        refused = []
        for path in self._checkpoints():
            try:
                return self._read_checkpoint(path)
            except ValueError as error:
                refused.append(f"{path} cannot be used: {error}")
                warnings.warn(refused[-1], stacklevel=2)
        if refused:
            raise InputError(f"run: {'; '.join(refused)}; without its checkpoints folder the run starts anew")
        return None

    def begun_with(self) -> dict[str, Any] | None:
        """The identity of the run by its last checkpoint, which may not be this one's; None if there is none."""
        for path in self._checkpoints():
            try:
                return dict(told_in(path)["identity"])
            except (ValueError, KeyError, TypeError):
                continue  # one that cannot be used says nothing
        return None

    def check_identity(self) -> None:
        """Refuse a folder whose last checkpoint belongs to another run.

        Raises:
            ValueError: If it does; the message names what differs.
        """
        if (theirs := self.begun_with()) is not None:
            self._check_identity(theirs)

    def referred(self) -> dict[int, StoredRounds]:
        """Which memories each checkpoint on disk needs, by its round."""
        found = {}
        for path in self._checkpoints():
            try:
                found[_round_of(path)] = _kept(told_in(path))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # one that cannot be used needs nothing
        return found

    def _read_checkpoint(self, path: Path) -> Checkpoint:
        tensors, about = read_tensors(path)
        if about.get("version") != CHECKPOINT_VERSION:
            raise ValueError(f"it has the version {about.get('version')}, not {CHECKPOINT_VERSION}")
        try:
            self._check_identity(about["identity"])
            checkpoint = Checkpoint(about["round"], ServerState(tensors, about["numbers"]), _kept(about))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no checkpoint: {error}") from error
        if checkpoint.round != _round_of(path):
            raise ValueError(f"it is of round {checkpoint.round}")
        if {*range(1, checkpoint.round + 1)} - {line["round"] for line in self.lines(METRICS)}:
            raise ValueError(f"{METRICS} does not hold all of its rounds")
        for id, round in checkpoint.kept.items():
            self.memories.read(id, round)
        return checkpoint

    def _check_identity(self, theirs: Mapping[str, Any]) -> None:
        mine = json.loads(json.dumps(dict(self.identity)))  # as it looks once it was saved
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                raise ValueError(
                    f"it belongs to another config, with {name} = {theirs.get(name)!r} and not {mine.get(name)!r}"
                )

    def _checkpoints(self) -> list[Path]:
        """Newest round first."""
        found = (self.path / "checkpoints").glob("round-*.safetensors")
        return sorted((p for p in found if re.fullmatch(r"round-\d+", p.stem)), key=_round_of, reverse=True)

    # -- for the report, and for use ----------------------------------------------------------------------------------

    def save_pictures(self, round: int, pictures: Mapping[str, Picture]) -> None:
        """Write a method's pictures after a round, the words beside the matrices."""
        if pictures:
            matrices = {name: picture.matrix for name, picture in pictures.items()}
            about = {"round": round, "pictures": {name: picture.words for name, picture in pictures.items()}}
            save_tensors(self.path / "pictures" / f"round-{round:06d}.safetensors", matrices, about)

    def save_model(self, name: str, tensors: Tensors, about: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """One model, ``models/NAME.safetensors``, and ``NAME.json`` with all that is known of it.

        Args:
            name: Of the model.
            tensors: All of it.
            about: What it takes to build it again; stands in both files.
            told: What else is known of it, for the second.
        """
        path = self.path / "models" / f"{name}.safetensors"
        save_model(path, tensors, about, {**self.about, **about, **told}, durable=False)

    def model(self, name: str) -> Tensors:
        """One that was saved.

        Raises:
            ValueError: If it is gone or damaged.
        """
        return read_tensors(self.path / "models" / f"{name}.safetensors")[0]


def save_model(
    path: Path, tensors: Tensors, about: Mapping[str, Any], card: Mapping[str, Any], *, durable: bool
) -> None:
    """A model, and then beside it the JSON that is its card (`kinfed.models.Card`).

    Args:
        path: Of the safetensors file.
        tensors: All of the model, or its body.
        about: What it takes to build it again, for the file itself.
        card: All that is known of it, but for the version.
        durable: As of `save_tensors`.
    """
    save_tensors(path, tensors, about, durable=durable)
    text = json.dumps({"version": MODEL_VERSION, **card}, indent=1)
    write_whole(path.with_suffix(".json"), f"{text}\n", durable=durable)


def _round_of(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _kept(about: Mapping[str, Any]) -> StoredRounds:
    return {int(id): round for id, round in about["kept"].items()}
