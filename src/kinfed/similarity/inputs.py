"""What every measure does with its two sides before its formula, and with the number after it.

- NumPy arrays and torch tensors, on any device, and what NumPy makes an array of, such as a list or a data frame. The
  answer comes back as a Python float, or as a tensor on that device where a side is a tensor.
- What would have to be guessed is refused in one line: masked, complex, sparse or missing numbers, text, no examples.
- Everything is computed in float64. The exception is a side that a gradient is wanted for: then in its own
  precision, half precision in float32, whatever autocast says. That is the one rule about precision. What is rounding,
  and not signal, is judged by the precision that a side came in.
- A convolutional map n×c×h×w becomes n×(c·h·w), unless the measure says otherwise; a vector becomes n×1.
- A number that is not defined (0/0) is NaN, with one warning that names the side. As a term of a loss, that is where a
  gradient is wanted, a measure whose term vanishes gives 0 and no gradient, and does not warn.
- A measure that has no gradient refuses a side that wants one, rather than lose it without a word.
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
    """A similarity, or a part of it, is 0/0, for instance because a side is constant."""


class Comparison(Protocol[P]):
    """A function of two representations: a tensor among them, a 0-dimensional tensor out; arrays in, a float out."""

    @overload
    def __call__(self, x: Tensor, y: Array, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, x: NDArray[Any], y: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, x: NDArray[Any], y: NDArray[Any], *args: P.args, **kwargs: P.kwargs) -> float: ...


def measure(
    *, paired: bool = True, same_width: bool = False, gradient: bool = True, as_they_came: bool = False
) -> Callable[[Callable[Concatenate[Tensor, Tensor, P], Tensor]], Comparison[P]]:
    """Turn a formula on two n×p tensors into a measure, by the rules at the top of this file.

    Args:
        paired: Row r of both sides is the same example, so both need the same number of rows.
        same_width: Feature c of both sides is the same feature, so both need the same number of them.
        gradient: There is a gradient; without one a side that wants one is refused.
        as_they_came: The sides are handed on in the precision and, if they are maps, in the shape that they came in.
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
    """Real numbers with an axis of examples as a dense tensor, in the memory that they have where that is possible.

    Floating-point numbers stay in their precision; whole ones become float64.

    Args:
        what: What they are called where they are refused.
        given: A tensor, an array, or what NumPy makes an array of.

    Raises:
        InputError: If they are not such numbers; in one line.
    """
    x = given if isinstance(given, Tensor) else _from_numpy(what, given)
    if x.layout != torch.strided or x.is_complex() or x.is_quantized or x.is_nested or x.is_meta:
        kind = f"a tensor of {x.dtype}, {x.layout}, on {x.device}".replace("torch.", "")
        raise InputError(f"{what} is {kind}; it takes real numbers in a dense tensor")
    if x.ndim == 0 or x.numel() == 0:
        raise InputError(f"{what} needs at least one example and one feature, got shape {tuple(x.shape)}")
    return x if x.is_floating_point() else x.double()


def _from_numpy(what: str, given: Any) -> Tensor:
    if np.ma.is_masked(given):
        count = np.ma.getmaskarray(given).sum()
        raise InputError(f"{what} has {count} masked numbers; leave their examples out of both sides")
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{what} is no array of numbers: {error}") from error
    if array.dtype.kind not in "fiub":
        raise InputError(f"{what} is {type(given).__name__} of {array.dtype}; it takes real numbers in a dense array")
    # torch has neither long doubles nor every kind of whole numbers
    usual = array.dtype.kind == "f" and array.dtype.itemsize <= 8
    # from_numpy refuses negative strides and foreign byte order, and warns of read-only memory: those get a copy.
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("=") if usual else np.float64, ("C", "W")))


def several(what: str, given: Any) -> list[Any]:
    """Several representations, one by one.

    Raises:
        InputError: If there is none, or but one, whose rows would be taken for representations.
    """
    if isinstance(given, str) or not (isinstance(given, Sequence) or getattr(given, "ndim", 0) > 2):
        got = f"one of shape {tuple(given.shape)}" if hasattr(given, "shape") else f"a {type(given).__name__}"
        raise InputError(f"{what} takes a list of representations, or a stack N×n×p; got {got}")
    if len(given) == 0:
        raise InputError(f"{what} needs at least one representation")
    return [*given]


def precision(*sides: Tensor) -> tuple[torch.dtype, bool]:
    """What to compute in, and whether a gradient is wanted."""
    wanted = [x.dtype for x in sides if x.requires_grad and torch.is_grad_enabled()]
    own_is_single = bool(wanted) and torch.float64 not in wanted
    return torch.float32 if own_is_single else torch.float64, bool(wanted)


def one_precision(*sides: Tensor) -> tuple[list[Tensor], bool]:
    """All sides, n×p, in the precision to compute in, and whether a gradient is wanted (else they are cut off)."""
    dtype, live = precision(*sides)
    return [x.to(dtype) if live else exact(x.detach()) for x in sides], live


def exact(x: Tensor) -> Tensor:
    """``x`` (…×n×p) in float64; a matrix whose rows differ by no more than its own precision has equal ones."""
    double, same = x.double(), constant(x)
    return torch.where(same[..., None, None], double[..., :1, :], double) if same.any() else double


def constant(x: Tensor) -> Tensor:
    """Whether the rows of each matrix in ``x`` (…×n×p) are equal, but for the rounding of the precision it came in."""
    # Nearly always the first two rows tell.
    alike = like_the_first(x[..., :2, :]).flatten(-2).all(dim=-1)
    return like_the_first(x).flatten(-2).all(dim=-1) if alike.any() else alike


