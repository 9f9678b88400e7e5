"""A cache of decoded data sets on disk. Entries are memory-mapped, so that all processes share one copy.

An entry is a folder; its name is a digest of the source files and of the decoding (32 hex digits). ``about.json`` has
the checksum of every array and of itself; an entry that does not match them is rebuilt. An entry is written under a
temporary name and then renamed, so that it is complete even if the process is killed or another one writes the same
entry. A note in ``seen/`` maps the paths, sizes and times of source files to their entry, so that unchanged files need
not be read again. Other files in the cache folder are left alone.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray

from kinfed.data.samples import Dataset, Normalisation, Samples, labels_of
from kinfed.data.tables import Encoding
from kinfed.errors import InputError
from kinfed.files import delete, read_json, write_whole, written

__all__ = ["KEPT", "cache_folder", "cached", "digest", "is_entry", "keep", "keep_files", "open_kept", "unfinished"]

VERSION = 5  # version of the format of an entry; it is part of the digest
ABOUT = "about.json"
KEPT = "arrays.npz"  # temporary file name of arrays from memory
KEY = re.compile(r"[0-9a-f]{32}")
FILES = re.compile(r"(?:train|test)_(?:inputs|labels|column_\d+)\.npy|(?:train|test)\.parquet|about\.json|arrays\.npz")
UNFINISHED = re.compile(rf"\.unfinished-{KEY.pattern}")
LEFT = re.compile(rf"{UNFINISHED.pattern}(?:\.lock|/(?:{FILES.pattern}))")


def cache_folder() -> Path:
    """Return the folder of decoded data sets: ``$KINFED_CACHE``, or ``kinfed`` in the user's cache folder."""
    if os.environ.get("KINFED_CACHE"):
        return Path(os.environ["KINFED_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinfed"


def digest(*parts: object) -> str:
    """Return 32 hex digits for some values; equal values must have equal ``repr``, and different ones different."""
    return hashlib.sha256(repr((VERSION, *parts)).encode()).hexdigest()[:32]


def cached(stat_key: str | None, content: Callable[[], str], make: Callable[[], Dataset]) -> Dataset:
    """Read a data set from the cache; make it and store it first if its entry is missing or damaged.

    Args:
        stat_key: Digest of the files' paths, sizes and times; None if these do not identify the content.
        content: Function that computes the digest of the content and the decoding, the name of the entry.
        make: Function that reads and decodes the data set.

    Raises:
        InputError: If the cache cannot be written, or ``make`` raises it.
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
        dataset = _open(entry) or made  # a damaged entry may be impossible to replace
    if note is not None:
        with contextlib.suppress(OSError):  # without a note, the content is read again
            note.parent.mkdir(exist_ok=True)
            write_whole(note, entry.name, durable=False)
    return dataset


def keep(dataset: Dataset, folder: Path | None = None) -> Path:
    """Store a data set from memory, unless it is there, and return the path of its entry.

    Args:
        dataset: The data set.
        folder: Folder that gets the entry; None for the cache.

    Raises:
        InputError: If some samples have labels and others none, the splits are normalised differently, or the cache
            cannot be written.
    """
    train, test = dataset.train, dataset.test
    if (train.labels is None) != (test.labels is None) or (train.labels is None and len(test)):
        raise InputError(
            f"data: {dataset.name!r} has samples without labels; all must have one, or none and no test set"
        )
    if train.normalise != test.normalise:
        raise InputError(f"data: {dataset.name!r} must have the same normalisation in its training set and test set")
    content = []
    for name, array in _arrays(dataset).items():
        if array.dtype.hasobject:
            raise InputError(f"data: {dataset.name!r} has a column that is neither numbers nor text")
        content.append((name, array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()))
    how: list[object] = [train.normalise, (dataset.skipped, dataset.skipped_names)]
    if dataset.encoding is not None:
        how += [dataset.encoding, dataset.remarks]
    entry = (folder or cache_folder()) / digest("kept", content, dataset.classes, [*dataset.columns], *how)
    if _open(entry) is None:
        _store(entry, dataset)
    return entry


def is_entry(path: Path) -> bool:
    """Return True if a path is an entry of a cache."""
    return KEY.fullmatch(path.name) is not None and (path / ABOUT).is_file()


def open_kept(entry: Path) -> Dataset:
    """Open a data set that `keep` stored.

    Raises:
        InputError: If the entry is damaged.
    """
    dataset = _open(entry)
    if dataset is None:
        raise InputError(f"data: {str(entry)!r} is damaged; give the data set again")
    return dataset


def keep_files(files: Mapping[str, bytes]) -> Path:
    """Write files to a folder in the cache folder, unless they are there, so that a run on them can be resumed.

    Args:
        files: Contents of the files by name.

    Returns:
        Path of the folder, whose name is a digest of the contents.

    Raises:
        InputError: If the cache folder cannot be written.
    """
    content = digest([(name, hashlib.sha256(own).hexdigest()) for name, own in files.items()])
    folder = cache_folder() / "tables" / content
    if not all((folder / name).is_file() and (folder / name).read_bytes() == own for name, own in files.items()):
        with unfinished(folder.parent) as place:
            folder.mkdir(exist_ok=True)
            for name, own in files.items():
                (place / name).write_bytes(own)
                (place / name).replace(folder / name)
    return folder


@contextlib.contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """Context manager that makes a temporary folder inside a folder, for files that are moved when complete.

    What is left in it at the end is deleted. The temporary folder is locked while it is in use; unlocked ones, which
    killed processes left behind, are deleted too.

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
            f"cache: {str(folder)!r} cannot be written: {error.strerror or error}; set $KINFED_CACHE to another folder"
        ) from error


def _locked(path: Path) -> FileLock:
    return FileLock(_lock(path), timeout=0)


def _lock(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _discard(path: Path) -> None:
    # ABOUT is listed even if it does not exist, so that `delete` removes an empty folder as well.
    delete([*written(path, FILES), path / ABOUT, _lock(path)], path.parent, LEFT)


def _noted(note: Path) -> str | None:
    """Read the name of an entry from a note; None if there is no valid note."""
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
            "columns": [*dataset.columns],  # names of columns may be invalid as file names
            "mean": dataset.train.normalise.mean,
            "std": dataset.train.normalise.std,
            "skipped": dataset.skipped,
            "skipped_names": dataset.skipped_names,
            "encoding": None if dataset.encoding is None else asdict(dataset.encoding),
            "remarks": dataset.remarks,
            "checksums": {name: _checksum(folder / f"{name}.npy") for name in arrays},
        }
        (folder / ABOUT).write_text(json.dumps({**about, "checksum": digest(json.dumps(about))}))
        try:
            folder.rename(entry)
        except OSError:
            if not entry.is_dir():  # otherwise, another process has stored the same content
                raise


def _arrays(dataset: Dataset) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for split, samples in (("train", dataset.train), ("test", dataset.test)):
        labels = {} if samples.labels is None else {f"{split}_labels": labels_of(samples)}
        arrays |= {f"{split}_inputs": samples.inputs.numpy(force=True), **labels}
    for i, (train, test) in enumerate(dataset.columns.values()):
        arrays |= {f"train_column_{i}": train, f"test_column_{i}": test}
    return arrays


def _open(entry: Path) -> Dataset | None:
    """Open the data set in an entry; if it is damaged, delete its files. None if there is no valid entry."""
    if not entry.is_dir():
        return None
    try:
        return _read(entry)
    except (OSError, ValueError, RecursionError) as error:
        if not entry.is_symlink():
            with contextlib.suppress(OSError):
                delete(written(entry, FILES), entry, FILES)
        warnings.warn(f"cache: {str(entry)!r} is damaged and is created again: {error}", stacklevel=2)
        return None


def _read(entry: Path) -> Dataset:
    about = read_json(entry / ABOUT)
    if not isinstance(about, dict) or about.pop("checksum", None) != digest(json.dumps(about)):
        raise ValueError(f"{ABOUT} does not match its checksum")
    for name, checksum in about["checksums"].items():
        if _checksum(entry / f"{name}.npy") != checksum:
            raise ValueError(f"{name}.npy does not match its checksum")
    normalise = Normalisation(tuple(about["mean"]), tuple(about["std"]))
    train, test = (
        Samples(
            torch.from_numpy(_mapped(entry, f"{split}_inputs")),
            torch.from_numpy(_mapped(entry, f"{split}_labels")) if about["classes"] else None,
            normalise,
        )
        for split in ("train", "test")
    )
    columns = {
        name: (_mapped(entry, f"train_column_{i}"), _mapped(entry, f"test_column_{i}"))
        for i, name in enumerate(about["columns"])
    }
    return Dataset(
        "",
        train,
        test,
        tuple(about["classes"]),
        columns,
        about["skipped"],
        tuple(about["skipped_names"]),
        encoding=Encoding.of_json(about["encoding"]) if about.get("encoding") else None,
        remarks=tuple(about.get("remarks", ())),
    )


def _mapped(entry: Path, name: str) -> NDArray[Any]:
    # Copy on write: torch needs writable memory, and the file must not change.
    return np.load(entry / f"{name}.npy", mmap_mode="c", allow_pickle=False)  # type: ignore[no-any-return]


def _checksum(path: Path) -> int:
    stat = path.stat()
    return _crc32(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


@functools.cache
def _crc32(path: Path, state: tuple[int, ...]) -> int:
    """Compute the CRC-32 of a file; ``state``, its sizes and times, is the key under which the result is cached."""
    del state
    return zlib.crc32(np.memmap(path, mode="r").data) if path.stat().st_size else 0
