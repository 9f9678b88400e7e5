"""Models on disk: those that runs have saved, and start weights. Nothing in a file is ever executed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kinfed.errors import InputError
from kinfed.models.card import Recipe
from kinfed.models.catalogue import ARCHITECTURES, build
from kinfed.models.model import ALL, BODY, HEAD, Model, Tensors, select
from kinfed.models.tensor_files import checked, opened, told_in
from kinfed.models.torchvision_names import torchvision_names
from kinfed.streams import seeded_globals, torch_stream

__all__ = ["load_weights", "open_saved", "refuse_pickle", "restored", "saved_about", "weights_for"]

PICKLED = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")
COUNTS = "num_batches_tracked"  # BatchNorm's
LARGEST_HEAD = 2**30  # bytes of a head that is in no file


def open_saved(path: Path) -> tuple[Model, tuple[int, ...], tuple[str, ...]]:
    """A model that a run has saved: the model in evaluation mode, the shape of one input, and the class names.

    Where the file has the body alone, the head has random weights.

    Raises:
        InputError: If the file is no such model, or one of a user's own architecture, which a file may not import.
    """
    about = saved_about(path)
    recipe = None if about is None else Recipe.checked(about, path)
    if recipe is None or not ARCHITECTURES.installed(recipe.architecture):
        raise InputError(f"{path}: no model of one of the known architectures that a run has saved; see: kinfed models")
    return restored(recipe, path, whole=False), recipe.shape, recipe.classes


def restored(recipe: Recipe, path: Path, *, whole: bool = True) -> Model:
    """The model of a known architecture with the tensors of a safetensors file, on the CPU and in evaluation mode.

    Whatever the recipe says of shapes, no more memory is taken than the file has tensors for.

    Args:
        recipe: How to build it.
        path: The file.
        whole: Whether the head must be there; else one that is not gets random weights.

    Raises:
        InputError: If the file does not fit the recipe, and as `weights_for`.
    """
    try:
        with torch.device("meta"):  # without memory
            model = build(
                recipe.architecture, recipe.shape, len(recipe.classes), seed=0, bn=recipe.bn, head=recipe.head
            )
    except (InputError, RuntimeError) as error:  # the latter of sizes that no number holds
        raise InputError(f"{path}: there is no model as it is described: {error}") from error
    tensors = weights_for(model, path)
    if not select(tensors, HEAD):
        if whole:
            raise InputError(f"{path}: is a body without a head, no whole model; it can be start weights: --weights")
        tensors |= _random_head(model.head, path)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def _random_head(like: nn.Linear, path: Path) -> Tensors:
    if like.weight.nbytes > LARGEST_HEAD:
        raise InputError(f"{path}: is a body without a head, which would take {like.weight.nbytes:,} bytes")
    with seeded_globals(torch_stream(0, "head")):
        head = nn.Linear(like.in_features, like.out_features, bias=like.bias is not None)
    return {f"{HEAD[0]}{name}": tensor for name, tensor in head.state_dict().items()}


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
    torchvision's; it may lack the counts of batches (``num_batches_tracked``), which are 0 then. No tensor is read
    before all names and shapes fit.

    Args:
        model: Its own weights do not matter, and it may be without memory (on the device ``meta``).
        path: The file.

    Raises:
        InputError: If the file is a pickle, cannot be read or is damaged, lacks a tensor, has one of another name,
            shape or kind, or a number that is not finite.
    """
    refuse_pickle(path)
    try:
        with opened(path) as file:
            return _fitting(model, file, path)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"weights: {path} {str(error).removeprefix('it ')}") from error


def _fitting(model: Model, file: Any, path: Path) -> Tensors:
    """The tensors of an open file, whose shapes are looked at before anything is read."""
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
    mine = _by_their_names(model, [*shapes], path)
    for name, shape in shapes.items():
        _, own = mine[name]
        if shape != own.shape:
            told = f"{shape}, and the model's is {tuple(own.shape)}"
            raise InputError(f"weights: {name} in {path} has the shape {told}")
    tensors = {name: file.get_tensor(name) for name in shapes}
    checked(file, tensors)
    return {ours: _of_kind(tensors, name, own, path) for name, (ours, own) in mine.items()}


def _by_their_names(model: Model, names: Sequence[str], path: Path) -> dict[str, tuple[str, Tensor]]:
    """The model's own names and tensors by those that they have in a file, whose names must be these."""
    theirs = {} if any(name.startswith(ALL) for name in names) else torchvision_names(model)
    mine = {theirs.get(name, name): (name, tensor) for name, tensor in model.named_tensors().items()}
    body = {name for name, (ours, _) in mine.items() if ours.startswith(BODY)}
    wanted = body if {*names} <= body else mine.keys()
    optional = {name for name in wanted if theirs and name.endswith(COUNTS)}  # torchvision's files are older
    for name in sorted(wanted ^ {*names}):
        if name not in optional:
            raise InputError(f"weights: {path} {'lacks' if name in wanted else 'has a strange tensor'} {name}")
    return {name: mine[name] for name in mine if name in wanted}


def _of_kind(tensors: Tensors, name: str, own: Tensor, path: Path) -> Tensor:
    """A tensor of a file in the type that the model's has; a count of batches that it lacks is 0."""
    tensor = tensors.get(name)
    if tensor is None:
        return torch.zeros((), dtype=own.dtype)
    if tensor.is_floating_point() != own.is_floating_point() or tensor.is_complex():
        raise InputError(f"weights: {name} in {path} has the type {tensor.dtype}, and the model's is {own.dtype}")
    typed = tensor.to(own.dtype)
    if not typed.isfinite().all():
        raise InputError(f"weights: {path} has a number that is not finite in {name}")
    return typed


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
