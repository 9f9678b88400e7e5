"""Centred kernel alignment (Kornblith et al. 2019, https://arxiv.org/abs/1905.00414).

Letters: ``n`` examples, ``p`` features, ``N`` representations.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Kernel", "cka", "similarity_matrix"]

Kernel = Literal["linear", "rbf"]


def cka(x: Tensor, y: Tensor, *, kernel: Kernel = "linear", bandwidth: float = 0.5) -> Tensor:
    """Centred kernel alignment of two representations of the same ``n`` examples, row by row.

    ``<K, L> / (|K| |L|)`` for the centred Grams ``K`` of ``x`` and ``L`` of ``y`` (Frobenius).

    Args:
        x: Activations, n×p or n×c×h×w (flattened to n×(c·h·w)).
        y: Activations of the same examples in the same order, n×q; q may differ from p.
        kernel: ``linear``, or ``rbf`` with ``exp(-d² / (2 f² median(d²)))``.
        bandwidth: The ``f`` of the RBF kernel, as a fraction of the median distance.

    Returns:
        A number in [0, 1], float64; 1 is alike. Invariant to rotation and isotropic scaling. NaN, with a warning, if a
        side is constant.

    Raises:
        ValueError: If the two sides have different numbers of rows.
    """
    if len(x) != len(y):
        raise ValueError(f"cka compares the same examples: x has {len(x)} rows, y has {len(y)}")
    return similarity_matrix([x, y], kernel=kernel, bandwidth=bandwidth)[0, 1]


def similarity_matrix(
    representations: Sequence[Tensor], *, kernel: Kernel = "linear", bandwidth: float = 0.5
) -> Tensor:
    """CKA of every pair of ``N`` representations of the same ``n`` examples: one Gram each, then one matrix product.

    Args:
        representations: N activations, each n×p (p may differ) or n×c×h×w.
        kernel: See `cka`.
        bandwidth: See `cka`.

    Returns:
        N×N, symmetric, float64, in [0, 1] with ones on the diagonal. The row and column of a constant representation
        are NaN, with one warning that names it.
    """
    unit = torch.stack([_unit_gram(x, kernel, bandwidth).flatten() for x in representations])
    constant = unit.isnan().any(dim=1).nonzero().flatten().tolist()
    if constant:
        warnings.warn(f"CKA is not defined for constant representations: number {constant}", stacklevel=2)
    matrix = (unit @ unit.T).clamp(0, 1)
    diagonal = torch.ones(len(unit), dtype=matrix.dtype, device=matrix.device)
    return matrix.diagonal_scatter(torch.where(matrix.diagonal().isnan(), matrix.diagonal(), diagonal))


def _unit_gram(x: Tensor, kernel: Kernel, bandwidth: float) -> Tensor:
    """Centred Gram of ``x`` divided by its Frobenius norm, n×n; NaN if ``x`` is constant."""
    x = x.flatten(1).double()
    # Scaling changes no CKA and keeps squares from over- and underflowing; centring the features before the products
    # keeps their digits where a mean is large.
    x = x / x.abs().max()
    x = x - x.mean(dim=0)
    x = x / x.abs().max()
    gram = x @ x.T
    if kernel == "rbf":
        squares = gram.diagonal()
        distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp(min=0)
        gram = torch.exp(-distances / (2 * bandwidth**2 * median(distances.detach())))
        gram = gram - gram.mean(dim=0) - gram.mean(dim=1, keepdim=True) + gram.mean()
    unit: Tensor = gram / torch.linalg.matrix_norm(gram)
    return unit


def median(values: Tensor) -> Tensor:
    """The median of all entries; the mean of the middle two if their number is even."""
    ordered = values.flatten().sort().values
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
