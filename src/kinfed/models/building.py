"""Construction of models from architectures."""

from __future__ import annotations

import math

import torch
from torch import nn

from kinfed.errors import InputError
from kinfed.models.batchnorm import BatchNorm, set_batchnorm
from kinfed.models.catalogue import ARCHITECTURES, Architecture, default_architecture, from_elsewhere
from kinfed.models.model import Model
from kinfed.models.own import Maker, from_module, name_of
from kinfed.streams import seeded_globals, torch_stream

__all__ = ["build"]

UNTAPPED = ("pool", "flatten", "gap")  # stages without a tap point: their outputs add nothing to their neighbours'


def build(
    architecture: str | nn.Module | Maker,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    bn: BatchNorm = "track",
    head: str | None = None,
    stream: tuple[str | int, ...] = ("model",),
) -> Model:
    """Build a model with the initial weights of a seed.

    Args:
        architecture: Name of one of `ARCHITECTURES`, ``torchvision:NAME`` or ``timm:NAME``; or a function or class that
            makes a module or a `Model` from the input shape and the number of classes, given itself or as
            ``package.module:function``; or a module, which is copied with its weights.
        shape: Shape of one input, (c, h, w) for images.
        classes: Number of outputs of the head.
        seed: Seed of the run.
        bn: Treatment of BatchNorm layers; see `set_batchnorm`.
        head: Name of the last linear layer of a user's own module; None for the one defined last.
        stream: Address of the random stream of the initial weights; see `kinfed.streams`.

    Raises:
        InputError: If the architecture needs images, or larger ones. Or if a user's own module does not give one logit
            for each class, does not end in its head, or has frozen a layer that ``bn`` replaces.

    >>> build(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), (1, 8, 8), 10, seed=0).recipe
    {'architecture': '<Sequential>', 'bn': 'track'}
    """
    name = architecture if isinstance(architecture, str) else name_of(architecture)
    with seeded_globals(torch_stream(seed, *stream)):
        found = (
            ARCHITECTURES.find(architecture) if isinstance(architecture, str) else from_elsewhere(name, architecture)
        )
        if isinstance(found, Architecture):
            model = _known(found, name, shape, classes)
        else:
            model = _own(found.make, name, shape, classes, head)
    model.keep_frozen()
    if bn in ("batch", "group"):
        _refuse_frozen_batchnorm(model, bn)
    set_batchnorm(model, bn)
    model.keep_frozen()
    model.recipe = {"architecture": name, "bn": bn, **({} if head is None else {"head": head})}
    return model.train()


def _known(architecture: Architecture, name: str, shape: tuple[int, ...], classes: int) -> Model:
    if architecture.smallest is not None:
        size = "×".join(map(str, shape))
        if len(shape) != 3:
            raise InputError(
                f"model: {name} needs images c×h×w, but the inputs have the shape {size}; mlp takes flat features"
            )
        if min(shape[1:]) < architecture.smallest:
            raise InputError(
                f"model: {name} needs images of {architecture.smallest}×{architecture.smallest} or more, but these "
                f"are {shape[1]}×{shape[2]}; use {default_architecture(shape)}"
            )
    stages = architecture.stages(shape)
    features = math.prod(_outputs(nn.Sequential(*stages.values()), shape)[1:])
    return Model(stages, nn.Linear(features, classes), [s for s in stages if not s.startswith(UNTAPPED)])


def _own(make: Maker, name: str, shape: tuple[int, ...], classes: int, head: str | None) -> Model:
    module = make(shape, classes)
    if not isinstance(module, nn.Module):
        raise InputError(f"model: {name} returns {type(module).__name__}; must be a torch.nn.Module")
    if isinstance(module, Model) and head is not None:
        raise InputError(f"head: {head!r} would do nothing; {name} returns a Model, which already has a head")
    try:
        if isinstance(module, Model):
            model = module
        elif head is not None:
            model = from_module(module, head)
        else:
            model = _ending_in_its_head(module, shape)
        outputs = tuple(_outputs(model, shape))
    except (RuntimeError, AssertionError, ValueError) as error:  # whatever the module raises for a size
        if isinstance(error, InputError):
            raise
        raise InputError(f"model: {name} does not take inputs of {'×'.join(map(str, shape))}: {error}") from error
    if outputs != (2, classes):
        raise InputError(f"model: {name} has outputs of shape {outputs} for 2 samples; must be (2, {classes})")
    return model


def _ending_in_its_head(module: nn.Module, shape: tuple[int, ...]) -> Model:
    """Make a model whose head is the last linear layer that the module defines.

    Raises:
        InputError: If the module's output is not that of this layer, so that the head must be named.
    """
    linear = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    inputs = torch.linspace(-1, 1, 2 * math.prod(shape)).reshape(2, *shape)
    before = _evaluated(module, inputs)
    model = from_module(module)
    if not before.is_meta and not _alike(before, model, inputs):
        raise InputError(
            f"head: must be given, since the linear layer defined last, {linear[-1]}, does not run last; the model "
            f"must end in its head, one of {', '.join(linear)}"
        )
    return model


def _alike(before: torch.Tensor, model: Model, inputs: torch.Tensor) -> bool:
    try:
        after = _evaluated(model, inputs)
    except RuntimeError:  # layers after the removed one cannot take its input
        return False
    return before.shape == after.shape and torch.allclose(before, after, rtol=1e-4, atol=1e-5, equal_nan=True)


def _outputs(module: nn.Module, shape: tuple[int, ...]) -> torch.Size:
    """Shape of a module's outputs for two samples."""
    return _evaluated(module, torch.zeros(2, *shape)).shape


@torch.no_grad()
def _evaluated(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Compute a module's outputs in evaluation mode, and restore its modes.

    Draws from global generators are the same in each call.
    """
    modes = {part: part.training for part in module.modules()}
    with seeded_globals(torch_stream(0, "evaluated")):
        made: torch.Tensor = module.eval()(inputs)
    for part, mode in modes.items():
        part.training = mode
    return made


def _refuse_frozen_batchnorm(model: Model, bn: BatchNorm) -> None:
    if layers := sorted(n for n in model.frozen_layers if isinstance(model.get_submodule(n), nn.BatchNorm2d)):
        raise InputError(
            f"bn: {bn!r} is not allowed; it replaces {layers[0]}, which is frozen; must be 'track' or 'frozen'"
        )
