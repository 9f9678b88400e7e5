"""Client states on disk; only those of the working clients are in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kinfed.files import delete, saving, sync, written
from kinfed.methods import ClientId, ClientState
from kinfed.models import read_tensors, save_tensors

__all__ = ["ClientStates", "ClientStore", "StateLedger", "StoredRounds"]

SHARD = 1000  # clients per folder
FILES = re.compile(r"\d+/client-\d+-round-\d+\.safetensors")

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
        try:
            tensors, about = read_tensors(self._path(id, round))
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
        for path in (*paths, *{path.parent for path in paths}):
            with saving(path):
                sync(path)

    def forget_all_but(self, needed: Sequence[StoredRounds]) -> None:
        """Delete all files to which none of the given mappings refers."""
        wanted = {self._path(id, round) for stored in needed for id, round in stored.items()}
        delete((path for path in written(self.folder, FILES) if path not in wanted), self.folder, FILES)

    def _path(self, id: ClientId, round: int) -> Path:
        return self.folder / f"{id // SHARD:03d}" / f"client-{id:05d}-round-{round:06d}.safetensors"


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

    def _forget_unless_needed(self, id: ClientId, round: int | None) -> None:
        if round is not None and all(stored.get(id) != round for stored in self._needed()):
            self._client_states.forget(id, round)

    def _needed(self) -> list[StoredRounds]:
        return [self.now, *self._checkpoints.values()]
