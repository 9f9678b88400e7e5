"""NumPy archives with four arrays."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kinfed.data.formats.idx import at_most
from kinfed.data.splits import Split
from kinfed.errors import InputError

__all__ = ["KEYS", "NpzFile", "read_npz"]

KEYS = (  # the first set that is there counts
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),  # MedMNIST
)

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class NpzFile:
    """``x_train``, ``y_train``, ``x_test`` and ``y_test``, or MedMNIST's ``train_images`` and so on."""

    path: Path

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """The file itself, or the only one in a folder."""
        if path.is_file():
            return cls(path) if path.suffix == ".npz" else None
        archives = [file for file in path.glob("*.npz") if file.is_file()]
        return cls(archives[0]) if len(archives) == 1 else None

    def paths(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def read(self) -> tuple[list[Split], list[Split]]:
        """The training and the test split."""
        keys, arrays = read_npz(self.path)
        return (
            [Split(f"{self.path}, {keys[0]}", arrays[0], arrays[1])],
            [Split(f"{self.path}, {keys[2]}", arrays[2], arrays[3])],
        )


def read_npz(path: Path) -> tuple[tuple[str, ...], list[NDArray[Any]]]:
    """The names of the four arrays in an archive, and the arrays.

    Raises:
        InputError: If the file is no archive, or lacks one of them, or one is not what its header says.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            keys = next((keys for keys in KEYS if all(key in names for key in keys)), None)
            if keys is not None:
                return keys, [_array(archive, key) for key in keys]
    except Exception as error:  # zipfile, its decompressors and NumPy raise whatever a broken file leads them to
        raise InputError(f"data: {path} cannot be read without pickle: {error or type(error).__name__}") from error
    raise InputError(
        f"data: {path} does not have the arrays {', '.join(KEYS[0])} (or {', '.join(KEYS[1])}): "
        f"it has {', '.join(names) or 'none'}"
    )


def _array(archive: zipfile.ZipFile, key: str) -> NDArray[Any]:
    """One array; memory is used as its bytes come, not as its header says."""
    if archive.getinfo(f"{key}.npy").compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{key} is compressed in a way that NumPy does not use")  # others come in unbounded pieces
    with archive.open(f"{key}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:  # others hold names of fields
            raise ValueError(f"{key} has the format {version}")
        shape, fortran, kind = HEADERS[version](file)
        if kind.hasobject or min(shape, default=0) < 0:
            raise ValueError(f"{key} holds {kind} of the shape {shape}")
        size = math.prod(shape) * kind.itemsize
        values = at_most(size + 1, file)
    if len(values) != size:
        follow = f"{len(values)} bytes follow{' or more' if len(values) > size else ''}"
        raise ValueError(f"{key} says that it holds {size} bytes, and {follow}")
    array: NDArray[Any] = np.frombuffer(values, kind).reshape(shape[::-1] if fortran else shape)
    return array.T if fortran else array
