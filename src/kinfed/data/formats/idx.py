"""IDX, the format of MNIST: one array per file, plain or compressed with gzip.

A file has the magic number 0 0 TYPE DIMENSIONS, then each dimension as a big-endian uint32, then the big-endian values.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from kinfed.data.splits import Split
from kinfed.errors import InputError

__all__ = ["IdxFiles", "at_most", "read_idx"]

NAME = re.compile(r"(?:.+-)?(train|t10k|test)-(images|labels)[-.]idx\d-ubyte(?:\.gz)?")
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CHUNK = 1 << 20  # bytes that are read at a time
PARTS = tuple((split, part) for split in ("train", "test") for part in ("images", "labels"))


@dataclass(frozen=True)
class IdxFiles:
    """Four IDX files, plain or ``.gz``: images and labels of ``train``, and of ``t10k`` or ``test``.

    Their names are ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and so on.
    """

    files: tuple[Path, Path, Path, Path]  # in the order of PARTS

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find the files in a folder, or in the folder of one of them; None if there is none.

        Raises:
            InputError: If one of the four files is missing or there are several.
        """
        folder = path.parent if NAME.fullmatch(path.name) and path.is_file() else path
        found: dict[tuple[str, str], dict[str, Path]] = {}
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            if (name := NAME.fullmatch(file.name)) and file.is_file():
                part = (name[1].replace("t10k", "test"), name[2])
                # A file and its compressed copy count as one; the plain one comes first in the sorted order.
                found.setdefault(part, {}).setdefault(file.name.removesuffix(".gz"), file)
        if not found:
            return None
        for part in PARTS:
            if len(found.get(part, ())) != 1:
                there = ", ".join(found.get(part, {})) or "no such file"
                raise InputError(
                    f"data: {str(folder)!r} must have one IDX file of {part[0]} {part[1]}, such as "
                    f"{part[0].replace('test', 't10k')}-{part[1]}-idx{3 if part[1] == 'images' else 1}-ubyte.gz; it "
                    f"has {there}"
                )
        first, second, third, fourth = (next(iter(found[part].values())) for part in PARTS)
        return cls((first, second, third, fourth))

    def paths(self) -> list[Path]:
        """Return the four files."""
        return [*self.files]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Read the training and the test split."""
        arrays = [read_idx(file) for file in self.files]
        return (
            [Split(str(self.files[0]), arrays[0], arrays[1])],
            [Split(str(self.files[2]), arrays[2], arrays[3])],
        )


def read_idx(path: Path) -> NDArray[Any]:
    """Read the array in an IDX file.

    Raises:
        InputError: If the file is no IDX file, or has more or fewer values than its header says.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not magic[3]:
                raise InputError(f"data: {path} is not an IDX file; it begins with {magic.hex(' ') or 'nothing'}")
            kind = np.dtype(TYPES[magic[2]])
            shape = tuple(np.frombuffer(file.read(4 * magic[3]), ">u4", count=magic[3]).tolist())
            size = math.prod(shape) * kind.itemsize
            values = at_most(size + 1, file)
        if len(values) == size:
            return np.frombuffer(values, kind).reshape(shape).astype(kind.newbyteorder("="), copy=False)
    except InputError:
        raise
    except (OSError, EOFError, MemoryError, ValueError, zlib.error) as error:
        raise InputError(f"data: {path} cannot be read: {error}") from error
    raise InputError(
        f"data: {path} should have {'×'.join(map(str, shape))} values of {kind.itemsize} bytes by its header, but has "
        f"{len(values)} bytes{' or more' if len(values) > size else ''}"
    )


def at_most(size: int, file: BufferedIOBase | IO[bytes]) -> bytearray:
    """Read the rest of a file, up to ``size`` bytes; memory grows with the bytes that are read, not with ``size``."""
    values = bytearray()
    while more := file.read(min(CHUNK, size - len(values))):
        values += more
    return values
