"""A user's own architecture: any module that ends in a linear layer, or what makes one."""

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
"""A function, or a class, of the shape of one input and the number of classes, that makes a module."""


def factory(name: str) -> Maker:
    """The function that ``package.module:function`` means; the working directory is looked in too.

    Raises:
        InputError: If there is no such function.
    """
    thing = imported(name, "model")
    if not callable(thing):
        raise InputError(f"model: {name!r} is no function")
    return maker(thing)


def maker(thing: nn.Module | Maker) -> Maker:
    """The function that makes the module; of a ready module it makes copies, whose weights are the start weights.

    Raises:
        InputError: If it is none of these.
    """
    if isinstance(thing, nn.Module):
        return lambda shape, classes: copy.deepcopy(thing)
    if not callable(thing):
        raise InputError(f"model: {thing!r} is not allowed; must be a name, a function, a class or a module of torch")
    return thing


def name_of(thing: Any) -> str:
    """The import path of what makes a model, or ``<name>`` where it has none."""
    if path := import_path(thing):
        return path
    name = type(thing).__name__ if isinstance(thing, nn.Module) else getattr(thing, "__name__", type(thing).__name__)
    return f"<{name.strip('<>')}>"


def from_module(module: nn.Module, head: str | None = None) -> Model:
    """A `Model` of any module: its head is a linear layer of it, its body what comes before that.

    Args:
        module: Runs the head last and returns its output. Changed: the head's place is taken by an identity.
        head: Name of the head, such as ``fc`` or ``classifier.6``; if not given, the last linear layer, in the order in
            which they are defined.

    Raises:
        InputError: If there is no linear layer, or none of that name; the message lists those there are.
    """
    linear = [name for name, child in module.named_modules() if name and isinstance(child, nn.Linear)]
    name = linear[-1] if head is None and linear else head
    if name is None or name not in linear:
        asked = "no head is named" if name is None else f"{name!r} is no linear layer of the model"
        raise InputError(f"head: {asked}; it has {', '.join(linear) or 'none'}")
    parent_name, _, leaf = name.rpartition(".")
    parent = module.get_submodule(parent_name)
    layer = getattr(parent, leaf)
    setattr(parent, leaf, nn.Identity())
    return Model({"net": module}, layer, [])
