"""Conversion of labels, whole numbers or text, to classes 0..K-1.

Letters: ``n`` samples, ``K`` classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError

__all__ = ["as_labels", "class_names", "number"]


def as_labels(values: ArrayLike, where: str) -> NDArray[Any]:
    """Convert the labels of one split to an int64 or text array of shape n.

    Args:
        values: Labels in any container, of shape n or n×1.
        where: Name of the split in an error message.

    Raises:
        InputError: If the labels are not one class per sample: fractions, several columns, or missing values.
    """
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:  # as MedMNIST writes them
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(
            f"data: {where}: the labels have the shape {_shape(array)}; must be one class per sample, shape n; "
            "several labels per sample are not supported"
        )
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        array = array.astype(str)
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"data: {where}: a label is not text: {error}") from error
    if array.dtype.kind not in "buifU":
        raise InputError(f"data: {where}: labels of type {array.dtype} are not allowed; must be whole numbers or text")
    if array.dtype.kind == "U":
        return array
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    odd = array[whole != array]  # fractions, NaN and values too large for int64
    if len(odd):
        raise InputError(f"data: {where}: the label {odd[0]} is not allowed; must be a whole number or text")
    return whole


def number(
    name: str, train: NDArray[Any], test: NDArray[Any]
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
    """Number the classes of a data set.

    Args:
        name: Name of the data set in an error message.
        train: Labels of the training set, int64 or text, n.
        test: Labels of the test set.

    Returns:
        The K class names in sorted order, numbers by value and text alphabetically; the labels 0..K-1 of the training
        set; and those of the test set.

    Raises:
        InputError: If the test set has a class that the training set lacks, or one set has numbers and the other text.
    """
    if train.dtype.kind != test.dtype.kind:
        raise InputError(f"data: {name!r}: the labels must be numbers in both splits or text in both")
    classes = np.unique(train)
    strange = np.setdiff1d(test, classes)
    if len(strange):
        raise InputError(
            f"data: {name!r}: the test set has classes that the training set lacks: {_few(strange)}; the training set "
            f"has {_few(classes)}"
        )
    return class_names(classes), np.searchsorted(classes, train), np.searchsorted(classes, test)


def class_names(classes: NDArray[Any]) -> tuple[str, ...]:
    """Return the names of classes, int64 or text, as text.

    Folder names may have bytes that are no valid text; they are escaped, so that the names can be saved.

    >>> class_names(np.array([3, 10]))
    ('3', '10')
    """
    return tuple(str(c).encode("utf-8", "backslashreplace").decode() for c in classes)


def _few(classes: NDArray[Any]) -> str:
    return f"{classes[:5].tolist()}{f' and {len(classes) - 5} more' if len(classes) > 5 else ''}"


def _shape(array: NDArray[Any]) -> str:
    return "×".join(map(str, array.shape)) or "()"
