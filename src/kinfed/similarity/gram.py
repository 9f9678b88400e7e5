"""Gram matrices of representations: centred, of norm 1, and cheap to differentiate.

Letters: ``n`` examples, ``p`` features; a leading ``…`` is any number of batch dimensions.
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

# Has no public name for tensors in the usual layout; `torch.compile` calls it so.
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@dataclass(frozen=True)
class Gram:
    """A side of a CKA computed once: its centred Gram matrix, divided by its Frobenius norm.

    Attributes:
        unit: n×n, norm 1; all 0 if the side is constant.
        debiased: Whether it is centred for the debiased CKA.
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
        """From activations, n×p or n×c×h×w; for the other arguments see `cka`."""
        gram = gram_of_features(x, kernel, bandwidth, debiased=debiased, center=center)
        return cls(unit(gram, 0.0), debiased)

    @classmethod
    @checked
    def of_matrix(cls, matrix: Array, *, debiased: bool = False) -> Gram:
        """From a Gram matrix, n×n, centred or not: a mean of several, or a batch's rows and columns of a large one."""
        given = tensor("a Gram matrix", matrix)
        if given.ndim != 2 or given.shape[0] != given.shape[1]:
            raise InputError(f"a Gram matrix is square, got shape {tuple(given.shape)}")
        (gram,), _ = one_precision(given)
        return cls(unit(centred_gram(gram / magnitude(gram), debiased), 0.0), debiased)


class _LinearGram(torch.autograd.Function):
    """``X Xᵀ`` of centred ``X``, for functions of it that no scaling changes.

    Centring and the two products of the derivative cost one product here: the derivative is symmetric, and it is
    centred where it is small (n×n).
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
    """``<K, U> / |K|`` of a centred Gram ``K`` and a unit Gram ``U``; 0 if K is 0.

    One step instead of many small ones, which a loss would pay for at every batch.
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
    """``<K, D> / |K|`` of the centred linear Gram K of X and a centred D, a difference of unit Grams; 0 if K is 0.

    `_LinearGram` and `Alignment` in one. X is not centred but K, which is small (n×n), and the derivative in K is
    centred as it is.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gap: Tensor) -> Tensor:
        ctx.scale = 1.0
        gram, kept = _recentred(times_own_transpose(x))
        if not kept:  # rows that are nearly equal, very large or very small: their products have too few digits
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
    """``X Xᵀ``, n×n, of X minus its column means, and whether single precision holds it well."""
    means = product.mean(dim=0)
    gram = product - means - (means - means.mean())[:, None]
    before, after = torch.linalg.vector_norm(product).item(), torch.linalg.vector_norm(gram).item()
    return gram, 1e-12 < before < 1e12 and after > 0.01 * before


def _keeps_its_digits(gram: Tensor) -> bool:
    """Whether a Gram's entries are of a size whose squares and fourth roots single precision can hold."""
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return bool(((trace > 1e-12) & (trace < 1e12)).all())


