"""The methods that suit a federation, each with the reason; the others with the reason why not.

The race decides which method is best. These rules only spare it methods that have no chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kinfed.advice.traits import Traits
from kinfed.engine import ClientRuntime
from kinfed.errors import InputError
from kinfed.experiment.assemble import settled, sources_of
from kinfed.experiment.config import Config
from kinfed.methods import METHODS, Method
from kinfed.methods.dp import DP
from kinfed.report.rows import ALONE, learns_alone
from kinfed.report.verdict import listed

__all__ = ["Candidate", "able", "candidates", "reasons"]

CONTRADICTION = 0.2  # conflict beyond chance with which one model cannot suit all (docs/advice.md)
PLAIN = "fedavg"  # one model for all, with nothing added


@dataclass(frozen=True)
class Candidate:
    """A method, and why it is raced or left out.

    Attributes:
        label: Name of the method.
        raced: True if it is raced.
        reason: The reason, in words.
    """

    label: str
    raced: bool
    reason: str


def able(fields: Mapping[str, Any], objects: Mapping[str, Any] | None = None, *, labelled: bool = True) -> list[str]:
    """Return the names of the registered methods that a config allows.

    Args:
        fields: Fields of the config, without the methods.
        objects: Python objects by their names in angle brackets.
        labelled: True for the methods that read labels, False for the others.

    Raises:
        InputError: If a field is wrong, whatever the method.

    >>> able({"models": "tiny_cnn:0.5,mlp:0.5"})
    ['fedproto', 'local']
    """
    Config.checked({**fields, "methods": ALONE[not labelled]}, objects)
    return [name for name in METHODS if _reads_labels(name) == labelled and _refused(fields, objects, name) is None]


def candidates(traits: Traits, config: Config, runtime: ClientRuntime) -> list[Candidate]:
    """Return every registered method with the reason why it is raced or left out.

    Args:
        traits: Traits of the federation; those without labels call for methods that read none.
        config: Config of the methods that may be raced (`able`).
        runtime: Runtime of one of these methods.

    Returns:
        The methods in the order of the registry. Among those that are raced is training alone.
    """
    return [Candidate(name, *_judged(name, traits, config, runtime)) for name in METHODS]


def reasons(found: Sequence[Candidate], *, raced: bool) -> list[str]:
    """Return one line for each reason, with the methods that are raced, or left out, for it.

    >>> reasons([Candidate("ditto", True, "why"), Candidate("fedper", True, "why")], raced=True)
    ['ditto and fedper: why']
    """
    methods: dict[str, list[str]] = {}
    for of in found:
        if of.raced == raced:
            methods.setdefault(of.reason, []).append(of.label)
    return [f"{listed(names)}: {reason}" for reason, names in methods.items()]


def _judged(name: str, traits: Traits, config: Config, runtime: ClientRuntime) -> tuple[bool, str]:
    """Return whether a method is raced, and why."""
    reads_labels = _reads_labels(name)
    if reads_labels is None:
        return False, "cannot be imported"
    if reads_labels != traits.labelled:
        return False, "reads labels" if reads_labels else "reads no labels, though there are some"
    fields = config.model_dump(exclude={"methods", "settings"})
    refused = _refused(fields, config.objects, name) or _unsuitable(name, config, runtime)
    return (False, f"cannot run: {refused}") if refused else _fit(name, METHODS[name], traits)


def _reads_labels(name: str) -> bool | None:
    """Return True if the training of a method reads labels; None if the method cannot be imported."""
    try:
        return METHODS[name].supervised
    except InputError:
        return None


def _refused(fields: Mapping[str, Any], objects: Mapping[str, Any] | None, name: str) -> str | None:
    """Return the reason why the fields of a config do not allow a method; None if they do."""
    try:
        Config.checked({**fields, "methods": name}, objects)
    except InputError as error:
        return str(error)
    return None


def _unsuitable(name: str, config: Config, runtime: ClientRuntime) -> str | None:
    """Return the reason why a method cannot work with the data and the models; None if it can."""
    own = config.of(name, config.seed)
    try:
        settled(own, runtime)
        dataclasses.replace(runtime, method=own.method(name), sources=sources_of(own, name, runtime.federation))
    except InputError as error:
        return str(error)
    return None


def _fit(name: str, kind: type[Method], traits: Traits) -> tuple[bool, str]:
    """Return whether a method that can run is raced, and why."""
    if learns_alone(name):
        return True, "every client trains alone, which the others have to beat"
    if kind.ceiling:
        pooled = kind.trains == "pooled"
        return pooled, f"{kind.ceiling}: {'a ceiling, which serves nobody' if pooled else 'no federation knows them'}"
    if issubclass(kind, DP):
        return False, "adds noise, which protects clients and helps no model; protect the advised method by --dp"
    if not traits.labelled:
        return True, "reads no labels"
    if name == PLAIN:
        return True, "one model for all, with nothing added"
    sign, common = _sign(traits), kind.serves == "global"
    what = "one model for all that allows for differences" if common else "a model, or a part of one, for each client"
    suits = sign is not None and not (common and _contradict(traits))
    return suits, f"{what}; {sign or 'the clients differ no more than by chance'}"


def _contradict(traits: Traits) -> bool:
    """Return True if the clients' labels contradict each other so much that one model cannot suit all."""
    return traits.conflict is not None and traits.conflict.size >= CONTRADICTION


def _sign(traits: Traits) -> str | None:
    """Say in words how the clients differ, by what tells most; None if they differ no more than by chance."""
    label, feature, conflict = traits.label_skew, traits.feature_skew, traits.conflict
    labels_apart = (
        f"neighbours of a sample have its label more often at its own client than at others, by {conflict.value:.2f}"
        if conflict is not None and conflict.found
        else None
    )
    if labels_apart and _contradict(traits):
        return labels_apart
    if label is not None and label.found:
        return (
            f"a client has {traits.own_classes:.1f} of {traits.classes} classes, and would have to exchange "
            f"{label.value:.0%} of its samples for the shares of all (by chance {label.chance:.0%})"
        )
    if feature.found:
        return (
            f"{feature.value:.0%} of nearest neighbours are at a sample's own client (by chance {feature.chance:.0%})"
        )
    return labels_apart
