"""Python objects as fields of a config: methods, local training, partition and model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfed.data import Federation
from kinfed.data.partitions import PARTITIONS, as_partition, partition_options
from kinfed.data.partitions.partitioner import ByFunction
from kinfed.errors import InputError
from kinfed.experiment.config import as_tuple
from kinfed.experiment.config_file import read_toml, tables, with_present_names
from kinfed.experiment.folders import COMPARISON, CONFIG
from kinfed.fields import short
from kinfed.labels import label, labels_of, parse_label
from kinfed.learning import LocalTraining
from kinfed.methods import METHODS, Method, name_and_fields
from kinfed.models.own import maker
from kinfed.registry import import_path

__all__ = ["Objects", "as_fields", "methods_of", "names_in", "of_folder"]

Objects = dict[str, Any]
"""Python objects without an import path, by the names in angle brackets that stand for them in a config."""

OF_SHARING = (
    "partition", "clients", "new_clients", "hold_out", "public", "classes", "train_images", "channels", "image_size",
    "on_error", "label", "client", "group", "test_fraction", "drop", "standardise",
)  # fmt: skip
OF_TRAINING = {"epochs": "local_epochs"}  # field of local training → its name in a config


def as_fields(given: Mapping[str, Any]) -> tuple[dict[str, Any], Objects]:
    """Turn Python objects among given fields into the names and numbers that a config has.

    Args:
        given: Fields, of which ``methods``, ``training``, ``partition``, ``model`` and ``data`` may be objects.

    Returns:
        The fields of a config, and the objects that its names in angle brackets stand for.

    Raises:
        InputError: If an object has a wrong type, or a field is given twice.
    """
    fields, objects = with_present_names(given), Objects()
    if "methods" in fields:
        fields["methods"], settings = methods_of(fields["methods"], objects)
        if settings:
            fields["settings"] = {**tables(fields.get("settings", {})), **settings}
    if (training := fields.pop("training", None)) is not None:
        fields |= _training_fields(training, fields)
    if not isinstance(fields.get("model"), str | None):
        maker(fields["model"])  # raises InputError if it cannot make a model
        fields["model"] = _name(fields["model"], objects)
    if not isinstance(fields.get("partition"), str | None):
        fields |= _partition_fields(fields["partition"], objects)
    if isinstance(fields.get("data"), Federation):
        fields |= _federation_fields(fields, objects)
    return fields, objects


def methods_of(given: Any, objects: Objects) -> tuple[tuple[str, ...], dict[str, dict[str, Any]]]:
    """Return the labels of methods, and the fields of those that are given as objects or classes.

    Args:
        given: A method, or a sequence of methods: names, objects or classes.
        objects: Mapping to which classes without an import path are added.

    Returns:
        The labels, and by label the fields that differ from their defaults: nobody asked for the others.

    >>> from kinfed import FedProx
    >>> methods_of(["fedavg", FedProx(mu=0.5)], {})
    (('fedavg', 'fedprox'), {'fedprox': {'mu': 0.5}})
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    named = [(item, {}) if isinstance(item, str) else _named_method(item, objects) for item in several]
    # A name may be a label already, and is kept.
    shown = iter(labels_of([one for one, item in zip(named, several, strict=True) if not isinstance(item, str)]))
    labels, settings = [], {}
    for item, (name, fields) in zip(several, named, strict=True):
        label = name if isinstance(item, str) else next(shown)
        labels.append(label)
        if not isinstance(item, str):
            settings[label] = {name: value for name, value in fields.items() if not _is_default(item, name, value)}
    return tuple(labels), settings


def of_folder(folder: Path, *, methods: Any = (), **others: Any) -> tuple[Objects, set[str]]:
    """Return the objects that are given to continue a run.

    Args:
        folder: Folder of the run or the comparison.
        methods: A method, or a sequence of methods: objects or classes.
        **others: ``data``, ``partition`` and ``model``; None is not given.

    Returns:
        The objects by their names in angle brackets, and the import paths of those that have one.

    Raises:
        InputError: If a method has other fields than in the run.
    """
    fields, objects = as_fields({"methods": methods, **{n: value for n, value in others.items() if value is not None}})
    file = next((path for path in (folder / COMPARISON, folder / CONFIG) if path.is_file()), None)
    theirs = {} if file is None else read_toml(file).get("settings", {})
    for item in methods if isinstance(methods, Sequence) else (methods,):
        name, own = _named_method(item, objects)
        run = [given for label, given in theirs.items() if parse_label(label)[0] == name]
        if run and not isinstance(item, type) and {k: v for k, v in own.items() if v is not None} not in run:
            raise InputError(f"methods: {short(item)} is not a method of the run, which has {short(run)}")
    return objects, names_in(fields)


