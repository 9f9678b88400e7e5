"""Folder of a run: metrics, checkpoints, models. Its files are complete at any time, even if the run is killed."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfed.engine.client_store import FILES as CLIENT_STATES
from kinfed.engine.client_store import ClientStates, ClientStore, StoredRounds
from kinfed.engine.executor import Failure
from kinfed.errors import InputError, plain
from kinfed.files import delete, read_json_lines, saving, sync, write_whole
from kinfed.methods import ClientId, Picture, ServerState
from kinfed.models import (
    MODEL_FILES,
    Tensors,
    read_tensors,
    save_shard,
    save_tensors,
    shard_name,
    told_in,
    write_cards,
)

__all__ = ["CHECKPOINT_VERSION", "MODEL_VERSION", "Checkpoint", "ClientModels", "RunFolder", "save_model"]

CHECKPOINT_VERSION = 2
MODEL_VERSION = 1
SHARDED = 100  # largest number of clients that have a file each
SHARDS = 50  # number of shards, unless clients are few or models large
SHARD_BYTES = 2**29
KINDS = 3  # models that a client may have, such as the personal and the fine-tuned one
METRICS, SECONDS, ERRORS, CONFUSION = "metrics.jsonl", "seconds.jsonl", "errors.log", "confusion.json"

# Paths of the files that a run writes into its folder; no other file there is ever deleted.
RUN_FILES = re.compile(
    r"config\.toml|federation\.json|metrics\.jsonl|seconds\.jsonl|errors\.log|(?:summary|so_far|confusion)\.json|(?:mlflow|wandb)_run_id|sites\.json"
    rf"|(?:checkpoints|pictures)/round-\d+\.safetensors|memories/{CLIENT_STATES.pattern}"
    rf"|{MODEL_FILES}"
    r"|exported/(?:global|client-\d+-\w+)\.(?:onnx|torchscript|safetensors)(?:\.json)?"
    r"|tensorboard/events\.out\.tfevents\.[^/]+"
    r"|vote\.(?:json|png)|report(?:-(?:kinship|vote)-[^/]+)?\.(?:html|png)"
    # names of safetensors files while they are written
    r"|(?:checkpoints|pictures|models|memories/(?:\d+|shards))/\.tmp\w+"
)

Line = dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint: everything on which later rounds depend. Random streams are derived from the seed and not saved.

    Attributes:
        round: Number of the last finished round.
        state: State of the server.
        stored: Round of each client's state; the states are in files of their own.
    """

    round: int
    state: ServerState
    stored: StoredRounds


