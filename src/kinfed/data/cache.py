"""Decoded data sets on disk: decoded once, memory-mapped ever after, so that all processes share one copy.

An entry is a folder named after the content that it was made from and how that was decoded. It is written under another
name and renamed, so that a kill, or a second process that does the same, never leaves half of one. To look an entry up,
not everything must be read again: a note in ``seen/`` says which entry files of these paths, sizes and times had.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.data.samples import Dataset, Normalisation, Samples
from kinfed.errors import InputError

__all__ = ["cache_folder", "cached", "digest"]

VERSION = 3  # of what an entry holds; another one has other names
ABOUT = "about.json"


def cache_folder() -> Path:
    """Where decoded data sets are kept: ``$KINFED_CACHE``, or ``kinfed`` in the user's cache folder."""
    if os.environ.get("KINFED_CACHE"):
        return Path(os.environ["KINFED_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinfed"


def digest(*parts: object) -> str:
    """A name for what has these parts; each must be told in full by its ``repr``."""
    return hashlib.sha256(repr((VERSION, *parts)).encode()).hexdigest()[:32]


def cached(sight: str | None, content: Callable[[], str], make: Callable[[], Dataset]) -> Dataset:
    """The entry of a content, made if it is not there.

    Args:
        sight: A digest of what is seen without reading the content; None if that cannot be trusted.
        content: Computes the digest of the content and of how it is decoded.
        make: Reads and decodes it.

    Raises:
        InputError: If the cache cannot be written; whatever ``make`` raises.
    """
    folder = cache_folder()
    note = None if sight is None else folder / "seen" / sight
    key = _read_note(note) if note is not None else None
    if key is not None and (found := _open(folder / key)) is not None:
        return found
    entry = folder / content()
    dataset = _open(entry)
    made = make() if dataset is None else None
    try:
        if made is not None:
            _store(entry, made)
            dataset = _open(entry)
        if note is not None:
            _write_note(note, entry.name)
    except OSError as error:
        raise InputError(
            f"cache: {str(folder)!r} cannot be written: {error.strerror}; $KINFED_CACHE names another folder"
        ) from error
    assert dataset is not None
    return dataset


def _read_note(note: Path) -> str | None:
    try:
        return note.read_text()
    except OSError:
        return None


def _write_note(note: Path, key: str) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=note.parent, prefix=".unfinished-")
    with os.fdopen(handle, "w") as file:
        file.write(key)
    Path(unfinished).replace(note)


def _store(entry: Path, dataset: Dataset) -> None:
    arrays: dict[str, Any] = {}
    for split, samples in (("train", dataset.train), ("test", dataset.test)):
        assert samples.labels is not None
        arrays |= {f"{split}_inputs": samples.inputs.numpy(), f"{split}_labels": samples.labels.numpy()}
    for i, (train, test) in enumerate(dataset.columns.values()):
        arrays |= {f"train_column_{i}": train, f"test_column_{i}": test}
    about = {
        "classes": dataset.classes,
        "columns": [*dataset.columns],  # their names need not be names of files
        "mean": dataset.train.normalise.mean,
        "std": dataset.train.normalise.std,
        "skipped": dataset.skipped,
        "skipped_names": dataset.skipped_names,
    }
    entry.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=entry.parent, prefix=".unfinished-"))
    try:
        for name, array in arrays.items():
            np.save(unfinished / f"{name}.npy", array, allow_pickle=False)
        (unfinished / ABOUT).write_text(json.dumps(about))
        unfinished.rename(entry)
    except OSError:
        if not entry.is_dir():  # otherwise another process was first, with the same content
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _open(entry: Path) -> Dataset | None:
    """The data set in an entry; None if there is none, or one that the disk has not kept whole, which is removed."""
    if not entry.is_dir():
        return None
    try:
        about = json.loads((entry / ABOUT).read_text())
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
        return Dataset(
            "", train, test, tuple(about["classes"]), columns, about["skipped"], tuple(about["skipped_names"])
        )
    except (OSError, EOFError, ValueError, KeyError):
        with contextlib.suppress(OSError):
            shutil.rmtree(entry)
        return None


def _mapped(entry: Path, name: str) -> NDArray[Any]:
    # Copy on write: torch wants memory that can be written to, and the file must never be.
    return np.load(entry / f"{name}.npy", mmap_mode="c", allow_pickle=False)  # type: ignore[no-any-return]
