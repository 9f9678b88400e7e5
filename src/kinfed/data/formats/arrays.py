"""Data sets from arrays in memory."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from kinfed.data.cache import KEPT, cache_folder, digest, unfinished
from kinfed.data.classes import as_labels
from kinfed.data.formats.npz import KEYS, read_npz
from kinfed.data.images import Decoding
from kinfed.data.reading import Reading
from kinfed.data.samples import Dataset
from kinfed.data.splits import Split, assemble
from kinfed.errors import InputError

__all__ = ["Array", "as_array", "from_arrays", "keep_arrays"]

Array = ArrayLike | torch.Tensor


def from_arrays(
    x_train: Array,
    y_train: Array,
    x_test: Array,
    y_test: Array,
    *,
    columns: Mapping[str, tuple[Array, Array]] | None = None,
    standardise: bool | None = None,
    name: str = "arrays",
) -> Dataset:
    """Make a data set from NumPy arrays, torch tensors or nested lists.

    uint8 arrays of three or four dimensions are images: n×h×w (grey), n×c×h×w, or n×h×w×c. Of four dimensions, the
    second one is the channels if it is 1 or 3; otherwise the last one is. Images are standardised with the training
    set's mean and standard deviation per channel. uint16 images become 8-bit first. All other arrays are features
    in float32: n×p are standardised per feature, n×… are used unchanged.

    Args:
        x_train: Training inputs, n×….
        y_train: Training labels, whole numbers or text, n or n×1.
        x_test: Test inputs, with the shape of the training inputs but for n.
        y_test: Test labels; every class is in ``y_train``.
        columns: Other values of the samples by name: values of the training samples and of the test samples, n each.
        standardise: False if features n×p are standardised already.
        name: Name of the data set in messages and results.

    Raises:
        InputError: If shapes do not match, a label is no class, the test set has a class that the training set lacks,
            or a feature is not finite.

    >>> dataset = from_arrays([[0.1], [0.2]], ["cat", "dog"], [[0.3]], ["dog"])
    >>> dataset.classes, dataset.train.labels.tolist(), dataset.test.labels.tolist()
    (('cat', 'dog'), [0, 1], [1])
    """
    others = {column: [as_array(values) for values in both] for column, both in (columns or {}).items()}
    for column, (train, test) in others.items():
        if (train.dtype.kind == "U") != (test.dtype.kind == "U"):
            raise InputError(f"data: column {column!r} must be numbers in both splits or text in both")
    splits = []
    for at, (which, x, y) in enumerate((("train", x_train, y_train), ("test", x_test, y_test))):
        inputs, own = as_array(x), {column: both[at] for column, both in others.items()}
        for column, values in own.items():
            if values.shape != inputs.shape[:1]:
                raise InputError(f"data: column {column!r} has {len(values)} values for {len(inputs)} {which} samples")
        splits.append(Split(f"{name}, x_{which}", inputs, as_array(y), own))
    return assemble(name, splits[:1], splits[1:], Decoding(), Reading(standardise=standardise))


def keep_arrays(*given: Array) -> Path:
    """Write arrays to a file in the cache folder, unless it is there, so that a run on them can be resumed.

    Args:
        *given: Training inputs, training labels, test inputs and test labels, as in `from_arrays`; or inputs and labels
            of data without a split.

    Returns:
        Path of the ``.npz`` file, whose name is a digest of the arrays.

    Raises:
        InputError: If an array has neither numbers nor text, or the cache folder cannot be written.
    """
    keys = next(keys for keys in KEYS if len(keys) == len(given))
    arrays = [as_array(values) for values in given]
    arrays[1::2] = [as_labels(labels, which) for labels, which in zip(arrays[1::2], keys[1::2], strict=True)]
    for array, which in zip(arrays, keys, strict=True):
        if array.dtype.hasobject:
            raise InputError(
                f"data: {which}: {array.dtype} of shape {array.shape} is not allowed; inputs must be numbers"
            )
    content = _content(arrays)
    path = cache_folder() / "arrays" / f"{content}.npz"
    if not _holds(path, content):
        with unfinished(path.parent) as folder:
            np.savez(folder / KEPT, allow_pickle=False, **dict(zip(keys, arrays, strict=True)))
            (folder / KEPT).replace(path)
    return path


def _holds(path: Path, content: str) -> bool:
    """Return True if a file has arrays with this digest; warn if the file is damaged."""
    if not path.is_file():
        return False
    try:
        whole = _content(read_npz(path)[1]) == content
    except InputError:
        whole = False
    if not whole:
        warnings.warn(f"cache: {str(path)!r} is damaged and is written again", stacklevel=2)
    return whole


def _content(arrays: Sequence[NDArray[Any]]) -> str:
    return digest([(array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest()) for array in arrays])


def as_array(values: Array) -> NDArray[Any]:
    """Convert an array, tensor or nested list to a NumPy array of at least one dimension.

    Raises:
        InputError: If that is impossible, or values are masked.
    """
    if np.ma.is_masked(values):
        raise InputError("data: an array has masked values; remove these samples, or fill in the values")
    try:
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu()
            return np.atleast_1d((values.float() if values.dtype == torch.bfloat16 else values).numpy())
        return np.atleast_1d(np.asarray(values))
    except (TypeError, RuntimeError) as error:
        raise InputError(f"data: {type(values).__name__} cannot be converted to an array: {error}") from error
    except ValueError as error:
        raise InputError(f"data: the samples of an array must all have the same shape: {error}") from error
