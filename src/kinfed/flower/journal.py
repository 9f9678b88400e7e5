"""Journal of a run in another process: a file of what its observer is told, which is told again here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kinfed.engine import Callback, NoCallback
from kinfed.experiment.run import MakeCallback

__all__ = ["Entry", "Journal", "Retelling", "entries"]

OBSERVED = ("started", "working", "round", "stopping", "ended")  # functions of `Callback`

Entry = tuple[str, list[Any]]  # what happened: a function of `Callback` or of `Journal`, and its arguments


class Journal:
    """Journal that a process writes.

    Args:
        path: File of the journal; a new one begins with the number of this process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.note("process", os.getpid())

    def note(self, what: str, *told: Any) -> None:
        """Write an entry."""
        with self._path.open("a") as file:
            file.write(json.dumps([what, list(told)]) + "\n")

    def observer(self, method: str, seed: int, rounds: int) -> Callback:
        """Return an observer of a run that writes into the journal."""
        self.note("run", method, seed, rounds)
        return _Observer(self)


class _Observer:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def started(self, done: int) -> None:
        self._journal.note("started", done)

    def working(self, what: str, done: int, total: int) -> None:
        self._journal.note("working", what, done, total)

    def round(self, line: dict[str, Any]) -> None:
        self._journal.note("round", line)

    def stopping(self, round: int) -> None:
        self._journal.note("stopping", round)

    def ended(self, round: int) -> None:
        self._journal.note("ended", round)


def entries(path: Path, start: int) -> tuple[list[Entry], int]:
    """Read the whole entries of a journal from a position on; return them and the position after them."""
    if not path.is_file():
        return [], start
    with path.open("rb") as file:
        file.seek(start)
        whole = file.read().rpartition(b"\n")[0]
    lines = whole.split(b"\n") if whole else []
    return [(what, told) for what, told in map(json.loads, lines)], start + (len(whole) + 1 if whole else 0)


class Retelling:
    """Retelling of a journal to observers.

    Args:
        make_callback: Function that makes the observer of each run.
    """

    def __init__(self, make_callback: MakeCallback) -> None:
        self._make_callback = make_callback
        self._present: Callback = NoCallback()

    def tell(self, what: str, told: list[Any]) -> None:
        """Tell an entry to the observer of the present run, if it is for one."""
        if what == "run":
            self._present = self._make_callback(*told)
        elif what in OBSERVED:
            getattr(self._present, what)(*told)
