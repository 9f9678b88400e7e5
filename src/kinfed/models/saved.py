"""Reading of saved models and start weights; no code in a file is executed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kinfed.errors import InputError
from kinfed.models.building import build
from kinfed.models.card import Recipe
from kinfed.models.catalogue import ARCHITECTURES
from kinfed.models.model import ALL, BODY, HEAD, Model, Tensors, select
from kinfed.models.tensor_files import checked, opened, told_in
from kinfed.models.torchvision_names import torchvision_names
from kinfed.streams import seeded_globals, torch_stream

__all__ = ["load_weights", "open_saved", "refuse_pickle", "restored", "saved_about", "weights_for"]

PICKLED = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")
COUNTS = "num_batches_tracked"  # BatchNorm's buffer
STATISTICS = ("running_mean", "running_var", COUNTS)  # all of its buffers
LARGEST_HEAD = 2**30  # bytes of a random head for a file without one

_Shapes = dict[str, tuple[int, ...]]
_Named = dict[str, tuple[str, Tensor]]  # the model's name and tensor by the name in a file


def open_saved(path: Path, *, allow_code: bool = False) -> tuple[Model, tuple[int, ...], tuple[str, ...]]:
    """Open a model that a run has saved.

    If the file has only the body, the head gets random weights.

    Args:
        path: File of the model.
        allow_code: Import a user's own architecture that the file names, ``package.module:function``.

    Returns:
        The model in evaluation mode, the shape of one input, and the names of the classes.

    Raises:
        InputError: If the file is not a saved model, or is of a user's own architecture whose import is not allowed.
    """
    about = saved_about(path)
    recipe = None if about is None else Recipe.checked(about, path)
    if recipe is not None and ARCHITECTURES.installed(recipe.architecture):
        return restored(recipe, path, whole=False), recipe.shape, recipe.classes
    if recipe is None or ":" not in recipe.architecture:
        raise InputError(f"{path}: is not a model of a known architecture saved by kinfed; see: kinfed models")
    if not allow_code:
        raise InputError(
            f"{path}: is not a model of a known architecture; importing its own, {recipe.architecture!r}, would run "
            "code; allow that with --allow-code (allow_code=True)"
        )
    classes = max(len(recipe.classes), 1)
    model = build(recipe.architecture, recipe.shape, classes, seed=0, bn=recipe.bn, head=recipe.head)
    model.load(weights_for(model, path))
    return model.eval(), recipe.shape, recipe.classes


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

    A head for another number of classes is left out, so that the model's own begins, and so are BatchNorm's running
    statistics, if the model has none (``bn`` of `kinfed.models.build`); `Model.start` says so.

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
    told: list[str] = []
    model.load(weights_for(model, path, told))
    model.start = tuple(told)


def weights_for(model: Model, path: Path, left_out: list[str] | None = None) -> Tensors:
    """Read the tensors of a safetensors file for a model: those of the whole model, or of the body only.

    A file with other names than those that start with ``body.`` or ``head.`` has torchvision's names, if the
    architecture is one of torchvision's, or those of the module of which the model is made. It may lack BatchNorm's
    ``num_batches_tracked``, which are then 0. All names and shapes are checked before a tensor is read.

    Args:
        model: Model that the tensors are for. Its weights are not used; it may be on the device ``meta``.
        path: File to read.
        left_out: List to which a sentence is added for each thing of the file that is left out; see `load_weights`.
            None to refuse the file for it.

    Returns:
        Tensors with the model's names and types.

    Raises:
        InputError: If the file is a pickle, is damaged or cannot be read, lacks a tensor, has a tensor of another name,
            shape or type, or a number that is not finite.
    """
    refuse_pickle(path)
    try:
        with opened(path) as file:
            return _fitting(model, file, path, left_out)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"weights: {path} {str(error).removeprefix('it ')}") from error


def _fitting(model: Model, file: Any, path: Path, left_out: list[str] | None) -> Tensors:
    """Read the tensors of an open file after checking all names and shapes."""
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
    whole = [*shapes]
    if left_out is not None:
        shapes = _without_statistics(model, shapes, path, left_out)
    mine = _by_their_names(model, [*shapes], path)
    if left_out is not None:
        mine = _without_head(mine, shapes, path, left_out)
    for name, shape in shapes.items():
        own = mine[name][1] if name in mine else None
        if own is not None and shape != own.shape:
            told = f"{shape}; must be {tuple(own.shape)} as in the model{_hint(shape, own.shape)}"
            raise InputError(f"weights: {name} in {path} has the shape {told}")
    tensors = {name: file.get_tensor(name) for name in whole}
    checked(file, tensors)
    return {ours: _of_kind(tensors, name, own, path) for name, (ours, own) in mine.items()}


def _without_statistics(model: Model, shapes: _Shapes, path: Path, left_out: list[str]) -> _Shapes:
    """Leave BatchNorm's buffers out of the names in a file for a model that has none in its place."""
    if model.recipe.get("bn") not in ("batch", "group"):
        return shapes
    kept = {name: shape for name, shape in shapes.items() if not name.endswith(STATISTICS)}
    if len(kept) < len(shapes):
        left_out.append(f"The running statistics of BatchNorm in {path} are not used (bn={model.recipe['bn']}).")
    return kept


def _without_head(mine: _Named, shapes: _Shapes, path: Path, left_out: list[str]) -> _Named:
    """Leave the head out of a model's tensors, if the one in a file is for another number of classes."""
    heads = {name: own.shape for name, (ours, own) in mine.items() if ours.startswith(HEAD)}
    classes = {(shapes[name][:1], own[:1]) for name, own in heads.items()}
    if len(classes) != 1 or any(shapes[name][1:] != own[1:] or shapes[name] == own for name, own in heads.items()):
        return mine  # the model's own head, none, or one that is refused
    (((theirs,), (ours,)),) = classes
    left_out.append(f"The head is new: {path} has one for {theirs} classes, and the data have {ours}.")
    return {name: of for name, of in mine.items() if name not in heads}


def _hint(shape: tuple[int, ...], own: tuple[int, ...]) -> str:
    """Return what to do about the first convolution of another input, as the end of a message."""
    if len(shape) != 4 or len(own) != 4 or shape[0] != own[0]:
        return ""
    if (shape[1], own[1]) == (3, 1):
        return "; with channels=3 grey images become colour images"
    return "; only images above 64×64 have torchvision's stem: image_size=224" if shape[2:] == (7, 7) else ""


def _by_their_names(model: Model, names: Sequence[str], path: Path) -> dict[str, tuple[str, Tensor]]:
    """Map the names in a file to the model's names and tensors; refuse missing and unknown names."""
    theirs = {} if all(name.startswith(ALL) for name in names) else torchvision_names(model) or _former_names(model)
    mine = {theirs.get(name, name): (name, tensor) for name, tensor in model.named_tensors().items()}
    body = {name for name, (ours, _) in mine.items() if ours.startswith(BODY)}
    wanted = body if {*names} <= body else mine.keys()
    optional = {name for name in wanted if theirs and name.endswith(COUNTS)}  # torchvision's files are older
    for name in sorted(wanted ^ {*names}):
        if name not in optional:
            raise InputError(f"weights: {path} {'lacks' if name in wanted else 'has an unknown tensor'} {name}")
    return {name: mine[name] for name in mine if name in wanted}


def _former_names(model: Model) -> dict[str, str]:
    """Map the names of a model's tensors to those in the module of which it was made."""
    tensors = model.named_tensors()
    return {
        name: former + name.removeprefix(now)
        for now, former in model.former.items()
        for name in tensors
        if name.startswith(now)
    }


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
