"""Files on disk: atomic writes, checked reads, and deletion of files that kinfed wrote.

No code in a file is executed.
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
    "read_json_object",
    "saving",
    "sync",
    "unfinished_name",
    "write_whole",
    "written",
]  # fmt: skip

UNFINISHED = ".unfinished"  # suffix of a file until it is complete
LOCK = ".lock"  # empty file in a folder, locked while a process works there


class NotSaved(OSError):
    """Failure to write a file of a run; the files written before are unchanged."""


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Context manager that turns a failure to write a file in its block into a NotSaved that names the file.

    Raises:
        NotSaved: If the file cannot be written, for instance because the disk is full or the folder is gone.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors raises a SafetensorError for a full disk
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotSaved(f"{path} cannot be written: {reason}") from error


def unfinished_name(path: Path) -> Path:
    """Name of a file until it is complete; it differs between processes that write the same file."""
    return path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")


def write_whole(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file atomically.

    Args:
        path: Final name of the file.
        content: Content of the file; text is written as UTF-8.
        durable: True to flush the file to disk before returning; if False, `sync` does it later.

    Raises:
        NotSaved: If the file cannot be written.
    """
    unfinished = unfinished_name(path)
    with saving(path):
        # Text is independent of the host's encoding.
        unfinished.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
        if durable:
            sync(unfinished)
        unfinished.replace(path)
        if durable:
            sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk, so that they survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def output(path: Path) -> Iterator[None]:
    """Context manager that turns a failure to write results to the user's path into an InputError.

    Raises:
        InputError: If something below ``path`` cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"out: {str(path)!r} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def claimed(folder: Path, field: str = "out") -> Iterator[None]:
    """Context manager that locks a folder for this process, and creates it if missing.

    If the block writes nothing, the lock file and the created folders are removed. Blocks of one process may be nested.

    Args:
        folder: Folder to lock.
        field: Name of the folder in error messages.

    Raises:
        InputError: If the folder cannot be created or written, or another process has locked it.
    """
    made, before = _missing(folder), _names(folder)
    from filelock import FileLock, Timeout  # late: it imports asyncio, which the command's help does not need

    lock = FileLock(folder / LOCK, timeout=0, is_singleton=True)
    try:
        if folder.is_file():
            raise InputError(f"{field}: {str(folder)!r} is not a folder")
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InputError(f"{field}: {str(folder)!r} is in use by another kinfed process") from None
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
    """Context manager that locks a folder like `claimed`; it must be missing or empty.

    Raises:
        InputError: If the folder is not empty, cannot be created or written, or another process has locked it.
    """
    with claimed(folder):
        if _names(folder) - {LOCK}:
            raise InputError(f"out: {str(folder)!r} exists; choose another folder")
        yield


def _missing(folder: Path) -> list[Path]:
    """List the folder and its parents that do not exist, the innermost first."""
    with contextlib.suppress(OSError):  # a folder that cannot be accessed cannot be created either
        return [path for path in (folder, *folder.parents) if not path.exists()]
    return []


def _names(folder: Path) -> set[str]:
    with contextlib.suppress(OSError):
        return {*os.listdir(folder)}
    return set()


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """Context manager that creates a folder of this process alone, with a number after its name if that is taken.

    If it is empty after the block, it is removed, with the parents created for it.

    Raises:
        InputError: If the folder cannot be created.
    """
    made, stem = _missing(path.parent), path
    for number in itertools.count(2):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            path = stem.with_name(f"{stem.name}-{number}")
        except OSError as error:
            raise InputError(f"out: {str(path)!r} cannot be created: {error.strerror}") from error
    try:
        yield path
    finally:
        _remove_empty([path, *made])


def _remove_empty(folders: Sequence[Path]) -> None:
    """Delete the folders that are empty, in the given order."""
    for folder in folders:
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()


def read_json(path: Path) -> Any:
    """Read the value in a JSON file.

    Raises:
        InputError: If the file cannot be read or is not JSON; the message names the file.
    """
    return _parsed(_text(path), str(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file.

    Raises:
        InputError: If the file cannot be read, or holds no JSON object; the message names the file.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: is damaged: it has no JSON object")
    return value


def read_json_lines(path: Path, *, cut: bool = False) -> list[dict[str, Any]]:
    """Read the objects in a .jsonl file, one from each line.

    Args:
        path: File to read.
        cut: True to leave out an incomplete last line, which a killed process left or a running one is writing; if
            False, it is an error.

    Raises:
        InputError: If the file cannot be read, or a line is not a JSON object; the message names the file and the line.
    """
    *lines, last = _text(path).split("\n")
    if last and not cut:
        raise InputError(f"{path}: is cut short in line {len(lines) + 1}")
    objects = [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    for number, value in enumerate(objects, start=1):
        if not isinstance(value, dict):
            raise InputError(f"{path}, line {number}: is not a JSON object")
    return objects


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text: {error}") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"{where}: is not valid JSON: {reason}") from error


def written(folder: Path, own: re.Pattern[str]) -> list[Path]:
    """List the files below a folder that kinfed wrote, by their names; links are neither followed nor listed.

    Args:
        folder: Folder to search; a missing one has no files.
        own: Pattern of the full paths of kinfed's files, relative to the folder.
    """
    found = []
    for root, _, names in os.walk(folder):
        paths = [Path(root, name) for name in names]
        found += [path for path in paths if own.fullmatch(path.relative_to(folder).as_posix())]
    return sorted(path for path in found if not path.is_symlink())


def delete(paths: Iterable[Path], folder: Path, own: re.Pattern[str], *, keep: bool = False) -> None:
    """Delete files that kinfed wrote, and the folders that are then empty. All deletions in kinfed go through here.

    Args:
        paths: Files below the folder; a missing one is not an error.
        folder: Folder of the files; it is removed, too, if it is then empty.
        own: Pattern of the full paths of kinfed's files, relative to the folder. Other files are not deleted.
        keep: True to keep the folder even if it is empty.
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
    """Delete incomplete files below a folder that a killed process left.

    Args:
        folder: Folder to search.
        own: Pattern of the full paths of kinfed's files, relative to the folder.
    """
    half = re.compile(rf"(?:{own.pattern})(?:\.\d+)?{re.escape(UNFINISHED)}")
    nameless = (path for path in written(folder, own) if path.name.startswith(".tmp"))  # temporary files of safetensors
    delete([*written(folder, half), *nameless], folder, re.compile(f"{half.pattern}|{own.pattern}"))
