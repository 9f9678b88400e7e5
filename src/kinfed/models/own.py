"""A user's own architecture: any module whose last linear layer is named, made by an importable function."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from kinfed.errors import InputError
from kinfed.models.model import Model

__all__ = ["factory", "from_module"]


def factory(name: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    """The function that ``package.module:function`` means; the working directory is looked in too.

    Raises:
        InputError: If there is no such function.
    """
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        made: Any = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"model: {name!r} cannot be imported: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(made):
        raise InputError(f"model: {name!r} is no function")
    function: Callable[[tuple[int, ...], int], nn.Module] = made
    return function


def from_module(module: nn.Module, head: str | None) -> Model:
    """A `Model` of any module: its head is the named linear layer, its body what comes before it.

    Args:
        module: Runs the head last and returns its output. Changed: the head's place is taken by an identity.
        head: Name of the head, such as ``fc`` or ``classifier.6``.

    Raises:
        InputError: If there is no linear layer of that name; the message lists those there are.
    """
    linear = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    if head is None or head not in linear:
        asked = "no head is named" if head is None else f"{head!r} is no linear layer of the model"
        raise InputError(f"head: {asked}; it has {', '.join(linear) or 'none'}")
    parent_name, _, leaf = head.rpartition(".")
    parent = module.get_submodule(parent_name)
    layer = getattr(parent, leaf)
    setattr(parent, leaf, nn.Identity())
    return Model({"net": module}, layer, [])
