"""What comes back from a client is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from kinfed.methods import Message

__all__ = ["fault"]


def fault(upload: Message, like: Mapping[str, Tensor]) -> str | None:
    """Why an upload must be refused, or None if it is good.

    Args:
        upload: As it came.
        like: Tensors with the names, shapes and types that it must have.
    """
    if missing := sorted(like.keys() - upload.tensors.keys()):
        return f"{missing[0]} is missing"
    if extra := sorted(upload.tensors.keys() - like.keys()):
        return f"{extra[0]} was not asked for"
    for name, tensor in upload.tensors.items():
        if tensor.shape != like[name].shape:
            return f"{name} has the shape {tuple(tensor.shape)}, not {tuple(like[name].shape)}"
        if tensor.dtype != like[name].dtype:
            return f"{name} has the type {tensor.dtype}, not {like[name].dtype}"
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return f"{name} is not finite"
    for name, number in upload.numbers.items():
        if not math.isfinite(number):
            return f"{name} is {number}"
    if upload.numbers.get("samples", 0) < 1:
        return f"the sample count is {upload.numbers.get('samples')}"
    return None
