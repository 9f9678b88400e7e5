"""Models on disk: those that runs have saved, and start weights. Nothing in a file is ever executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kinfed.errors import InputError
from kinfed.models.catalogue import ARCHITECTURES, build
from kinfed.models.model import ALL, BODY, Model, Tensors
from kinfed.models.tensor_files import open_tensors, told_in
from kinfed.models.torchvision_names import torchvision_names

__all__ = ["load_weights", "open_saved", "refuse_pickle", "saved_about", "weights_for"]

PICKLED = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")


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
        about = told_in(path)
    except ValueError as error:
        raise InputError(f"{path}: {str(error).removeprefix('it ')}") from error
    return about if "architecture" in about else None


def load_weights(model: Model, path: Path) -> None:
    """Copy the tensors of a safetensors file into a model: all of them, or those of the body alone.

    Raises:
        InputError: As `weights_for`.
    """
    model.load(weights_for(model, path))


def weights_for(model: Model, path: Path) -> Tensors:
    """The tensors of a safetensors file for a model, named and typed as the model's: all, or those of the body alone.

    A file in which no name starts with ``body.`` or ``head.`` has torchvision's names, where the architecture is one of
    torchvision's; it may lack the counts of batches (``num_batches_tracked``), which are 0 then.

    Args:
        model: Its own weights do not matter, and it may be without memory (on the device ``meta``).
        path: The file.

    Raises:
        InputError: If the file is a pickle, cannot be read or is damaged, lacks a tensor, or has one of another name or
            shape.
    """
    tensors = _read(path)
    theirs = {} if any(name.startswith(ALL) for name in tensors) else torchvision_names(model)
    mine = {theirs.get(name, name): (name, tensor) for name, tensor in model.named_tensors().items()}
    body = {name for name, (ours, _) in mine.items() if ours.startswith(BODY)}
    wanted = body if tensors.keys() <= body else mine.keys()
    fitting: Tensors = {}
    for name in sorted(wanted | tensors.keys()):
        if name in wanted and name not in tensors and theirs and name.endswith("num_batches_tracked"):
            tensors[name] = torch.zeros((), dtype=torch.int64)  # torchvision's files are older than these
        if name not in wanted or name not in tensors:
            raise InputError(f"weights: {path} {'lacks' if name in wanted else 'has a strange tensor'} {name}")
        ours, own = mine[name]
        if tensors[name].shape != own.shape:
            shapes = f"{tuple(tensors[name].shape)}, and the model's is {tuple(own.shape)}"
            raise InputError(f"weights: {name} in {path} has the shape {shapes}")
        fitting[ours] = tensors[name].to(own.dtype)
    return fitting


def _read(path: Path) -> Tensors:
    refuse_pickle(path)
    try:
        return open_tensors(path)[0]
    except ValueError as error:
        raise InputError(f"weights: {path} {str(error).removeprefix('it ')}") from error


def refuse_pickle(path: Path) -> None:
    """Refuse a file that is called as PyTorch calls its pickles, which can run code.

    Raises:
        InputError: If it is; the line says how to convert it.
    """
    if path.suffix.lower() in PICKLED:
        raise InputError(
            f"weights: {str(path)!r} may be a pickle, which can run code; convert it where you trust it: "
            f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), '{path.stem}.safetensors')"
        )
