"""Named tensors on disk, as safetensors with what is said of them. Nothing in a file is ever executed."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, uint8

from kinfed.files import saving, sync, unfinished_name
from kinfed.models.model import Tensors

__all__ = ["apart", "checked", "checksum", "open_tensors", "opened", "read_tensors", "save_tensors", "told_in"]

# The one entry of the metadata, whose order would not be the same in each process: a JSON list of a JSON text, what is
# said, and the checksum of that and the tensors. Older files have an object here, with a checksum of the tensors alone.
ABOUT = "about"
LONGEST = 2**26  # characters of it


def save_tensors(path: Path, tensors: Tensors, about: Mapping[str, Any], *, lasting: bool = True) -> None:
    """Write a safetensors file under its final name in one step. The folder is made, but not the one it lies in.

    Args:
        path: Final name.
        tensors: By name; any layout, and they may share memory.
        about: Anything JSON; a number of NumPy's or torch's is written as the number that it is.
        lasting: Whether it must be on the disk before this returns; if not, `kinfed.files.sync` does that later.

    Raises:
        NotSaved: If it cannot be written.
    """
    unfinished = unfinished_name(path)
    whole = apart(tensors)
    text = json.dumps(about, default=lambda number: number.item())
    with saving(path):
        path.parent.mkdir(exist_ok=True)
        save_file(whole, unfinished, {ABOUT: json.dumps([text, _crc(text, whole)])})
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
    tensors, about = open_tensors(path)
    if about is None:
        raise ValueError("it has no checksum of kinfed's")
    return tensors, about


def open_tensors(path: Path) -> tuple[Tensors, dict[str, Any] | None]:
    """The same of any safetensors file; None in place of what it says, where kinfed did not write it.

    Raises:
        ValueError: If the file cannot be read, or has a checksum of kinfed's and was changed since it was written.
    """
    with opened(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        return tensors, checked(file, tensors)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file that is being read.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except ValueError:
        raise
    except (OSError, SafetensorError, TypeError, RuntimeError, AttributeError) as error:
        # A type that torch does not know may be any of them.
        raise ValueError(f"it cannot be read as safetensors: {error}") from error


def checked(file: Any, tensors: Tensors) -> dict[str, Any] | None:
    """What an open file says of all of its tensors; None where kinfed did not write it.

    Raises:
        ValueError: If it has a checksum of kinfed's and was changed since it was written.
    """
    match _parsed((file.metadata() or {}).get(ABOUT, "")):
        case [str(text), int(crc)]:
            about, whole = _parsed(text), crc == _crc(text, tensors)
        case {"crc32": int(crc), **rest}:
            about, whole = {str(name): value for name, value in rest.items()}, crc == checksum(tensors)
        case _:
            return None
    if not whole:
        raise ValueError("it is damaged: its contents do not have the checksum that was written with them")
    return dict(about)


def told_in(path: Path) -> dict[str, Any]:
    """What a safetensors file says of its tensors, which are not read; empty if it says nothing.

    Raises:
        ValueError: If the file cannot be read.
    """
    with opened(path) as file:
        told = _parsed((file.metadata() or {}).get(ABOUT, ""))
    about = _parsed(told[0]) if isinstance(told, list) and told and isinstance(told[0], str) else told
    return about if isinstance(about, dict) else {}


def _parsed(text: str) -> Any:
    """What a file says of itself; None where that is no JSON, or endless, since it is then of another program."""
    try:
        return json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        return None


def _crc(text: str, tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of the text and of the tensors' names, types, shapes and bytes."""
    forms = {name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in sorted(tensors.items())}
    return zlib.crc32(repr((text, forms)).encode(), checksum(tensors))


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of names and bytes, in the order of the names."""
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(name.encode(), crc)
        crc = zlib.crc32(_bytes(tensors[name]), crc)
    return crc


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(uint8).numpy().data


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
