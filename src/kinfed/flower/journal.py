"""Journal of a run in another process: a file of what its observer is told, which is told again here."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from kinfed.engine import Callback, NoCallback
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.run import MakeCallback, nobody
from kinfed.files import NotSaved
from kinfed.interrupt import Stopped

__all__ = ["Entry", "Journal", "Retelling", "entries", "journal_of", "watch"]

LOOK = 0.2  # seconds between two looks into a journal
ERRORS = {"InputError": InputError, "RunFailed": RunFailed, "NotSaved": NotSaved}

OBSERVED = ("started", "working", "round", "stopping", "ended")  # functions of `Callback`

Entry = tuple[str, list[Any]]  # what happened: a function of `Callback` or of `Journal`, and its arguments


class Journal:
    """Journal that a process writes, and tells observers of its own.

    Args:
        path: File of the journal; what is added begins with the number of this process.
        make_callback: Function that makes the observer of each run.
    """

    def __init__(self, path: Path, make_callback: MakeCallback = nobody) -> None:
        self._path, self._make_callback = path, make_callback
        path.parent.mkdir(parents=True, exist_ok=True)
        self.note("process", os.getpid())

    def note(self, what: str, *told: Any) -> None:
        """Write an entry."""
        with self._path.open("a") as file:
            file.write(json.dumps([what, list(told)]) + "\n")

    def observer(self, method: str, seed: int, rounds: int) -> Callback:
        """Return an observer of a run that writes into the journal."""
        self.note("run", method, seed, rounds)
        return _Observer(self, self._make_callback(method, seed, rounds))


class _Observer:
    """Observer that notes what it is told, and tells it to another one."""

    def __init__(self, journal: Journal, other: Callback) -> None:
        self._journal, self._other = journal, other

    def started(self, done: int) -> None:
        self._journal.note("started", done)
        self._other.started(done)

    def working(self, what: str, done: int, total: int) -> None:
        self._journal.note("working", what, done, total)
        self._other.working(what, done, total)

    def round(self, line: dict[str, Any]) -> None:
        self._journal.note("round", line)
        self._other.round(line)

    def stopping(self, round: int) -> None:
        self._journal.note("stopping", round)
        self._other.stopping(round)

    def ended(self, round: int) -> None:
        self._journal.note("ended", round)
        self._other.ended(round)


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

    def tell(self, what: str, told: list[Any]) -> bool:
        """Tell an entry to the observer of the present run, if it is for one; return True if it is the end.

        Raises:
            InputError, RunFailed, NotSaved: If the entry says that a run has failed.
            Stopped: If it says that a signal has stopped it.
        """
        if what == "run":
            self._present = self._make_callback(*told)
        elif what in OBSERVED:
            getattr(self._present, what)(*told)
        elif what == "stopped":
            raise Stopped(int(told[0]) - 128)
        elif what == "failed":
            kind, text = told
            raise ERRORS.get(kind, RunFailed)(text if kind in ERRORS else f"{kind}: {text}")
        return what == "done"


def journal_of(out: Path) -> Path:
    """Return the path of the journal of a run at sites, which is beside its folder."""
    return out.absolute().with_name(f"{out.name}.journal.jsonl")


def watch(out: Path, make_callback: MakeCallback) -> None:
    """Tell observers what happens in a run at sites, from its last start on, until it ends.

    Args:
        out: Folder of the run or comparison.
        make_callback: Function that makes the observer of each run.

    Raises:
        InputError, RunFailed, NotSaved: If no run has begun, or it fails.
        Stopped: If a signal stops it.
    """
    path, retelling = journal_of(out), Retelling(make_callback)
    found, at = entries(path, 0)
    if not found:
        raise InputError(f"run: {str(out)!r} has no journal in {path.name!r}; kinfed deploy and flwr run begin one")
    last = max(place for place, (what, _) in enumerate(found) if what == "process")
    process, new = int(found[last][1][0]), found[last:]
    while not any(retelling.tell(what, told) for what, told in new):
        alive = _is_alive(process)
        time.sleep(LOOK)
        new, at = entries(path, at)
        if not alive and not new:
            raise RunFailed("the server's process has ended")


def _is_alive(process: int) -> bool:
    """Return True if there is a process of this number on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True
