"""Labels of methods: a name with some of the method's fields, such as ``fedprox:mu=0.1``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["folder_name", "label", "labels_of", "parse_label", "slug"]


def parse_label(text: str) -> tuple[str, dict[str, str]]:
    """Split a label into name and fields.

    >>> parse_label("fedprox:mu=0.1")
    ('fedprox', {'mu': '0.1'})
    >>> parse_label("package.module:Mine:beta=2,taps=conv1,conv2")
    ('package.module:Mine', {'beta': '2', 'taps': 'conv1,conv2'})
    >>> parse_label("fedvote:measure=package.module:rv2")
    ('fedvote', {'measure': 'package.module:rv2'})
    """
    name, *given = re.split(r":(?=\w+=)", text, maxsplit=1)
    pairs = [part.partition("=") for part in re.split(r",(?=\w+=)", given[0])] if given else []
    return name, {field: value for field, _, value in pairs}


def label(name: str, fields: Mapping[str, Any]) -> str:
    """Label of a method from its name and fields; the name alone without fields.

    >>> label("fedprox", {"mu": 0.1})
    'fedprox:mu=0.1'
    """
    told = ",".join(f"{field}={_text(value)}" for field, value in fields.items())
    return f"{name}:{told}" if told else name


def labels_of(methods: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Labels of several methods, each given as a name and all fields; variants of a method show the fields that differ.

    A field that is None is not shown, since no text stands for it.

    >>> labels_of([("fedavg", {}), ("fedprox", {"mu": 0.1}), ("fedprox", {"mu": 1.0})])
    ['fedavg', 'fedprox:mu=0.1', 'fedprox:mu=1.0']
    """
    labels = []
    for name, fields in methods:
        variants = [other for of, other in methods if of == name]
        differ = [field for field in fields if any(other[field] != fields[field] for other in variants)]
        labels.append(label(name, {field: fields[field] for field in differ if fields[field] is not None}))
    return labels


def folder_name(method: str, seed: int) -> str:
    """Name of a run's folder in the folder of its comparison.

    >>> folder_name("package.module:Mine:beta=2", 0)
    'package.module-Mine-beta=2-seed0'
    """
    return f"{slug(method)}-seed{seed}"


def slug(method: str) -> str:
    """Turn a label into a part of a file name: characters that a file system may refuse become hyphens.

    >>> slug("<MyMethod>:beta=2")
    'MyMethod-beta=2'
    """
    return re.sub(r"[^A-Za-z0-9_+.=,-]+", "-", method).strip("-")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
