"""Config files in TOML: those that kinfed writes into run folders, and those that users write."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfed.errors import InputError
from kinfed.fields import short
from kinfed.labels import parse_label

__all__ = ["ADDED", "FORMER_NAMES", "MARK", "is_written", "parse_settings", "read_toml", "tables", "with_present_names"]

MARK = "# a run of kinfed"  # the first line of a config that kinfed wrote
# Fields that older runs do not have; at their defaults they change nothing.
ADDED = (
    "validation", "patience", "stop_acc", "shift", "classes", "optimizer", "label", "client", "group", "test_fraction",
    "drop", "standardise", "labelled", "hold_out", "further_clients", "precision",
)  # fmt: skip
FORMER_NAMES = {"public": "probe"}  # fields of an experiment that had another name, which is still read


def read_toml(path: Path) -> dict[str, Any]:
    """Read the fields in a TOML file.

    Returns:
        Values by name of the field; ``settings`` has the tables of the methods' own fields, by method.

    Raises:
        InputError: If the file cannot be read or is no TOML.
    """
    from kinfed.methods import is_method

    try:
        fields = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise InputError(f"config: {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # invalid TOML or encoding; too deeply nested
        raise InputError(f"config: {str(path)!r} is not valid TOML: {error}") from error
    named = [
        name for name in fields if isinstance(fields[name], dict) and ("<" in name or is_method(parse_label(name)[0]))
    ]
    tables = {name: fields.pop(name) for name in named}
    return with_present_names(fields) | ({"settings": tables} if tables else {})


def with_present_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields under their present names.

    Raises:
        InputError: If a field is given under both its names.

    >>> with_present_names({"clients": 10, "probe": 64})
    {'clients': 10, 'public': 64}
    """
    present = {former: name for name, former in FORMER_NAMES.items()}
    for former, name in present.items():
        if former in fields and name in fields:
            raise InputError(f"{former}: is the former name of {name}; give only one of them")
    return {present.get(name, name): value for name, value in fields.items()}


def is_written(file: Path) -> bool:
    """Return True if kinfed wrote this config file."""
    return file.read_text().startswith(MARK)


def tables(settings: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the methods' own fields, by method, unchanged.

    Raises:
        InputError: If the settings are no mapping of mappings. Their fields are not checked.
    """
    if not (isinstance(settings, Mapping) and all(isinstance(own, Mapping) for own in settings.values())):
        raise InputError(
            f"settings: {short(settings)} is not allowed; must be a dict of fields for each method: "
            "{'fedprox': {…}}"
        )
    return settings


def parse_settings(assignments: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parse assignments ``METHOD.FIELD=VALUE``, the values of ``--set``, to fields by method.

    Raises:
        InputError: If an assignment has another form.

    >>> parse_settings(["fedprox.mu=0.1", "moon.mu=1"])
    {'fedprox': {'mu': '0.1'}, 'moon': {'mu': '1'}}
    """
    settings: dict[str, dict[str, str]] = {}
    for assignment in assignments:
        target, equals, value = assignment.partition("=")
        method, dot, name = target.rpartition(".")
        if not (equals and dot and method and name):
            raise InputError(f"set: {short(assignment)} must have the form METHOD.FIELD=VALUE, as in fedshibu.norm=sum")
        settings.setdefault(method, {})[name] = value
    return settings
