"""Check of devices."""

from __future__ import annotations

from kinfed.errors import InputError
from kinfed.fields import short

__all__ = ["available"]

DEVICES = ("cpu", "cuda", "mps")


def available(device: str) -> str:
    """Return ``device`` unchanged if PyTorch can use it on this machine; otherwise raise an InputError.

    Raises:
        InputError: If the device is not available, or of a type that kinfed does not support.

    >>> available("cpu")
    'cpu'
    """
    import torch

    try:
        kind = torch.empty(0, device=device).device.type
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device: {short(device)} is not available here; cpu always is") from error
    if kind not in DEVICES:
        raise InputError(f"device: {short(device)} is not allowed; must be cpu, cuda, cuda:N or mps")
    return device
