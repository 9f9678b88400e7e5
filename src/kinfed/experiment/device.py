"""Check of devices, and of the precision in which they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from kinfed.errors import InputError
from kinfed.fields import short

__all__ = ["Precision", "available", "computed_in"]

Precision = Literal["float32", "bfloat16", "auto"]

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


def computed_in(precision: Precision, device: str) -> tuple[Precision, str]:
    """Return the precision that a run computes in; ``auto`` is bfloat16 where the device has units for it.

    Args:
        precision: Precision of the config.
        device: Device of the config, which is available.

    Returns:
        ``float32`` or ``bfloat16``, and what is to be told of it; empty if nothing is.
    """
    if precision == "float32":
        return precision, ""
    import torch

    if device.startswith("cuda"):
        has, what = torch.cuda.is_bf16_supported(including_emulation=False), torch.cuda.get_device_name(device)
    else:
        flags = _flags() if device == "cpu" else set()
        has, what = bool(flags & {"amx_bf16", "avx512_bf16"}), "this processor" if device == "cpu" else device
    if precision == "auto":
        precision = "bfloat16" if has else "float32"
        return precision, f"auto is {precision} here, since {what} has {'' if has else 'no '}units for bfloat16"
    return precision, "" if has else f"{what} has no units for bfloat16, which is slower here than float32"


def _flags() -> set[str]:
    """Return the names of the processor's instructions, as Linux tells them; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {name for line in lines if line.startswith("flags") for name in line.split(":", 1)[1].split()}
