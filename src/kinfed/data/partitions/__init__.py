"""Partitions by name: each one assigns the samples of a data set to clients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from kinfed.errors import InputError, nearest
from kinfed.fields import field_types, short
from kinfed.labels import parse_label
from kinfed.registry import Registry

if TYPE_CHECKING:
    from kinfed.data.partitions.partitioner import Partitioner
    from kinfed.data.partitions.saved import Saved

__all__ = ["PARTITIONS", "as_partition", "check_name", "make_partition", "partition_fields", "partition_options"]

# In a name such as ``by:COLUMN``, the text after the colon is the first field of the class.
PARTITIONS: Registry[Any] = Registry(
    "partition",
    {
        "iid": "kinfed.data.partitions.iid:IID",
        "shards": "kinfed.data.partitions.shards:Shards",
        "dirichlet": "kinfed.data.partitions.dirichlet:Dirichlet",
        "dirichlet_clients": "kinfed.data.partitions.dirichlet:DirichletClients",
        "disjoint": "kinfed.data.partitions.disjoint:Disjoint",
        "sort": "kinfed.data.partitions.shards:SortedShards",
        "groups": "kinfed.data.partitions.disjoint:TwoGroups",
        "quantity": "kinfed.data.partitions.dirichlet:Quantity",
        "by:COLUMN": "kinfed.data.partitions.columns:ByColumn",
        "folders": "kinfed.data.partitions.columns:Folders",
        "file:PATH": "kinfed.data.partitions.saved:Saved",
    },
    lambda found: None if callable(found) else "is neither a class nor a function",
)


def make_partition(name: str, fields: Mapping[str, Any] | None = None) -> Partitioner | Saved:
    """Make a partition from its name and fields.

    Args:
        name: One of `PARTITIONS`, with a column or path in place of the capitals (``by:hospital``); or
            ``package.module:Name`` of a class that derives from `Partitioner`, or of a function
            ``(labels, clients, rng) -> rows of each client``. The name may include fields: ``dirichlet:alpha=0.1``.
        fields: Values of fields by name; the others have their defaults.

    >>> make_partition("dirichlet", {"alpha": 0.1})
    Dirichlet(alpha=0.1)
    >>> make_partition("by:hospital")
    ByColumn(column='hospital')

    Raises:
        InputError: If there is no such partition or field, or a value is not allowed.
    """
    kind, given = _find(name)
    known, values = partition_fields(name), {**(fields or {}), **given}
    for field in values.keys() - given.keys():
        if field not in known:
            raise InputError(f"partition: {short(name)} has no field {field!r}; it has {', '.join(known) or 'none'}")
    return as_partition(kind(**values) if isinstance(kind, type) else kind)


def as_partition(partition: Any) -> Partitioner | Saved:
    """Make a partition from its name, an object, a class or a function.

    Raises:
        InputError: If ``partition`` is none of these.
    """
    from kinfed.data.partitions.partitioner import ByFunction, Partitioner
    from kinfed.data.partitions.saved import Saved

    if isinstance(partition, str):
        return make_partition(partition)
    made = partition() if isinstance(partition, type) else partition
    if isinstance(made, Partitioner | Saved):
        return made
    if not callable(made):
        raise InputError(f"partition: {short(partition)} is not allowed; a name, a Partitioner or a function is")
    return ByFunction(made)


def partition_fields(name: str) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each field of a partition, without a field that its name gives.

    >>> partition_fields("quantity")["alpha"][1]
    0.5

    Raises:
        InputError: If there is no such partition.
    """
    kind, given = _find(name)
    if not isinstance(kind, type) or not hasattr(kind, "__dataclass_fields__"):
        return {}
    types = field_types(kind)
    return {
        field.name: (types[field.name], None if field.default is MISSING else field.default)
        for field in fields(kind)
        if field.name not in given
    }


def partition_options(name: str) -> Mapping[str, str]:
    """Return the command-line options that a partition reads, each with the field that it fills.

    >>> partition_options("shards")
    {'shards': 'per_client'}

    Raises:
        InputError: If there is no such partition.
    """
    options: Mapping[str, str] = getattr(_find(name)[0], "options", {})
    return options


def check_name(name: str) -> str:
    """Return the name in `PARTITIONS`, or import path, of a name with fields; nothing is imported.

    >>> check_name("dirichlet:alpha=0.1"), check_name("by:hospital")
    ('dirichlet', 'by:COLUMN')

    Raises:
        InputError: If there is no such partition; the message suggests the nearest name.
    """
    start, _, text = name.partition(":")
    form = next((form for form in PARTITIONS if form.startswith(f"{start}:")), None)
    if form is not None and text:
        return form
    base, _ = parse_label(name)
    if form is None and (base in {*PARTITIONS} or re.fullmatch(r"[\w.]+:[^\W\d][\w.]*", base)):
        return base
    *names, last = map(repr, PARTITIONS)
    raise InputError(
        f"partition: {short(name)} is not allowed; must be {', '.join(names)} or {last}, or package.module:Name"
        f"{nearest(base, PARTITIONS)}"
    )


def _find(name: str) -> tuple[Any, dict[str, str]]:
    """Return the class or function of a name, and the fields that the name gives."""
    known = check_name(name)
    kind = PARTITIONS[known]
    base, typed = parse_label(name)
    if ":" in known and known in [*PARTITIONS]:  # a form such as ``by:COLUMN``
        return kind, {fields(kind)[0].name: name.partition(":")[2]}
    if unknown := [field for field in typed if field not in field_types(kind)]:
        raise InputError(f"partition: {short(base)} has no field {unknown[0]!r}")
    return kind, typed
