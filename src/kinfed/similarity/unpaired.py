"""Measures for clients without common examples, by corresponding features or classes (specification A.12)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kinfed.errors import InputError
from kinfed.similarity.cka import alignment_matrix
from kinfed.similarity.inputs import Array, centred, flatten, measure, one_precision, tensor
from kinfed.similarity.options import Count, check_option

__all__ = ["class_mean", "class_means", "feature_cov"]


@measure(paired=False, same_width=True)
def feature_cov(x: Tensor, y: Tensor) -> Tensor:
    """Similarity of the feature covariances of two sides: ``<C_x, C_y> / (|C_x| |C_y|)``.

    Features must correspond, as in models with one initialisation that are averaged repeatedly.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).
        y: Activations, m×p, of any examples.

    Returns:
        A similarity in [0, 1]. Invariant to shift and isotropic scaling of either side, to the order of its rows, and
        to a common rotation of both sides. NaN, with a warning, if a side is constant.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(10, 3))
    >>> round(feature_cov(x, 2 * x[::-1] + 1), 3)
    1.0
    """
    return alignment_matrix([centred(x).T, centred(y).T], center=False)[0, 1]


@measure()
def class_mean(x: Tensor, y: Tensor) -> Tensor:
    """Uncentred linear CKA of two matrices of `class_means`; mostly a measure of how far two clients' classes overlap.

    Args:
        x: Mean representation of each class, classes×p.
        y: Mean representation of the same classes in the same order, classes×q.

    Returns:
        A similarity in [0, 1]. Invariant to rotation and isotropic scaling of either side. NaN, with a warning, if a
        side is all 0.

    >>> import numpy as np
    >>> class_mean(np.diag([1.0, 1.0, 0.0, 0.0]), np.diag([0.0, 0.0, 1.0, 1.0]))
    0.0
    """
    return alignment_matrix([x, y], center=False)[0, 1]


def class_means(x: Array, labels: Array, classes: int) -> Any:
    """Mean representation of each class, classes×p; zeros for a class without examples.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).
        labels: Class of each row, n integers in 0…classes-1.
        classes: Number of classes of all clients together.

    Returns:
        A tensor if ``x`` is a tensor, otherwise an array.

    Raises:
        InputError: If there is not one label for each row, or a label is not an integer in that range.

    >>> class_means([[1.0], [3.0], [5.0]], [0, 0, 2], classes=3)
    array([[2.],
           [0.],
           [5.]])
    """
    check_option("classes", classes, Count)
    (rows,), _ = one_precision(flatten(tensor("class_means: x", x)))
    given = tensor("class_means: labels", labels)
    index = given.to(rows.device, torch.int64)
    if index.shape != (len(rows),) or not ((index == given) & (index >= 0) & (index < classes)).all():
        raise InputError(
            f"class_means needs {len(rows)} labels, whole numbers from 0 to {classes - 1}; got shape "
            f"{tuple(given.shape)}, from {given.min():g} to {given.max():g}"
        )
    counts = torch.bincount(index, minlength=classes)
    sums = rows.new_zeros(classes, rows.shape[1]).index_add(0, index, rows)
    means = sums / counts.clamp_min(1)[:, None]
    return means if isinstance(x, Tensor) else means.numpy()
