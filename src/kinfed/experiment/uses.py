"""Refusal of fields that would have no effect: the conditions under which each field is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kinfed.data import Dataset
from kinfed.data.partitions import PARTITIONS
from kinfed.errors import InputError
from kinfed.experiment.config import EXECUTION, OF_TRAINING, Config, model_shares
from kinfed.fields import short
from kinfed.labels import parse_label
from kinfed.methods import METHODS, Method
from kinfed.models import Model

__all__ = [
    "NO_SETTING", "OF_CLIENTS", "OF_METHODS", "OF_VERDICTS", "Use", "overruled", "refuse_idle", "refuse_idle_in",
    "refuse_unlabelled", "refuse_without_labels",
]  # fmt: skip


@dataclass(frozen=True)
class Use:
    """The condition under which a field is read.

    Attributes:
        by: Readers of the field in words, for an error message.
        reads: Function that returns True if a method with a config reads the field.
        off: Value of the field that is allowed without a reader, since it requests nothing.
    """

    by: str
    reads: Callable[[Config, Any], bool]
    off: Any = None


def _fine_tunes(config: Config, method: Method) -> bool:
    return config.ft_epochs > 0 and method.adapts and method.trains != "pooled"


def _refits(config: Config, method: Method) -> bool:
    """Return True if heads are re-fitted after the last round, at the clients that train or at new ones."""
    return method.adapts and (method.trains != "pooled" or config.new_clients > 0 or bool(config.hold_out))


def _freezes(config: Config, method: Method) -> bool:
    """Return True if activations of a client's frozen models can be cached."""
    return _refits(config, method) or (config.augment == "none" and "feature_cache_mb" in method.reads)


def _probes(config: Config, method: Method) -> bool:
    """Return True if representations are tested by a linear probe or by nearest neighbours."""
    linear = not method.supervised if config.linear_probe is None else config.linear_probe
    return linear or (not method.supervised and config.knn_every > 0)


def _of_partitions() -> dict[str, Use]:
    """Return the uses of the fields of the config that partitions read."""
    readers: dict[str, list[str]] = {}
    for name in PARTITIONS:
        if PARTITIONS.origin(name) == "kinfed":  # users' partitions are imported only when they are used
            for option in PARTITIONS[name].options:
                readers.setdefault(option, []).append(name)
    return {option: _of_partition(option, names) for option, names in readers.items()}


def _of_partition(option: str, names: Sequence[str]) -> Use:
    *others, last = names
    by = f"the partitions {', '.join(others)} and {last}" if others else f"partition {last}"
    return Use(by, lambda config, _: option in config.partition_options)


# Fields that are not always read, for reasons other than the methods.
OF_CLIENTS: dict[str, Use] = {
    **_of_partitions(),
    "client": Use(
        "partition by:client, which is the default with it",
        lambda config, _: (
            config.partition in ("folders", "by:client", f"by:{config.client}") or config.partition.startswith("file:")
        ),
    ),
    "head": Use(
        "a model of your own, named as package.module:function",
        lambda config, _: any(":" in name for name in [config.model or "", *dict(model_shares(config.models or ""))]),
    ),
}

