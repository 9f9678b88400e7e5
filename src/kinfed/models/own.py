"""Architectures of a user's own: any module that ends in a linear layer, or a function that makes one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from kinfed.errors import InputError
from kinfed.models.model import Model
from kinfed.registry import import_path, imported

__all__ = ["Maker", "factory", "from_module", "maker", "name_of"]

Maker = Callable[[tuple[int, ...], int], nn.Module]
"""Function or class that makes a module from the shape of one input and the number of classes."""


def factory(name: str) -> Maker:
    """Import the function at ``package.module:function``; the module may be in the working directory.

    Raises:
        InputError: If there is no such function.

    >>> factory("torch.nn:Identity")((4,), 4)
    Identity()
    """
    thing = imported(name, "model")
    if not callable(thing):
        raise InputError(f"model: {name!r} is not a function")
    return maker(thing)


def maker(thing: nn.Module | Maker) -> Maker:
    """Return a function or class unchanged; for a module, return a function that copies it with its weights.

    Raises:
        InputError: If the argument is none of these.
    """
    if isinstance(thing, nn.Module):
        return lambda shape, classes: copy.deepcopy(thing)
    if getattr(thing, "__module__", "").startswith("torchvision.models.") and not isinstance(thing, type):
        name = thing.__name__  # its first argument would be weights to download
        raise InputError(f"model: {name} of torchvision.models takes no shape; give its name: 'torchvision:{name}'")
    if not callable(thing):
        raise InputError(f"model: {thing!r} is not allowed; must be a name, a function, a class or a torch.nn.Module")
    return thing


def name_of(thing: Any) -> str:
    """Return the import path of a function, class or module that makes a model; ``<name>`` if it has none."""
    if path := import_path(thing):
        return path
    name = type(thing).__name__ if isinstance(thing, nn.Module) else getattr(thing, "__name__", type(thing).__name__)
    return f"<{name.strip('<>')}>"


def from_module(module: nn.Module, head: str | None = None) -> Model:
    """Make a `Model` from any module: one of its linear layers is the head, everything before it the body.

    Args:
        module: Module that runs the head last and returns its output. It is changed: an identity replaces the head.
        head: Name of the head, such as ``fc`` or ``classifier.6``; None for the linear layer defined last.

    Raises:
        InputError: If there is no linear layer, or none of that name; the message lists the linear layers.

    >>> from_module(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).head
    Linear(in_features=3, out_features=2, bias=True)
    """
    linear = [name for name, child in module.named_modules() if name and isinstance(child, nn.Linear)]
    name = linear[-1] if head is None and linear else head
    if name is None or name not in linear:
        asked = "the model must have a linear layer" if name is None else f"{name!r} is not a linear layer of the model"
        raise InputError(f"head: {asked}; it has {', '.join(linear) or 'none'}")
    parent_name, _, leaf = name.rpartition(".")
    parent = module.get_submodule(parent_name)
    layer = getattr(parent, leaf)
    setattr(parent, leaf, nn.Identity())
    model = Model({"net": module}, layer, [])
    model.former = {"body.net.": "", "head.": f"{name}."}
    return model
