"""Labels as they were written, and the classes 0..C-1 that they become."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError

__all__ = ["as_labels", "number"]


def as_labels(values: ArrayLike, where: str) -> NDArray[Any]:
    """Labels of one split as int64 or text, shape n; ``where`` they are from is for the message.

    Raises:
        InputError: If they are not one class a sample: fractions, several columns, something missing.
    """
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:  # as MedMNIST writes them
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"data: {where}: the labels have the shape {_shape(array)}; a sample has one class, shape n")
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        array = array.astype(str)
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"data: {where}: a label is no text: {error}") from error
    if array.dtype.kind not in "buifU":
        raise InputError(f"data: {where}: labels of type {array.dtype} are no classes; they are whole numbers or text")
    if array.dtype.kind == "U":
        return array
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    odd = array[whole != array]  # fractions, NaN, and what is too large
    if len(odd):
        raise InputError(f"data: {where}: the label {odd[0]} is no class; labels are whole numbers or text")
    return whole


def number(
    name: str, train: NDArray[Any], test: NDArray[Any]
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
    """The class names in sorted order, numbers by value and text alphabetically, and the labels 0..C-1 of both splits.

    Raises:
        InputError: If the test set has a class that the training set lacks.
    """
    if train.dtype.kind != test.dtype.kind:
        raise InputError(f"data: {name!r} has numbers as labels in one split and text in the other")
    classes = np.unique(train)
    strange = np.setdiff1d(test, classes)
    if len(strange):
        raise InputError(
            f"data: {name!r}: classes differ: there are some in its test set that its training set lacks: "
            f"{_few(strange)}; the training set has {_few(classes)}"
        )
    # Names of folders may have bytes that are no text; they are written out, so that files can hold them.
    names = tuple(str(c).encode("utf-8", "backslashreplace").decode() for c in classes)
    return names, np.searchsorted(classes, train), np.searchsorted(classes, test)


def _few(classes: NDArray[Any]) -> str:
    return f"{classes[:5].tolist()}{f' and {len(classes) - 5} more' if len(classes) > 5 else ''}"


def _shape(array: NDArray[Any]) -> str:
    return "×".join(map(str, array.shape)) or "()"