def like_the_first(x: Tensor) -> Tensor:
    """Which entries of ``x`` (…×n×p) are that of the first row, but for the rounding of the precision it came in."""
    return torch.isclose(x.double(), x[..., :1, :].double(), rtol=2 * rounding(x), atol=0)


def rounding(x: Tensor) -> float:
    """The distance from 1 to the next number in the precision that ``x`` came in."""
    return torch.finfo(x.dtype).eps


def full_precision(x: Tensor) -> torch.autocast:
    """A block in which autocast leaves products on the device of ``x`` alone."""
    return torch.autocast(x.device.type, enabled=False)


@overload
def flatten(x: Tensor, how: Flattening = "full") -> Tensor: ...
@overload
def flatten(x: NDArray[Any], how: Flattening = "full") -> NDArray[Any]: ...
def flatten(x: Array, how: Flattening = "full") -> Array:
    """Make a matrix, examples × features, of activations.

    Args:
        x: Activations, n, n×p, or n×c×h×w; a tensor or an array.
        how: Of a map, ``full`` makes n×(c·h·w); ``spatial`` makes (n·h·w)×c, every place an example; ``gap`` makes n×c,
            the mean over all places. Without effect on one and two dimensions.

    Returns:
        Of the kind that ``x`` is.

    Raises:
        InputError: If there are no examples or no features, or, but for ``full``, three dimensions: tokens have their
            features last, and maps have them first.
    """
    check_option("how", how, Flattening)
    activations = tensor("flatten: x", x)
    if activations.ndim == 3 and how != "full":
        raise InputError(
            f"a side of shape {tuple(activations.shape)} is neither n×p nor a map n×c×h×w, and which of its axes are "
            "features is not known; make it a matrix, as x.mean(1) or x.reshape(-1, d) of n×tokens×d"
        )
    if activations.ndim == 2:
        rows = activations
    elif activations.ndim == 1 or how == "full":
        rows = activations.reshape(len(activations), -1)
    else:
        rows = activations.movedim(1, -1).flatten(0, -2) if how == "spatial" else activations.flatten(2).mean(dim=2)
    return rows if isinstance(x, Tensor) else rows.numpy()


def refuse_gradient(name: str, sides: Mapping[str, Tensor]) -> None:
    """Raise an InputError if a side wants a gradient from a measure that has none."""
    for side, x in sides.items():
        if x.requires_grad and torch.is_grad_enabled():
            raise InputError(
                f"{name} has no gradient, and {side} wants one: detach() it, or measure under torch.no_grad()"
            )


def refuse_non_finite(name: str, sides: Mapping[str, Tensor]) -> None:
    """Raise an InputError that names the first place where a side is NaN or infinite."""
    for side, x in sides.items():
        if not x.isfinite().all():
            places = (~x.isfinite()).nonzero()
            raise InputError(
                f"{name}: {side} is not finite in {len(places)} places, first at {tuple(places[0].tolist())}"
            )


def warn_undefined(name: str, sides: Mapping[str, Tensor]) -> None:
    """One warning that says of which sides, n×… each, a similarity is not defined, and why."""
    reasons = ", ".join(f"{side} {_why_undefined(x)}" for side, x in sides.items() if _why_undefined(x))
    what = reasons or f"0/0 for {' or '.join(sides)}, though not constant"
    warn(f"{name} is not defined, NaN: {what}", UndefinedSimilarityWarning)


def _why_undefined(x: Tensor) -> str:
    if not x.isfinite().all():
        return "is not finite"
    return "is constant" if constant(flatten(x)) else ""


def warn(text: str, category: type[Warning]) -> None:
    """Warn where the user's code called into this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals["__name__"].startswith(__package__ or ""):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def centred(x: Tensor) -> Tensor:
    """``x`` (…×n×p) minus its column means; exactly 0 where a column is constant."""
    # The first row goes first: a mean of equal numbers is rounded, a difference of equal numbers is not.
    x = x - x[..., :1, :]
    return x - x.mean(dim=-2, keepdim=True)


def magnitude(x: Tensor) -> Tensor:
    """Largest absolute entry of each matrix in ``x`` (…×n×p), …×1×1, 1 if all are 0; a constant to autograd."""
    x = x.detach()
    largest = torch.maximum(x.amax(dim=(-2, -1), keepdim=True), -x.amin(dim=(-2, -1), keepdim=True))
    return torch.where(largest == 0, 1, largest)


def undefined_value(live: bool) -> float:
    """What stands for 0/0: NaN, in a loss 0."""
    return 0.0 if live else torch.nan


def unit(x: Tensor, undefined: float) -> Tensor:
    """Each matrix in ``x`` (…×n×p) over its Frobenius norm; one that is all 0 is filled with ``undefined``."""
    norm = torch.linalg.matrix_norm(x, keepdim=True)
    zero = norm == 0
    return torch.where(zero, undefined, x / torch.where(zero, 1, norm))


def same_rows(name: str, sides: Sequence[Tensor]) -> int:
    """The number of rows that all sides have; an InputError if they differ."""
    counts = [len(x) for x in sides]
    if len(set(counts)) > 1:
        raise InputError(f"{name} compares the same examples, but the numbers of rows differ: {counts}")
    return counts[0]


def same_features(name: str, x: Tensor, y: Tensor) -> None:
    """An InputError if the sides have different numbers of columns."""
    if x.shape[1] != y.shape[1]:
        raise InputError(f"{name} compares the same features: x has {x.shape[1]}, y has {y.shape[1]}")
