"""Search spaces: the values of a method's fields that a tuning tries, from ``--over`` and from the methods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.uses import OF_CLIENTS, OF_METHODS, refuse_idle
from kinfed.fields import short
from kinfed.labels import parse_label

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["LEARNING_RATES", "Over", "Range", "Space", "parse_over", "spaces_of", "with_values"]

LEARNING_RATES = {  # of each optimiser
    "sgd": "0.01,0.03,0.1,0.3",
    "adam": "0.0001,0.0003,0.001,0.003",
    "adamw": "0.0001,0.0003,0.001,0.003",
}
RANGES = ("log", "uniform")


@dataclass(frozen=True)
class Over:
    """One field to tune, and the text of its values.

    Attributes:
        method: Name or label of the method; empty for all methods.
        field: Name of the field.
        values: Values with commas, or ``log:LOW:HIGH`` or ``uniform:LOW:HIGH``.
    """

    method: str
    field: str
    values: str


@dataclass(frozen=True)
class Range:
    """A range of numbers.

    Attributes:
        low: Smallest number.
        high: Largest number.
        log: True if numbers are drawn evenly on a logarithmic scale.
    """

    low: float
    high: float
    log: bool


@dataclass(frozen=True)
class Space:
    """The search space of one method.

    >>> space = Space({"lr": (0.1, 0.3), "mu": (0.01, 0.1, 1.0)})
    >>> space.size, space.grid()[0]
    (6, {'lr': 0.1, 'mu': 0.01})

    Attributes:
        fields: Values of each field: a tuple of choices, or a range.
    """

    fields: Mapping[str, tuple[Any, ...] | Range]

    @property
    def size(self) -> int | None:
        """Number of settings of a space of choices; None with a range, which has no end of them."""
        sizes = [len(values) for values in self.fields.values() if not isinstance(values, Range)]
        return math.prod(sizes) if len(sizes) == len(self.fields) else None

    def grid(self) -> list[dict[str, Any]]:
        """Return all settings of a space of choices."""
        choices = [values for values in self.fields.values() if not isinstance(values, Range)]
        return [dict(zip(self.fields, values, strict=True)) for values in itertools.product(*choices)]

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return the space as distributions of Optuna, by field."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        found: dict[str, BaseDistribution] = {}
        for field, values in self.fields.items():
            if not isinstance(values, Range):
                found[field] = CategoricalDistribution(values)
            elif isinstance(values.low, int) and isinstance(values.high, int):
                found[field] = IntDistribution(values.low, values.high, log=values.log)
            else:
                found[field] = FloatDistribution(values.low, values.high, log=values.log)
        return found


def parse_over(text: str) -> Over:
    """Parse a value of ``--over``: ``FIELD=VALUES`` for all methods, or ``METHOD.FIELD=VALUES`` for one.

    >>> parse_over("fedprox.mu=log:0.001:1")
    Over(method='fedprox', field='mu', values='log:0.001:1')

    Raises:
        InputError: If the text has another form.
    """
    target, equals, values = text.partition("=")
    method, _, field = target.rpartition(".")
    if "=" in values:  # a label: fedprox:mu=1.lr=0.1,0.3
        target, _, values = text.rpartition("=")
        method, _, field = target.rpartition(".")
    if not (equals and field and values):
        raise InputError(
            f"over: {short(text)} must have the form FIELD=VALUES or METHOD.FIELD=VALUES, as in lr=0.01,0.1 or "
            "fedprox.mu=log:0.001:1"
        )
    return Over(method, field, values)


def spaces_of(config: Config, over: Sequence[Over]) -> dict[str, Space]:
    """Return the search space of each method.

    Without ``over``, it is that of the learning rate and of the fields that the method declares (`Method.space`). With
    it, only the named fields are tuned.

    Args:
        config: Config with the methods.
        over: Fields to tune, with their values.

    Returns:
        Spaces by label of the method.

    Raises:
        InputError: If a method, field or value is not allowed, or a field would do nothing.
    """
    for asked in over:
        if asked.method and not any(asked.method in _names(label) for label in config.methods):
            raise InputError(f"over: {asked.method!r} is not allowed; must be one of {', '.join(config.methods)}")
    spaces = {}
    for label in config.methods:
        typed = parse_label(label)[1]
        texts = {asked.field: asked.values for asked in over if asked.method in {"", *_names(label)}}
        if not over:
            texts = {"lr": LEARNING_RATES[config.training(label)["optimizer"]], **config.method(label).space}
            texts = {field: values for field, values in texts.items() if field not in typed}
        if fixed := next((field for field in texts if field in typed), None):
            raise InputError(f"over: {fixed} of {label} is not tuned, since the label has a value for it")
        spaces[label] = Space({field: _values(config, label, field, text) for field, text in texts.items()})
    if over and not any(space.fields for space in spaces.values()):
        raise InputError(f"over: {over[0].field} is tuned for no method")
    return spaces


def with_values(config: Config, label: str, values: Mapping[str, Any]) -> Config:
    """Return the config of one method with values of its fields."""
    settings = {label: {**config.settings[label], **values}}
    fields = config.model_dump() | {"methods": (label,), "seeds": 1, "settings": settings}
    return Config.checked(fields, config.objects)


def _names(label: str) -> set[str]:
    return {label, parse_label(label)[0]}


def _values(config: Config, label: str, field: str, text: str) -> tuple[Any, ...] | Range:
    """Parse the values of a field, and check each of them like a field of the config."""
    kind, *ends = text.split(":")
    if kind not in RANGES:
        return tuple(dict.fromkeys(_checked(config, label, field, value) for value in text.split(",")))
    if len(ends) != 2:
        raise InputError(f"over: {field}={text} is not allowed; must be {kind}:LOW:HIGH")
    low, high = (_checked(config, label, field, end) for end in ends)
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
    if not numbers or not low < high or (kind == "log" and low <= 0):
        above = "0 < LOW < HIGH" if kind == "log" else "LOW < HIGH"
        raise InputError(f"over: {field}={text} is not allowed; must be {kind}:LOW:HIGH of numbers with {above}")
    return Range(low, high, kind == "log")


def _checked(config: Config, label: str, field: str, text: str) -> Any:
    """Return a value of a field in the type that the config gives it."""
    made = with_values(config, label, {field: text})
    refuse_idle({"settings": {label: {field: text}}}, [made], {**OF_CLIENTS, **OF_METHODS})
    return made.settings[label][field]
