"""Canonical correlations and what is made of them: mean CCA, SVCCA, PWCCA. No gradients.

CCA compares the spaces that the features span, so any invertible linear map of a side changes nothing. The price is
many examples: the fewer there are for the features, the nearer to 1 everything gets, whatever the data.

Convolutional maps are compared place by place, (n·h·w)×c, if both sides have equal h and w, and by their spatial means,
n×c, if not; `flatten` them beforehand to have it otherwise.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from kinfed.similarity.inputs import Array, centred, flatten, magnitude, measure, one_precision, same_rows

__all__ = ["canonical_correlations", "cca", "kept_dimensions", "pwcca", "svcca"]

# Singular values below this fraction of the largest are rounding: the column space ends there.
RANK_TOLERANCE = 1e-10


@measure(gradient=False, maps=True)
def cca(x: Tensor, y: Tensor, *, statistic: Literal["rho", "r2"] = "rho", allow_degenerate: bool = False) -> Tensor:
    """Mean canonical correlation (Raghu et al. 2017; Kornblith et al. 2019, table 1).

    Args:
        x: Activations, n×p, or maps (see the head of this file).
        y: Activations of the same examples in the same order, n×q.
        statistic: ``rho``, the mean of the correlations, or ``r2``, the mean of their squares. The mean is over as many
            as there are, which is the smaller rank.
        allow_degenerate: Go on where there are too few examples for the answer to mean anything.

    Returns:
        A similarity in [0, 1], invariant to every invertible affine map of either side. NaN, with a warning, if a side
        is constant.

    Raises:
        ValueError: If n - 1 ≤ max(p, q): the n - 1 dimensions left after centring are then full, and the correlations 1
            for any data.
    """
    x, y = _examples(x, y)
    return cca_of_sides(side(x), side(y), statistic=statistic, allow_degenerate=allow_degenerate)


@measure(gradient=False, maps=True)
def svcca(x: Tensor, y: Tensor, *, variance: float = 0.99, allow_degenerate: bool = False) -> Tensor:
    """Mean canonical correlation of the leading singular directions (Raghu et al. 2017).

    Args:
        x: Activations, n×p, or maps (see the head of this file).
        y: Activations of the same examples in the same order, n×q.
        variance: Of each side the fewest directions are kept whose *squared* singular values make up this fraction of
            their sum (`kept_dimensions` tells how many).
        allow_degenerate: As for `cca`.

    Returns:
        A similarity in [0, 1], invariant to rotation, shift and isotropic scaling of either side. NaN, with a warning,
        if a side is constant.

    Raises:
        ValueError: If n - 1 is at most the number of directions kept of a side.
    """
    x, y = _examples(x, y)
    return svcca_of_sides(side(x), side(y), variance=variance, allow_degenerate=allow_degenerate)


@measure(gradient=False, maps=True)
def pwcca(x: Tensor, y: Tensor, *, symmetric: bool = False, allow_degenerate: bool = False) -> Tensor:
    """Canonical correlations weighted by how much of ``x`` they account for (Morcos et al. 2018).

    ``Σ α_i ρ_i``, with ``α_i`` in proportion to ``Σ_j |<h_i, x_j>|`` for the canonical variates ``h_i`` of ``x`` and
    its centred features ``x_j``.

    Args:
        x: Activations, n×p, or maps (see the head of this file). Its features give the weights: not symmetric.
        y: Activations of the same examples in the same order, n×q.
        symmetric: Take the mean over both orders.
        allow_degenerate: As for `cca`.

    Returns:
        A similarity in [0, 1], invariant to every invertible affine map of ``y``, of ``x`` to shift and isotropic
        scaling only. NaN, with a warning, if a side is constant.

    Raises:
        ValueError: As for `cca`.
    """
    x, y = _examples(x, y)
    _check_examples("pwcca", len(x), x.shape[1], y.shape[1], allow_degenerate)
    if symmetric:
        return (_projection_weighted(x, y) + _projection_weighted(y, x)) / 2
    return _projection_weighted(x, y)


def canonical_correlations(x: Array, y: Array) -> Any:
    """All canonical correlations, largest first, each in [0, 1]; as many as the smaller rank.

    Args:
        x: Activations, n×p, or maps (see the head of this file).
        y: Activations of the same examples in the same order, n×q.

    Returns:
        A vector, of the kind that the sides are (tensor or array).
    """
    with torch.no_grad():
        (a, b), _ = one_precision(x, y)
    same_rows("canonical_correlations", [a, b])
    a, b = _examples(a, b)
    correlations = _correlations(_basis(a), _basis(b))
    return correlations if isinstance(x, Tensor) else correlations.numpy()


def kept_dimensions(x: Array, variance: float = 0.99) -> int:
    """How many singular directions of ``x``, n×p or maps read place by place, `svcca` keeps."""
    with torch.no_grad():
        (x,), _ = one_precision(x)
    return _leading(_singular(flatten(x, "spatial"))[1], variance)


class Side(NamedTuple):
    """What CCA needs of a centred side, n×p.

    Attributes:
        left: Its left singular vectors, n×rank.
        values: Their singular values, largest first.
        features: p.
    """

    left: Tensor
    values: Tensor
    features: int


def side(x: Tensor) -> Side:
    """From activations, n×p or maps read place by place."""
    with torch.no_grad():
        (x,), _ = one_precision(x)
        rows = flatten(x, "spatial")
        return Side(*_singular(rows), rows.shape[1])


def cca_of_sides(
    a: Side, b: Side, *, statistic: Literal["rho", "r2"] = "rho", allow_degenerate: bool = False
) -> Tensor:
    """`cca` of two sides that are decomposed already."""
    _check_examples("cca", len(a.left), a.features, b.features, allow_degenerate)
    correlations = _correlations(a.left, b.left)
    return (correlations if statistic == "rho" else correlations.square()).mean()


def svcca_of_sides(a: Side, b: Side, *, variance: float = 0.99, allow_degenerate: bool = False) -> Tensor:
    """`svcca` of two sides that are decomposed already."""
    kept = [left[:, : _leading(values, variance)] for left, values, _ in (a, b)]
    _check_examples("svcca", len(a.left), kept[0].shape[1], kept[1].shape[1], allow_degenerate)
    return _correlations(*kept).mean()


def _examples(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides as matrices: place by place where the places correspond."""
    by_place = x.ndim == y.ndim and x.shape[2:] == y.shape[2:]
    how: Literal["spatial", "gap"] = "spatial" if by_place else "gap"
    return flatten(x, how), flatten(y, how)


