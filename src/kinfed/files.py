"""Files on disk: written whole or not at all, read without trust, deleted only where kinfed wrote them.

Nothing in a file is ever executed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from kinfed.errors import InputError

__all__ = [
    "LOCK",
    "UNFINISHED",
    "NotSaved",
    "claimed",
    "clear_unfinished",
    "delete",
    "new_folder",
    "output",
    "own_folder",
    "read_json",
    "read_json_lines",
    "saving",
    "sync",
    "unfinished_name",
    "write_whole",
    "written",
]  # fmt: skip

UNFINISHED = ".unfinished"  # what a file is called until it is whole
LOCK = ".lock"  # the file in a folder that is locked while a process works there; it stays, empty


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


def unfinished_name(path: Path) -> Path:
    """What a file is called until it is whole; another process that writes the same file has another name for it."""
    return path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")


def write_whole(path: Path, text: str, *, lasting: bool = True) -> None:
    """Write a text file under its final name in one step.

    Args:
        path: Final name.
        text: All of it.
        lasting: Whether it must be on the disk before this returns; if not, `sync` does that later.

    Raises:
        NotSaved: If it cannot be written.
    """
    unfinished = unfinished_name(path)
    with saving(path):
        unfinished.write_bytes(text.encode("utf-8", "backslashreplace"))  # whatever the host's encoding is
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


@contextlib.contextmanager
def output(path: Path) -> Iterator[None]:
    """Turn whatever keeps results from being written where a user wants them into one line that names the place.

    Raises:
        InputError: If something below ``path`` cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"out: {str(path)!r} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def claimed(folder: Path, field: str = "out") -> Iterator[None]:
    """Keep a folder to this process while the block runs; it is made if it is not there.

    Where nothing was written, nothing stays: neither the lock, nor a folder that was made for it. Claims of one process
    may be within each other.

    Args:
        folder: Which.
        field: What a message calls it.

    Raises:
        InputError: If the folder cannot be made or written, or another process has it.
    """
    made, before = _missing(folder), _names(folder)
    lock = FileLock(folder / LOCK, timeout=0, is_singleton=True)
    try:
        if folder.is_file():
            raise InputError(f"{field}: {str(folder)!r} is no folder")
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InputError(f"{field}: {str(folder)!r} is in use: another process of kinfed works in it") from None
    except OSError as error:
        raise InputError(f"{field}: {str(folder)!r} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()
        if LOCK not in before and _names(folder) == before | {LOCK}:
            delete([folder / LOCK], folder, re.compile(re.escape(LOCK)), keep=True)
            _remove_empty(made)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """The same of a folder that must be empty, or not there yet.

    Raises:
        InputError: If there is something in it, or as `claimed`.
    """
    with claimed(folder):
        if _names(folder) - {LOCK}:
            raise InputError(f"out: {str(folder)!r} exists; name another one")
        yield


def _missing(folder: Path) -> list[Path]:
    """The folder and those above it that are not there, the innermost first."""
    with contextlib.suppress(OSError):  # what cannot even be looked at will not be made, either
        return [path for path in (folder, *folder.parents) if not path.exists()]
    return []


def _names(folder: Path) -> set[str]:
    with contextlib.suppress(OSError):
        return {*os.listdir(folder)}
    return set()


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """A new folder that no other process has; it has a number in the end if the name is taken.

    It goes again, with those that were made for it, if it stays empty.

    Raises:
        InputError: If it cannot be made.
    """
    made, stem = _missing(path.parent), path
    for number in itertools.count(2):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            path = stem.with_name(f"{stem.name}-{number}")
        except OSError as error:
            raise InputError(f"out: {str(path)!r} cannot be made: {error.strerror}") from error
    try:
        yield path
    finally:
        _remove_empty([path, *made])


def _remove_empty(folders: Sequence[Path]) -> None:
    """Delete folders in which there is nothing, each in the next one."""
    for folder in folders:
        with contextlib.suppress(OSError):  # something is in it by now
            folder.rmdir()


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        InputError: If the file cannot be read or is no JSON; the line names the file.
    """
    return _parsed(_text(path), str(path))


def read_json_lines(path: Path, *, cut: bool = False) -> list[dict[str, Any]]:
    """The objects in a .jsonl file, one a line.

    Args:
        path: The file.
        cut: Whether the last line may lack its end, since a kill cut it short or a process is writing it; then it is
            left out.

    Raises:
        InputError: If the file cannot be read, or a line is no JSON object; the message names the file and the line.
    """
    *lines, last = _text(path).split("\n")
    if last and not cut:
        raise InputError(f"{path}: is cut short in line {len(lines) + 1}")
    objects = [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    for number, value in enumerate(objects, start=1):
        if not isinstance(value, dict):
            raise InputError(f"{path}, line {number}: is no JSON object")
    return objects


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text: {error}") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"{where}: is no JSON: {reason}") from error


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


def delete(paths: Iterable[Path], folder: Path, own: re.Pattern[str], *, keep: bool = False) -> None:
    """Delete files that kinfed wrote, and the folders that are empty then. Nothing else in kinfed deletes.

    Args:
        paths: Files below the folder; one that is gone is no error.
        folder: Theirs; it goes as well if nothing is left in it.
        own: What the paths of kinfed's files are, relative to the folder, in full. A path that is none is left alone.
        keep: Whether the folder stays even if it is empty.
    """
    emptied = set()
    for path in paths:
        name = Path(os.path.normpath(path)).relative_to(os.path.normpath(folder)).as_posix()
        if own.fullmatch(name) and not path.is_symlink():
            path.unlink(missing_ok=True)
            emptied |= {parent for parent in path.parents if parent.is_relative_to(folder)}
    emptied -= {folder} if keep else set()
    _remove_empty(sorted(emptied, key=lambda parent: len(parent.parts), reverse=True))


def clear_unfinished(folder: Path, own: re.Pattern[str]) -> None:
    """Delete what a kill left half-written in a folder and below it; ``own`` as of `delete`."""
    half = re.compile(rf"(?:{own.pattern})(?:\.\d+)?{re.escape(UNFINISHED)}")
    nameless = (path for path in written(folder, own) if path.name.startswith(".tmp"))  # safetensors' own
    delete([*written(folder, half), *nameless], folder, re.compile(f"{half.pattern}|{own.pattern}"))
