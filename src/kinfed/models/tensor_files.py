"""Safetensors files of named tensors with metadata and a checksum; no code in a file is executed."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, uint8

from kinfed.errors import plain
from kinfed.files import saving, sync, unfinished_name
from kinfed.models.model import Tensors
from kinfed.models.shards import shard_of

__all__ = [
    "apart",
    "checked",
    "checksum",
    "members",
    "open_tensors",
    "opened",
    "read_tensors",
    "save_shard",
    "save_tensors",
    "told_in",
]

# The only metadata entry, since the order of several would differ between processes. It is a JSON list: the description
# as a JSON text, and the checksum of text and tensors. Older files have an object with a checksum of the tensors only.
# In a shard it is an object with a list for each member: the description, the seal of it and the tensors' checksums,
# and the names of the tensors that are stored with another member, by the name of this member. Older shards have lists
# as those of a file.
ABOUT = "about"
MEMBERS = "members"
PROBED = 1024  # bytes of a tensor by which an equal one is looked for
LONGEST = 2**26  # characters of the entry


def save_tensors(path: Path, tensors: Tensors, about: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write a safetensors file atomically. Its folder is created if missing, but not the parents of the folder.

    Args:
        path: Final name of the file.
        tensors: Tensors by name, in any layout; they may share memory.
        about: Description of the tensors, in JSON types; numbers of NumPy and torch are converted.
        durable: True to flush the file to disk before returning; if False, `kinfed.files.sync` does it later.

    Raises:
        NotSaved: If the file cannot be written.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tensors(Path(folder, "model.safetensors"), {"weight": torch.ones(2)}, {"round": 3})
    ...     read_tensors(Path(folder, "model.safetensors"))
    ({'weight': tensor([1., 1.])}, {'round': 3})
    """
    whole, text = apart(tensors), _as_text(about)
    _save(path, whole, (text, _crc(text, whole)), durable=durable)


def save_shard(path: Path, members: Mapping[str, tuple[Tensors, Mapping[str, Any]]], *, durable: bool = True) -> None:
    """Write the tensors of several members to one safetensors file, atomically, each as ``MEMBER/NAME``.

    Tensors that are the same under the same name, such as those of a body that clients share, are stored once, with
    their first member.

    Args:
        path: Final name of the file.
        members: Tensors and their description, as for `save_tensors`, by the name of the member.
        durable: True to flush the file to disk before returning.

    Raises:
        NotSaved: If the file cannot be written.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "shard.safetensors")
    ...     save_shard(path, {"a": ({"weight": torch.ones(1)}, {}), "b": ({"weight": torch.zeros(1)}, {"round": 3})})
    ...     read_tensors(path, "b")
    ({'weight': tensor([0.])}, {'round': 3})
    """
    together: Tensors = {}
    checksums: dict[str, int] = {}
    entries: dict[str, tuple[str, int, Mapping[str, Sequence[str]]]] = {}
    holders: dict[object, str] = {}  # the last member with a tensor of this name, form and probed bytes
    for member, (tensors, about) in members.items():
        elsewhere: dict[str, list[str]] = {}
        own: dict[str, int] = {}
        for name, tensor in apart(tensors).items():
            like = (name, tensor.dtype, tensor.shape, _probed(tensor))
            holder = holders.get(like)
            if holder is not None and np.array_equal(_bytes(tensor), _bytes(together[f"{holder}/{name}"])):
                elsewhere.setdefault(holder, []).append(name)
            else:
                holders[like] = holder = member
                together[f"{member}/{name}"], checksums[f"{member}/{name}"] = tensor, _checksum(tensor)
            own[name] = checksums[f"{holder}/{name}"]
        text = _as_text(about)
        entries[member] = text, _seal(text, own), elsewhere
    _save(path, apart(together), {MEMBERS: entries}, durable=durable)


def _save(path: Path, tensors: Tensors, entry: Any, *, durable: bool) -> None:
    unfinished = unfinished_name(path)
    with saving(path):
        path.parent.mkdir(exist_ok=True)
        save_file(tensors, unfinished, {ABOUT: json.dumps(entry)})
        if durable:
            sync(unfinished)
        unfinished.replace(path)
        if durable:
            sync(path.parent)


def _as_text(about: Mapping[str, Any]) -> str:
    """Return a description as JSON."""
    return json.dumps(about, default=lambda number: number.item())


def read_tensors(path: Path, member: str | None = None) -> tuple[Tensors, dict[str, Any]]:
    """Read a file that `save_tensors` wrote, or a member of one that `save_shard` wrote: tensors and description.

    Raises:
        ValueError: If the file cannot be read, was not written by kinfed, was changed since, or lacks the member.
    """
    tensors, about = open_tensors(path, member)
    if about is None:
        raise ValueError("it has no checksum of kinfed")
    return tensors, about


def open_tensors(path: Path, member: str | None = None) -> tuple[Tensors, dict[str, Any] | None]:
    """Read the tensors of any safetensors file and their description; None for it if kinfed did not write the file.

    Raises:
        ValueError: If the file cannot be read, does not have the checksum that kinfed wrote into it, or lacks the
            member.
    """
    with opened(path, member) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        return tensors, checked(file, tensors)


