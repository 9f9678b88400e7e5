"""Checks of the fields of frozen dataclasses, with error messages of one line."""

from __future__ import annotations

import functools
import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError, ValidationInfo

from kinfed.errors import InputError, nearest

__all__ = ["check_fields", "field_types", "is_text", "listed", "one_line", "parse_duration", "plain_value", "short"]

CHOICES = re.compile(r"'([^']+)'")  # in the text of pydantic: "'sgd', 'adam' or 'adamw'"
SHOWN = 60  # characters of a value in a message


def check_fields(thing: Any) -> None:
    """Check the fields of a frozen dataclass against their annotations, and convert them to these types.

    For use in ``__post_init__``, so that every object is valid.

    Raises:
        InputError: If a field is not valid; the message names the class, the field, the value and what is allowed.
    """
    kind: type = type(thing)
    for name, adapter in _adapters(kind).items():
        value = _plain(getattr(thing, name))
        where = f"{type(thing).__name__}.{name}"
        try:
            valid = adapter.validate_python(value)
        except ValidationError as error:
            raise InputError(one_line(error, where)) from error
        if isinstance(value, bool) and not isinstance(valid, bool):
            raise InputError(f"{where}: {value} is not allowed; must not be true or false")
        if isinstance(valid, float) and not math.isfinite(valid):
            raise InputError(f"{where}: {value} is not allowed; must be a finite number")
        object.__setattr__(thing, name, valid)


@functools.cache
def field_types(kind: type) -> Mapping[str, Any]:
    """Return the type of each field of a dataclass by name, with its limits (``Annotated``)."""
    hints = get_type_hints(kind, include_extras=True)
    return MappingProxyType({field.name: hints[field.name] for field in fields(kind)})


@functools.cache
def _adapters(kind: type) -> dict[str, TypeAdapter[Any]]:
    return {name: TypeAdapter(hint) for name, hint in field_types(kind).items()}


def _plain(value: Any) -> Any:
    """Convert a number of NumPy to one of Python; return any other value unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def one_line(error: ValidationError, where: str = "") -> str:
    """Describe the first of pydantic's errors in one line: the field, the value and what is allowed.

    Args:
        error: Error that pydantic raised.
        where: Name of the field, if the error does not contain it.
    """
    first = error.errors()[0]
    if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
        return str(cause)
    field = where or ".".join(str(part) for part in first["loc"]) or "config"
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    value = "" if first["type"] == "missing" else f"{short(first['input'])} is not allowed; "
    choices = CHOICES.findall(first.get("ctx", {}).get("expected", ""))
    near = nearest(first["input"], choices) if isinstance(first["input"], str) else ""
    return f"{field}: {value}{message[:1].lower()}{message[1:]}{near}"


def short(value: Any) -> str:
    """Return the representation (``repr``) of a value for a message, cut to 60 characters."""
    told = repr(value)
    return told if len(told) <= SHOWN else f"{told[: SHOWN - 1]}…"


def parse_duration(field: str, value: Any) -> float:
    """Return a duration in seconds, given as a number of seconds or as text with a unit.

    >>> parse_duration("budget", "30m"), parse_duration("budget", "1.5h"), parse_duration("budget", 90)
    (1800.0, 5400.0, 90.0)

    Args:
        field: Name of the field, for an error message.
        value: The duration: a positive number, or one followed by ``s``, ``m`` or ``h``.

    Raises:
        InputError: If the value is no positive duration.
    """
    told = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
    seconds = float(told[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[told[2]] if told else 0.0
    if isinstance(value, bool) or not seconds:
        raise InputError(f"{field}: {short(value)} is not allowed; must be a time above 0, as in 90s, 30m or 2h")
    return seconds


def plain_value(kind: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Return the value of a config's field with a path converted to text, before other checks.

    Args:
        kind: Class of the config.
        value: Given value.
        info: Name of the field, from pydantic.

    Raises:
        InputError: If a text cannot be encoded as UTF-8, or a field that is no bool gets true or false.
    """
    name = str(info.field_name)
    if isinstance(value, bool) and kind.model_fields[name].annotation not in (bool, bool | None):
        raise InputError(f"{name}: {value} is not allowed; must not be true or false")
    value = str(value) if isinstance(value, Path) else value
    if isinstance(value, str) and not is_text(value):
        raise InputError(f"{name}: {short(value)} is not allowed; must be text that can be encoded in UTF-8")
    return value


def listed(value: Any) -> Any:
    """Split a text at its commas; return any other value unchanged.

    >>> listed("0, 1"), listed(["a,b"])
    (('0', '1'), ['a,b'])
    """
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def is_text(value: str) -> bool:
    """Return True if a text can be encoded as UTF-8; the names of some files cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
