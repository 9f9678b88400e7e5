"""Data sets from arrays that are already in memory."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from kinfed.data.cache import cache_folder, digest
from kinfed.data.images import Decoding
from kinfed.data.npz import KEYS
from kinfed.data.samples import Dataset
from kinfed.data.splits import Split, assemble
from kinfed.errors import InputError

__all__ = ["from_arrays", "keep_arrays"]

Array = ArrayLike | torch.Tensor


def from_arrays(
    x_train: Array,
    y_train: Array,
    x_test: Array,
    y_test: Array,
    *,
    columns: Mapping[str, tuple[Array, Array]] | None = None,
    name: str = "arrays",
) -> Dataset:
    """A data set of NumPy arrays, torch tensors or nested lists.

    uint8 of three or four dimensions are images, standardised by the training set's mean and deviation per channel:
    n×h×w (grey), n×c×h×w, or n×h×w×c; of four dimensions the second is the channels if it is 1 or 3, else the last.
    All other numbers are features, n×p or n×…, kept as they are in float32.

    Args:
        x_train: Training inputs, samples first.
        y_train: Their labels, whole numbers or text, shape n (or n×1).
        x_test: Test inputs of the same shape but for n.
        y_test: Their labels; every class is in ``y_train``.
        columns: Whatever else is known of the samples, by name: values of the training and of the test samples.
        name: What the data set is called in messages and results.

    Raises:
        InputError: If shapes do not fit together, a label is no class, the test set has a class of its own, or a
            feature is not finite.
    """
    others = {column: [_numpy(values) for values in both] for column, both in (columns or {}).items()}
    for column, (train, test) in others.items():
        if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
            raise InputError(f"data: column {column!r} holds numbers in one split and text in the other")
    splits = []
    for at, (which, x, y) in enumerate((("train", x_train, y_train), ("test", x_test, y_test))):
        inputs, own = _numpy(x), {column: both[at] for column, both in others.items()}
        for column, values in own.items():
            if values.shape != inputs.shape[:1]:
                raise InputError(f"data: column {column!r} has {len(values)} values for {len(inputs)} {which} samples")
        splits.append(Split(f"{name}, x_{which}", inputs, _numpy(y), own))
    return assemble(name, splits[:1], splits[1:], Decoding())


def keep_arrays(x_train: Array, y_train: Array, x_test: Array, y_test: Array) -> Path:
    """Write four arrays to a file under their content, once; a run that names it can be resumed.

    Args:
        x_train: As for `from_arrays`, like the others.
        y_train: Training labels.
        x_test: Test inputs.
        y_test: Test labels.

    Returns:
        A ``.npz`` in the cache folder.
    """
    arrays = dict(zip(KEYS[0], map(_numpy, (x_train, y_train, x_test, y_test)), strict=True))
    content = [(array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()) for array in arrays.values()]
    path = cache_folder() / "arrays" / f"{digest(content)}.npz"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            np.savez(file, allow_pickle=False, **arrays)
        Path(file.name).replace(path)
    return path


def _numpy(values: Array) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return np.atleast_1d((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    try:
        return np.atleast_1d(np.asarray(values))
    except ValueError as error:
        raise InputError(f"data: the samples of an array must all have one shape: {error}") from error
