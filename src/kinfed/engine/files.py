"""Named tensors on disk, with what is said of them and a checksum; `kinfed.files` has the rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kinfed.files import UNFINISHED, saving, sync
from kinfed.models import Tensors, checksum

__all__ = ["apart", "read_tensors", "save_tensors"]


def save_tensors(path: Path, tensors: Tensors, about: Mapping[str, Any], *, lasting: bool = True) -> None:
    """Write a safetensors file under its final name in one step. The folder is made, but not the one it lies in.

    Args:
        path: Final name.
        tensors: By name; any layout, and they may share memory.
        about: Anything JSON; a number of NumPy's or torch's is written as the number that it is.
        lasting: Whether it must be on the disk before this returns; if not, `sync` does that later.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    whole = apart(tensors)
    text = json.dumps({**about, "crc32": checksum(whole)}, default=lambda number: number.item())
    with saving(path):
        path.parent.mkdir(exist_ok=True)
        save_file(whole, unfinished, {"about": text})
        if lasting:
            sync(unfinished)
        unfinished.replace(path)
        if lasting:
            sync(path.parent)


def read_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and what the file says about them.

    Raises:
        ValueError: If the file cannot be read, is none of ours, or was changed since it was written.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            about: dict[str, Any] = json.loads(file.metadata()["about"])
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"it cannot be read: {error}") from error
    if about.pop("crc32", None) != checksum(tensors):
        raise ValueError("it is damaged: its contents do not have the checksum that was written with them")
    return tensors, about


def apart(tensors: Tensors) -> Tensors:
    """The same values, contiguous and each in memory of its own, as safetensors wants them."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        own = tensor.contiguous()
        if own.numel() and (at := own.untyped_storage().data_ptr()) in seen:
            own = own.clone()
        elif own.numel():
            seen.add(at)
        apart[name] = own
    return apart
