"""Models on disk: those that runs have saved, and start weights. Nothing in a file is ever executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from kinfed.errors import InputError
from kinfed.models.catalogue import ARCHITECTURES, build
from kinfed.models.model import BODY, Model, select

__all__ = ["load_weights", "open_saved", "saved_about"]


def open_saved(path: Path) -> tuple[Model, tuple[int, ...], tuple[str, ...]]:
    """A model that a run has saved: the model in evaluation mode, the shape of one input, and the class names.

    Raises:
        InputError: If the file is no such model, or one of a user's own architecture, which a file may not import.
    """
    about = saved_about(path)
    if about is None or about["architecture"] not in ARCHITECTURES:
        raise InputError(f"{path}: no model of one of the known architectures that a run has saved; see: kinfed models")
    model = build(about["architecture"], tuple(about["shape"]), len(about["classes"]), seed=0, bn=about["bn"])
    load_weights(model, path)
    return model.eval(), tuple(about["shape"]), tuple(about["classes"])


def saved_about(path: Path) -> dict[str, Any] | None:
    """What a safetensors file says of the model in it, or None if it holds no model.

    Raises:
        InputError: If it cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {}).get("about", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
    return about if "architecture" in about else None


def load_weights(model: Model, path: Path) -> None:
    """Copy the tensors of a safetensors file into a model: all of them, or those of the body alone.

    Raises:
        InputError: If the file cannot be read, lacks a tensor, or has one of another name or shape.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"weights: {path} cannot be read as safetensors: {error}") from error
    mine = model.state_dict()
    wanted = mine.keys() if any(name not in select(mine, BODY) for name in tensors) else select(mine, BODY).keys()
    for name in sorted(wanted ^ tensors.keys()):
        raise InputError(f"weights: {path} {'lacks' if name in wanted else 'has a strange tensor'} {name}")
    for name, tensor in tensors.items():
        if tensor.shape != mine[name].shape:
            shapes = f"{tuple(tensor.shape)}, and the model's is {tuple(mine[name].shape)}"
            raise InputError(f"weights: {name} in {path} has the shape {shapes}")
    model.load(tensors)
