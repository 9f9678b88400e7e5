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

from kinfed.errors import InputError
from kinfed.similarity.inputs import (
    Array,
    centred,
    flatten,
    magnitude,
    measure,
    refuse_gradient,
    refuse_non_finite,
    rounding,
    same_rows,
    tensor,
)
from kinfed.similarity.options import Fraction, check_option

__all__ = ["canonical_correlations", "cca", "kept_dimensions", "pwcca", "svcca"]


@measure(gradient=False, as_they_came=True)
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
        InputError: If n - 1 ≤ max(p, q), not counting features that are constant: the n - 1 dimensions left after
            centring are then full, and the correlations 1 for any data.
    """
    return cca_of_sides(*_sides(x, y), statistic=statistic, allow_degenerate=allow_degenerate)


@measure(gradient=False, as_they_came=True)
def svcca(x: Tensor, y: Tensor, *, variance: Fraction = 0.99, allow_degenerate: bool = False) -> Tensor:
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
        InputError: If n - 1 is at most the number of directions kept of a side.
    """
    return svcca_of_sides(*_sides(x, y), variance=variance, allow_degenerate=allow_degenerate)


@measure(gradient=False, as_they_came=True)
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
        InputError: As for `cca`.
    """
    return pwcca_of_sides(*_sides(x, y), symmetric=symmetric, allow_degenerate=allow_degenerate)


def canonical_correlations(x: Array, y: Array) -> Any:
    """All canonical correlations, largest first, each in [0, 1]; as many as the smaller rank.

    Args:
        x: Activations, n×p, or maps (see the head of this file).
        y: Activations of the same examples in the same order, n×q.

    Returns:
        A vector; a tensor if a side is one, an array if not.
    """
    given = {side: tensor(f"canonical_correlations: {side}", of) for side, of in (("x", x), ("y", y))}
    refuse_gradient("canonical_correlations", given)
    refuse_non_finite("canonical_correlations", given)
    same_rows("canonical_correlations", [*given.values()])
    a, b = _sides(*given.values())
    correlations = _correlations(a.left, b.left)
    return correlations if isinstance(x, Tensor) or isinstance(y, Tensor) else correlations.numpy()


def kept_dimensions(x: Array, variance: float = 0.99) -> int:
    """How many singular directions of ``x``, n×p or maps read place by place, `svcca` keeps."""
    check_option("variance", variance, Fraction)
    given = tensor("kept_dimensions: x", x)
    refuse_non_finite("kept_dimensions", {"x": given})
    return _leading(side(given), variance)


class Side(NamedTuple):
    """What CCA needs of a centred side, n×p: its singular value decomposition without what is rounding.

    Attributes:
        left: Left singular vectors, n×rank.
        values: Singular values, largest first.
        right: Right singular vectors, rank×p.
        features: How many of the p are not constant.
        rounding: To which fraction of their sum the squares of the singular values are known.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    features: int
    rounding: float


def side(x: Tensor, how: Literal["spatial", "gap"] = "spatial") -> Side:
    """From activations in the precision that they came in, n×p or maps."""
    eps, x = rounding(x), flatten(x.detach().double(), how)
    x = x / magnitude(x)
    change = centred(x)
    varying = change.any(dim=0)
    left, values, right = torch.linalg.svd(change, full_matrices=False)
    # As ranks are commonly counted (numpy.linalg.matrix_rank), in the precision of the input. But many examples, or
    # half precision, must not make rounding of what is plainly none; and entries were rounded with their means.
    common = min(max(x.shape) * eps, eps**0.5) * values[0]
    kept = values > torch.maximum(common, eps * torch.linalg.matrix_norm(x[:, varying]))
    known = 4 * (eps + max(x.shape) * rounding(x))
    return Side(left[:, kept], values[kept], right[kept], int(varying.sum()), known)


def cca_of_sides(
    a: Side, b: Side, *, statistic: Literal["rho", "r2"] = "rho", allow_degenerate: bool = False
) -> Tensor:
    """`cca` of two sides that are decomposed already."""
    _check_examples("cca", len(a.left), a.features, b.features, allow_degenerate)
    correlations = _correlations(a.left, b.left)
    return (correlations if statistic == "rho" else correlations.square()).mean()


def svcca_of_sides(a: Side, b: Side, *, variance: float = 0.99, allow_degenerate: bool = False) -> Tensor:
    """`svcca` of two sides that are decomposed already."""
    kept = [of.left[:, : _leading(of, variance)] for of in (a, b)]
    _check_examples("svcca", len(a.left), kept[0].shape[1], kept[1].shape[1], allow_degenerate)
    return _correlations(*kept).mean()


def pwcca_of_sides(a: Side, b: Side, *, symmetric: bool = False, allow_degenerate: bool = False) -> Tensor:
    """`pwcca` of two sides that are decomposed already."""
    _check_examples("pwcca", len(a.left), a.features, b.features, allow_degenerate)
    if symmetric:
        return (_projection_weighted(a, b) + _projection_weighted(b, a)) / 2
    return _projection_weighted(a, b)


def _sides(x: Tensor, y: Tensor) -> tuple[Side, Side]:
    """Both sides place by place where the places correspond, and by their spatial means where not."""
    by_place = x.ndim == y.ndim and x.shape[2:] == y.shape[2:]
    how: Literal["spatial", "gap"] = "spatial" if by_place else "gap"
    return side(x, how), side(y, how)


def _check_examples(name: str, n: int, p: int, q: int, allow_degenerate: bool) -> None:
    if n - 1 <= max(p, q) and not allow_degenerate:
        raise InputError(
            f"{name} of n={n} examples and p={max(p, q)} features is 1 for any data: n must exceed p + 1 "
            "(allow_degenerate=True goes on regardless)"
        )


def _leading(side: Side, variance: float) -> int:
    """The least k whose first k squared singular values make up the fraction ``variance`` of their sum."""
    shares = side.values.square().cumsum(dim=0)
    # A share that is met but for rounding is met.
    short = shares < (variance - side.rounding) * shares[-1:]
    return int(short.sum()) + len(shares[:1])


def _correlations(basis_x: Tensor, basis_y: Tensor) -> Tensor:
    correlations: Tensor = torch.linalg.svdvals(basis_x.T @ basis_y)
    return correlations.clamp(0, 1)


def _projection_weighted(a: Side, b: Side) -> Tensor:
    directions, correlations, _ = torch.linalg.svd(a.left.T @ b.left, full_matrices=False)
    weights = (directions.T @ (a.values[:, None] * a.right)).abs().sum(dim=1)
    mean: Tensor = (weights * correlations.clamp(0, 1)).sum() / weights.sum()
    return mean
