"""Architectures of torchvision and timm by name, such as ``torchvision:mobilenet_v3_small``; never with weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from kinfed.errors import InputError, check_choice
from kinfed.models.own import Maker

__all__ = ["of_library"]

AUXILIARY = {"googlenet", "inception_v3"}  # in training they return several outputs


def of_library(name: str) -> Maker:
    """Return a function that makes a module of an architecture of torchvision or timm, with random weights.

    Args:
        name: ``torchvision:NAME`` or ``timm:NAME``.

    Raises:
        InputError: If the library has no such architecture for classification, or timm is not installed.

    >>> type(of_library("torchvision:mobilenet_v3_small")((3, 32, 32), 10)).__name__
    'MobileNetV3'
    """
    library, _, own = name.partition(":")
    return _MAKERS[library](name, own)


def _of_torchvision(name: str, own: str) -> Maker:
    from torchvision import models

    there = [there for there in models.list_models(module=models) if there not in AUXILIARY]
    check_choice("model", name, [f"torchvision:{there}" for there in there])

    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        _refuse_other_than_colour(name, shape)
        module: nn.Module = models.get_model(own, weights=None, num_classes=classes)
        return module

    return make


def _of_timm(name: str, own: str) -> Maker:
    try:
        import timm
    except ImportError as error:
        raise InputError(f"model: {name!r} needs timm: pip install timm") from error
    if own not in timm.list_models():  # other names, such as hf-hub:…, would be looked up elsewhere
        raise InputError(f"model: {name!r} is not known; timm.list_models() has the names")
    create: Callable[..., Any] = timm.create_model

    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        _refuse_other_than_colour(name, shape)
        module: nn.Module = create(own, pretrained=False, num_classes=classes)
        return module

    return make


def _refuse_other_than_colour(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3 or shape[0] != 3:
        size = "×".join(map(str, shape))
        grey = "; with channels=3 grey images become colour images" if len(shape) == 3 else ""
        raise InputError(f"model: {name} needs colour images 3×h×w, but the inputs have the shape {size}{grey}")


_MAKERS: dict[str, Callable[[str, str], Maker]] = {"torchvision": _of_torchvision, "timm": _of_timm}
