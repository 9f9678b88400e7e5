"""Gram matrices of representations: centred, of norm 1, and cheap to differentiate.

Letters: ``n`` examples, ``p`` features. HSIC is the Hilbert-Schmidt independence criterion. A leading ``…``
stands for any number of batch dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfed.errors import InputError
from kinfed.similarity.inputs import Array, centred, flatten, full_precision, magnitude, one_precision, tensor, unit
from kinfed.similarity.options import Positive, checked

__all__ = ["Gram", "Kernel", "median_square_distance"]

Kernel = Literal["linear", "rbf"]

# oneDNN's product has no public name for tensors in the usual layout; `torch.compile` uses this one.
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@dataclass(frozen=True)
class Gram:
    """Centred Gram matrix of one side of a CKA, divided by its Frobenius norm; computed once for many comparisons.

    Attributes:
        unit: The matrix, n×n, of norm 1; all 0 if the side is constant.
        debiased: True if it is centred for debiased CKA.

    >>> import numpy as np
    >>> frozen = Gram.of_features(np.eye(4))
    >>> round(frozen.unit.norm().item(), 3), frozen.debiased
    (1.0, False)
    """

    unit: Tensor
    debiased: bool = False

    @classmethod
    @checked
    def of_features(
        cls,
        x: Array,
        *,
        kernel: Kernel = "linear",
        bandwidth: Positive = 0.5,
        debiased: bool = False,
        center: bool = True,
    ) -> Gram:
        """Compute a Gram from activations, n×p or n×c×h×w; for the other arguments see `kinfed.similarity.cka`."""
        gram = gram_of_features(x, kernel, bandwidth, debiased=debiased, center=center)
        return cls(unit(gram, 0.0), debiased)

    @classmethod
    @checked
    def of_matrix(cls, matrix: Array, *, debiased: bool = False) -> Gram:
        """Make a Gram from a Gram matrix, n×n, centred or not, such as a mean of several or a part of a larger one."""
        given = tensor("a Gram matrix", matrix)
        if given.ndim != 2 or given.shape[0] != given.shape[1]:
            raise InputError(f"a Gram matrix must be square, got shape {tuple(given.shape)}")
        (gram,), _ = one_precision(given)
        return cls(unit(centred_gram(gram / magnitude(gram), debiased), 0.0), debiased)


class _LinearGram(torch.autograd.Function):
    """Gram ``X Xᵀ`` of centred ``X``, for functions that no scaling changes.

    The derivative takes one product instead of a centring and two products: it is symmetric, and it is centred while it
    is small (n×n).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, center: bool) -> Tensor:
        if center:
            x = x - x[..., :1, :]  # as in `inputs.centred`
            x -= x.mean(dim=-2, keepdim=True)
        scale = None
        gram = times_own_transpose(x)
        if not _keeps_its_digits(gram):
            scale = magnitude(x)
            x = x / scale
            gram = times_own_transpose(x)
        ctx.center, ctx.scale = center, scale
        ctx.save_for_backward(x)
        return gram

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        grad = grad + grad.mT
        if ctx.scale is not None:
            grad = grad / ctx.scale
        if ctx.center:
            grad = grad - grad.mean(dim=-2, keepdim=True)
        return _product(grad, x), None


