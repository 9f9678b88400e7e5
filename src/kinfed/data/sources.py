"""Where data come from: scikit-learn's digits, or a folder with ``train.parquet`` and ``test.parquet``.

A folder is decoded once into uint8 arrays, which are cached under the content of its files and memory-mapped.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.data.samples import Dataset, Normalisation, Samples
from kinfed.errors import InputError

__all__ = ["EMBEDDED", "cache_folder", "find", "known", "load"]

EMBEDDED = "digits"
SPLITS = ("train", "test")
DIGITS_TRAIN = 1400  # of 1797; the rest is the test set


def known() -> dict[str, str]:
    """The data sets that can be named here and now, and where each one lies."""
    names = {EMBEDDED: "8×8 grey, 10 classes, 1,400 + 397 images; comes with scikit-learn"}
    root = _root()
    if root is not None and root.is_dir():
        names |= {p.name: str(p) for p in sorted(root.iterdir()) if (p / "train.parquet").is_file()}
    return names


def find(data: str) -> Path | None:
    """The folder that ``data`` means: a path, or a name in ``$KINFED_DATA``; None for the embedded digits.

    Raises:
        InputError: If there is no such folder, or it lacks one of the two files.
    """
    if data == EMBEDDED:
        return None
    root = _root()
    candidates = [Path(data)] + ([root / data] if root is not None and "/" not in data else [])
    folder = next((c for c in candidates if c.is_dir()), None)
    if folder is None:
        where = f"$KINFED_DATA is {root}" if root is not None else "$KINFED_DATA is not set"
        raise InputError(
            f"data: {data!r} is neither '{EMBEDDED}', nor a folder, nor the name of a folder in $KINFED_DATA ({where})"
        )
    for split in SPLITS:
        if not (folder / f"{split}.parquet").is_file():
            raise InputError(
                f"data: {data!r} has no {split}.parquet; a data folder holds train.parquet and test.parquet"
            )
    return folder


def load(data: str) -> Dataset:
    """Load a data set by name or path, labels remapped to 0..C-1 in sorted order.

    Raises:
        InputError: If it is not there, a file cannot be read, or the test set has a class that the training set lacks.
    """
    folder = find(data)
    arrays = _digits() if folder is None else _cached(folder)
    classes = np.unique(arrays["train_labels"])
    strange = np.setdiff1d(arrays["test_labels"], classes)
    if len(strange):
        raise InputError(
            f"data: {data!r} has classes in its test set that its training set lacks: {strange[:5].tolist()}"
        )
    inputs = {split: torch.from_numpy(arrays[f"{split}_inputs"]) for split in SPLITS}
    if inputs["train"].shape[1:] != inputs["test"].shape[1:]:
        shapes = " and ".join("×".join(map(str, inputs[split].shape[1:])) for split in SPLITS)
        raise InputError(f"data: {data!r} has training and test images of different shapes: {shapes}")
    mean, std = arrays["statistics"].tolist()
    normalise = Normalisation(tuple(mean), tuple(std))
    train, test = (
        Samples(inputs[split], torch.from_numpy(np.searchsorted(classes, arrays[f"{split}_labels"])), normalise)
        for split in SPLITS
    )
    return Dataset(data, train, test, tuple(str(c) for c in classes))


def _root() -> Path | None:
    return Path(os.environ["KINFED_DATA"]) if os.environ.get("KINFED_DATA") else None


def _digits() -> dict[str, NDArray[Any]]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    # The file is in the order of its writers; one fixed shuffle gives both sets all of them.
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:DIGITS_TRAIN], order[DIGITS_TRAIN:]
    labels = bunch.target.astype(np.int64)
    return {
        "train_inputs": images[train], "train_labels": labels[train],
        "test_inputs": images[test], "test_labels": labels[test],
        "statistics": np.array([[0.0], [255.0]]),  # digits are customarily scaled to [0, 1]
    }  # fmt: skip


def cache_folder() -> Path:
    """Where decoded images are kept: ``$KINFED_CACHE``, or ``kinfed`` in the user's cache folder."""
    if os.environ.get("KINFED_CACHE"):
        return Path(os.environ["KINFED_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinfed"


def _cached(folder: Path) -> dict[str, NDArray[Any]]:
    digest = hashlib.sha256(b"kinfed decoded images 2")
    for split in SPLITS:
        with (folder / f"{split}.parquet").open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    entry = cache_folder() / digest.hexdigest()[:32]
    if not entry.is_dir():
        arrays: dict[str, NDArray[Any]] = {}
        for split in SPLITS:
            arrays[f"{split}_inputs"], arrays[f"{split}_labels"] = _decode(folder / f"{split}.parquet")
        of_train = Normalisation.of(torch.from_numpy(arrays["train_inputs"]))
        _store(entry, arrays | {"statistics": np.array([of_train.mean, of_train.std])})
    return {path.stem: np.load(path, mmap_mode="c", allow_pickle=False) for path in entry.glob("*.npy")}


def _store(entry: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write a cache entry under its final name in one step, so that a kill or a second process leaves it whole."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=entry.parent, prefix=".unfinished-"))
    try:
        for name, array in arrays.items():
            np.save(unfinished / f"{name}.npy", array, allow_pickle=False)
        unfinished.rename(entry)
    except OSError:
        if not entry.is_dir():  # otherwise another process was first, with the same content
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _decode(path: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Images of a parquet file as n×c×h×w and its labels; three channels as soon as one image has colour."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image, UnidentifiedImageError

    try:
        table = pq.read_table(path, columns=["image", "label"])
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"data: {path} cannot be read as parquet with the columns 'image' and 'label': {error}"
        ) from error
    images = []
    for row, cell in enumerate(table.column("image").to_pylist()):
        encoded = cell["bytes"] if isinstance(cell, dict) else cell
        try:
            image = Image.open(io.BytesIO(encoded))
            images.append(np.asarray(image if image.mode == "L" else image.convert("RGB")))
        except (UnidentifiedImageError, OSError, TypeError) as error:
            raise InputError(f"data: {path}, row {row}: the image cannot be decoded: {error}") from error
    if not images:
        raise InputError(f"data: {path} holds no images")
    if any(image.ndim == 3 for image in images):
        images = [image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2) for image in images]
    else:
        images = [image[:, :, None] for image in images]
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise InputError(f"data: {path} holds images of different sizes: {sorted(shapes)[:3]}")
    labels = np.asarray(table.column("label").to_pylist())  # text becomes fixed-width text, which needs no pickle
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2)), labels