def times_own_transpose(x: Tensor) -> Tensor:
    """``X Xᵀ`` by strips of rows, which leave out most of the lower triangle and copy it: down to 5/8 of the work."""
    n = x.shape[-2]
    gram = x.new_empty(*x.shape[:-1], n)
    height = max(64 if _by_onednn(x) else 32, -(-n // 4))
    for top in range(0, n, height):
        bottom = top + height
        gram[..., top:bottom, top:] = _product(x[..., top:bottom, :], x[..., top:, :].mT)
        gram[..., bottom:, top:bottom] = gram[..., top:bottom, bottom:].mT
    return gram


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``A B``. In float32 on the CPU by oneDNN, which uses all of an AMD processor, and MKL (``@``) half of it."""
    if not (_by_onednn(a) and b.ndim == 2):
        return a @ b
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.mT, None, "none", [], "")
    return product


def _by_onednn(x: Tensor) -> bool:
    """Whether it is of use here; rows that are not next to each other take it a thousand times as long."""
    return ONEDNN and x.ndim == 2 and x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def unit_gram(gram: Tensor, kernel: Kernel, bandwidth: float, *, debiased: bool) -> Tensor:
    """Linear Grams (…×n×n, centred somewhere, up to a factor) as what `Gram.unit` is, in their own precision."""
    if kernel == "rbf":
        gram = rbf(gram, bandwidth)
    return unit(centred_gram(gram, debiased), 0.0)


def gram_of_features(x: Array, kernel: Kernel, bandwidth: float, *, debiased: bool, center: bool) -> Tensor:
    """`gram_of` activations as a user has them."""
    (rows,), _ = one_precision(flatten(tensor("activations", x)))
    with full_precision(rows):
        return gram_of(rows, kernel, bandwidth, debiased=debiased, center=center)


def gram_of(
    x: Tensor, kernel: Kernel = "linear", bandwidth: float = 0.5, *, debiased: bool = False, center: bool = True
) -> Tensor:
    """Centred Gram of ``x`` (…×n×p), …×n×n, up to a factor; all 0 where it is not defined."""
    if kernel == "linear":
        gram = _linear(x, center or debiased)
        # Centred features have a centred Gram already.
        return centred_gram(gram, debiased=True) if debiased else gram
    if not center:
        raise InputError("center=False is for the linear kernel")
    return centred_gram(rbf(_linear(x), bandwidth), debiased)


def _linear(x: Tensor, center: bool = True) -> Tensor:
    gram: Tensor = _LinearGram.apply(x, center)
    return gram


def rbf(gram: Tensor, bandwidth: float) -> Tensor:
    """``exp(-d² / (2 f² median(d²))) - 1`` from a linear Gram (…×n×n), with f the ``bandwidth``.

    Centring removes any constant, and without the 1 a wide kernel keeps its digits.
    """
    distances = square_distances(gram)
    median = median_of_entries(distances.detach())
    largest = gram.detach().diagonal(dim1=-2, dim2=-1).amax(dim=-1)[..., None, None]
    # Where more than half of the distances are 0, or what rounding leaves of 0, no bandwidth is defined: all 0.
    none = median <= 16 * torch.finfo(gram.dtype).eps * largest
    exponent = distances / (2 * bandwidth**2 * torch.where(none, torch.inf, median))
    return torch.expm1(-exponent)


def square_distances(gram: Tensor) -> Tensor:
    """Squared Euclidean distances between the rows behind a linear Gram, …×n×n."""
    squares = gram.diagonal(dim1=-2, dim2=-1)
    return (squares[..., :, None] + squares[..., None, :] - 2 * gram).clamp_min(0)


def median_of_entries(matrices: Tensor) -> Tensor:
    """Median of all entries of each matrix (…×n×n), …×1×1; the mean of the middle two if their number is even."""
    count = matrices.shape[-2] * matrices.shape[-1]
    if count == 1:
        return matrices
    # The middle two, or the middle one and its successor. torch.median would take the lower one, torch.quantile sorts.
    lower_half = matrices.flatten(-2).topk(count // 2 + 1, largest=False, sorted=False).values
    upper, lower = lower_half.topk(2).values.unbind(dim=-1)
    middle: Tensor = (upper + lower) / 2 if count % 2 == 0 else upper
    return middle[..., None, None]


def median_square_distance(x: Array) -> float:
    """Median of all n² squared distances between rows of ``x``, the zeros of the diagonal included (METHODS.md A.2)."""
    with torch.no_grad():
        (rows,), _ = one_precision(flatten(tensor("activations", x)))
    rows = centred(rows)
    return float(median_of_entries(square_distances(rows @ rows.T)))


def centred_gram(gram: Tensor, debiased: bool) -> Tensor:
    """A Gram (…×n×n) without what its rows and columns have in common; exactly 0 if nothing else is left.

    Debiased is the U-centring of Székely and Rizzo 2014: the diagonal is left out, and the inner product of two such
    matrices over n(n-3) is the unbiased estimate HSIC₁ of Song et al. 2012.

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
    # What is left of a Gram that is all row and column effects (equidistant rows, say) is rounding, not signal.
    rounding = 16 * n * torch.finfo(gram.dtype).eps
    norm, norm_before = (torch.linalg.matrix_norm(k.detach(), keepdim=True) for k in (result, gram))
    return torch.where(norm <= rounding * norm_before, 0, result)