# Fields that only some methods read.
OF_METHODS: dict[str, Use] = {
    "sources": Use("fedvote and fedvote+NAME", lambda _, method: method.requires.source_models),
    "participation": Use(
        "methods that draw some of the clients for a round", lambda _, method: method.trains == "sampled", off=1.0
    ),
    "local_epochs": Use(
        "methods that have no epochs of their own (fedrep has head_epochs and body_epochs)",
        lambda _, method: "local_epochs" in method.reads,
    ),
    "augment": Use(
        "methods that read labels; the others have two views of each image", lambda _, method: method.supervised, "none"
    ),
    "momentum": Use(
        "optimizer=sgd, in methods that train with momentum, or whose clients re-fit a head after the last round",
        lambda config, method: config.optimizer == "sgd" and ("momentum" in method.reads or _refits(config, method)),
    ),
    "feature_cache_mb": Use(
        "what stores activations of frozen models: heads that clients with labels re-fit after the last round, and "
        "methods with frozen models",
        _freezes,
    ),
    "ft_epochs": Use(
        "methods whose clients have labels and train at their own place",
        lambda _, method: method.adapts and method.trains != "pooled",
        off=0,
    ),
    "ft_lr": Use("the fine-tuning: ft_epochs above 0, and clients with labels at their own place", _fine_tunes),
    "ft_part": Use("the fine-tuning: ft_epochs above 0, and clients with labels at their own place", _fine_tunes),
    "linear_probe_images": Use(
        "linear probes and knn: methods that read no labels, or linear_probe=true", _probes
    ),
    "knn_every": Use(
        "methods that read no labels; evaluate_every is that of the others",
        lambda _, method: not method.supervised,
        off=0,
    ),
    "evaluate_every": Use(
        "methods that read labels; knn_every is that of the others", lambda _, method: method.supervised
    ),
    "stop_acc": Use("methods that have a global model", lambda _, method: method.serves != "private"),
    "target_acc": Use("methods that have a global model", lambda _, method: method.serves != "private"),
    "measure": Use(
        "methods that read labels, and linear probes",
        lambda config, method: method.supervised or config.linear_probe is not False,
        off="accuracy",
    ),
    "further_clients": Use(
        "methods whose clients have labels and train at their own place",
        lambda _, method: method.supervised or method.adapts,
    ),
    "save_local": Use(
        "methods whose clients send whole models, such as fedavg",
        lambda _, method: "save_local" in method.reads,
        off=False,
    ),
}  # fmt: skip


# Fields that are read only if the samples of the clients have labels, with the values that ask for nothing.
OF_LABELS: dict[str, Any] = {"classes": None, "new_clients": 0, "hold_out": None}
# Fields that are read only if there are labels to test with: of the clients' samples, or of the field ``labelled``.
OF_TESTS: dict[str, Any] = {
    "linear_probe": None, "linear_probe_images": None, "target_acc": None, "stop_acc": None, "measure": "accuracy",
    "validation": 0.0,
}  # fmt: skip

# What no command reads that compares nothing by itself.
OF_VERDICTS: dict[str, Use] = {
    "measure": Use("run, compare, tune, advise and report", lambda *_: False, off="accuracy"),
}

# Fields that are not part of an experiment's setting: execution, seeds, and rounds between evaluations.
NO_SETTING = {*EXECUTION, "seed", "evaluate_every", "knn_every"}


def refuse_idle_in(config: Config, models: Sequence[Model]) -> None:
    """Refuse a mode of BatchNorm for models without such layers.

    Args:
        config: Config of the run.
        models: Models of the clients.

    Raises:
        InputError: If there is such a field; one line names the field, its value and the models.
    """
    names = ", ".join(dict.fromkeys(model.recipe.get("architecture", "the model") for model in models))
    normed = (nn.BatchNorm2d, nn.GroupNorm)
    if config.bn != "track" and not any(isinstance(module, normed) for model in models for module in model.modules()):
        raise InputError(f"bn: {config.bn!r} would do nothing; {names} has no BatchNorm of maps")


def refuse_without_labels(config: Config, dataset: Dataset) -> None:
    """Refuse fields that need labels if the data have none, and labelled data beside data with labels.

    Args:
        config: Config of the run.
        dataset: Data set of the clients.

    Raises:
        InputError: If there is such a field; one line names the field, its value and the data.
    """
    if dataset.labelled and config.labelled is not None:
        raise InputError(f"labelled: {short(config.labelled)} would do nothing; {dataset.name} has labels of its own")
    needing = {} if dataset.labelled else OF_LABELS if config.labelled is not None else {**OF_LABELS, **OF_TESTS}
    for name, off in needing.items():
        if (value := getattr(config, name)) != off:
            other = "; labelled=… names other data that have them" if name in OF_TESTS else ""
            raise InputError(
                f"{name}: {short(value)} is not allowed; it needs labels, and {dataset.name} has none{other}"
            )


def refuse_unlabelled(label: str, method: Method, dataset: Dataset) -> None:
    """Refuse a method that reads labels if the data have none.

    Args:
        label: Label of the method.
        method: The method.
        dataset: Data set of the clients.

    Raises:
        InputError: If it does; one line names the method, the data and the methods that read no labels.
    """
    if method.supervised and not dataset.labelled:
        able = ", ".join(name for name, kind in METHODS.items() if not kind.supervised)
        raise InputError(
            f"methods: {label} reads labels, and {dataset.name} has none (label names a column that has them); {able} "
            "read none"
        )


