"""Orthogonal Procrustes similarity (Schönemann 1966; Ding et al. 2021 for representations)."""

from __future__ import annotations

import torch
from torch import Tensor

from kinfed.similarity.inputs import centred, magnitude, measure, undefined_value, unit

__all__ = ["procrustes", "procrustes_distance"]


@measure()
def procrustes(x: Tensor, y: Tensor) -> Tensor:
    """Similarity of two representations after the best rotation: the nuclear norm ``|Xᵀ Y|_*``; differentiable.

    Both sides are first centred and divided by their Frobenius norm.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).
        y: Activations of the same examples in the same order, n×q; the narrower side is padded with zeros.

    Returns:
        A similarity in [0, 1]. Invariant to rotation, shift and isotropic scaling of either side. NaN, with a warning,
        if a side is constant.

    >>> import numpy as np
    >>> x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> round(procrustes(x, 3 * x @ [[0, 1], [-1, 0]] + 5), 3)
    1.0
    """
    return _nuclear_norm(x, y)


@measure()
def procrustes_distance(x: Tensor, y: Tensor) -> Tensor:
    """Distance after the best rotation, ``sqrt(2 - 2 s)`` with ``s = procrustes(x, y)``; in [0, √2].

    >>> import numpy as np
    >>> x, y = np.array([[1.0], [-1.0], [0.0], [0.0]]), np.array([[0.0], [0.0], [1.0], [-1.0]])
    >>> round(procrustes_distance(x, y), 3)
    1.414
    """
    return (2 - 2 * _nuclear_norm(x, y)).clamp_min(0).sqrt()


def _nuclear_norm(x: Tensor, y: Tensor) -> Tensor:
    undefined = undefined_value(x.requires_grad or y.requires_grad)
    x, y = (unit(side / magnitude(side), undefined) for side in (centred(x), centred(y)))
    with torch.no_grad():
        row_x, row_y = _row_space(x), _row_space(y)
        product = (x @ row_x).T @ (y @ row_y)
        if not product.isfinite().all():
            return product.sum()
        left, _, right = torch.linalg.svd(product, full_matrices=False)
        rotate_x, rotate_y = row_x @ left, row_y @ right.mT
    # The nuclear norm is the largest <X R, Y> over rotations R, so its derivative is that of <X R, Y> with the best R
    # held fixed. This avoids the derivative of the decomposition, which is infinite at equal singular values.
    overlap: Tensor = (x @ rotate_x) * (y @ rotate_y)
    return overlap.sum().clamp(0, 1)


def _row_space(x: Tensor) -> Tensor:
    """Orthonormal columns, p×min(n, p), that span the rows of ``x``, so that a wide layer needs only n dimensions."""
    if len(x) >= x.shape[1]:
        return torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    basis: Tensor = torch.linalg.qr(x.mT).Q
    return basis