def _check_examples(name: str, n: int, p: int, q: int, allow_degenerate: bool) -> None:
    if n - 1 <= max(p, q) and not allow_degenerate:
        raise ValueError(
            f"{name} of n={n} examples and p={max(p, q)} features is 1 for any data: n must exceed p + 1 "
            "(allow_degenerate=True goes on regardless)"
        )


def _singular(x: Tensor) -> tuple[Tensor, Tensor]:
    """Left singular vectors and singular values of centred ``x``, without those that are rounding."""
    left, values, _ = torch.linalg.svd(centred(x / magnitude(x)), full_matrices=False)
    kept = values > RANK_TOLERANCE * values[0]
    return left[:, kept], values[kept]


def _basis(x: Tensor) -> Tensor:
    """Orthonormal basis of the column space of centred ``x``, n×rank."""
    return _singular(x)[0]


def _leading(values: Tensor, variance: float) -> int:
    """The least k whose first k squared singular values make up the fraction ``variance`` of their sum."""
    shares = values.square().cumsum(dim=0)
    return int((shares < variance * shares[-1:]).sum()) + len(shares[:1])


def _correlations(basis_x: Tensor, basis_y: Tensor) -> Tensor:
    correlations: Tensor = torch.linalg.svdvals(basis_x.T @ basis_y)
    return correlations.clamp(0, 1)


def _projection_weighted(x: Tensor, y: Tensor) -> Tensor:
    basis = _basis(x)
    directions, correlations, _ = torch.linalg.svd(basis.T @ _basis(y), full_matrices=False)
    weights = ((basis @ directions).T @ centred(x / magnitude(x))).abs().sum(dim=1)
    mean: Tensor = (weights * correlations.clamp(0, 1)).sum() / weights.sum()
    return mean