def refuse_idle(given: Mapping[str, Any], configs: Sequence[Config], uses: Mapping[str, Use]) -> None:
    """Refuse a given field that no method of any config reads.

    Args:
        given: Fields that the user gave; defaults are not refused.
        configs: Configs made from these fields, one or more.
        uses: Use of each field that is not always read.

    Raises:
        InputError: If there is such a field; one line names the first one, its value and its readers.
    """
    pairs = [(config, label) for config in configs for label in config.methods]
    for name in given:
        value = getattr(configs[0], name)
        use = uses.get(name)
        if use and value != use.off and not any(_reads(use, config, label) for config, label in pairs):
            _refuse(name, value, use.by)
        if _is_replaced(name, pairs):
            raise InputError(f"{name}: {short(value)} would do nothing; every method has its own")
    for named, own in given.get("settings", {}).items():
        of_name = [(config, label) for config, label in pairs if named in (label, parse_label(label)[0])]
        _refuse_idle_of(named, own, of_name, uses)


def _reads(use: Use, config: Config, label: str) -> bool:
    """Return True if a method, or a test of it after the last round, reads a field of the experiment."""
    return use.reads(config, config.method(label)) or _trains_with(use, config, label)


def _trains_with(use: Use, config: Config, label: str) -> bool:
    """Return True if a method with its own settings of the training reads a field."""
    return use.reads(config.model_copy(update=config.own_training(label)), config.method(label))


def _is_replaced(name: str, pairs: Sequence[tuple[Config, str]]) -> bool:
    """Return True if every method replaces a setting of the training by its own, and no head is re-fitted with it."""
    refits = any(_refits(config, config.method(label)) for config, label in pairs)
    own = name in OF_TRAINING and all(_has_own(name, config.own_training(label)) for config, label in pairs)
    return own and (name == "local_epochs" or not refits)


def _has_own(name: str, own: Mapping[str, Any]) -> bool:
    """Return True if a method's own settings replace one of the experiment; another optimiser has no momentum."""
    return name in own or (name == "momentum" and own.get("optimizer", "sgd") != "sgd")


def _refuse_idle_of(
    named: str, own: Mapping[str, Any], pairs: Sequence[tuple[Config, str]], uses: Mapping[str, Use]
) -> None:
    """Refuse a given field of a method's own that no variant of the method reads.

    Args:
        named: Name or label of the method.
        own: Given fields of the method.
        pairs: Variants of the method: configs and labels.
        uses: Use of each field of the experiment that is not always read.
    """
    methods = [config.method(label) for config, label in pairs]
    training = {name: value for config, label in pairs for name, value in config.own_training(label).items()}
    for name in own if methods else ():
        if name in training:
            if name in uses and not any(_trains_with(uses[name], config, label) for config, label in pairs):
                _refuse(f"{parse_label(named)[0]}.{name}", training[name], uses[name].by)
        elif all(name in method.idle for method in methods):
            method = methods[0] if hasattr(methods[0], name) else methods[0].unwrapped
            _refuse(f"{parse_label(named)[0]}.{name}", getattr(method, name), method.idle[name])


def _refuse(name: str, value: Any, by: str) -> None:
    raise InputError(f"{name}: {short(value)} would do nothing; it is of {by}")


def overruled(given: Mapping[str, Any], configs: Sequence[Config], base: Sequence[Config]) -> dict[str, Any]:
    """Return the given fields whose values differ from those of the base configs.

    Args:
        given: Fields that the user gave.
        configs: Configs with these fields.
        base: The same configs without these fields.

    Returns:
        Values by name of the field; a method's own fields are ``METHOD.FIELD``.
    """
    settings: Mapping[str, Mapping[str, Any]] = given.get("settings", {})
    other: dict[str, Any] = {}
    for config, of in zip(configs, base, strict=True):
        now, before = config.model_dump(), of.model_dump()
        other |= {name: now[name] for name in given if name != "settings" and now[name] != before[name]}
        for method in (name for name in settings if name in config.settings):
            own, theirs = config.settings[method], of.settings[method]
            other |= {f"{method}.{name}": own[name] for name in settings[method] if own[name] != theirs[name]}
    return other