@contextlib.contextmanager
def opened(path: Path, member: str | None = None) -> Iterator[Any]:
    """Context manager that opens a safetensors file for reading and gives the handle of `safetensors.safe_open`.

    Args:
        path: The file, or the path that a member of a shard of models would have as a file of its own.
        member: Name of the member of a shard to which the handle is limited; None for the whole file.

    Raises:
        ValueError: If the file cannot be read, or lacks the member.
    """
    if member is None and (shard := shard_of(path)) is not None:
        path, member = shard, path.stem
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file if member is None else _Member(file, member)
    except ValueError:
        raise
    except (OSError, SafetensorError, TypeError, RuntimeError, AttributeError) as error:
        # A type that torch does not know can raise any of these.
        raise ValueError(f"it cannot be read as safetensors: {plain(error)}") from error


class _Member:
    """Handle of one member of an open shard, with the methods of a handle of `safetensors.safe_open`."""

    def __init__(self, file: Any, member: str) -> None:
        entries, own = _entries(file), f"{member}/"
        if member not in entries:
            raise ValueError(f"it has no {member}")
        self._file, self._entry = file, entries[member]
        self._stored = {name.removeprefix(own): name for name in file.keys() if name.startswith(own)}  # noqa: SIM118
        if isinstance(self._entry, list) and len(self._entry) == 3:
            self._stored |= _stored_elsewhere(self._entry[2])

    def keys(self) -> list[str]:
        return [*self._stored]

    def get_tensor(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(self._stored[name])
        return tensor

    def get_slice(self, name: str) -> Any:
        return self._file.get_slice(self._stored[name])

    def metadata(self) -> dict[str, str]:
        return {ABOUT: json.dumps(self._entry)}


def _stored_elsewhere(names_of: Any) -> dict[str, str]:
    """Return the names in the file of a member's tensors that are stored with others, from their names by holder."""
    lists = [*names_of.values()] if isinstance(names_of, dict) else [None]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
        raise ValueError("it is damaged: the places of its tensors are no names")
    return {name: f"{holder}/{name}" for holder, names in names_of.items() for name in names}


def members(path: Path) -> list[str]:
    """Return the names of the members of a shard; empty for a file that is none.

    Raises:
        ValueError: If the file cannot be read.
    """
    with opened(path) as file:
        return [*_entries(file)]


def _entries(file: Any) -> dict[str, Any]:
    """Return the descriptions and checksums of the members of an open shard; empty for a file that is none."""
    told = _parsed((file.metadata() or {}).get(ABOUT, ""))
    entries = told.get(MEMBERS) if isinstance(told, dict) else None
    return entries if isinstance(entries, dict) else {}


def checked(file: Any, tensors: Tensors) -> dict[str, Any] | None:
    """Return the description in an open file after checking the checksum; None if kinfed did not write the file.

    Raises:
        ValueError: If the tensors or their description do not have the checksum in the file.
    """
    match _parsed((file.metadata() or {}).get(ABOUT, "")):
        case [str(text), int(crc)]:
            about, whole = _parsed(text), crc == _crc(text, tensors)
        case [str(text), int(seal), dict()]:
            about = _parsed(text)
            whole = seal == _seal(text, {name: _checksum(tensor) for name, tensor in tensors.items()})
        case {"crc32": int(crc), **rest}:
            about, whole = {str(name): value for name, value in rest.items()}, crc == checksum(tensors)
        case _:
            return None
    if not whole:
        raise ValueError("it is damaged: its contents do not match its checksum")
    return dict(about)


def told_in(path: Path) -> dict[str, Any]:
    """Read the description in a safetensors file without reading its tensors; empty if there is none.

    Raises:
        ValueError: If the file cannot be read.
    """
    with opened(path) as file:
        told = _parsed((file.metadata() or {}).get(ABOUT, ""))
    about = _parsed(told[0]) if isinstance(told, list) and told and isinstance(told[0], str) else told
    return about if isinstance(about, dict) else {}


def _parsed(text: str) -> Any:
    """Parse a metadata entry; None if it is no JSON or too long, since another program wrote it then."""
    try:
        return json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        return None


def _seal(text: str, checksums: Mapping[str, int]) -> int:
    """Compute the CRC-32 of the description and of the tensors' names and checksums."""
    return zlib.crc32(repr((text, sorted(checksums.items()))).encode())


def _checksum(tensor: Tensor) -> int:
    """Compute the CRC-32 of a tensor's type, shape and bytes."""
    return zlib.crc32(_bytes(tensor).data, zlib.crc32(repr((str(tensor.dtype), tuple(tensor.shape))).encode()))


def _crc(text: str, tensors: Mapping[str, Tensor]) -> int:
    """Compute the CRC-32 of the description and of the tensors' names, types, shapes and bytes."""
    forms = {name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in sorted(tensors.items())}
    return zlib.crc32(repr((text, forms)).encode(), checksum(tensors))


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """Compute the CRC-32 of the tensors' names and bytes, in the order of the names.

    >>> import torch
    >>> checksum({"weight": torch.zeros(2)}) == checksum({"weight": torch.ones(2)})
    False
    """
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(name.encode(), crc)
        crc = zlib.crc32(_bytes(tensors[name]).data, crc)
    return crc


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = tensor.contiguous().reshape(-1).view(uint8).numpy()
    return found


def _probed(tensor: Tensor) -> bytes:
    """Return some bytes from all over a tensor, by which unequal ones are mostly told apart."""
    content = _bytes(tensor)
    return content[:: content.size // PROBED | 1].tobytes()  # an odd step takes all bytes of its numbers in turn


def apart(tensors: Tensors) -> Tensors:
    """Make tensors contiguous and copy those that share memory, as safetensors requires.

    >>> import torch
    >>> shared = torch.zeros(2)
    >>> tensors = apart({"a": shared, "b": shared})
    >>> tensors["a"].data_ptr() == tensors["b"].data_ptr()
    False
    """
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
