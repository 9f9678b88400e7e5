"""The architectures by name, and how a model is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from kinfed.errors import InputError
from kinfed.models.batchnorm import BatchNorm, set_batchnorm
from kinfed.models.convnets import cnn4, cnn4_half, mcmahan_cnn, mlp, small_cnn, tiny_cnn
from kinfed.models.model import Model
from kinfed.models.own import factory, from_module
from kinfed.models.resnet import resnet18, resnet34, resnet50
from kinfed.models.vgg import vgg16, vgg16_bn
from kinfed.streams import seeded_globals, torch_stream

__all__ = ["ARCHITECTURES", "Architecture", "build", "suited"]

UNTAPPED = ("pool", "flatten", "gap")  # stages whose outputs tell no more than those before or after them


@dataclass(frozen=True)
class Architecture:
    """How to build a body.

    Attributes:
        stages: Input shape, (c, h, w) → the body's stages by name.
        smallest: Smallest height and width of an image; None where inputs need not be images.
        summary: One line for people.
    """

    stages: Callable[[tuple[int, ...]], dict[str, nn.Module]]
    smallest: int | None
    summary: str


ARCHITECTURES = {
    "tiny_cnn": Architecture(tiny_cnn, 4, "2 convolutions 3×3 and FC 64, for 8×8 digits"),
    "small_cnn": Architecture(small_cnn, 16, "FedCKA's CNN: 2 convolutions 5×5, FC 120 and 84, projection to 256"),
    "cnn4": Architecture(cnn4, 16, "FedBABU's and FedCRC's CNN: 4 convolutions 3×3(64) with BatchNorm"),
    "cnn4_half": Architecture(cnn4_half, 16, "the same with 32 filters, for clients that can run less"),
    "mcmahan_cnn": Architecture(mcmahan_cnn, 4, "McMahan's CNN: 2 convolutions 5×5 (32, 64), FC 512"),
    "mlp": Architecture(mlp, None, "2 hidden layers of 200; images or flat features"),
    "resnet18": Architecture(resnet18, 8, "ResNet-18, with a 3×3 stem for images up to 64×64"),
    "resnet34": Architecture(resnet34, 8, "ResNet-34, with the same two stems"),
    "resnet50": Architecture(resnet50, 8, "ResNet-50, with the same two stems"),
    "vgg16": Architecture(vgg16, 32, "VGG-16; from the last pooling to the head for images up to 64×64"),
    "vgg16_bn": Architecture(vgg16_bn, 32, "VGG-16 with BatchNorm, cut likewise"),
}


def suited(shape: tuple[int, ...]) -> str:
    """The name of the architecture that suits inputs of a shape where none is asked for."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        return "mlp"
    side = min(shape[1:])
    return "tiny_cnn" if side < 16 else "cnn4" if side < 48 else "resnet18"


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    bn: BatchNorm = "track",
    head: str | None = None,
    stream: tuple[str | int, ...] = ("model",),
) -> Model:
    """Build a model with the initial weights that belong to a seed.

    Args:
        name: One of `ARCHITECTURES`, or ``package.module:function`` for a function of the shape and the number of
            classes that returns a `Model`, or a module whose last linear layer is ``head``.
        shape: Of one input.
        classes: Outputs of the head.
        seed: Of the run.
        bn: What BatchNorm layers become; see `set_batchnorm`.
        head: Name of the last linear layer in a user's own module.
        stream: The seed's stream that the weights come from.

    Raises:
        InputError: If inputs of this shape are too small for the architecture or no images, or a user's own module does
            not give logits of these classes or has frozen a layer that ``bn`` replaces.
    """
    with seeded_globals(torch_stream(seed, *stream)):
        model = _own(name, shape, classes, head) if ":" in name else _known(name, shape, classes)
    model.keep_frozen()
    if bn != "track":
        _refuse_frozen_batchnorm(model, bn)
    set_batchnorm(model, bn)
    model.recipe = {"architecture": name, "bn": bn, **({} if head is None else {"head": head})}
    return model.train()


def _known(name: str, shape: tuple[int, ...], classes: int) -> Model:
    architecture = ARCHITECTURES[name]
    if architecture.smallest is not None:
        size = "×".join(map(str, shape))
        if len(shape) != 3:
            raise InputError(f"model: {name} takes images c×h×w, and the inputs are {size}; mlp takes flat features")
        if min(shape[1:]) < architecture.smallest:
            raise InputError(
                f"model: {name} needs images of {architecture.smallest}×{architecture.smallest} or more, and these are "
                f"{shape[1]}×{shape[2]}; {suited(shape)} suits them"
            )
    stages = architecture.stages(shape)
    features = math.prod(_outputs(nn.Sequential(*stages.values()), shape)[1:])
    return Model(stages, nn.Linear(features, classes), [s for s in stages if not s.startswith(UNTAPPED)])


def _own(name: str, shape: tuple[int, ...], classes: int, head: str | None) -> Model:
    module = factory(name)(shape, classes)
    if isinstance(module, Model) and head is not None:
        raise InputError(f"head: {head!r} would do nothing; {name} gives a Model, which has its head")
    model = module if isinstance(module, Model) else from_module(module, head)
    try:
        outputs = tuple(_outputs(model, shape))
    except RuntimeError as error:
        raise InputError(f"model: {name} does not take inputs of {'×'.join(map(str, shape))}: {error}") from error
    if outputs != (2, classes):
        raise InputError(f"model: {name} gives outputs of {outputs} for 2 samples, not (2, {classes})")
    return model


@torch.no_grad()
def _outputs(module: nn.Module, shape: tuple[int, ...]) -> torch.Size:
    """Shape of what a module makes of two samples; its modes are what they were."""
    modes = {part: part.training for part in module.modules()}
    made: torch.Tensor = module.eval()(torch.zeros(2, *shape))
    for part, mode in modes.items():
        part.training = mode
    return made.shape


def _refuse_frozen_batchnorm(model: Model, bn: BatchNorm) -> None:
    if layers := sorted(n for n in model.frozen_layers if isinstance(model.get_submodule(n), nn.BatchNorm2d)):
        raise InputError(f"bn: {bn!r} is not allowed; it replaces {layers[0]}, which is frozen; must be 'track'")
