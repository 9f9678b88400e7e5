"""The config of an experiment from given fields and a file; fields that would have no effect are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfed.experiment.config import Config, as_tuple, finder
from kinfed.experiment.config_file import is_written, read_toml, tables
from kinfed.experiment.protection import protected
from kinfed.experiment.uses import OF_CLIENTS, OF_METHODS, Use, refuse_idle
from kinfed.labels import parse_label

__all__ = ["configure"]


def configure(
    fields: Mapping[str, Any],
    file: Path | None = None,
    *,
    alone: bool = False,
    uses: Mapping[str, Use] | None = None,
    objects: Mapping[str, Any] | None = None,
) -> Config:
    """Make a checked config of given fields and a file.

    Args:
        fields: Given fields; ``dp`` joins all methods with the wrapper of that name (`protected`).
        file: TOML file with more fields, which ``fields`` overrule. It may have tables of methods that are not run. A
            file that kinfed wrote has all fields, so none of them is refused for having no effect.
        alone: Add the baselines that train alone, as `Config.with_local` does.
        uses: Readers of each field, by its name; those of a run if not given.
        objects: Python objects by their names in angle brackets.

    Raises:
        InputError: If a field is wrong or would have no effect. The message is one line that names the field, the value
            and what is allowed, or what would read it.
    """
    there = {} if file is None else read_toml(file)
    methods = as_tuple(fields.get("methods", there.get("methods", ())))
    settings, of_file = (tables(of.get("settings", {})) for of in (fields, there))
    labels = [str(label) for label in methods] if isinstance(methods, Sequence) else []
    named = {*labels, *(parse_label(label)[0] for label in labels)}
    of_run = {method: own for method, own in of_file.items() if method in named}
    both = {method: {**of_run.get(method, {}), **settings.get(method, {})} for method in [*of_run, *settings]}
    told = {**there, **fields}.get("dp")
    there, fields = ({name: value for name, value in of.items() if name != "dp"} for of in (there, fields))
    if told is not None:
        methods, both = protected(labels, both, str(told), finder(objects))
        labels = [*methods]
    config = Config.checked({**there, **fields, "methods": methods, "settings": both}, objects)
    config = config.with_local() if alone else config
    given = fields if file is None or is_written(file) else {**there, **fields, "settings": both}
    typed = {label: own for label, (_, own) in zip(labels, map(parse_label, labels), strict=True) if own}
    own = {**(given.get("settings", {}) if told is None else both), **typed}
    refuse_idle({**given, "settings": own}, [config], {**OF_CLIENTS, **OF_METHODS} if uses is None else uses)
    return config
