"""Decoded data sets on disk: decoded once, memory-mapped ever after, so that all processes share one copy.

An entry is a folder named after the content that it was made from and how that was decoded: 32 hex digits. Its
``about.json`` has the checksum of every array and of itself; an entry that does not fit them is made anew. It is
written under another name and renamed, so that a kill, or a second process that does the same, never leaves half of
one. To look an entry up, not everything must be read again: a note in ``seen/`` says which entry files of these paths,
sizes and times had. What is neither of these is nobody's business here, and stays.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray

from kinfed.data.samples import Dataset, Normalisation, Samples, labels_of
from kinfed.errors import InputError
from kinfed.files import delete, read_json, write_whole, written

__all__ = ["KEPT", "cache_folder", "cached", "digest", "is_entry", "keep", "open_kept", "unfinished"]

VERSION = 4  # of what an entry holds; another one has other names
ABOUT = "about.json"
KEPT = "arrays.npz"  # what arrays from memory are called until they have their own name
KEY = re.compile(r"[0-9a-f]{32}")
FILES = re.compile(r"(?:train|test)_(?:inputs|labels|column_\d+)\.npy|about\.json|arrays\.npz")
UNFINISHED = re.compile(rf"\.unfinished-{KEY.pattern}")
LEFT = re.compile(rf"{UNFINISHED.pattern}(?:\.lock|/(?:{FILES.pattern}))")


def cache_folder() -> Path:
    """Where decoded data sets are kept: ``$KINFED_CACHE``, or ``kinfed`` in the user's cache folder."""
    if os.environ.get("KINFED_CACHE"):
        return Path(os.environ["KINFED_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinfed"


def digest(*parts: object) -> str:
    """A name for what has these parts; each must be told in full by its ``repr``."""
    return hashlib.sha256(repr((VERSION, *parts)).encode()).hexdigest()[:32]


def cached(stat_key: str | None, content: Callable[[], str], make: Callable[[], Dataset]) -> Dataset:
    """The entry of a content, made if it is not there or damaged.

    Args:
        stat_key: A digest of what is seen without reading the content; None if that cannot be trusted.
        content: Computes the digest of the content and of how it is decoded.
        make: Reads and decodes it.

    Raises:
        InputError: If the cache cannot be written; whatever ``make`` raises.
    """
    folder = cache_folder()
    note = None if stat_key is None else folder / "seen" / stat_key
    key = _noted(note) if note is not None else None
    if key is not None and (found := _open(folder / key)) is not None:
        return found
    entry = folder / content()
    dataset = _open(entry)
    if dataset is None:
        made = make()
        _store(entry, made)
        dataset = _open(entry) or made  # the latter where a damaged entry cannot be replaced
    if note is not None:
        with contextlib.suppress(OSError):  # without a note, the content is read again
            note.parent.mkdir(exist_ok=True)
            write_whole(note, entry.name, durable=False)
    return dataset


def keep(dataset: Dataset) -> Path:
    """Write a data set to an entry under its content, once; returns the entry.

    Raises:
        InputError: If it has no labels, its two splits are normalised differently, or the cache cannot be written.
    """
    train, test = dataset.train, dataset.test
    if train.labels is None or test.labels is None:
        raise InputError(f"data: {dataset.name!r} has samples without labels")
    if train.normalise != test.normalise:
        raise InputError(f"data: {dataset.name!r} has a test set that is normalised unlike its training set")
    content = []
    for name, array in _arrays(dataset).items():
        if array.dtype.hasobject:
            raise InputError(f"data: {dataset.name!r} has a column that is neither of numbers nor of text")
        content.append((name, array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()))
    skipped = dataset.skipped, dataset.skipped_names
    entry = cache_folder() / digest("kept", content, dataset.classes, [*dataset.columns], train.normalise, skipped)
    if _open(entry) is None:
        _store(entry, dataset)
    return entry


def is_entry(path: Path) -> bool:
    """Whether a path is that of an entry of a cache."""
    return KEY.fullmatch(path.name) is not None and (path / ABOUT).is_file()


def open_kept(entry: Path) -> Dataset:
    """The data set that was kept in an entry.

    Raises:
        InputError: If it is damaged.
    """
    dataset = _open(entry)
    if dataset is None:
        raise InputError(f"data: {str(entry)!r} is damaged; give the data set again")
    return dataset


@contextlib.contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """A new folder in another, to write into until what is written gets its name; what is left in it is deleted.

    It is locked while it is in use: those that are not were left by a process that was killed, and are deleted as well.

    Raises:
        InputError: If something cannot be written.
    """
    path = folder / f".unfinished-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".unfinished-*"):
            if UNFINISHED.fullmatch(left.name) and left.is_dir() and not left.is_symlink():
                with contextlib.suppress(OSError), _locked(left):
                    _discard(left)
        with _locked(path):
            path.mkdir()
            try:
                yield path
            finally:
                _discard(path)
    except OSError as error:
        raise InputError(
            f"cache: {str(folder)!r} cannot be written: {error.strerror or error}; $KINFED_CACHE names another folder"
        ) from error


def _locked(path: Path) -> FileLock:
    return FileLock(_lock(path), timeout=0)


def _lock(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _discard(path: Path) -> None:
    # `delete` is told of one file whether or not it is there, so that a folder that is empty goes as well.
    delete([*written(path, FILES), path / ABOUT, _lock(path)], path.parent, LEFT)


def _noted(note: Path) -> str | None:
    """Which entry a note names; None if there is no note, or it names none."""
    try:
        key = note.read_text()
    except (OSError, ValueError):
        return None
    return key if KEY.fullmatch(key) else None


def _store(entry: Path, dataset: Dataset) -> None:
    arrays = _arrays(dataset)
    with unfinished(entry.parent) as folder:
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        about = {
            "classes": dataset.classes,
            "columns": [*dataset.columns],  # their names need not be names of files
            "mean": dataset.train.normalise.mean,
            "std": dataset.train.normalise.std,
            "skipped": dataset.skipped,
            "skipped_names": dataset.skipped_names,
            "checksums": {name: _checksum(folder / f"{name}.npy") for name in arrays},
        }
        (folder / ABOUT).write_text(json.dumps({**about, "checksum": digest(json.dumps(about))}))
        try:
            folder.rename(entry)
        except OSError:
            if not entry.is_dir():  # otherwise another process was first, with the same content
                raise


def _arrays(dataset: Dataset) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for split, samples in (("train", dataset.train), ("test", dataset.test)):
        arrays |= {f"{split}_inputs": samples.inputs.numpy(force=True), f"{split}_labels": labels_of(samples)}
    for i, (train, test) in enumerate(dataset.columns.values()):
        arrays |= {f"train_column_{i}": train, f"test_column_{i}": test}
    return arrays


def _open(entry: Path) -> Dataset | None:
    """The data set in an entry; None if there is none, or a damaged one, whose files are deleted."""
    if not entry.is_dir():
        return None
    try:
        return _read(entry)
    except (OSError, ValueError, RecursionError) as error:
        if not entry.is_symlink():
            with contextlib.suppress(OSError):
                delete(written(entry, FILES), entry, FILES)
        warnings.warn(f"cache: {str(entry)!r} is damaged and is made anew: {error}", stacklevel=2)
        return None


def _read(entry: Path) -> Dataset:
    about = read_json(entry / ABOUT)
    if not isinstance(about, dict) or about.pop("checksum", None) != digest(json.dumps(about)):
        raise ValueError(f"{ABOUT} does not fit its checksum")
    for name, checksum in about["checksums"].items():
        if _checksum(entry / f"{name}.npy") != checksum:
            raise ValueError(f"{name}.npy does not fit its checksum")
    normalise = Normalisation(tuple(about["mean"]), tuple(about["std"]))
    train, test = (
        Samples(
            torch.from_numpy(_mapped(entry, f"{split}_inputs")),
            torch.from_numpy(_mapped(entry, f"{split}_labels")),
            normalise,
        )
        for split in ("train", "test")
    )
    columns = {
        name: (_mapped(entry, f"train_column_{i}"), _mapped(entry, f"test_column_{i}"))
        for i, name in enumerate(about["columns"])
    }
    return Dataset("", train, test, tuple(about["classes"]), columns, about["skipped"], tuple(about["skipped_names"]))


def _mapped(entry: Path, name: str) -> NDArray[Any]:
    # Copy on write: torch wants memory that can be written to, and the file must never be.
    return np.load(entry / f"{name}.npy", mmap_mode="c", allow_pickle=False)  # type: ignore[no-any-return]


def _checksum(path: Path) -> int:
    stat = path.stat()
    return _crc32(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


@functools.cache
def _crc32(path: Path, state: tuple[int, ...]) -> int:
    """Of a whole file, read once a process while it is in the same state."""
    del state
    return zlib.crc32(np.memmap(path, mode="r").data) if path.stat().st_size else 0
