"""The model architectures by name. Knows nothing of federated learning."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from kinfed.errors import InputError
from kinfed.models.convnets import cnn4, mlp, small_cnn, tiny_cnn
from kinfed.models.model import ALL, BODY, HEAD, NOTHING, Model, Part, Tensors, select
from kinfed.models.resnet import resnet18
from kinfed.streams import seeded_global_torch

__all__ = [
    "ALL",
    "ARCHITECTURES",
    "BODY",
    "HEAD",
    "NOTHING",
    "Architecture",
    "Model",
    "Part",
    "Tensors",
    "build",
    "open_saved",
    "saved_about",
    "select",
    "suited",
]

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
    "mlp": Architecture(mlp, None, "2 hidden layers of 200; images or flat features"),
    "resnet18": Architecture(resnet18, 8, "ResNet-18, with a 3×3 stem for images up to 64×64"),
}


def suited(shape: tuple[int, ...]) -> str:
    """The name of the architecture that suits inputs of a shape where none is asked for."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        return "mlp"
    side = min(shape[1:])
    return "tiny_cnn" if side < 16 else "cnn4" if side < 48 else "resnet18"


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> Model:
    """Build a model with the initial weights that belong to a seed.

    Args:
        name: One of `ARCHITECTURES`.
        shape: Of one input.
        classes: Outputs of the head.
        seed: Of the run; the weights come from its stream ``"model"``.

    Raises:
        InputError: If inputs of this shape are too small for the architecture, or no images.
    """
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
    with seeded_global_torch(seed, "model"):
        stages = architecture.stages(shape)
        body = nn.Sequential(*stages.values()).eval()
        with torch.no_grad():
            features = math.prod(body(torch.zeros(1, *shape)).shape[1:])
        head = nn.Linear(features, classes)
    taps = [stage for stage in stages if not stage.startswith(UNTAPPED)]
    return Model(stages, head, taps, architecture=name).train()


def open_saved(path: Path) -> tuple[Model, tuple[int, ...], tuple[str, ...]]:
    """A model that a run has saved: the model in evaluation mode, the shape of one input, and the class names.

    Raises:
        InputError: If the file is no such model.
    """
    about = saved_about(path)
    if about is None or about["architecture"] not in ARCHITECTURES:
        raise InputError(f"{path}: no model that a run has saved, since it does not say which architecture it has")
    model = build(about["architecture"], tuple(about["shape"]), len(about["classes"]), seed=0)
    tensors = load_file(path)
    if tensors.keys() != model.state_dict().keys():
        raise InputError(f"{path}: its tensors are not those of {about['architecture']}")
    model.load(tensors)
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
