"""Rules that all measures follow for their two sides and for their result.

- A side is one of the two representations that are compared: a NumPy array, a torch tensor on any device, or anything
  that NumPy turns into an array, such as a list or a data frame. The result is a Python float, or a tensor on the
  same device if a side is a tensor.
- Ambiguous input is refused with a message of one line: masked, complex, sparse or missing numbers, text, no examples.
- Computations are in float64. If a side needs a gradient, they are in its own precision, or in float32 if that is
  half precision, regardless of autocast. The original precision of a side decides which differences are rounding.
- A convolutional map n×c×h×w becomes n×(c·h·w), unless the measure says otherwise; a vector becomes n×1.
- An undefined value (0/0) is NaN, with one warning that names the side. In a loss, that is where a gradient is needed,
  it is 0 without a gradient and without a warning.
- A measure without a gradient refuses a side that needs one.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.similarity.options import check_option, check_options

__all__ = ["Array", "Comparison", "Flattening", "UndefinedSimilarityWarning", "flatten", "measure"]

Array = Tensor | NDArray[Any]
Flattening = Literal["full", "spatial", "gap"]
P = ParamSpec("P")


class UndefinedSimilarityWarning(RuntimeWarning):
    """A similarity, or a part of it, that is 0/0, for instance because a side is constant."""


class Comparison(Protocol[P]):
    """Function of two representations; returns a 0-dimensional tensor if one is a tensor, a float for two arrays."""

    @overload
    def __call__(self, x: Tensor, y: Array, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, x: NDArray[Any], y: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, x: NDArray[Any], y: NDArray[Any], *args: P.args, **kwargs: P.kwargs) -> float: ...


def measure(
    *, paired: bool = True, same_width: bool = False, gradient: bool = True, as_they_came: bool = False
) -> Callable[[Callable[Concatenate[Tensor, Tensor, P], Tensor]], Comparison[P]]:
    """Turn a formula on two n×p tensors into a measure that follows the rules of this module.

    Args:
        paired: True if row r of both sides is the same example, so that both need equally many rows.
        same_width: True if column c of both sides is the same feature, so that both need equally many columns.
        gradient: True if the formula has a gradient; if not, a side that needs one is refused.
        as_they_came: True if the formula takes the sides in their original precision and shape.
    """

    def decorate(formula: Callable[Concatenate[Tensor, Tensor, P], Tensor]) -> Comparison[P]:
        name = formula.__name__

        @functools.wraps(formula)
        def measured(x: Any, y: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            check_options(formula, kwargs)
            sides = {side: tensor(f"{name}: {side}", given) for side, given in (("x", x), ("y", y))}
            if not gradient:
                refuse_gradient(name, sides)
            if not as_they_came:
                sides = {side: flatten(given) for side, given in sides.items()}
            if paired:
                same_rows(name, [*sides.values()])
            if same_width:
                same_features(name, *sides.values())
            live = precision(*sides.values())[1]
            if not live:
                refuse_non_finite(name, sides)
            pair = sides.values() if as_they_came else one_precision(*sides.values())[0]
            with full_precision(sides["x"]):
                value = formula(*pair, *args, **kwargs)
            if not live and value.isnan():
                warn_undefined(name, sides)
            return value if isinstance(x, Tensor) or isinstance(y, Tensor) else value.item()

        return measured

    return decorate


def tensor(what: str, given: Any) -> Tensor:
    """Convert real numbers with an axis of examples to a dense tensor, without a copy if possible.

    Floating-point numbers keep their precision; integers become float64.

    Args:
        what: Name of the numbers in error messages.
        given: A tensor, an array, or anything that NumPy turns into an array.

    Raises:
        InputError: If these are not real numbers in a dense array, or there is no example or no feature.
    """
    x = given if isinstance(given, Tensor) else _from_numpy(what, given)
    if x.layout != torch.strided or x.is_complex() or x.is_quantized or x.is_nested or x.is_meta:
        kind = f"a tensor of {x.dtype}, {x.layout}, on {x.device}".replace("torch.", "")
        raise InputError(f"{what} is {kind}; must be real numbers in a dense tensor")
    if x.ndim == 0 or x.numel() == 0:
        raise InputError(f"{what} needs at least one example and one feature, got shape {tuple(x.shape)}")
    return x if x.is_floating_point() else x.double()


def _from_numpy(what: str, given: Any) -> Tensor:
    if np.ma.is_masked(given):
        count = np.ma.getmaskarray(given).sum()
        raise InputError(f"{what} has {count} masked numbers; leave out their examples on both sides")
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{what} is not an array of numbers: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InputError(f"{what} is {type(given).__name__} of {array.dtype}; must be real numbers in a dense array")
    # torch has neither long doubles nor all integer types.
    usual = array.dtype.kind == "f" and array.dtype.itemsize <= 8
    # from_numpy refuses negative strides and foreign byte order, and warns about read-only memory: copy these.
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("=") if usual else np.float64, ("C", "W")))


def several(what: str, given: Any) -> list[Any]:
    """List several representations.

    Raises:
        InputError: If there is none, or a single matrix, whose rows would be taken for representations.
    """
    if isinstance(given, str) or not (isinstance(given, Sequence) or getattr(given, "ndim", 0) > 2):
        got = f"one of shape {tuple(given.shape)}" if hasattr(given, "shape") else f"a {type(given).__name__}"
        raise InputError(f"{what} must be a list of representations, or a stack N×n×p; got {got}")
    if len(given) == 0:
        raise InputError(f"{what} needs at least one representation")
    return [*given]


def precision(*sides: Tensor) -> tuple[torch.dtype, bool]:
    """Return the precision to compute in, and True if a side needs a gradient."""
    wanted = [x.dtype for x in sides if x.requires_grad and torch.is_grad_enabled()]
    own_is_single = bool(wanted) and torch.float64 not in wanted
    return torch.float32 if own_is_single else torch.float64, bool(wanted)


def one_precision(*sides: Tensor) -> tuple[list[Tensor], bool]:
    """Convert all sides, n×p, to the precision to compute in; also return True if a gradient is needed, else detach."""
    dtype, live = precision(*sides)
    return [x.to(dtype) if live else exact(x.detach()) for x in sides], live


def exact(x: Tensor) -> Tensor:
    """Convert ``x`` (…×n×p) to float64; rows of a matrix that differ only by its original rounding become equal."""
    double, same = x.double(), constant(x)
    return torch.where(same[..., None, None], double[..., :1, :], double) if same.any() else double


def constant(x: Tensor) -> Tensor:
    """Return True for each matrix in ``x`` (…×n×p) whose rows are equal up to rounding in the original precision."""
    # The first two rows nearly always decide.
    alike = like_the_first(x[..., :2, :]).flatten(-2).all(dim=-1)
    return like_the_first(x).flatten(-2).all(dim=-1) if alike.any() else alike


def like_the_first(x: Tensor) -> Tensor:
    """Mark the entries of ``x`` (…×n×p) that equal those of the first row up to rounding in the original precision."""
    return torch.isclose(x.double(), x[..., :1, :].double(), rtol=2 * rounding(x), atol=0)


def rounding(x: Tensor) -> float:
    """Distance from 1 to the next larger number in the precision of ``x``."""
    return torch.finfo(x.dtype).eps


def full_precision(x: Tensor) -> torch.autocast:
    """Return a context manager in which autocast does not change products on the device of ``x``."""
    return torch.autocast(x.device.type, enabled=False)


@overload
def flatten(x: Tensor, how: Flattening = "full") -> Tensor: ...
@overload
def flatten(x: NDArray[Any], how: Flattening = "full") -> NDArray[Any]: ...
def flatten(x: Array, how: Flattening = "full") -> Array:
    """Turn activations into a matrix, examples × features.

    Args:
        x: Activations, n, n×p, or n×c×h×w; a tensor or an array.
        how: Form of a map: ``full`` for n×(c·h·w); ``spatial`` for (n·h·w)×c, each position an example; ``gap`` for
            n×c, the mean over all positions. Without effect on one and two dimensions.

    Returns:
        A tensor if ``x`` is a tensor, otherwise an array.

    Raises:
        InputError: If there are no examples or no features. Also for three dimensions, except with ``full``: tokens
            have their features last, maps have them first.

    >>> flatten(np.zeros((5, 3, 4, 4))).shape, flatten(np.zeros((5, 3, 4, 4)), "gap").shape
    ((5, 48), (5, 3))
    """
    check_option("how", how, Flattening)
    activations = tensor("flatten: x", x)
    if activations.ndim == 3 and how != "full":
        raise InputError(
            f"a representation of shape {tuple(activations.shape)} is neither n×p nor a feature map n×c×h×w, so that "
            "its feature axis is not known; make it a matrix, such as x.mean(1) or x.reshape(-1, d) for n×tokens×d"
        )
    if activations.ndim == 2:
        rows = activations
    elif activations.ndim == 1 or how == "full":
        rows = activations.reshape(len(activations), -1)
    else:
        rows = activations.movedim(1, -1).flatten(0, -2) if how == "spatial" else activations.flatten(2).mean(dim=2)
    return rows if isinstance(x, Tensor) else rows.numpy()


def refuse_gradient(name: str, sides: Mapping[str, Tensor]) -> None:
    """Raise an InputError if a side needs a gradient from a measure that has none."""
    for side, x in sides.items():
        if x.requires_grad and torch.is_grad_enabled():
            raise InputError(f"{name} has no gradient, but {side} requires one: detach() it, or use torch.no_grad()")


def refuse_non_finite(name: str, sides: Mapping[str, Tensor]) -> None:
    """Raise an InputError that names the first position where a side is NaN or infinite."""
    for side, x in sides.items():
        if not x.isfinite().all():
            places = (~x.isfinite()).nonzero()
            raise InputError(
                f"{name}: {side} is not finite in {len(places)} places, first at {tuple(places[0].tolist())}"
            )


def warn_undefined(name: str, sides: Mapping[str, Tensor]) -> None:
    """Warn once that a similarity is undefined, naming the sides, n×… each, that cause it and the reason."""
    reasons = ", ".join(f"{side} {_why_undefined(x)}" for side, x in sides.items() if _why_undefined(x))
    what = reasons or f"0/0 for {' or '.join(sides)}, though not constant"
    warn(f"{name} is not defined, NaN: {what}", UndefinedSimilarityWarning)


def _why_undefined(x: Tensor) -> str:
    if not x.isfinite().all():
        return "is not finite"
    return "is constant" if constant(flatten(x)) else ""


def warn(text: str, category: type[Warning]) -> None:
    """Issue a warning at the line of the user's code that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals["__name__"].startswith(__package__ or ""):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def centred(x: Tensor) -> Tensor:
    """Subtract the column means from ``x`` (…×n×p); constant columns become exactly 0."""
    # Subtract the first row before: the mean of equal numbers is rounded, their difference is not.
    x = x - x[..., :1, :]
    return x - x.mean(dim=-2, keepdim=True)


