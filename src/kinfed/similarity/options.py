"""Checks of the measures' options against their annotations, made before anything is computed."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from kinfed.errors import InputError

__all__ = ["Count", "Fraction", "Positive", "check_option", "check_options", "checked"]

P = ParamSpec("P")
R = TypeVar("R")


class Range(NamedTuple):
    """Range of numbers that an option allows, and its description for messages."""

    holds: Callable[[float], bool]
    said: str


Positive = Annotated[float, Range(lambda value: 0 < value < math.inf, "must be positive")]
Fraction = Annotated[float, Range(lambda value: 0 < value <= 1, "must be above 0 and at most 1")]
Count = Annotated[int, Range(lambda value: value >= 1, "must be a whole number of at least 1")]

NUMBERS: dict[Any, tuple[type, str]] = {
    float: (numbers.Real, "must be a number"),
    int: (numbers.Integral, "must be a whole number"),
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it refuses keyword values that their annotations do not allow."""

    @functools.wraps(function)
    def with_options(*args: P.args, **options: P.kwargs) -> R:
        check_options(function, options)
        return function(*args, **options)

    return with_options


def check_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse values that the annotations of a function's keywords do not allow.

    Raises:
        InputError: If a value is not allowed; the message names the option, the value and what is allowed.
    """
    for name, value in options.items():
        if name in (kinds := _keywords(function)):
            check_option(name, value, kinds[name])


@functools.cache
def _keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of a function's keywords, resolved at the first call, since a class is not defined inside itself."""
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: hints[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}


def check_option(name: str, value: Any, kind: Any) -> None:
    """Refuse a value that an annotation does not allow.

    Checked are Literal, bool, int and float, the last two also within a `Range`, each with or without None. Other
    annotations allow every value.

    Raises:
        InputError: If the value is not allowed; the message names the option, the value and what is allowed.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None:
            return
        kind, *others = (one for one in get_args(kind) if one is not NoneType)
        if others:
            return
    base, *ranges = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if get_origin(base) is Literal:
        names = get_args(base)
        allowed, said = isinstance(value, str) and value in names, f"must be {' or '.join(map(repr, names))}"
    elif base is bool:
        allowed, said = isinstance(value, bool | np.bool_), "must be True or False"
    elif base in NUMBERS:
        number, said = NUMBERS[base]
        allowed = isinstance(value, number) and not isinstance(value, bool)
    else:
        return
    for within in ranges:
        allowed, said = allowed and within.holds(value), within.said
    if not allowed:
        raise InputError(f"{name} {said}, got {value!r}")
