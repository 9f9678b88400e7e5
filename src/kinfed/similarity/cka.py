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

__all__ = ["cka", "cka_gap"]

# Limits on the entries of activations processed at once (they should fit the cache) and of Grams held at once.
CHUNK_ENTRIES = 2**18
BLOCK_ENTRIES = 2**25


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
    n = len(xs[0])
    own, others = ([x.shape[1] for x in side] for side in (xs, ys or []))
    # Count the multiplications: one product of features for each pair, or one Gram for each side and inner products.
    if ys is None:
        by_features, alignments = n * sum(own) ** 2 / 2, len(xs) ** 2
    else:
        squares = sum(p * min(n, p) for p in own + others)
        by_features, alignments = n * (sum(own) * sum(others) + squares), len(xs) * len(ys)
    by_grams = n**2 * (sum(own + others) + alignments / 2)
    with full_precision(xs[0]):
        if kernel == "linear" and by_features < by_grams:
            matrix = _by_features(xs, ys, debiased=debiased, center=center)
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


def _by_features(xs: Sequence[Tensor], ys: Sequence[Tensor] | None, *, debiased: bool, center: bool) -> Tensor:
    """Linear CKA without n×n Grams, since ``<X Xᵀ, Y Yᵀ> = |Xᵀ Y|²``."""
    n = len(xs[0])
    sides = [*xs, *(ys or [])]
    sides, live = one_precision(*sides)
    if center or debiased:
        sides = [centred(x) for x in sides]
    sides = [x / magnitude(x) for x in sides]
    alike = sides[0].new_zeros(len(sides), len(sides))
    for i, x in enumerate(sides):
        for j, y in enumerate(sides[: i + 1]):
            # With other sides given, pairs among the N or among the M are not needed.
            if ys is None or i == j or j < len(xs) <= i:
                # |Xᵀ X| = |X Xᵀ|; compute the smaller matrix.
                product = x @ x.mT if i == j and n < x.shape[1] else x.mT @ y
                alike[i, j] = alike[j, i] = product.square().sum()
    inner = alike
    if debiased:
        if n < 4:
            raise InputError(f"debiased CKA needs at least 4 examples, got {n}")
        squares = torch.stack([x.square().sum(dim=1) for x in sides])
        totals = squares.sum(dim=1)
        inner = alike - n / (n - 2) * squares @ squares.T + totals[:, None] * totals / ((n - 1) * (n - 2))
    # A small difference of large numbers is rounding only.
    own, whole = inner.diagonal(), alike.diagonal()
    undefined = own <= 16 * n * torch.finfo(own.dtype).eps * whole
    norms = torch.where(undefined, 1, own).sqrt()
    matrix = torch.where(undefined[:, None] | undefined, undefined_value(live), inner / (norms[:, None] * norms))
    return matrix if ys is None else matrix[: len(xs), len(xs) :]


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

    Representations are processed in blocks to bound the memory. With several blocks, the Grams of a block are computed
    again for each other block.
    """
    n = len(xs[0])
    others = xs if ys is None else ys
    dtype, live = precision(*xs, *others)
    upper = torch.triu_indices(n, n, device=xs[0].device)
    position = upper[0] * n + upper[1]
    # Each entry above the diagonal also counts for the one below it.
    weight = (1 + (upper[0] != upper[1])).to(dtype).sqrt()

    def rows(block: Sequence[Tensor]) -> Tensor:
        """Upper triangles of the unit Grams, one in each row, weighted to keep the inner products."""
        return torch.cat(
            [
                unit(gram_of(chunk, kernel, bandwidth, debiased=debiased, center=center), undefined_value(live))
                .flatten(-2)
                .index_select(-1, position)
                .mul(weight)
                for chunk in _chunks(block, dtype, live)
            ]
        )

    size = max(1, BLOCK_ENTRIES // len(position))
    matrix = xs[0].new_empty(len(xs), len(others), dtype=dtype)
    for i in range(0, len(xs), size):
        block = rows(xs[i : i + size])
        # The matrix of all pairs is symmetric: its lower blocks are enough.
        for j in range(0, i + 1 if ys is None else len(others), size):
            other = block if ys is None and i == j else rows(others[j : j + size])
            product = block @ other.T
            matrix[i : i + size, j : j + size] = product
            if ys is None:
                matrix[j : j + size, i : i + size] = product.T
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
