"""Differential privacy for all methods of an experiment at once: ``dp="noise=1.0,clip=0.5"``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kinfed.errors import InputError
from kinfed.fields import short
from kinfed.labels import label, parse_label
from kinfed.methods import Method

__all__ = ["protected"]

WRAPPER = "dp"

Settings = dict[str, dict[str, Any]]


def protected(
    methods: Sequence[str], settings: Mapping[str, Mapping[str, Any]], told: str, find: Callable[[str], type[Method]]
) -> tuple[tuple[str, ...], Settings]:
    """Join every method whose clients send something with the wrapper ``dp``; return the labels and the settings.

    >>> from kinfed.methods import METHODS
    >>> protected(["fedprox:mu=1", "local"], {}, "noise=2,clip=0.5", METHODS.find)
    (('dp+fedprox:mu=1', 'local'), {'dp+fedprox:mu=1': {'noise': '2', 'clip': '0.5'}})

    Args:
        methods: Labels of the methods.
        settings: Fields of methods, by label or name.
        told: Fields of the wrapper, ``FIELD=VALUE,…``.
        find: Function that finds the class of a method by its name.

    Raises:
        InputError: If the text has another form, or no method sends anything.
    """
    _, fields = parse_label(f"{WRAPPER}:{told}")
    if not fields:
        raise InputError(f"dp: {short(told)} must have the form FIELD=VALUE,… as in noise=1.0,clip=0.5 or epsilon=8")
    renamed: dict[str, str] = {}
    for text in methods:
        name, own = parse_label(text)
        outer = name.partition("+")[0]
        if outer != WRAPPER and find(outer).trains == "sampled":
            renamed |= {name: f"{WRAPPER}+{name}", text: label(f"{WRAPPER}+{name}", own)}
    if not renamed:
        raise InputError(
            f"dp: {short(told)} would have no effect; no other method sends anything that it could protect"
        )
    joined = tuple(renamed.get(text, text) for text in methods)
    of_methods = {renamed.get(name, name): dict(own) for name, own in settings.items()}
    for text in methods:
        if text in renamed:
            of_methods[renamed[text]] = {**of_methods.get(renamed[text], {}), **fields}
    return joined, of_methods
