"""Client states on disk; only those of the working clients are in memory.

A client's task writes a file of its own. At a checkpoint, if more than 100 clients have one, these files become shards:
files that never change, with the states of many clients, of which one is read without the others.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kinfed.files import delete, saving, sync, written
from kinfed.methods import ClientId, ClientState
from kinfed.models import Tensors, members, read_tensors, save_shard, save_tensors

__all__ = ["ClientStates", "ClientStore", "StateLedger", "StoredRounds"]

PER_FOLDER = 1000  # clients
FILES = re.compile(r"(?:\d+/client-\d+-round-\d+|shards/\d+)\.safetensors")
ALONE = 100  # largest number of clients whose states are in files of their own after a checkpoint
SHARDS = 64  # number of shards above which half of them are merged
SHARD_BYTES = 2**28

StoredRounds = dict[ClientId, int]  # round in which the state of each client that has one was written


class ClientStates(Protocol):
    """Client states, wherever they are: in files here (`ClientStore`), or where the clients are."""

    def read(self, id: ClientId, round: int | None) -> ClientState:
        """Read the state that a client kept in a round; an empty state if ``round`` is None."""

    def write(self, id: ClientId, round: int, state: ClientState) -> bool:
        """Write the state of a client after a round; return False if it is empty and was not written."""

    def forget(self, id: ClientId, round: int) -> None:
        """Delete the state of a client after a round."""

    def sync(self, stored: Mapping[ClientId, int]) -> None:
        """Flush the given states to disk."""

    def tidy(self, needed: Sequence[StoredRounds]) -> None:
        """Put many files together after a checkpoint; states to which none of the given mappings refers may go."""

    def forget_all_but(self, needed: Sequence[StoredRounds]) -> None:
        """Delete all states to which none of the given mappings refers."""


@dataclass(frozen=True)
class ClientStore:
    """Files of client states, one for each client and each round in which it took part.

    A file never changes, so that checkpoints can refer to it. The engine knows which file of a client is valid.

    Attributes:
        folder: Folder of the files.
    """

    folder: Path

    def read(self, id: ClientId, round: int | None) -> ClientState:
        """Read the state that a client kept in a round; an empty state if ``round`` is None.

        Raises:
            ValueError: If the file is missing or damaged.
        """
        if round is None:
            return ClientState()
        path = self._path(id, round)
        try:
            shards = [] if path.is_file() else [shard for shard in self._shards() if path.stem in _members_of(shard)]
            tensors, about = read_tensors(shards[0], path.stem) if shards else read_tensors(path)
        except ValueError as error:
            raise ValueError(f"the state of client {id} after round {round} cannot be used: {error}") from error
        return ClientState(tensors, about["numbers"])

    def write(self, id: ClientId, round: int, state: ClientState) -> bool:
        """Write the state of a client after a round; return False, without a file, if it is empty."""
        if not (state.tensors or state.numbers):
            return False
        path = self._path(id, round)
        with saving(path):
            self.folder.mkdir(exist_ok=True)
        save_tensors(path, state.tensors, {"numbers": state.numbers}, durable=False)
        return True

    def forget(self, id: ClientId, round: int) -> None:
        """Delete the state of a client after a round."""
        delete([self._path(id, round)], self.folder, FILES)

    def sync(self, stored: Mapping[ClientId, int]) -> None:
        """Flush the given states to disk, so that they survive a loss of power."""
        paths = [self._path(id, round) for id, round in stored.items()]
        if len(paths) > ALONE:
            self._put_together([(path, None, path.stem) for path in paths])
            delete(paths, self.folder, FILES)
            return
        for path in (*paths, *{path.parent for path in paths}):
            with saving(path):
                sync(path)

    def forget_all_but(self, needed: Sequence[StoredRounds]) -> None:
        """Delete all files to which none of the given mappings refers."""
        wanted, shards = self._wanted(needed), self._shards()
        unneeded = [path for path in written(self.folder, FILES) if path not in {*wanted.values(), *shards}]
        delete([*unneeded, *(shard for shard in shards if not wanted.keys() & _members_of(shard))], self.folder, FILES)

    def tidy(self, needed: Sequence[StoredRounds]) -> None:
        """Put the states in files of their own into shards, if they are many; merge shards if these are many.

        Every state is on disk, in a shard or in its own file, at any moment. Shards of which nothing is needed go.
        """
        wanted = self._wanted(needed)
        alone = [path for path in written(self.folder, FILES) if path.parent.name != "shards"]
        if len({path.stem.split("-")[1] for path in alone}) > ALONE:
            self._put_together([(path, None, path.stem) for path in alone if path.stem in wanted])
            delete(alone, self.folder, FILES)
        found = {shard: wanted.keys() & _members_of(shard) for shard in self._shards()}
        delete([shard for shard, of in found.items() if not of], self.folder, FILES)
        kept = sorted((shard for shard, of in found.items() if of), key=lambda shard: (len(found[shard]), shard))
        if len(kept) > SHARDS:
            merged = kept[: len(kept) // 2]
            self._put_together([(shard, name, name) for shard in merged for name in sorted(found[shard])])
            delete(merged, self.folder, FILES)

    def _put_together(self, states: Sequence[tuple[Path, str | None, str]]) -> None:
        """Write states to new shards of limited size, and flush these to disk.

        A damaged state is left out; whoever needs it will find it missing.

        Args:
            states: Path of the file, name of its member if it is a shard, and name of the state.
        """
        number = max((int(shard.stem) for shard in self._shards()), default=-1) + 1
        together: dict[str, tuple[Tensors, dict[str, Any]]] = {}
        size = 0
        for path, member, name in states:
            with contextlib.suppress(ValueError):
                together[name] = read_tensors(path, member)
                size += sum(tensor.nbytes for tensor in together[name][0].values())
            if size >= SHARD_BYTES:
                save_shard(self._shard(number), together)
                number, together, size = number + 1, {}, 0
        if together:
            save_shard(self._shard(number), together)

    def _shards(self) -> list[Path]:
        return sorted(path for path in (self.folder / "shards").glob("*.safetensors") if path.stem.isdecimal())

    def _shard(self, number: int) -> Path:
        return self.folder / "shards" / f"{number:06d}.safetensors"

    def _wanted(self, needed: Sequence[StoredRounds]) -> dict[str, Path]:
        """Return the files that the needed states have or had, by the names of the states."""
        paths = [self._path(id, round) for stored in needed for id, round in stored.items()]
        return {path.stem: path for path in paths}

    def _path(self, id: ClientId, round: int) -> Path:
        return self.folder / f"{id // PER_FOLDER:03d}" / f"client-{id:05d}-round-{round:06d}.safetensors"


def _members_of(shard: Path) -> frozenset[str]:
    """Return the names of the states in a shard; none if it is damaged."""
    about = shard.stat()
    return _known_members(shard, about.st_mtime_ns, about.st_size)


@functools.lru_cache(maxsize=1024)
def _known_members(shard: Path, written_at: int, size: int) -> frozenset[str]:
    del written_at, size  # a run that starts again may write other shards of the same names
    try:
        return frozenset(members(shard))
    except ValueError:
        return frozenset()


class StateLedger:
    """Record of the client states that the run and its checkpoints need; a file that neither needs is deleted at once.

    Args:
        client_states: Files of the client states.
        now: States with which the run continues.
        checkpoints: States to which each checkpoint on disk refers, by the checkpoint's round.
    """

    def __init__(self, client_states: ClientStates, now: StoredRounds, checkpoints: Mapping[int, StoredRounds]) -> None:
        self._client_states, self.now = client_states, dict(now)
        self._checkpoints = dict(checkpoints)
        self._unsynced: StoredRounds = {}
        client_states.forget_all_but(self._needed())  # rounds after the checkpoint may have written more

    def accept(self, id: ClientId, round: int, keeps: bool) -> None:
        """Replace the client's state by that of this round, or by none if ``keeps`` is False."""
        before = self.now.pop(id, None)
        self._unsynced.pop(id, None)
        if keeps:
            self.now[id] = self._unsynced[id] = round
        self._forget_unless_needed(id, before)

    def refuse(self, id: ClientId, round: int) -> None:
        """Delete the state of a client that has no usable upload in this round; its state before remains valid."""
        self._forget_unless_needed(id, round)

    def sync(self) -> None:
        """Flush the states that are new since the last call to disk, so that they survive a loss of power."""
        self._client_states.sync(self._unsynced)
        self._unsynced = {}

    def saved(self, round: int, on_disk: Sequence[int]) -> None:
        """Record that a checkpoint of this round refers to the present states.

        Args:
            round: Round of the new checkpoint.
            on_disk: Rounds of all checkpoints on disk; the states of other checkpoints are given up.
        """
        before = self._checkpoints
        self._checkpoints = {r: stored for r, stored in before.items() if r in on_disk} | {round: dict(self.now)}
        for stored in before.values():
            for id, of_round in stored.items():
                self._forget_unless_needed(id, of_round)
        self._client_states.tidy(self._needed())

    def _forget_unless_needed(self, id: ClientId, round: int | None) -> None:
        if round is not None and all(stored.get(id) != round for stored in self._needed()):
            self._client_states.forget(id, round)

    def _needed(self) -> list[StoredRounds]:
        return [self.now, *self._checkpoints.values()]
