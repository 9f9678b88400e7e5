"""What clients keep from round to round, on disk: only those of the clients at work are ever in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinfed.files import delete, saving, sync, written
from kinfed.methods import ClientId, ClientState
from kinfed.models import read_tensors, save_tensors

__all__ = ["ClientStore", "StateLedger", "StoredRounds"]

SHARD = 1000  # clients a folder
FILES = re.compile(r"\d+/client-\d+-round-\d+\.safetensors")

StoredRounds = dict[ClientId, int]  # the round in which each client's memory was written; who has none is not there


@dataclass(frozen=True)
class ClientStore:
    """One file for a client and the round in which it took part; which one counts is for the engine to know.

    A file is never changed, so that those which a checkpoint refers to stay what they were.
    """

    folder: Path

    def read(self, id: ClientId, round: int | None) -> ClientState:
        """What the client kept in a round; an empty memory if it has none.

        Raises:
            ValueError: If the file is gone or damaged.
        """
        if round is None:
            return ClientState()
        try:
            tensors, about = read_tensors(self._path(id, round))
        except ValueError as error:
            raise ValueError(f"the memory of client {id} of round {round} cannot be used: {error}") from error
        return ClientState(tensors, about["numbers"])

    def write(self, id: ClientId, round: int, memory: ClientState) -> bool:
        """Keep a memory; returns whether there was anything to keep."""
        if not (memory.tensors or memory.numbers):
            return False
        path = self._path(id, round)
        with saving(path):
            self.folder.mkdir(exist_ok=True)
        save_tensors(path, memory.tensors, {"numbers": memory.numbers}, durable=False)
        return True

    def forget(self, id: ClientId, round: int) -> None:
        """Delete one."""
        delete([self._path(id, round)], self.folder, FILES)

    def sync(self, kept: Mapping[ClientId, int]) -> None:
        """Make some outlast a loss of power."""
        paths = [self._path(id, round) for id, round in kept.items()]
        for path in (*paths, *{path.parent for path in paths}):
            with saving(path):
                sync(path)

    def forget_all_but(self, needed: Sequence[StoredRounds]) -> None:
        """Delete what none of some checkpoints refers to."""
        wanted = {self._path(id, round) for kept in needed for id, round in kept.items()}
        delete((path for path in written(self.folder, FILES) if path not in wanted), self.folder, FILES)

    def _path(self, id: ClientId, round: int) -> Path:
        return self.folder / f"{id // SHARD:03d}" / f"client-{id:05d}-round-{round:06d}.safetensors"


class StateLedger:
    """Which memories count now and in the checkpoints on disk; all others are deleted as soon as nothing needs them.

    Args:
        memories: The files.
        now: Those that the run goes on with.
        checkpoints: Those that each checkpoint on disk refers to, by its round.
    """

    def __init__(self, memories: ClientStore, now: StoredRounds, checkpoints: Mapping[int, StoredRounds]) -> None:
        self._memories, self.now = memories, dict(now)
        self._checkpoints = dict(checkpoints)
        self._unsynced: StoredRounds = {}
        memories.forget_all_but(self._needed())  # what the rounds after the checkpoint wrote

    def accept(self, id: ClientId, round: int, keeps: bool) -> None:
        """From now on the client's memory is that of this round, or it has none."""
        before = self.now.pop(id, None)
        self._unsynced.pop(id, None)
        if keeps:
            self.now[id] = self._unsynced[id] = round
        self._forget_unless_needed(id, before)

    def refuse(self, id: ClientId, round: int) -> None:
        """What the client kept of this round does not count."""
        self._forget_unless_needed(id, round)

    def sync(self) -> None:
        """Make what is new since the last time outlast a loss of power."""
        self._memories.sync(self._unsynced)
        self._unsynced = {}

    def saved(self, round: int, on_disk: Sequence[int]) -> None:
        """A checkpoint of this round refers to what counts now; ``on_disk`` are the rounds of all that there are."""
        before = self._checkpoints
        self._checkpoints = {r: kept for r, kept in before.items() if r in on_disk} | {round: dict(self.now)}
        for kept in before.values():
            for id, of_round in kept.items():
                self._forget_unless_needed(id, of_round)

    def _forget_unless_needed(self, id: ClientId, round: int | None) -> None:
        if round is not None and all(kept.get(id) != round for kept in self._needed()):
            self._memories.forget(id, round)

    def _needed(self) -> list[StoredRounds]:
        return [self.now, *self._checkpoints.values()]
