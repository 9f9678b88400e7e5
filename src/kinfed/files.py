"""Files on disk: written whole or not at all, read without trust, deleted only where kinfed wrote them.

Nothing in a file is ever executed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from kinfed.errors import InputError

__all__ = [
    "UNFINISHED", "NotSaved", "clear_unfinished", "delete", "read_json", "saving", "sync", "write_whole", "written",
]  # fmt: skip

UNFINISHED = ".unfinished"  # what a file is called until it is whole


class NotSaved(OSError):
    """A file of a run could not be written; those that were there before are as they were."""


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn whatever keeps a file from being written into one line that names it.

    Raises:
        NotSaved: If the disk is full, the folder is gone, and so on.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:  # the latter is how safetensors tells of a full disk
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotSaved(f"{path} cannot be written: {reason}") from error


def write_whole(path: Path, text: str, *, lasting: bool = True) -> None:
    """Write a text file under its final name in one step.

    Args:
        path: Final name.
        text: All of it.
        lasting: Whether it must be on the disk before this returns; if not, `sync` does that later.

    Raises:
        NotSaved: If it cannot be written.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    with saving(path):
        unfinished.write_text(text)
        if lasting:
            sync(unfinished)
        unfinished.replace(path)
        if lasting:
            sync(path.parent)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, outlast a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        InputError: If the file cannot be read or is no JSON; the line names the file.
    """
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"{path}: is no JSON: {reason}") from error


def written(folder: Path, own: re.Pattern[str]) -> list[Path]:
    """The files below a folder that kinfed wrote, by what it calls them. Links are neither followed nor listed.

    Args:
        folder: Where to look; nothing is found in one that is not there.
        own: What the paths of kinfed's files are, relative to the folder, in full.
    """
    found = []
    for root, _, names in os.walk(folder):
        paths = [Path(root, name) for name in names]
        found += [path for path in paths if own.fullmatch(path.relative_to(folder).as_posix())]
    return sorted(path for path in found if not path.is_symlink())


def delete(paths: Iterable[Path], folder: Path, own: re.Pattern[str]) -> None:
    """Delete files that kinfed wrote, and the folders that are empty then. Nothing else in kinfed deletes.

    Args:
        paths: Files below the folder; one that is gone is no error.
        folder: Theirs; it goes as well if nothing is left in it.
        own: What the paths of kinfed's files are, relative to the folder, in full. A path that is none is left alone.
    """
    emptied = set()
    for path in paths:
        name = Path(os.path.normpath(path)).relative_to(os.path.normpath(folder)).as_posix()
        if own.fullmatch(name) and not path.is_symlink():
            path.unlink(missing_ok=True)
            emptied |= {parent for parent in path.parents if parent.is_relative_to(folder)}
    for parent in sorted(emptied, key=lambda parent: len(parent.parts), reverse=True):
        with contextlib.suppress(OSError):  # there is something left in it
            parent.rmdir()


def clear_unfinished(folder: Path, own: re.Pattern[str]) -> None:
    """Delete what a kill left half-written in a folder and below it; ``own`` as of `delete`."""
    half = re.compile(rf"(?:{own.pattern}){re.escape(UNFINISHED)}")
    nameless = (path for path in written(folder, own) if path.name.startswith(".tmp"))  # safetensors' own
    delete([*written(folder, half), *nameless], folder, re.compile(f"{half.pattern}|{own.pattern}"))
