"""Canonical correlation analysis: mean CCA, SVCCA and PWCCA. They have no gradient.

CCA compares the spaces that the features span, so an invertible linear map of a side changes nothing. It needs many
examples: with few examples per feature the value is near 1 for any data.

Convolutional maps become (n·h·w)×c, each position an example, if both sides have equal h and w, and spatial means, n×c,
if not. Call `flatten` first for another reading.
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
        x: Activations, n×p, or maps n×c×h×w. Each position of a map is an example if both sides have equal h and w;
            otherwise the spatial mean is taken.
        y: Activations of the same examples in the same order, n×q, or maps.
        statistic: ``rho``, the mean of the correlations, or ``r2``, the mean of their squares. Their number is the
            smaller rank.
        allow_degenerate: True to compute the value even if there are too few examples for a meaningful one.

    Returns:
        A similarity in [0, 1], invariant to every invertible affine map of either side. NaN, with a warning, if a side
        is constant.

    Raises:
        InputError: If n - 1 ≤ max(p, q), not counting constant features. The features then span all n - 1 dimensions
            left after centring, and the correlations are 1 for any data.

    >>> import numpy as np
    >>> x, noise = np.random.default_rng(0).normal(size=(2, 100, 3))
    >>> round(cca(x, x @ [[1, 2, 0], [0, 1, 0], [0, 0, 5]]), 2), round(cca(x, noise), 2)
    (1.0, 0.13)
    """
    return cca_of_sides(*_sides(x, y), statistic=statistic, allow_degenerate=allow_degenerate)


@measure(gradient=False, as_they_came=True)
def svcca(x: Tensor, y: Tensor, *, variance: Fraction = 0.99, allow_degenerate: bool = False) -> Tensor:
    """Mean canonical correlation of the leading singular directions (Raghu et al. 2017).

    Args:
        x: Activations, n×p, or maps, read as in `cca`.
        y: Activations of the same examples in the same order, n×q, or maps.
        variance: Fraction of the sum of *squared* singular values that the kept directions of each side make up, in
            (0, 1]. The fewest such directions are kept; `kept_dimensions` counts them.
        allow_degenerate: True to compute the value even if there are too few examples for a meaningful one.

    Returns:
        A similarity in [0, 1], invariant to rotation, shift and isotropic scaling of either side. NaN, with a warning,
        if a side is constant.

    Raises:
        InputError: If n - 1 is at most the number of directions kept of a side.

    >>> import numpy as np
    >>> x, noise = np.random.default_rng(0).normal(size=(2, 100, 3))
    >>> round(svcca(x, 2 * x + 1), 2), round(svcca(x, noise), 2)
    (1.0, 0.13)
    """
    return svcca_of_sides(*_sides(x, y), variance=variance, allow_degenerate=allow_degenerate)


@measure(gradient=False, as_they_came=True)
def pwcca(x: Tensor, y: Tensor, *, symmetric: bool = False, allow_degenerate: bool = False) -> Tensor:
    """Mean canonical correlation, weighted by the share of ``x`` that each accounts for (Morcos et al. 2018).

    The mean is ``Σ α_i ρ_i``. The weight ``α_i`` is proportional to ``Σ_j |<h_i, x_j>|``, with the canonical variates
    ``h_i`` of ``x`` and its centred features ``x_j``.

    Args:
        x: Activations, n×p, or maps, read as in `cca`. They give the weights, so the measure is not symmetric.
        y: Activations of the same examples in the same order, n×q, or maps.
        symmetric: True for the mean of the values in both orders.
        allow_degenerate: True to compute the value even if there are too few examples for a meaningful one.

    Returns:
        A similarity in [0, 1]. Invariant to every invertible affine map of ``y``; for ``x`` to shift and isotropic
        scaling only. NaN, with a warning, if a side is constant.

    Raises:
        InputError: If n - 1 ≤ max(p, q), not counting constant features.

    >>> import numpy as np
    >>> x, noise = np.random.default_rng(0).normal(size=(2, 100, 3))
    >>> round(pwcca(x, 2 * x + 1), 2), round(pwcca(x, noise), 2)
    (1.0, 0.13)
    """
    return pwcca_of_sides(*_sides(x, y), symmetric=symmetric, allow_degenerate=allow_degenerate)


