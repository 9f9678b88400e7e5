"""Measures that compare entry with entry: the same examples, the same features, no centring (METHODS.md A.13)."""

from __future__ import annotations

from torch import Tensor

from kinfed.similarity.inputs import magnitude, measure, undefined_value, unit

__all__ = ["cosine", "frobenius", "frobenius_distance"]


@measure(same_width=True)
def cosine(x: Tensor, y: Tensor) -> Tensor:
    """Cosine of the angle between two representations read as one long vector each: ``<x, y> / (|x| |y|)``.

    Args:
        x: Activations, n×p or n×c×h×w.
        y: Activations of the same shape, of the same examples in the same order.

    Returns:
        A similarity in [-1, 1]. Invariant to isotropic scaling and to nothing else. NaN, with a warning, if a side is
        all 0.
    """
    undefined = undefined_value(x.requires_grad or y.requires_grad)
    return (unit(x / magnitude(x), undefined) * unit(y / magnitude(y), undefined)).sum().clamp(-1, 1)


@measure(same_width=True)
def frobenius(x: Tensor, y: Tensor) -> Tensor:
    """Minus the mean squared difference of the entries, a similarity.

    The mean, not the sum, keeps an exponential of it finite for wide layers.

    Args:
        x: Activations, n×p or n×c×h×w.
        y: Activations of the same shape, of the same examples in the same order.

    Returns:
        A number ≤ 0; 0 for equal sides. Invariant to one shift or one rotation of both sides, not of either.
    """
    return -(x - y).square().mean()


@measure(same_width=True)
def frobenius_distance(x: Tensor, y: Tensor) -> Tensor:
    """Squared Frobenius distance ``|x - y|²``, a number ≥ 0; arguments as for `frobenius`."""
    return (x - y).square().sum()
