"""Centred kernel alignment (Kornblith et al. 2019, https://arxiv.org/abs/1905.00414) of one pair and of many.

Letters: ``n`` examples, ``p`` features, ``N`` representations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.similarity.bias import unless_biased
from kinfed.similarity.gram import Alignment, Gram, Kernel, LinearGap, gram_of, gram_of_features
from kinfed.similarity.inputs import (
    Array,
    centred,
    exact,
    flatten,
    full_precision,
    magnitude,
    one_precision,
    precision,
    refuse_gradient,
    refuse_non_finite,
    same_rows,
    tensor,
    undefined_value,
    unit,
    warn_undefined,
)
from kinfed.similarity.options import Positive, checked

__all__ = ["biased_and_debiased", "cka", "cka_gap"]

# Limits on the entries of activations processed at once (they should fit the cache) and of Grams held at once.
CHUNK_ENTRIES = 2**18
BLOCK_ENTRIES = 2**24


@overload
def cka(
    x: Tensor,
    y: Array | Gram,
    *,
    kernel: Kernel = "linear",
    bandwidth: Positive = 0.5,
    debiased: bool = False,
    center: bool = True,
) -> Tensor: ...
@overload
def cka(
    x: Array | Gram,
    y: Tensor,
    *,
    kernel: Kernel = "linear",
    bandwidth: Positive = 0.5,
    debiased: bool = False,
    center: bool = True,
) -> Tensor: ...
@overload
def cka(
    x: Gram,
    y: Gram,
    *,
    kernel: Kernel = "linear",
    bandwidth: Positive = 0.5,
    debiased: bool = False,
    center: bool = True,
) -> Tensor: ...
@overload
def cka(
    x: NDArray[Any],
    y: NDArray[Any] | Gram,
    *,
    kernel: Kernel = "linear",
    bandwidth: Positive = 0.5,
    debiased: bool = False,
    center: bool = True,
) -> float: ...
@overload
def cka(
    x: Gram,
    y: NDArray[Any],
    *,
    kernel: Kernel = "linear",
    bandwidth: Positive = 0.5,
    debiased: bool = False,
    center: bool = True,
) -> float: ...
@checked
def cka(
    x: Array | Gram,
    y: Array | Gram,
    *,
    kernel: Kernel = "linear",
    bandwidth: Positive = 0.5,
    debiased: bool = False,
    center: bool = True,
) -> Tensor | float:
    """Centred kernel alignment of two representations of the same ``n`` examples; differentiable.

    It is ``<K, L> / (|K| |L|)`` with the centred Grams ``K`` of ``x`` and ``L`` of ``y`` and Frobenius norms.

    Biased CKA of *unrelated* representations is far above 0 unless n is much larger than p (``docs/similarity.md`` has
    numbers); debiased CKA is 0 on average. If p or q exceeds n and the value misleads, a `BiasedSimilarityWarning`
    gives the debiased value. There is no warning in a loss, nor for a `Gram`.

    Args:
        x: Activations, n×p or n×c×h×w (flattened to n×(c·h·w)), or their `Gram`, which saves its computation in every
            step if the side is frozen.
        y: Activations of the same examples in the same order, n×q; q may differ from p. Or their `Gram`.
        kernel: ``linear``, or ``rbf``: ``exp(-d² / (2 f² median(d²)))``. This and the arguments below apply to
            activations; a `Gram` is used unchanged.
        bandwidth: The ``f`` of the RBF kernel, as a fraction of the median distance. The median is over all n² squared
            distances, as in the authors' notebook; no gradient passes through it.
        debiased: True for the ratio of unbiased estimates of HSIC, the Hilbert-Schmidt independence criterion (Song et
            al. 2012); needs n ≥ 4.
        center: False to leave out the centring (linear kernel only), as some federated papers print the formula.
            Without it, features that are not centred are compared mostly by their means. Debiased CKA is always
            centred.

    Returns:
        A similarity in [0, 1]; debiased in (-1, 1]. Invariant to rotation, shift and isotropic scaling of either side.
        NaN, with a warning, if a side is constant; in a loss, 0 without a gradient. A tensor if a side is a tensor or
        needs a gradient, otherwise a float.

    Raises:
        InputError: If the sides have different numbers of rows, or one is not finite.

    >>> import numpy as np
    >>> x, noise = np.random.default_rng(0).normal(size=(2, 100, 8))
    >>> round(cka(x, 2 * x + 1), 3), round(cka(x, noise), 3), round(cka(x, noise, debiased=True), 3)
    (1.0, 0.068, -0.005)
    """
    given = {"x": x, "y": y}
    grams = [side for side in given.values() if isinstance(side, Gram)]
    if any(gram.debiased != debiased for gram in grams):
        raise InputError(f"cka: debiased={debiased} needs Grams that were made with debiased={debiased}")
    sides = {
        name: side.unit if isinstance(side, Gram) else flatten(tensor(f"cka: {name}", side))
        for name, side in given.items()
    }
    same_rows("cka", [*sides.values()])
    live = precision(*sides.values())[1]
    if not grams:
        if not live:
            refuse_non_finite("cka", sides)
        value = alignments(
            "cka", [*sides.values()], kernel=kernel, bandwidth=bandwidth, debiased=debiased, center=center
        )[0, 1]
    else:
        units = {
            name: side
            if isinstance(given[name], Gram)
            else gram_of_features(side, kernel, bandwidth, debiased=debiased, center=center)
            for name, side in sides.items()
        }
        (one, other), _ = one_precision(*units.values())
        gram, unit_gram = (one, other) if isinstance(y, Gram) else (other, one)
        value = Alignment.apply(gram, unit_gram).clamp(-1, 1)
        if not live and not (gram.any() and unit_gram.any()):
            value = torch.full_like(value, torch.nan)
        sides = units
    if not live and value.isnan():
        warn_undefined("cka", sides)
    is_array = [not isinstance(side, Tensor | Gram) for side in given.values()]
    as_float = any(is_array) and not live and not any(isinstance(side, Tensor) for side in given.values())
    return value.item() if as_float else value


@checked
def cka_gap(
    x: Tensor, gap: Tensor, *, kernel: Kernel = "linear", bandwidth: Positive = 0.5, debiased: bool = False
) -> Tensor:
    """Difference of two CKAs of ``x`` with frozen sides ``p`` and ``g``, from one Gram of ``x``; for a loss.

    It is ``cka(x, p) - cka(x, g)``.

    Args:
        x: Activations, n×p or n×c×h×w.
        gap: ``p.unit - g.unit``, the difference of the frozen sides' Grams, n×n. CKA is linear in them.
        kernel: Kernel of the Gram of ``x``, ``linear`` or ``rbf``; see `cka`.
        bandwidth: Bandwidth of the RBF kernel, as a fraction of the median distance.
        debiased: True if the two Grams are debiased.

    Returns:
        A number in [-2, 2]; 0 without a gradient if ``x`` is constant.

    Raises:
        InputError: If ``gap`` needs a gradient.

    >>> x = torch.eye(4)[:, :2]
    >>> p, g = Gram.of_features(x), Gram.of_features(torch.eye(4)[:, 1:])
    >>> round(cka_gap(x, p.unit - g.unit).item(), 3) == round(1 - cka(x, g).item(), 3)
    True
    """
    refuse_gradient("cka_gap", {"gap": gap})
    difference: Tensor
    if kernel == "linear" and not debiased:
        (rows,), _ = one_precision(flatten(tensor("cka_gap: x", x)))
        with full_precision(rows):
            difference = LinearGap.apply(rows, gap.to(rows.dtype))
    else:
        gram = gram_of_features(x, kernel, bandwidth, debiased=debiased, center=True)
        difference = Alignment.apply(gram, gap.to(gram.dtype))
    return difference


def alignments(
    name: str,
    xs: Sequence[Tensor],
    ys: Sequence[Tensor] | None = None,
    *,
    kernel: Kernel = "linear",
    bandwidth: float = 0.5,
    debiased: bool = False,
    center: bool = True,
) -> Tensor:
    """Compute `alignment_matrix`, with a warning under the given name of the measure if a bias misleads."""
    options: dict[str, Any] = {"kernel": kernel, "bandwidth": bandwidth, "center": center}
    if debiased:
        return alignment_matrix(xs, ys, debiased=True, **options)

    def biased(xs: Sequence[Tensor], ys: Sequence[Tensor] | None, apart: Sequence[Tensor]) -> Tensor:
        return alignment_matrix([*xs, *apart], None if ys is None else [*ys, *apart], **options)

    def unbiased(x: Tensor, y: Tensor) -> Tensor:
        return alignment_matrix([x], [y], debiased=True, **options)[0, 0]

    return unless_biased(name, biased, unbiased, xs, ys, rows=len(xs[0]))


def alignment_matrix(
    xs: Sequence[Tensor],
    ys: Sequence[Tensor] | None = None,
    /,
    *,
    kernel: Kernel = "linear",
    bandwidth: float = 0.5,
    debiased: bool = False,
    center: bool = True,
) -> Tensor:
    """CKA of every pair of ``N`` matrices with the same rows, N×N, or of the ``N`` with ``M`` others, N×M.

    Undefined values are NaN, in a loss 0.
    """
    with full_precision(xs[0]):
        if kernel == "linear" and _shorter_by_features(xs, ys):
            alike, squares, live = _feature_products(xs, ys, center=center or debiased)
            matrix = _from_products(alike, squares, live=live, debiased=debiased)
            matrix = matrix if ys is None else matrix[: len(xs), len(xs) :]
        else:
            matrix = _by_grams(xs, ys, kernel, bandwidth, debiased=debiased, center=center)
    if ys is None:
        # A matrix product may round the two equal sums of a pair differently.
        matrix = (matrix + matrix.T) / 2
    matrix = matrix.clamp(-1 if debiased else 0, 1)
    if ys is not None:
        return matrix
    diagonal = matrix.diagonal()
    # Rounding must not make the similarity with itself differ from 1.
    return matrix.diagonal_scatter(torch.where(diagonal.isnan() | (diagonal == 0), diagonal, 1))


def biased_and_debiased(
    xs: Sequence[Tensor], ys: Sequence[Tensor], kernel: Kernel, bandwidth: float
) -> tuple[Tensor, Tensor]:
    """Biased and debiased CKA of each of ``N`` matrices with each of ``M`` others that have the same rows, N×M both.

    Products of features are computed once for both. Undefined values are NaN.
    """
    # Two Grams of each side, whose centring takes as long as half a product.
    if kernel != "linear" or not _shorter_by_features(xs, ys, times=3):
        options: dict[str, Any] = {"kernel": kernel, "bandwidth": bandwidth}
        return alignment_matrix(xs, ys, **options), alignment_matrix(xs, ys, debiased=True, **options)
    with full_precision(xs[0]):
        alike, squares, live = _feature_products(xs, ys, center=True)
        biased, debiased = (
            _from_products(alike, squares, live=live, debiased=option)[: len(xs), len(xs) :] for option in (False, True)
        )
    return biased.clamp(0, 1), debiased.clamp(-1, 1)


def _shorter_by_features(xs: Sequence[Tensor], ys: Sequence[Tensor] | None, times: int = 1) -> bool:
    """Return True if products of features take fewer multiplications than ``times`` as many Grams."""
    n = len(xs[0])
    own, others = ([x.shape[1] for x in side] for side in (xs, ys or []))
    # One product of features for each pair, or one Gram for each side and inner products.
    if ys is None:
        by_features, alignments = n * sum(own) ** 2 / 2, len(xs) ** 2
    else:
        squares = sum(p * min(n, p) for p in own + others)
        by_features, alignments = n * (sum(own) * sum(others) + squares), len(xs) * len(ys)
    return by_features < times * n**2 * (sum(own + others) + alignments / 2)


def _feature_products(
    xs: Sequence[Tensor], ys: Sequence[Tensor] | None, *, center: bool
) -> tuple[Tensor, Tensor, bool]:
    """Inner products of linear Grams without n×n matrices, since ``<X Xᵀ, Y Yᵀ> = |Xᵀ Y|²``.

    Returns:
        The products of the S = N or N + M sides, S×S, without those among the N or the M if there are M others; the
        squared norms of the rows, S×n; True if a gradient is needed.
    """
    n = len(xs[0])
    sides = [*xs, *(ys or [])]
    dtype, live = precision(*sides)

    def ready(x: Tensor) -> Tensor:
        """Convert a side to the precision to compute in, centre and scale it."""
        side = x.to(dtype) if live else exact(x.detach())
        side = centred(side) if center else side
        return side / magnitude(side)

    # Large sides are made ready again for each product, so that only two are in memory.
    at_once = sum(x.numel() for x in sides) <= BLOCK_ENTRIES
    known = [ready(x) for x in sides] if at_once else None
    alike, squares = xs[0].new_zeros(len(sides), len(sides), dtype=dtype), []
    for i in range(len(sides)):
        x = known[i] if known else ready(sides[i])
        squares.append(x.square().sum(dim=1))
        # |Xᵀ X| = |X Xᵀ|; compute the smaller matrix.
        alike[i, i] = (x @ x.mT if n < x.shape[1] else x.mT @ x).square().sum()
        for j in range(i if ys is None else len(xs) if i >= len(xs) else 0):
            y = known[j] if known else ready(sides[j])
            alike[i, j] = alike[j, i] = (x.mT @ y).square().sum()
    return alike, torch.stack(squares), live


def _from_products(alike: Tensor, squares: Tensor, *, live: bool, debiased: bool) -> Tensor:
    """CKA of every pair of S sides, S×S, from what `_feature_products` returns."""
    n = squares.shape[1]
    inner = alike
    if debiased:
        if n < 4:
            raise InputError(f"debiased CKA needs at least 4 examples, got {n}")
        totals = squares.sum(dim=1)
        inner = alike - n / (n - 2) * squares @ squares.T + totals[:, None] * totals / ((n - 1) * (n - 2))
    # A small difference of large numbers is rounding only.
    own, whole = inner.diagonal(), alike.diagonal()
    undefined = own <= 16 * n * torch.finfo(own.dtype).eps * whole
    norms = torch.where(undefined, 1, own).sqrt()
    return torch.where(undefined[:, None] | undefined, undefined_value(live), inner / (norms[:, None] * norms))


def _by_grams(
    xs: Sequence[Tensor],
    ys: Sequence[Tensor] | None,
    kernel: Kernel,
    bandwidth: float,
    *,
    debiased: bool,
    center: bool,
) -> Tensor:
    """CKA as inner products of unit Grams: one product of two matrices with one Gram in each row.

    To bound the memory, unit Grams are held in blocks, and the others pass by in small chunks. With several blocks, the
    others are computed again for each block.
    """
    n = len(xs[0])
    others = xs if ys is None else ys
    dtype, live = precision(*xs, *others)
    rows, columns = torch.triu_indices(n, n, dtype=torch.int32, device=xs[0].device)
    # Each entry above the diagonal also counts for the one below it.
    weight = (1 + (rows != columns)).to(dtype).sqrt()
    position = rows * n + columns if n < 2**15 else rows.long() * n + columns
    del rows, columns

    def triangles(of: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the upper triangles of the unit Grams, one in each row, weighted to keep the inner products."""
        for chunk in _chunks(of, dtype, live):
            grams = unit(gram_of(chunk, kernel, bandwidth, debiased=debiased, center=center), undefined_value(live))
            yield grams.flatten(-2).index_select(-1, position).mul(weight)

    size = max(1, BLOCK_ENTRIES // len(position))
    matrix = xs[0].new_empty(len(xs), len(others), dtype=dtype)
    for i in range(0, len(xs), size):
        block = xs[0].new_empty(len(xs[i : i + size]), len(position), dtype=dtype)
        done = 0
        for triangle in triangles(xs[i : i + size]):
            block[done : done + len(triangle)] = triangle
            done += len(triangle)
        if ys is not None:
            matrix[i : i + size] = torch.cat([block @ other.T for other in triangles(ys)], dim=1)
            continue
        # The matrix of all pairs is symmetric: its upper blocks are enough.
        after = torch.cat([block @ block.T, *(block @ other.T for other in triangles(xs[i + size :]))], dim=1)
        matrix[i : i + size, i:] = after
        matrix[i:, i : i + size] = after.T
    return matrix


def _chunks(xs: Sequence[Tensor], dtype: torch.dtype, live: bool) -> Iterator[Tensor]:
    """Stack and convert neighbouring matrices of equal shape and precision, up to a limited size."""
    start = 0
    while start < len(xs):
        first = xs[start]
        stop = start + 1
        longest = start + max(1, CHUNK_ENTRIES // first.numel())
        while stop < min(longest, len(xs)) and xs[stop].shape == first.shape and xs[stop].dtype == first.dtype:
            stop += 1
        stack = torch.stack([*xs[start:stop]])
        yield stack.to(dtype) if live else exact(stack)
        start = stop
