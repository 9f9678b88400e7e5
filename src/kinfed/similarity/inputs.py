"""What every measure does with its two sides before its formula, and with the number after it.

- NumPy arrays and torch tensors, on any device; the answer comes back as a Python float or as a tensor on that device.
- Everything is computed in float64. The exception is a side that a gradient is wanted for: then in its own
  precision, half precision in float32, whatever autocast says. That is the one rule about precision.
- A convolutional map n×c×h×w becomes n×(c·h·w), unless the measure says otherwise; a vector becomes n×1.
- A number that is not defined (0/0) is NaN, with one warning that names the side. As a term of a loss, that is where a
  gradient is wanted, a measure whose term vanishes gives 0 and no gradient, and does not warn.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Array", "Flattening", "Measure", "UndefinedSimilarityWarning", "flatten", "measure"]

Array = Tensor | NDArray[Any]
Flattening = Literal["full", "spatial", "gap"]
P = ParamSpec("P")


class UndefinedSimilarityWarning(RuntimeWarning):
    """A similarity is 0/0, for instance because a side is constant; it is NaN."""


class Measure(Protocol[P]):
    """A function of two representations: tensors in, a 0-dimensional tensor out; arrays in, a float out."""

    @overload
    def __call__(self, x: Tensor, y: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, x: NDArray[Any], y: NDArray[Any], *args: P.args, **kwargs: P.kwargs) -> float: ...


def measure(
    *, paired: bool = True, same_width: bool = False, gradient: bool = True, maps: bool = False
) -> Callable[[Callable[Concatenate[Tensor, Tensor, P], Tensor]], Measure[P]]:
    """Turn a formula on two n×p tensors into a measure, by the rules at the top of this file.

    Args:
        paired: Row r of both sides is the same example, so both need the same number of rows.
        same_width: Feature c of both sides is the same feature, so both need the same number of them.
        gradient: There is a gradient; without one the formula always gets detached float64.
        maps: Convolutional maps are handed on as they are.
    """

    def decorate(formula: Callable[Concatenate[Tensor, Tensor, P], Tensor]) -> Measure[P]:
        name = formula.__name__

        @functools.wraps(formula)
        def measured(x: Any, y: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            as_tensor = isinstance(x, Tensor) or isinstance(y, Tensor)
            with contextlib.nullcontext() if gradient else torch.no_grad():
                (x, y), live = one_precision(x, y)
                if not maps:
                    x, y = flatten(x), flatten(y)
                if paired:
                    same_rows(name, [x, y])
                if same_width:
                    same_features(name, x, y)
                if not live:
                    refuse_non_finite(name, {"x": x, "y": y})
                with full_precision(x):
                    value = formula(x, y, *args, **kwargs)
            if not live and value.isnan():
                warn_undefined(name, {"x": x, "y": y})
            return value if as_tensor else value.item()

        return measured

    return decorate


def precision(*sides: Array) -> tuple[torch.dtype, bool]:
    """What to compute in, and whether a gradient is wanted."""
    wanted = [x.dtype for x in sides if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()]
    own_is_single = bool(wanted) and torch.float64 not in wanted
    return torch.float32 if own_is_single else torch.float64, bool(wanted)


def tensor(x: Array) -> Tensor:
    """``x`` as a tensor, in the memory that it has where that is possible."""
    if isinstance(x, Tensor):
        return x
    # from_numpy refuses negative strides and foreign byte order, and warns of read-only memory: those get a copy.
    return torch.from_numpy(np.require(x, np.asarray(x).dtype.newbyteorder("="), ("C", "W")))


def one_precision(*sides: Array) -> tuple[list[Tensor], bool]:
    """All sides as tensors in the precision to compute in, and whether a gradient is wanted (else they are cut off)."""
    dtype, live = precision(*sides)
    return [tensor(x).to(dtype) if live else tensor(x).detach().to(dtype) for x in sides], live


def full_precision(x: Tensor) -> torch.autocast:
    """A block in which autocast leaves products on the device of ``x`` alone."""
    return torch.autocast(x.device.type, enabled=False)


def flatten(x: Tensor, how: Flattening = "full") -> Tensor:
    """Make a matrix, examples × features, of activations.

    Args:
        x: Activations, n, n×p, or n×c×h×w.
        how: Of a map, ``full`` makes n×(c·h·w); ``spatial`` makes (n·h·w)×c, every place an example; ``gap`` makes n×c,
            the mean over all places. Without effect on fewer than three dimensions.

    Raises:
        ValueError: If there are no examples or no features.
    """
    if x.numel() == 0:
        raise ValueError(f"activations need at least one example and one feature, got shape {tuple(x.shape)}")
    if x.ndim > 2 and how == "spatial":
        return x.movedim(1, -1).flatten(0, -2)
    if x.ndim > 2 and how == "gap":
        return x.flatten(2).mean(dim=2)
    return x.reshape(x.shape[0] if x.ndim else 1, -1)


def refuse_non_finite(name: str, sides: Mapping[str, Tensor]) -> None:
    """Raise a ValueError that names the first place where a side is NaN or infinite."""
    for side, x in sides.items():
        if not x.isfinite().all():
            places = (~x.isfinite()).nonzero()
            raise ValueError(
                f"{name}: {side} is not finite in {len(places)} places, first at {tuple(places[0].tolist())}"
            )


def warn_undefined(name: str, sides: Mapping[str, Tensor]) -> None:
    """One warning, where the user called ``name``, that says of which sides it is not defined and why."""
    reasons = ", ".join(f"{side} {_why_undefined(x)}" for side, x in sides.items() if _why_undefined(x))
    what = reasons or f"0/0 for {' or '.join(sides)}, though not constant"
    warnings.warn(f"{name} is not defined, NaN: {what}", UndefinedSimilarityWarning, stacklevel=3)


def _why_undefined(x: Tensor) -> str:
    if not x.isfinite().all():
        return "is not finite"
    return "is constant" if (x == x[:1]).all() else ""


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
    """The number of rows that all sides have; a ValueError if they differ."""
    counts = [len(x) for x in sides]
    if len(set(counts)) > 1:
        raise ValueError(f"{name} compares the same examples, but the numbers of rows differ: {counts}")
    return counts[0]


def same_features(name: str, x: Tensor, y: Tensor) -> None:
    """A ValueError if the sides have different numbers of columns."""
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"{name} compares the same features: x has {x.shape[1]}, y has {y.shape[1]}")
