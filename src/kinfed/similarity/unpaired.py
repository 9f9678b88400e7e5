"""Measures for clients that have no examples in common (METHODS.md A.12): features or classes correspond instead."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kinfed.similarity.cka import alignment_matrix
from kinfed.similarity.inputs import Array, centred, flatten, measure, one_precision

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
    """
    (rows,), _ = one_precision(x)
    index = torch.as_tensor(labels, dtype=torch.int64, device=rows.device)
    counts = torch.bincount(index, minlength=classes)
    if len(index) != len(rows) or len(counts) != classes:
        raise ValueError(f"need {len(rows)} labels in 0…{classes - 1}, got {len(index)} up to {len(counts) - 1}")
    sums = rows.new_zeros(classes, flatten(rows).shape[1]).index_add(0, index, flatten(rows))
    means = sums / counts.clamp_min(1)[:, None]
    return means if isinstance(x, Tensor) else means.numpy()
