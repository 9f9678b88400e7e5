"""Files that are whole or not there: written under another name, flushed, renamed. Nothing in them is ever executed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kinfed.models import Tensors, checksum

__all__ = ["NotSaved", "apart", "clear_unfinished", "read_tensors", "save_tensors", "saving", "sync", "write_whole"]

UNFINISHED = ".unfinished"  # what a file is called until it is whole


class NotSaved(OSError):
    """A file of a run could not be written; those that were there before are as they were."""


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn whatever keeps a file from being written into one line that names it.

    Raises:
        NotSaved: If the disk is full, the folder is gone, and so on.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:  # the latter is how safetensors tells of a full disk
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotSaved(f"{path} cannot be written: {reason}") from error


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


def write_whole(path: Path, text: str, *, lasting: bool = True) -> None:
    """Write a text file under its final name in one step; ``lasting`` as of `save_tensors`."""
    unfinished = path.with_name(path.name + UNFINISHED)
    with saving(path):
        unfinished.write_text(text)
        if lasting:
            sync(unfinished)
        unfinished.replace(path)
        if lasting:
            sync(path.parent)


def clear_unfinished(folder: Path) -> None:
    """Delete what a kill left half-written in a folder and below it; safetensors has a name of its own for that."""
    for path in (*folder.rglob(f"*{UNFINISHED}"), *folder.rglob(".tmp*")):
        path.unlink()


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, outlast a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
