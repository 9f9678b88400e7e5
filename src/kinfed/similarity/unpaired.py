"""Measures for clients that have no examples in common (METHODS.md A.12): features or classes correspond instead."""

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
    """How alike the covariances of the features are: ``<C_x, C_y> / (|C_x| |C_y|)``.

    For models with a common lineage (one initialisation, repeated averaging), whose features therefore correspond.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).
        y: Activations, m×p, of any examples.

    Returns:
        A similarity in [0, 1]. Invariant to shift and isotropic scaling of either side, to the order of its rows, and
        to one rotation of both sides, not of either. NaN, with a warning, if a side is constant.
    """
    return alignment_matrix([centred(x).T, centred(y).T], center=False)[0, 1]


@measure()
def class_mean(x: Tensor, y: Tensor) -> Tensor:
    """Uncentred linear CKA of two matrices of `class_means`: mostly, how much the classes of two clients overlap.

    Args:
        x: One mean representation a class, classes×p.
        y: The same classes in the same order, classes×q.

    Returns:
        A similarity in [0, 1]. Invariant to rotation and isotropic scaling of either side. NaN, with a warning, if a
        side is all 0.
    """
    return alignment_matrix([x, y], center=False)[0, 1]


def class_means(x: Array, labels: Array, classes: int) -> Any:
    """Mean representation of each class, classes×p, of the kind that ``x`` is; zeros for a class without examples.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).
        labels: The class of each row, n integers in 0…classes-1.
        classes: How many classes there are among all clients.

    Raises:
        InputError: If there is not one label a row, or one is no whole number in that range.
    """
    check_option("classes", classes, Count)
    (rows,), _ = one_precision(flatten(tensor("class_means: x", x)))
    given = tensor("class_means: labels", labels)
    index = given.to(rows.device, torch.int64)
    if index.shape != (len(rows),) or not ((index == given) & (index >= 0) & (index < classes)).all():
        raise InputError(
            f"class_means needs {len(rows)} labels in 0…{classes - 1}, whole numbers; got shape {tuple(given.shape)}, "
            f"from {given.min():g} to {given.max():g}"
        )
    counts = torch.bincount(index, minlength=classes)
    sums = rows.new_zeros(classes, rows.shape[1]).index_add(0, index, rows)
    means = sums / counts.clamp_min(1)[:, None]
    return means if isinstance(x, Tensor) else means.numpy()