def names_in(fields: Mapping[str, Any]) -> set[str]:
    """Return the import paths among the values of given fields. Their code may be imported, since the caller asks."""
    methods = [parse_label(name) for name in as_tuple(fields.get("methods", ())) if isinstance(name, str)]
    labels = [text for name, own in methods for text in (name, *own.values())]
    shares = [name.rpartition(":")[0] for name in str(fields.get("models") or "").split(",")]
    others = [parse_label(str(fields.get(name)))[0] for name in ("model", "partition")]
    others.append(":".join(str(fields.get("data")).split(":")[:2]))  # package.module:Format:PATH
    of_methods = [str(value) for own in tables(fields.get("settings", {})).values() for value in own.values()]
    return {name for name in [*labels, *shares, *others, *of_methods] if ":" in name}


def _is_default(item: object, name: str, value: Any) -> bool:
    """Return True if a field of a method, of the method that it wraps, or of a partition has its default."""
    for kind in (item, getattr(item, "base", None)):
        for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
            if field.name == name:
                default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
                return bool(value == default)
    return False


def _named_method(item: Any, objects: Objects) -> tuple[str, dict[str, Any]]:
    """Return the name and the fields of a method, which is given as an object or a class."""
    kind = item if isinstance(item, type) else type(item)
    if not issubclass(kind, Method):
        raise InputError(
            f"methods: {short(item)} is not allowed; must be a name, or an object or a class derived from "
            "kinfed.methods.Method"
        )
    method = item() if isinstance(item, type) else item
    return name_and_fields(method, lambda kind: METHODS.name_of(kind) or _bracketed(kind, objects))


def _training_fields(training: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config that describe local training.

    Args:
        training: Local training.
        fields: Other given fields, which must not repeat one of them.
    """
    if not isinstance(training, LocalTraining):
        raise InputError(f"training: {short(training)} is not allowed; must be a kinfed.LocalTraining")
    own = {OF_TRAINING.get(name, name): value for name, value in dataclasses.asdict(training).items()}
    if training.optimizer != "sgd" and _is_default(training, "momentum", training.momentum):
        del own["momentum"]  # nobody asked for it
    if twice := [name for name in own if name in fields]:
        raise InputError(f"{twice[0]}: is also a field of training; give only one of them")
    return own


def _federation_fields(fields: Mapping[str, Any], objects: Objects) -> dict[str, Any]:
    """Return the fields of a config that a federation sets: data, partition, clients, new clients, public images."""
    for name in OF_SHARING:
        if name in fields:
            raise InputError(
                f"{name}: would do nothing; the data are a Federation, whose clients already have their samples"
            )
    federation: Federation = fields["data"]
    name = _bracketed(federation, objects)
    new = len(federation.new_clients)
    counts = {"clients": len(federation) + new, "new_clients": new, "public": len(federation.public_rows)}
    return {"data": name, "partition": name, **counts}


def _partition_fields(given: Any, objects: Objects) -> dict[str, Any]:
    """Return the fields of a config that describe a partition: its name and its options."""
    partition = as_partition(given)
    if isinstance(partition, ByFunction):
        return {"partition": _name(partition.function, objects)}
    own = {field.name: getattr(partition, field.name) for field in dataclasses.fields(partition)}
    name = PARTITIONS.name_of(type(partition))
    if name is None:
        name = _bracketed(type(partition), objects)
    start, colon, _ = name.partition(":")
    if name in {*PARTITIONS} and colon:  # by:COLUMN
        return {"partition": f"{start}:{next(iter(own.values()))}"}
    options = {option: own.pop(field) for option, field in partition_options(name).items()} if "<" not in name else {}
    told = {field: value for field, value in own.items() if not _is_default(partition, field, value)}
    return {"partition": label(name, told), **options}


def _name(thing: Any, objects: Objects) -> str:
    return import_path(thing) or _bracketed(thing, objects)


def _bracketed(thing: Any, objects: Objects) -> str:
    """Add an object without an import path to ``objects``, and return its name there: ``<Name>``, or ``<Name 2>``."""
    called = getattr(thing, "__name__", type(thing).__name__).strip("<>") or "object"
    names = (f"<{called}>" if number == 1 else f"<{called} {number}>" for number in range(1, len(objects) + 3))
    name = next(name for name in names if objects.get(name, thing) is thing)
    objects[name] = thing
    return name
