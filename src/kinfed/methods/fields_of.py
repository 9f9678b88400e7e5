"""Descriptions of a method's fields, from its class: type, default and meaning."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from kinfed.fields import field_types
from kinfed.methods.method import Method
from kinfed.methods.wrapper import Wrapper

__all__ = ["DescribedField", "described_fields"]

NAMES = {int: "whole number", float: "number", bool: "true or false", str: "text", NoneType: "none"}
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}  # names of limits in `annotated_types`


@dataclass(frozen=True)
class DescribedField:
    """A field of a method.

    Attributes:
        name: Name of the field, as in ``--set METHOD.NAME=VALUE``.
        type: Values that are allowed, in words.
        default: Default value; empty if the field must be given.
        meaning: Description of the field in its class's docstring; empty if it has none.
    """

    name: str
    type: str
    default: str
    meaning: str


def described_fields(kind: type[Method]) -> list[DescribedField]:
    """Describe the fields of a method, in the order of their declaration.

    >>> from kinfed.methods.fedprox import FedProx
    >>> [(field.name, field.type, field.default) for field in described_fields(FedProx)]
    [('mu', 'number ≥ 0', '0.1')]

    Args:
        kind: Class of the method.
    """
    types, meanings = field_types(kind), _meanings(kind)
    fields = [field for field in dataclasses.fields(kind) if not (issubclass(kind, Wrapper) and field.name == "base")]
    return [
        DescribedField(field.name, _in_words(types[field.name]), _default(field), meanings.get(field.name, ""))
        for field in fields
    ]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return str(field.default).lower() if isinstance(field.default, bool | None) else str(field.default)
    return str(field.default_factory()) if field.default_factory is not dataclasses.MISSING else ""


def _in_words(hint: Any) -> str:
    """Describe a type: ``a | b`` for choices, ``number ≥ 0`` for a number with a limit."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [
            f"{sign} {value:g}"
            for of in arguments[1:]
            for name, sign in LIMITS.items()
            if isinstance(value := getattr(of, name, None), int | float)
        ]
        return " ".join([_in_words(arguments[0]), " and ".join(limits)]).strip()
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " or ".join(map(_in_words, arguments))
    if origin is tuple:
        return f"list of {_in_words(arguments[0])}"
    return NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _meanings(kind: type) -> dict[str, str]:
    """Return the descriptions of fields in the docstrings of a class and its bases; a class overrules its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = re.search(
            r"^Attributes:\n((?: +.*\n?|\n)*)", inspect.cleandoc(base.__doc__ or "") + "\n", re.MULTILINE
        )
        if section:
            for name, meaning in re.findall(r"^    (\w+): ((?:.*\n)(?:     +.*\n)*)", section[1], re.MULTILINE):
                found[name] = " ".join(meaning.split())
    return found
