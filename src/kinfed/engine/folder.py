"""A run's folder: metrics, checkpoints, models. Whatever is there is whole, whenever the run was killed."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kinfed.methods import ClientId, Memory, Message, State
from kinfed.models import Tensors

__all__ = ["CHECKPOINT_VERSION", "Checkpoint", "RunFolder", "clear_unfinished", "write_whole"]

CHECKPOINT_VERSION = 1
UNFINISHED = ".unfinished"  # what a file is called until it is whole
KEPT_CHECKPOINTS = 2  # if the last one should be damaged, the one before still serves


@dataclass(frozen=True)
class Checkpoint:
    """Everything that the rounds after ``round`` depend on, the random streams having addresses."""

    round: int
    state: State
    memories: dict[ClientId, Memory]


@dataclass(frozen=True)
class RunFolder:
    """What the rounds write: ``metrics.jsonl``, ``seconds.jsonl``, ``checkpoints/``, ``pictures/`` and ``models/``.

    ``metrics.jsonl`` has one line a round and nothing that differs from one execution to the next; how long the rounds
    took stands in ``seconds.jsonl``.
    """

    path: Path

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Add one line to a .jsonl file."""
        with (self.path / name).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of a .jsonl file; one that a kill cut short is left out."""
        path = self.path / name
        text = path.read_text() if path.is_file() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def forget_after(self, round: int) -> None:
        """Drop the lines of rounds after the one from which the run goes on."""
        for name in ("metrics.jsonl", "seconds.jsonl"):
            kept = [line for line in self.lines(name) if line["round"] <= round]
            write_whole(self.path / name, "".join(json.dumps(line) + "\n" for line in kept))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then delete all but the last two."""
        groups = {"state": checkpoint.state} | {f"memory/{id}": memory for id, memory in checkpoint.memories.items()}
        tensors = {f"{group}/{name}": t for group, message in groups.items() for name, t in message.tensors.items()}
        about = {
            "version": CHECKPOINT_VERSION,
            "round": checkpoint.round,
            "numbers": {group: message.numbers for group, message in groups.items()},
        }
        save_tensors(self._checkpoint(checkpoint.round), tensors, about)
        for path in self._checkpoints()[KEPT_CHECKPOINTS:]:
            path.unlink()

    def last_checkpoint(self) -> Checkpoint | None:
        """The checkpoint of the latest round that can be read, or None."""
        for path in self._checkpoints():
            try:
                return _read_checkpoint(path)
            except (SafetensorError, OSError, ValueError, KeyError) as error:
                warnings.warn(f"{path} cannot be used ({error}); trying the one before", stacklevel=2)
        return None

    def save_pictures(self, round: int, matrices: Tensors) -> None:
        """Matrices of one round for the report."""
        if matrices:
            save_tensors(self.path / "pictures" / f"round-{round:06d}.safetensors", matrices, {"round": round})

    def save_model(self, name: str, tensors: Tensors, about: Mapping[str, Any]) -> None:
        """One model, ``models/NAME.safetensors``, with what it takes to build it again."""
        save_tensors(self.path / "models" / f"{name}.safetensors", tensors, about)

    def _checkpoint(self, round: int) -> Path:
        return self.path / "checkpoints" / f"round-{round:06d}.safetensors"

    def _checkpoints(self) -> list[Path]:
        """Newest round first."""
        found = (self.path / "checkpoints").glob("round-*.safetensors")
        return sorted((p for p in found if re.fullmatch(r"round-\d+", p.stem)), key=_round_of, reverse=True)


def _round_of(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _read_checkpoint(path: Path) -> Checkpoint:
    with safe_open(path, framework="pt", device="cpu") as file:
        about = json.loads(file.metadata()["about"])
        if about["version"] != CHECKPOINT_VERSION:
            raise ValueError(f"it has the version {about['version']}, not {CHECKPOINT_VERSION}")
        groups: dict[str, Tensors] = {group: {} for group in about["numbers"]}
        for key in file.keys():  # noqa: SIM118 - not a dict
            group = next(group for group in groups if key.startswith(group + "/"))
            groups[group][key.removeprefix(group + "/")] = file.get_tensor(key)
    messages = {group: Message(tensors, about["numbers"][group]) for group, tensors in groups.items()}
    state = messages.pop("state")
    return Checkpoint(about["round"], state, {int(g.removeprefix("memory/")): m for g, m in messages.items()})


def save_tensors(path: Path, tensors: Tensors, about: Mapping[str, Any]) -> None:
    """Write a safetensors file under its final name in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, unfinished, {"about": json.dumps(about)})
    _publish(unfinished, path)


def write_whole(path: Path, text: str) -> None:
    """Write a text file under its final name in one step."""
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.write_text(text)
    _publish(unfinished, path)


def clear_unfinished(folder: Path) -> None:
    """Delete what a kill left half-written in a folder and below it; safetensors has a name of its own for that."""
    for path in (*folder.rglob(f"*{UNFINISHED}"), *folder.rglob(".tmp*")):
        path.unlink()


def _publish(unfinished: Path, path: Path) -> None:
    """Rename once the bytes are on the disk, and make the rename last."""
    _sync(unfinished)
    unfinished.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