class Alignment(torch.autograd.Function):
    """Alignment ``<K, U> / |K|`` of a centred Gram ``K`` with a unit Gram ``U``; 0 if K is 0.

    One autograd step replaces many small ones, which a loss would pay for in every batch.
    """

    @staticmethod
    def forward(ctx: Any, gram: Tensor, unit_gram: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(gram)
        inverse = torch.where(norm == 0, 0, 1 / norm)
        value = torch.dot(gram.flatten(), unit_gram.flatten()) * inverse
        ctx.save_for_backward(gram, unit_gram, value, inverse)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        gram, unit_gram, value, inverse = ctx.saved_tensors
        scaled = grad * inverse
        of_unit = gram * scaled if ctx.needs_input_grad[1] else None
        return (unit_gram - gram * (value * inverse)) * scaled, of_unit


class LinearGap(torch.autograd.Function):
    """Product ``<K, D> / |K|`` of the centred linear Gram K of X with a difference D of unit Grams; 0 if K is 0.

    It does the work of `_LinearGram` and `Alignment` in one step. It centres K, which is small (n×n), instead of X. The
    derivative with respect to K is centred already.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gap: Tensor) -> Tensor:
        ctx.scale = 1.0
        gram, kept = _recentred(times_own_transpose(x))
        if not kept:  # products of nearly equal, very large or very small rows have too few digits
            x = centred(x)
            ctx.scale = magnitude(x)
            x = x / ctx.scale
            gram, _ = _recentred(times_own_transpose(x))
        norm = torch.linalg.vector_norm(gram)
        inverse = torch.where(norm == 0, 0, 1 / norm)
        value = torch.dot(gram.flatten(), gap.flatten()) * inverse
        ctx.save_for_backward(x, gap, gram, value, inverse)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, gap, gram, value, inverse = ctx.saved_tensors
        of_gram = (gap - gram * (value * inverse)) * (2 * grad * inverse / ctx.scale)
        return _product(of_gram, x), None


def _recentred(product: Tensor) -> tuple[Tensor, bool]:
    """Centre ``X Xᵀ``, n×n, as if X had been centred; also return True if single precision is enough for it."""
    means = product.mean(dim=0)
    gram = product - means - (means - means.mean())[:, None]
    before, after = torch.linalg.vector_norm(product).item(), torch.linalg.vector_norm(gram).item()
    return gram, 1e-12 < before < 1e12 and after > 0.01 * before


def _keeps_its_digits(gram: Tensor) -> bool:
    """Return True if single precision can hold the squares and fourth roots of a Gram's entries."""
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return bool(((trace > 1e-12) & (trace < 1e12)).all())


def times_own_transpose(x: Tensor) -> Tensor:
    """Compute ``X Xᵀ`` in strips of rows and copy most of the lower triangle; this saves up to 3/8 of the work."""
    n = x.shape[-2]
    gram = x.new_empty(*x.shape[:-1], n)
    height = max(64 if _by_onednn(x) else 32, -(-n // 4))
    for top in range(0, n, height):
        bottom = top + height
        gram[..., top:bottom, top:] = _product(x[..., top:bottom, :], x[..., top:, :].mT)
        gram[..., bottom:, top:bottom] = gram[..., top:bottom, bottom:].mT
    return gram


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``A B``, in float32 on the CPU by oneDNN: MKL (``@``) reaches half of its speed on AMD processors."""
    if not (_by_onednn(a) and b.ndim == 2):
        return a @ b
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.mT, None, "none", [], "")
    return product


def _by_onednn(x: Tensor) -> bool:
    """Return True if oneDNN is faster for ``x``; it is a thousand times slower for rows that are not contiguous."""
    return ONEDNN and x.ndim == 2 and x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def unit_gram(gram: Tensor, kernel: Kernel, bandwidth: float, *, debiased: bool) -> Tensor:
    """Turn linear Grams (…×n×n, of rows minus any common row, up to a factor) into unit Grams, in their precision."""
    if kernel == "rbf":
        gram = rbf(gram, bandwidth)
    return unit(centred_gram(gram, debiased), 0.0)


def gram_of_features(x: Array, kernel: Kernel, bandwidth: float, *, debiased: bool, center: bool) -> Tensor:
    """Compute `gram_of` for activations as a user gives them: arrays or tensors, n×p or n×c×h×w."""
    (rows,), _ = one_precision(flatten(tensor("activations", x)))
    with full_precision(rows):
        return gram_of(rows, kernel, bandwidth, debiased=debiased, center=center)


def gram_of(
    x: Tensor, kernel: Kernel = "linear", bandwidth: float = 0.5, *, debiased: bool = False, center: bool = True
) -> Tensor:
    """Centred Gram of ``x`` (…×n×p), …×n×n, up to a factor; all 0 if undefined."""
    if kernel == "linear":
        gram = _linear(x, center or debiased)
        # The Gram of centred features is centred, unless it is to be debiased.
        return centred_gram(gram, debiased=True) if debiased else gram
    if not center:
        raise InputError("center=False needs the linear kernel")
    return centred_gram(rbf(_linear(x), bandwidth), debiased)


def _linear(x: Tensor, center: bool = True) -> Tensor:
    gram: Tensor = _LinearGram.apply(x, center)
    return gram


def rbf(gram: Tensor, bandwidth: float) -> Tensor:
    """RBF Gram minus 1 from a linear Gram (…×n×n): ``exp(-d² / (2 f² median(d²))) - 1``, with f the ``bandwidth``.

    Centring removes any constant, and subtracting 1 keeps the digits of a wide kernel.
    """
    distances = square_distances(gram)
    median = median_of_entries(distances.detach())
    largest = gram.detach().diagonal(dim1=-2, dim2=-1).amax(dim=-1)[..., None, None]
    # If more than half of the distances are 0, up to rounding, the bandwidth is undefined, and the Gram is 0.
    none = median <= 16 * torch.finfo(gram.dtype).eps * largest
    exponent = distances / (2 * bandwidth**2 * torch.where(none, torch.inf, median))
    return torch.expm1(-exponent)


def square_distances(gram: Tensor) -> Tensor:
    """Squared Euclidean distances between the rows of the features, …×n×n, from their linear Gram."""
    squares = gram.diagonal(dim1=-2, dim2=-1)
    return (squares[..., :, None] + squares[..., None, :] - 2 * gram).clamp_min(0)


def median_of_entries(matrices: Tensor) -> Tensor:
    """Median of all entries of each matrix (…×n×n), …×1×1; the mean of the middle two for an even number."""
    count = matrices.shape[-2] * matrices.shape[-1]
    if count == 1:
        return matrices
    # torch.median would take the lower of the middle two, and torch.quantile sorts everything.
    lower_half = matrices.flatten(-2).topk(count // 2 + 1, largest=False, sorted=False).values
    upper, lower = lower_half.topk(2).values.unbind(dim=-1)
    middle: Tensor = (upper + lower) / 2 if count % 2 == 0 else upper
    return middle[..., None, None]


def median_square_distance(x: Array) -> float:
    """Median of all n² squared distances between rows of ``x``, with the zeros of the diagonal (specification A.2).

    >>> import numpy as np
    >>> round(median_square_distance(np.array([[0.0], [1.0], [3.0]])), 3)
    1.0
    """
    with torch.no_grad():
        (rows,), _ = one_precision(flatten(tensor("activations", x)))
    rows = centred(rows)
    return float(median_of_entries(square_distances(rows @ rows.T)))


def centred_gram(gram: Tensor, debiased: bool) -> Tensor:
    """Subtract the row and column means of a Gram (…×n×n); exactly 0 if only rounding is left.

    With ``debiased``, this is the U-centring of Székely and Rizzo 2014, which leaves out the diagonal. The inner
    product of two such matrices, divided by n(n-3), is the unbiased estimate HSIC₁ of Song et al. 2012.

    Raises:
        InputError: If ``debiased`` and n < 4.
    """
    n = gram.shape[-1]
    if not debiased:
        result = gram - gram.mean(dim=-1, keepdim=True) - gram.mean(dim=-2, keepdim=True)
        result = result + gram.mean(dim=(-2, -1), keepdim=True)
    else:
        if n < 4:
            raise InputError(f"debiased CKA needs at least 4 examples, got {n}")
        diagonal = torch.eye(n, dtype=torch.bool, device=gram.device)
        hollow = gram.masked_fill(diagonal, 0)
        rows, columns = hollow.sum(dim=-1, keepdim=True), hollow.sum(dim=-2, keepdim=True)
        result = hollow - (rows + columns) / (n - 2) + rows.sum(dim=-2, keepdim=True) / ((n - 1) * (n - 2))
        result = result.masked_fill(diagonal, 0)
    # For a Gram of row and column effects only, such as that of equidistant rows, the rest is rounding.
    rounding = 16 * n * torch.finfo(gram.dtype).eps
    norm, norm_before = (torch.linalg.matrix_norm(k.detach(), keepdim=True) for k in (result, gram))
    return torch.where(norm <= rounding * norm_before, 0, result)