def magnitude(x: Tensor) -> Tensor:
    """Largest absolute entry of each matrix in ``x`` (…×n×p), …×1×1, or 1 if all are 0; a constant for autograd."""
    x = x.detach()
    largest = torch.maximum(x.amax(dim=(-2, -1), keepdim=True), -x.amin(dim=(-2, -1), keepdim=True))
    return torch.where(largest == 0, 1, largest)


def undefined_value(live: bool) -> float:
    """Value that replaces 0/0: NaN, or 0 in a loss."""
    return 0.0 if live else torch.nan


def unit(x: Tensor, undefined: float) -> Tensor:
    """Divide each matrix in ``x`` (…×n×p) by its Frobenius norm; fill one that is all 0 with ``undefined``."""
    norm = torch.linalg.matrix_norm(x, keepdim=True)
    zero = norm == 0
    return torch.where(zero, undefined, x / torch.where(zero, 1, norm))


def same_rows(name: str, sides: Sequence[Tensor]) -> int:
    """Return the common number of rows of all sides; raise an InputError if they differ."""
    counts = [len(x) for x in sides]
    if len(set(counts)) > 1:
        raise InputError(f"{name} needs the same examples on both sides, but the numbers of rows differ: {counts}")
    return counts[0]


def same_features(name: str, x: Tensor, y: Tensor) -> None:
    """Raise an InputError if the sides have different numbers of columns."""
    if x.shape[1] != y.shape[1]:
        raise InputError(f"{name} needs the same features on both sides: x has {x.shape[1]}, y has {y.shape[1]}")
