"""What comes back from a client is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor

from kinfed.methods import Message

__all__ = ["fault"]


def fault(upload: Message, like: Mapping[str, Tensor], most: int) -> str | None:
    """Why an upload must be refused, or None if it is good.

    Args:
        upload: As it came.
        like: Tensors with the names, shapes and types that it must have.
        most: How many samples a client can have at most.
    """
    return next(_faults(upload, like, most), None)


def _faults(upload: Message, like: Mapping[str, Tensor], most: int) -> Iterator[str]:
    yield from (f"{name} is missing" for name in sorted(like.keys() - upload.tensors.keys()))
    yield from (f"{name} was not asked for" for name in sorted(upload.tensors.keys() - like.keys()))
    for name, tensor in upload.tensors.items():
        if tensor.shape != like[name].shape:
            yield f"{name} has the shape {tuple(tensor.shape)}, not {tuple(like[name].shape)}"
        if tensor.dtype != like[name].dtype:
            yield f"{name} has the type {tensor.dtype}, not {like[name].dtype}"
        if tensor.is_floating_point() and tensor.numel() and not all(map(math.isfinite, tensor.aminmax())):
            yield f"{name} is not finite"
    yield from (f"{name} is {number}" for name, number in upload.numbers.items() if not math.isfinite(number))
    count = upload.numbers.get("samples", 0)
    if not (1 <= count <= most and count == int(count)):
        yield f"the sample count is {upload.numbers.get('samples')}; it must be a whole number from 1 to {most}"
