"""Measures that compare entry with entry, for the same examples and features, without centring (specification A.13)."""

from __future__ import annotations

from torch import Tensor

from kinfed.similarity.inputs import magnitude, measure, undefined_value, unit

__all__ = ["cosine", "frobenius", "frobenius_distance"]


@measure(same_width=True)
def cosine(x: Tensor, y: Tensor) -> Tensor:
    """Cosine of the angle between two representations, each read as one long vector: ``<x, y> / (|x| |y|)``.

    Args:
        x: Activations, n×p or n×c×h×w.
        y: Activations of the same shape, of the same examples in the same order.

    Returns:
        A similarity in [-1, 1]. Invariant to isotropic scaling only. NaN, with a warning, if a side is all 0.

    >>> import numpy as np
    >>> round(cosine(np.eye(2), np.ones((2, 2))), 3)
    0.707
    """
    undefined = undefined_value(x.requires_grad or y.requires_grad)
    return (unit(x / magnitude(x), undefined) * unit(y / magnitude(y), undefined)).sum().clamp(-1, 1)


@measure(same_width=True)
def frobenius(x: Tensor, y: Tensor) -> Tensor:
    """Negative mean squared difference of the entries, a similarity.

    It is a mean, not a sum, so that its exponential stays finite for wide layers.

    Args:
        x: Activations, n×p or n×c×h×w.
        y: Activations of the same shape, of the same examples in the same order.

    Returns:
        A number ≤ 0; 0 for equal sides. Invariant only to a common shift or rotation of both sides.

    >>> import numpy as np
    >>> frobenius(np.zeros((2, 3)), np.full((2, 3), 2.0))
    -4.0
    """
    return -(x - y).square().mean()


@measure(same_width=True)
def frobenius_distance(x: Tensor, y: Tensor) -> Tensor:
    """Squared Frobenius distance ``|x - y|²``, a number ≥ 0; see `frobenius` for the arguments.

    >>> import numpy as np
    >>> frobenius_distance(np.zeros((2, 3)), np.full((2, 3), 2.0))
    24.0
    """
    return (x - y).square().sum()
