"""Reading of saved models and start weights; no code in a file is executed."""

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
COUNTS = "num_batches_tracked"  # BatchNorm's buffer
LARGEST_HEAD = 2**30  # bytes of a random head for a file without one


def open_saved(path: Path) -> tuple[Model, tuple[int, ...], tuple[str, ...]]:
    """Open a model that a run has saved.

    If the file has only the body, the head gets random weights.

    Returns:
        The model in evaluation mode, the shape of one input, and the names of the classes.

    Raises:
        InputError: If the file is not a saved model, or is of a user's own architecture, which a file may not import.
    """
    about = saved_about(path)
    recipe = None if about is None else Recipe.checked(about, path)
    if recipe is None or not ARCHITECTURES.installed(recipe.architecture):
        raise InputError(f"{path}: is not a model of a known architecture saved by kinfed; see: kinfed models")
    return restored(recipe, path, whole=False), recipe.shape, recipe.classes


def restored(recipe: Recipe, path: Path, *, whole: bool = True) -> Model:
    """Build the model of a recipe with the tensors of a safetensors file, on the CPU and in evaluation mode.

    It takes no more memory than the tensors in the file, whatever shapes the recipe claims.

    Args:
        recipe: Description of the model, with a known architecture.
        path: File of the tensors.
        whole: True if the file must contain the head; if False, or if the recipe has no classes, a missing head gets
            random weights.

    Raises:
        InputError: If the file does not fit the recipe, or `weights_for` refuses it.
    """
    try:
        with torch.device("meta"):  # without memory
            model = build(
                recipe.architecture, recipe.shape, max(len(recipe.classes), 1), seed=0, bn=recipe.bn, head=recipe.head
            )
    except (InputError, RuntimeError) as error:  # RuntimeError: sizes that overflow
        raise InputError(f"{path}: no model fits its description: {error}") from error
    tensors = weights_for(model, path)
    if not select(tensors, HEAD):
        if whole and recipe.classes:
            raise InputError(
                f"{path}: is a body without a head, not a complete model; it can serve as initial weights: --weights"
            )
        tensors |= _random_head(model.head, path)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def _random_head(like: nn.Linear, path: Path) -> Tensors:
    if like.weight.nbytes > LARGEST_HEAD:
        raise InputError(f"{path}: is a body without a head, and a new head would need {like.weight.nbytes:,} bytes")
    with seeded_globals(torch_stream(0, "head")):
        head = nn.Linear(like.in_features, like.out_features, bias=like.bias is not None)
    return {f"{HEAD[0]}{name}": tensor for name, tensor in head.state_dict().items()}


def saved_about(path: Path) -> dict[str, Any] | None:
    """Read a safetensors file's description of the model in it; None if it holds no model.

    Raises:
        InputError: If the file cannot be read.
    """
    try:
        about = told_in(path)
    except ValueError as error:
        raise InputError(f"{path}: {str(error).removeprefix('it ')}") from error
    return about if "architecture" in about else None


def load_weights(model: Model, path: Path) -> None:
    """Copy the tensors of a safetensors file into a model: those of the whole model, or of the body only.

    Raises:
        InputError: If `weights_for` refuses the file.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> model = Model({"flatten": nn.Flatten()}, nn.Linear(4, 2), [])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"head.weight": torch.ones(2, 4), "head.bias": torch.zeros(2)}, f"{folder}/start.safetensors")
    ...     load_weights(model, Path(folder, "start.safetensors"))
    >>> model.head.weight.sum().item()
    8.0
    """
    model.load(weights_for(model, path))


def weights_for(model: Model, path: Path) -> Tensors:
    """Read the tensors of a safetensors file for a model: those of the whole model, or of the body only.

    A file without names that start with ``body.`` or ``head.`` has torchvision's names, if the architecture is one of
    torchvision's. It may lack BatchNorm's ``num_batches_tracked``, which are then 0. All names and shapes are checked
    before a tensor is read.

    Args:
        model: Model that the tensors are for. Its weights are not used; it may be on the device ``meta``.
        path: File to read.

    Returns:
        Tensors with the model's names and types.

    Raises:
        InputError: If the file is a pickle, is damaged or cannot be read, lacks a tensor, has a tensor of another name,
            shape or type, or a number that is not finite.
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
    """Read the tensors of an open file after checking all names and shapes."""
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
    mine = _by_their_names(model, [*shapes], path)
    for name, shape in shapes.items():
        _, own = mine[name]
        if shape != own.shape:
            told = f"{shape}; must be {tuple(own.shape)} as in the model"
            raise InputError(f"weights: {name} in {path} has the shape {told}")
    tensors = {name: file.get_tensor(name) for name in shapes}
    checked(file, tensors)
    return {ours: _of_kind(tensors, name, own, path) for name, (ours, own) in mine.items()}


def _by_their_names(model: Model, names: Sequence[str], path: Path) -> dict[str, tuple[str, Tensor]]:
    """Map the names in a file to the model's names and tensors; refuse missing and unknown names."""
    theirs = {} if any(name.startswith(ALL) for name in names) else torchvision_names(model)
    mine = {theirs.get(name, name): (name, tensor) for name, tensor in model.named_tensors().items()}
    body = {name for name, (ours, _) in mine.items() if ours.startswith(BODY)}
    wanted = body if {*names} <= body else mine.keys()
    optional = {name for name in wanted if theirs and name.endswith(COUNTS)}  # torchvision's files are older
    for name in sorted(wanted ^ {*names}):
        if name not in optional:
            raise InputError(f"weights: {path} {'lacks' if name in wanted else 'has an unknown tensor'} {name}")
    return {name: mine[name] for name in mine if name in wanted}


def _of_kind(tensors: Tensors, name: str, own: Tensor, path: Path) -> Tensor:
    """Convert a tensor of a file to the type of the model's; a missing ``num_batches_tracked`` is 0."""
    tensor = tensors.get(name)
    if tensor is None:
        return torch.zeros((), dtype=own.dtype)
    if tensor.is_floating_point() != own.is_floating_point() or tensor.is_complex():
        raise InputError(f"weights: {name} in {path} has the type {tensor.dtype}; must be {own.dtype} as in the model")
    typed = tensor.to(own.dtype)
    if not typed.isfinite().all():
        raise InputError(f"weights: {path} has a number in {name} that is not finite")
    return typed


def refuse_pickle(path: Path) -> None:
    """Refuse a file with the suffix of a PyTorch pickle, which can run code.

    Raises:
        InputError: If the suffix is one of these; the message says how to convert the file.

    >>> refuse_pickle(Path("model.safetensors"))
    """
    if path.suffix.lower() in PICKLED:
        raise InputError(
            f"weights: {str(path)!r} may be a pickle, which can run code; if you trust it, convert it with: "
            f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), '{path.stem}.safetensors')"
        )