def canonical_correlations(x: Array, y: Array) -> Any:
    """All canonical correlations, largest first; as many as the smaller rank.

    Args:
        x: Activations, n×p, or maps, read as in `cca`.
        y: Activations of the same examples in the same order, n×q, or maps.

    Returns:
        A vector of values in [0, 1]: a tensor if a side is a tensor, otherwise an array.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(100, 3))
    >>> canonical_correlations(x, x[:, :2]).round(3)
    array([1., 1.])
    """
    given = {side: tensor(f"canonical_correlations: {side}", of) for side, of in (("x", x), ("y", y))}
    refuse_gradient("canonical_correlations", given)
    refuse_non_finite("canonical_correlations", given)
    same_rows("canonical_correlations", [*given.values()])
    a, b = _sides(*given.values())
    correlations = _correlations(a.left, b.left)
    return correlations if isinstance(x, Tensor) or isinstance(y, Tensor) else correlations.numpy()


def kept_dimensions(x: Array, variance: float = 0.99) -> int:
    """Number of singular directions that `svcca` keeps.

    Args:
        x: Activations, n×p, or maps, of which each position is an example.
        variance: Fraction of the sum of squared singular values, in (0, 1].

    >>> import numpy as np
    >>> kept_dimensions(np.random.default_rng(0).normal(size=(100, 3)) * [100, 10, 1])
    1
    """
    check_option("variance", variance, Fraction)
    given = tensor("kept_dimensions: x", x)
    refuse_non_finite("kept_dimensions", {"x": given})
    return _leading(side(given), variance)


class Side(NamedTuple):
    """Singular value decomposition of a centred side, n×p, without the singular values that are only rounding.

    Attributes:
        left: Left singular vectors, n×rank.
        values: Singular values, largest first.
        right: Right singular vectors, rank×p.
        features: Number of features that are not constant, at most p.
        rounding: Relative error of the sum of the squared singular values.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    features: int
    rounding: float


def side(x: Tensor, how: Literal["spatial", "gap"] = "spatial") -> Side:
    """Decompose activations, n×p or maps, given in their original precision."""
    eps, x = rounding(x), flatten(x.detach().double(), how)
    x = x / magnitude(x)
    change = centred(x)
    varying = change.any(dim=0)
    left, values, right = torch.linalg.svd(change, full_matrices=False)
    # The tolerance of numpy.linalg.matrix_rank, in the precision of the input. It is bounded, since with many examples
    # or in half precision it would drop signal. And entries were rounded before their means were subtracted.
    common = min(max(x.shape) * eps, eps**0.5) * values[0]
    kept = values > torch.maximum(common, eps * torch.linalg.matrix_norm(x[:, varying]))
    known = 4 * (eps + max(x.shape) * rounding(x))
    return Side(left[:, kept], values[kept], right[kept], int(varying.sum()), known)


def cca_of_sides(
    a: Side, b: Side, *, statistic: Literal["rho", "r2"] = "rho", allow_degenerate: bool = False
) -> Tensor:
    """Compute `cca` of two decomposed sides."""
    _check_examples("cca", len(a.left), a.features, b.features, allow_degenerate)
    correlations = _correlations(a.left, b.left)
    return (correlations if statistic == "rho" else correlations.square()).mean()


def svcca_of_sides(a: Side, b: Side, *, variance: float = 0.99, allow_degenerate: bool = False) -> Tensor:
    """Compute `svcca` of two decomposed sides."""
    kept = [of.left[:, : _leading(of, variance)] for of in (a, b)]
    _check_examples("svcca", len(a.left), kept[0].shape[1], kept[1].shape[1], allow_degenerate)
    return _correlations(*kept).mean()


def pwcca_of_sides(a: Side, b: Side, *, symmetric: bool = False, allow_degenerate: bool = False) -> Tensor:
    """Compute `pwcca` of two decomposed sides."""
    _check_examples("pwcca", len(a.left), a.features, b.features, allow_degenerate)
    if symmetric:
        return (_projection_weighted(a, b) + _projection_weighted(b, a)) / 2
    return _projection_weighted(a, b)


def _sides(x: Tensor, y: Tensor) -> tuple[Side, Side]:
    """Decompose both sides: by position if their positions correspond, as spatial means if not."""
    by_place = x.ndim == y.ndim and x.shape[2:] == y.shape[2:]
    how: Literal["spatial", "gap"] = "spatial" if by_place else "gap"
    return side(x, how), side(y, how)


def _check_examples(name: str, n: int, p: int, q: int, allow_degenerate: bool) -> None:
    if n - 1 <= max(p, q) and not allow_degenerate:
        raise InputError(
            f"{name} of n={n} examples and p={max(p, q)} features is 1 for any data: n must exceed p + 1 "
            "(allow_degenerate=True computes it anyway)"
        )


def _leading(side: Side, variance: float) -> int:
    """Smallest k for which the k largest squared singular values make up the fraction ``variance`` of their sum."""
    shares = side.values.square().cumsum(dim=0)
    # A share that is too small only by rounding counts as reached.
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
