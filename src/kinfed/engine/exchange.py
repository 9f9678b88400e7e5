"""Folders in shared memory through which processes pass tensors; they are removed however a run ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import stat
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors.torch import load, save

from kinfed.files import delete, saving, written
from kinfed.methods import Message
from kinfed.models import apart

__all__ = ["Exchange", "Parcel", "alike", "clear", "clear_left_behind", "post", "take"]

SHARED_MEMORY = Path("/dev/shm")  # a file system in memory; without it, or if it is small, temporary files are used
ROOM = 2**30  # free bytes that it must have: each worker has two messages underway
PREFIX = "kinfed-exchange-"
LOCK = "lock"  # locked during the life of the process that made the folder
FILES = re.compile(rf"{LOCK}|down-\d+|up-\d+-[01]")


@dataclass(frozen=True)
class Parcel:
    """Message whose tensors are in a file.

    Attributes:
        path: Path of the safetensors file.
        numbers: Numbers of the message.
    """

    path: str
    numbers: dict[str, float]


def post(message: Message, path: Path) -> Parcel:
    """Write a message to a file; an existing file is overwritten in place, which reuses its memory."""
    with saving(path), path.open("r+b" if path.exists() else "wb") as file:
        file.write(save(apart(message.tensors)))
        file.truncate()
    return Parcel(str(path), message.numbers)


def take(parcel: Parcel) -> Message:
    """Read the message of a parcel."""
    return Message(load(Path(parcel.path).read_bytes()), parcel.numbers)


def clear(folder: Path) -> None:
    """Remove an exchange folder and the files that kinfed wrote there."""
    delete(written(folder, FILES), folder, FILES)


def clear_left_behind() -> None:
    """Remove the exchange folders of this user's runs whose processes were all killed."""
    for place in {SHARED_MEMORY, Path(tempfile.gettempdir())}:
        for folder in place.glob(f"{PREFIX}*"):
            with contextlib.suppress(Timeout, OSError):  # in use, or already removed
                if _is_own(folder):
                    with FileLock(folder / LOCK).acquire(timeout=0):
                        clear(folder)


def _is_own(folder: Path) -> bool:
    """Return True if a path is a folder of this user and no link."""
    about = folder.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == getattr(os, "getuid", int)()


class Exchange:
    """New exchange folder with the messages that are underway to workers."""

    def __init__(self) -> None:
        free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
        place = SHARED_MEMORY if free > ROOM else None
        while True:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            self._lock = FileLock(self.folder / LOCK)
            with contextlib.suppress(Timeout, FileNotFoundError):  # another run removes it as left behind
                self._lock.acquire(timeout=0)
                if self.folder.is_dir():
                    break
        self._last: tuple[Message, Parcel] | None = None
        self._underway: Counter[str] = Counter()
        self._numbers = itertools.count()

    def post(self, message: Message) -> Parcel:
        """Write a message; consecutive messages with the same tensors share one file."""
        if self._last is not None and not alike(message, self._last[0]):
            last, self._last = self._last[1], None
            self._forget(last)
        if self._last is None:
            self._last = message, post(message, self.folder / f"down-{next(self._numbers)}")
        parcel = self._last[1]
        self._underway[parcel.path] += 1
        return parcel

    def delivered(self, parcel: Parcel) -> None:
        """Record that one job no longer needs a parcel; delete its file if no job does."""
        self._underway[parcel.path] -= 1
        self._forget(parcel)

    def close(self) -> None:
        """Remove the folder and release its lock."""
        clear(self.folder)
        self._lock.release()

    def _forget(self, parcel: Parcel) -> None:
        if not self._underway[parcel.path] and not (self._last and self._last[1] is parcel):
            del self._underway[parcel.path]
            delete([Path(parcel.path)], self.folder, FILES)


def alike(a: Message, b: Message) -> bool:
    """Return True if two messages have the same tensor objects and equal numbers."""
    same_names = a.tensors.keys() == b.tensors.keys() and a.numbers == b.numbers
    return same_names and all(tensor is b.tensors[name] for name, tensor in a.tensors.items())
