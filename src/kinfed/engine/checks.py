"""Checks of uploads, states and models before they are used."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from numbers import Real

import torch
from torch import Tensor

from kinfed.errors import LONGEST, plain
from kinfed.methods import Message, NamedTensors

__all__ = ["bounded", "diverged", "not_finite", "unsound", "upload_error"]


def upload_error(upload: object, like: Mapping[str, Tensor], most: int) -> str | None:
    """Return the reason to refuse an upload; None for a valid one. No upload, however malformed, raises an error.

    >>> like = {"w": torch.zeros(2)}
    >>> upload_error(Message({"w": torch.zeros(3)}, {"samples": 5}), like, most=10)
    'w has the shape (3,), not (2,)'

    Args:
        upload: Upload as it was received.
        like: Tensors with the names, shapes and types that the upload must have.
        most: Largest number of samples that a client can have.
    """
    return _first(_faults(upload, like, most))


def unsound(message: object) -> str | None:
    """Return the reason why an object is no `NamedTensors` of plain CPU tensors and finite numbers; None if it is."""
    return _first(_flaws(message))


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return a message that names the first tensor with NaN or infinity; None if all tensors are finite."""
    return next((f"{name} is not finite" for name, tensor in tensors.items() if not _is_finite(tensor)), None)


def diverged(reason: str) -> bool:
    """Return True if a reason names a value that is not finite, which a smaller learning rate may avoid."""
    return re.search(r"\b(is|are) (not finite|nan|-?inf)$", reason) is not None


def bounded(text: object) -> str:
    """Make one printable line of limited length from any object."""
    return plain(text)[:LONGEST]


def _first(reasons: Iterator[str]) -> str | None:
    try:
        reason = next(reasons, None)
    except Exception as error:  # an object may pose as another type and raise anything
        reason = f"it cannot be checked: {type(error).__name__}: {error}"
    return None if reason is None else bounded(reason)


def _faults(upload: object, like: Mapping[str, Tensor], most: int) -> Iterator[str]:
    yield from _flaws(upload)
    assert isinstance(upload, Message)
    yield from (f"{name} is missing" for name in sorted(like.keys() - upload.tensors.keys()))
    yield from (f"{name} is unexpected" for name in sorted(upload.tensors.keys() - like.keys()))
    for name, tensor in upload.tensors.items():
        if tensor.shape != like[name].shape:
            yield f"{name} has the shape {tuple(tensor.shape)}, not {tuple(like[name].shape)}"
        if tensor.dtype != like[name].dtype:
            yield f"{name} has the type {tensor.dtype}, not {like[name].dtype}"
    if reason := not_finite(upload.tensors):
        yield reason
    count = upload.numbers.get("samples", 0)
    if not (1 <= count <= most and count == int(count)):
        yield f"the sample count is {upload.numbers.get('samples')}; it must be a whole number from 1 to {most}"


def _flaws(message: object) -> Iterator[str]:
    if not isinstance(message, NamedTensors):
        yield f"it is a {type(message).__name__}, not a Message"
        return
    for what, named in (("tensors", message.tensors), ("numbers", message.numbers)):
        if not isinstance(named, dict):
            yield f"its {what} are a {type(named).__name__}, not a dict"
        yield from (
            f"its {what} have a name of type {type(name).__name__}, not str" for name in named if type(name) is not str
        )
    for name, tensor in message.tensors.items():
        if type(tensor) is not Tensor:
            yield f"{name} is a {type(tensor).__name__}, not a plain tensor"
        if tensor.layout != torch.strided:
            yield f"{name} has the layout {tensor.layout}, not {torch.strided}"
        if tensor.device.type != "cpu":
            yield f"{name} is on the device {tensor.device}, not cpu"
    for name, number in message.numbers.items():
        value: object = number
        if type(value) is Tensor and value.numel() == 1:
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, Real):
            yield f"{name} is a {type(value).__name__}, not a number"
            return
        try:
            if not math.isfinite(value):
                yield f"{name} is {value}"
        except OverflowError:
            yield f"{name} is too large"


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return all(map(math.isfinite, (torch.view_as_real(tensor) if tensor.is_complex() else tensor).aminmax()))
