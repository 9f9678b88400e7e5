"""Architectures by name. The module imports no torch, so that the command can list them at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinfed.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from kinfed.models.own import Maker

__all__ = ["ARCHITECTURES", "Architecture", "OwnArchitecture", "default_architecture", "from_elsewhere"]

LIBRARIES = ("torchvision", "timm")  # their architectures are LIBRARY:NAME
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Architecture:
    """Architecture of kinfed, from which the body of a model is built.

    Attributes:
        stages: Function of the input shape, such as (c, h, w), that gives the body's stages by name.
        smallest: Smallest height and width of an image; None if inputs need not be images.
        summary: Description in one line.

    >>> ARCHITECTURES["resnet18"].smallest
    8
    """

    stages: Callable[[Shape], dict[str, nn.Module]]
    smallest: int | None
    summary: str


@dataclass(frozen=True)
class OwnArchitecture:
    """Architecture of a user's own.

    Attributes:
        make: Function of the input shape and the number of classes that gives a module or a `Model`.
        summary: Description in one line.
        smallest: Always None, since the smallest possible image is not known.
    """

    make: Maker
    summary: str
    smallest: None = None


def _fault(thing: object) -> str | None:
    return None if callable(thing) or isinstance(thing, Architecture) else "is not a function"


def from_elsewhere(name: str, thing: Any) -> Architecture | OwnArchitecture:
    """Make an architecture of what a package or user gives: a function, a class or an architecture.

    Args:
        name: Its name, which is not read.
        thing: The function, class or architecture.
    """
    from kinfed.models.own import maker, name_of

    del name
    if isinstance(thing, Architecture):
        return thing
    about = (thing.__doc__ or "").strip().partition("\n")[0]
    return OwnArchitecture(maker(thing), about or f"a model of {name_of(thing)}")


class _Architectures(Registry[Architecture | OwnArchitecture]):
    """Registry that also knows the architectures of the libraries; they are found, but not listed."""

    def __getitem__(self, name: str) -> Architecture | OwnArchitecture:
        """Look up a name, as every registry does, or an architecture of a library."""
        if name.partition(":")[0] in LIBRARIES:
            from kinfed.models.libraries import of_library

            return OwnArchitecture(of_library(name), f"the model {name}")
        return super().__getitem__(name)

    def installed(self, name: str) -> bool:
        """Return True if a name is kinfed's own, an installed package's or a library's, not an import path."""
        return name.partition(":")[0] in LIBRARIES or super().installed(name)


def _late(module: str, name: str) -> Callable[[Shape], dict[str, nn.Module]]:
    """Return a function that gives the stages, and imports the module only when it is called."""

    def stages(shape: Shape) -> dict[str, nn.Module]:
        made: dict[str, nn.Module] = getattr(importlib.import_module(f"kinfed.models.{module}"), name)(shape)
        return made

    return stages


_OWN = {
    "tiny_cnn": Architecture(_late("convnets", "tiny_cnn"), 4, "2 convolutions 3×3 and FC 64, for 8×8 digits"),
    "small_cnn": Architecture(
        _late("convnets", "small_cnn"), 16, "FedCKA's CNN: 2 convolutions 5×5, FC 120 and 84, projection to 256"
    ),
    "cnn4": Architecture(
        _late("convnets", "cnn4"), 16, "FedBABU's and FedCRC's CNN: 4 convolutions 3×3(64) with BatchNorm"
    ),
    "cnn4_half": Architecture(
        _late("convnets", "cnn4_half"), 16, "the same with 32 filters, for clients with less compute"
    ),
    "mcmahan_cnn": Architecture(
        _late("convnets", "mcmahan_cnn"), 4, "McMahan's CNN: 2 convolutions 5×5 (32, 64), FC 512"
    ),
    "mlp": Architecture(_late("convnets", "mlp"), None, "2 hidden layers of 200; images or flat features"),
    "resnet18": Architecture(_late("resnet", "resnet18"), 8, "ResNet-18, with a 3×3 stem for images up to 64×64"),
    "resnet34": Architecture(_late("resnet", "resnet34"), 8, "ResNet-34, with the same two stems"),
    "resnet50": Architecture(_late("resnet", "resnet50"), 8, "ResNet-50, with the same two stems"),
    "vgg16": Architecture(_late("vgg", "vgg16"), 32, "VGG-16; for images up to 64×64 without its hidden FC layers"),
    "vgg16_bn": Architecture(_late("vgg", "vgg16_bn"), 32, "the same with BatchNorm"),
}
ARCHITECTURES: Registry[Architecture | OwnArchitecture] = _Architectures("model", _OWN, _fault, from_elsewhere)
"""Architectures by name; those of libraries are ``torchvision:NAME`` and ``timm:NAME``.

A user's own is ``package.module:function`` or an entry point in ``kinfed.models``.
"""


def default_architecture(shape: tuple[int, ...]) -> str:
    """Return the name of the default architecture for inputs of a shape, (c, h, w) for images.

    >>> default_architecture((3, 32, 32)), default_architecture((20,))
    ('cnn4', 'mlp')
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        return "mlp"
    side = min(shape[1:])
    return "tiny_cnn" if side < 16 else "cnn4" if side < 48 else "resnet18"