@dataclass(frozen=True)
class RunFolder:
    """Reader and writer of a run's folder: metrics and durations per round, checkpoints, states, pictures, models.

    ``metrics.jsonl`` has one line per round, with nothing that differs between two executions of the same run; the
    durations of the rounds are in ``seconds.jsonl``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path:
    ...     folder = RunFolder(Path(path))
    ...     folder.append("metrics.jsonl", {"round": 1, "train_loss": 0.5})
    ...     folder.lines("metrics.jsonl")
    [{'round': 1, 'train_loss': 0.5}]

    Attributes:
        path: Path of the folder, which must exist.
        identity: Description of the run, such as its config; a checkpoint with another identity is refused.
        about: Entries about the run, such as method and data, that the card of every saved model gets.
        states: Client states of the run; None for those in this folder.
    """

    path: Path
    identity: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    states: ClientStates | None = None

    @property
    def client_states(self) -> ClientStates:
        """Client states of the run."""
        return self.states or ClientStore(self.path / "memories")

    # -- history ------------------------------------------------------------------------------------------------------

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Add one line to a .jsonl file."""
        path = self.path / name
        with saving(path), path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self, name: str) -> list[Line]:
        """Read the lines of a .jsonl file, one for each round; a last line that is cut off is left out.

        Raises:
            InputError: If the file is damaged or a line has no round; the message names the file.
        """
        path = self.path / name
        lines = read_json_lines(path, cut=True) if path.exists() else []
        for number, line in enumerate(lines, start=1):
            if type(line.get("round")) is not int:
                raise InputError(f"{path}, line {number}: has no round number")
        return lines

    def forget_after(self, round: int) -> None:
        """Delete the lines of all rounds after the given one, from which the run resumes."""
        for name in (METRICS, SECONDS):
            self.rewrite(name, [line for line in self.lines(name) if line["round"] <= round])

    def rewrite(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Replace a .jsonl file by new lines."""
        write_whole(self.path / name, "".join(json.dumps(line) + "\n" for line in lines))

    def note_failure(self, failure: Failure, where: str) -> None:
        """Add a traceback to ``errors.log``, if it is the first one for its reason.

        Args:
            failure: Failure with the traceback.
            where: Round and client in which it occurred.
        """
        path = self.path / ERRORS
        heading = f"{failure.reason}\n"
        if failure.details and heading not in (path.read_text("utf-8", "replace") if path.is_file() else ""):
            with saving(path), path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{plain(where)}: {heading}{failure.details}\n")

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint: Checkpoint, *, every: int = 1, planned: bool = True) -> list[int]:
        """Write a checkpoint, keep one more as a reserve if the last is damaged, and return the rounds of these.

        The metrics of its rounds are flushed to disk before it. A planned checkpoint replaces those of stops between
        planned ones, so that a run that was stopped ends with the same files as one that was not.

        Args:
            checkpoint: The checkpoint.
            every: Rounds between two planned checkpoints.
            planned: True if this checkpoint is planned, False if it is that of a stop.
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
            "kept": {str(id): round for id, round in checkpoint.stored.items()},
        }
        path = self.path / "checkpoints" / f"round-{checkpoint.round:06d}.safetensors"
        save_tensors(path, checkpoint.state.tensors, about)
        others = [other for other in self._checkpoints() if other != path]
        reserves = [other for other in others if _round_of(other) % every == 0]
        if not reserves and not planned:
            reserves = others
        delete([other for other in others if other not in reserves[:1]], self.path, RUN_FILES)
        return [_round_of(kept) for kept in (path, *reserves[:1])]

    def last_checkpoint(self) -> Checkpoint | None:
        """Read the latest valid checkpoint, with a warning for each invalid one; None if there are no checkpoints.

        Raises:
            InputError: If there are checkpoints but none is valid; the message has the reasons.
        """
        refused = []
        for path in self._checkpoints():
            try:
                return self._read_checkpoint(path)
            except ValueError as error:
                refused.append(f"{path} cannot be used: {error}")
                warnings.warn(refused[-1], stacklevel=2)
        if refused:
            raise InputError(f"run: {'; '.join(refused)}; delete the folder checkpoints to start the run anew")
        return None

    def begun_with(self) -> dict[str, Any] | None:
        """Read the identity in the latest readable checkpoint, perhaps that of another run; None if there is none."""
        for path in self._checkpoints():
            try:
                return dict(told_in(path)["identity"])
            except (ValueError, KeyError, TypeError):
                continue  # damaged: the next older one may be readable
        return None

    def check_identity(self) -> None:
        """Refuse a folder whose last checkpoint belongs to another run.

        Raises:
            ValueError: If the identities differ; the message names the first difference.
        """
        if (theirs := self.begun_with()) is not None:
            self._check_identity(theirs)

    def referred(self) -> dict[int, StoredRounds]:
        """Read the rounds of the client states that each checkpoint on disk needs, by the checkpoint's round."""
        found = {}
        for path in self._checkpoints():
            try:
                found[_round_of(path)] = _stored_rounds(told_in(path))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a damaged checkpoint needs no states
        return found

    def _read_checkpoint(self, path: Path) -> Checkpoint:
        tensors, about = read_tensors(path)
        if about.get("version") != CHECKPOINT_VERSION:
            raise ValueError(f"it has version {about.get('version')}, not {CHECKPOINT_VERSION}")
        try:
            self._check_identity(about["identity"])
            checkpoint = Checkpoint(about["round"], ServerState(tensors, about["numbers"]), _stored_rounds(about))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a checkpoint: {error}") from error
        if checkpoint.round != _round_of(path):
            raise ValueError(f"it is of round {checkpoint.round}")
        if {*range(1, checkpoint.round + 1)} - {line["round"] for line in self.lines(METRICS)}:
            raise ValueError(f"{METRICS} does not have all of its rounds")
        for id, round in checkpoint.stored.items():
            self.client_states.read(id, round)
        return checkpoint

    def _check_identity(self, theirs: Mapping[str, Any]) -> None:
        mine = json.loads(json.dumps(dict(self.identity)))  # as it is read from a file
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                raise ValueError(
                    f"it belongs to another config, with {name} = {theirs.get(name)!r} instead of {mine.get(name)!r}"
                )

    def _checkpoints(self) -> list[Path]:
        """Paths of the checkpoints, the latest round first."""
        found = (self.path / "checkpoints").glob("round-*.safetensors")
        return sorted((p for p in found if re.fullmatch(r"round-\d+", p.stem)), key=_round_of, reverse=True)

    # -- confusion matrices, pictures and models -----------------------------------------------------------------------

    def save_confusion(self, cells: Sequence[Sequence[Sequence[int]]]) -> None:
        """Write the confusion matrix of each client's primary model to ``confusion.json``.

        Args:
            cells: True class, answer and number of samples of each cell that is not zero, by client.
        """
        write_whole(self.path / CONFUSION, json.dumps({"clients": cells}) + "\n")

    def save_pictures(self, round: int, pictures: Mapping[str, Picture]) -> None:
        """Write a method's pictures after a round, if there are any, with titles and axes as metadata."""
        if pictures:
            matrices = {name: picture.matrix for name, picture in pictures.items()}
            about = {"round": round, "pictures": {name: picture.words for name, picture in pictures.items()}}
            save_tensors(self.path / "pictures" / f"round-{round:06d}.safetensors", matrices, about)

    def save_model(self, name: str, tensors: Tensors, about: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Write a model to ``models/NAME.safetensors``, and its card to ``models/NAME.json``.

        Args:
            name: Name of the model.
            tensors: Tensors of the whole model or of its body.
            about: Description from which the model is built again, for both files.
            told: Further entries of the card.
        """
        path = self.path / "models" / f"{name}.safetensors"
        save_model(path, tensors, about, {**self.about, **about, **told}, durable=False)

    def save_models(
        self, name: str, models: Mapping[str, tuple[Tensors, Mapping[str, Any], Mapping[str, Any]]]
    ) -> None:
        """Write several models to the shard ``models/NAME.safetensors``, and their cards to ``models/NAME.json``.

        Args:
            name: Name of the shard (`kinfed.models.shard_name`).
            models: What `save_model` takes for each model, by its name.
        """
        path = self.path / "models" / f"{name}.safetensors"
        with saving(path):
            path.parent.mkdir(exist_ok=True)
        cards = {
            called: {"version": MODEL_VERSION, **self.about, **about, **told}
            for called, (_, about, told) in models.items()
        }
        write_cards(path, cards)
        save_shard(path, {called: (tensors, about) for called, (tensors, about, _) in models.items()}, durable=False)

    def model(self, name: str) -> Tensors:
        """Read the tensors of a saved model, from a file of its own or from a shard.

        Raises:
            ValueError: If the file is missing or damaged.
        """
        return read_tensors(self.path / "models" / f"{name}.safetensors")[0]


@dataclass
class ClientModels:
    """Writer of the clients' models: a file for each, or, for more than 100 clients, shards of many clients each.

    The models must come shard by shard; a shard is written when the first model of another one comes, or by `flush`.

    Attributes:
        folder: Folder of the run.
        clients: Number N of clients.
        nbytes: Size of the largest model in bytes.
        kind: Last word of the names of shards.
    """

    folder: RunFolder
    clients: int
    nbytes: int
    kind: str = "own"
    _first: int = 0
    _waiting: dict[str, tuple[Tensors, Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def together(self) -> int:
        """Number of clients with a file in common: 1, or a fiftieth of all, at least 100, in up to 512 MiB."""
        if self.clients <= SHARDED:
            return 1
        fit = SHARD_BYTES // (KINDS * max(self.nbytes, 1))
        return min(max(SHARDED, math.ceil(self.clients / SHARDS)), max(fit, 1))

    def save(self, id: ClientId, kind: str, tensors: Tensors, about: Mapping[str, Any], told: Mapping[str, Any]) -> str:
        """Save a model of a client, now or with its shard, and return its name; see `RunFolder.save_model`."""
        name = f"client-{id:05d}-{kind}"
        if self.together == 1:
            self.folder.save_model(name, tensors, about, told)
            return name
        first = id // self.together * self.together
        if first != self._first:
            self.flush()
            self._first = first
        self._waiting[name] = (tensors, about, told)
        return name

    def flush(self) -> None:
        """Write the models that are waiting for others of their shard."""
        if self._waiting:
            last = min(self._first + self.together, self.clients) - 1
            self.folder.save_models(shard_name(self._first, last, self.kind), dict(sorted(self._waiting.items())))
        self._waiting = {}


def save_model(
    path: Path, tensors: Tensors, about: Mapping[str, Any], card: Mapping[str, Any], *, durable: bool
) -> None:
    """Write a model to a safetensors file, and its card (`kinfed.models.Card`) to a JSON file of the same name.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "mine.safetensors"
    ...     save_model(path, {"head.weight": torch.zeros(2, 4)}, {}, {"architecture": "mlp"}, durable=False)
    ...     sorted(file.name for file in Path(folder).iterdir())
    ['mine.json', 'mine.safetensors']

    Args:
        path: Path of the safetensors file.
        tensors: Tensors of the whole model or of its body.
        about: Description from which the model is built again, for the metadata of the safetensors file.
        card: Entries of the card except the version.
        durable: True to flush the files to disk, so that they survive a loss of power.
    """
    save_tensors(path, tensors, about, durable=durable)
    text = json.dumps({"version": MODEL_VERSION, **card}, indent=1)
    write_whole(path.with_suffix(".json"), f"{text}\n", durable=durable)


def _round_of(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _stored_rounds(about: Mapping[str, Any]) -> StoredRounds:
    return {int(id): round for id, round in about["kept"].items()}
