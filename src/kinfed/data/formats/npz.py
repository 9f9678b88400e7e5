"""NumPy archives (``.npz``) with four arrays, or with two if the data have no split."""

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

KEYS = (  # names of the arrays; the first set found is used
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),  # MedMNIST
    ("x", "y"),  # without a split
)

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class NpzFile:
    """An archive with ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or the other names of `KEYS`."""

    path: Path

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find an archive: the path itself, or the only archive in a folder; None if there is none."""
        if path.is_file():
            return cls(path) if path.suffix == ".npz" else None
        archives = [file for file in path.glob("*.npz") if file.is_file()]
        return cls(archives[0]) if len(archives) == 1 else None

    def paths(self) -> list[Path]:
        """Return the archive as the only file."""
        return [self.path]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Read the training and the test split; the list of the test split is empty if there is none."""
        keys, arrays = read_npz(self.path)
        pairs = zip(keys[::2], arrays[::2], arrays[1::2], strict=True)
        train, *test = (Split(f"{self.path}, {key}", inputs, labels) for key, inputs, labels in pairs)
        return [train], test


def read_npz(path: Path) -> tuple[tuple[str, ...], list[NDArray[Any]]]:
    """Read the four arrays in an archive, or the two of data without a split, without pickle.

    Returns:
        Names of the arrays, and the arrays.

    Raises:
        InputError: If the file is no archive, an array is missing, or an array does not match its header.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            keys = next((keys for keys in KEYS if all(key in names for key in keys)), None)
            if keys is not None:
                return keys, [_array(archive, key) for key in keys]
    except Exception as error:  # broken files raise exceptions of many types
        raise InputError(f"data: {path} cannot be read without pickle: {error or type(error).__name__}") from error
    raise InputError(
        f"data: {path} must have the arrays {', '.join(KEYS[0])} (or {', '.join(KEYS[1])}; "
        f"or {', '.join(KEYS[2])} without a split); it has "
        f"{', '.join(names) or 'none'}"
    )


def _array(archive: zipfile.ZipFile, key: str) -> NDArray[Any]:
    """Read one array; memory grows with the bytes that are read, so that a false header does no harm."""
    if archive.getinfo(f"{key}.npy").compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{key} has a compression that NumPy does not use")  # others may need too much memory
    with archive.open(f"{key}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:  # other versions have structured types
            raise ValueError(f"{key} has the format {version}")
        shape, fortran, kind = HEADERS[version](file)
        if kind.hasobject or min(shape, default=0) < 0:
            raise ValueError(f"{key} has {kind} of shape {shape}")
        size = math.prod(shape) * kind.itemsize
        values = at_most(size + 1, file)
    if len(values) != size:
        follow = f"{len(values)} bytes{' or more' if len(values) > size else ''}"
        raise ValueError(f"{key} should have {size} bytes by its header, but has {follow}")
    array: NDArray[Any] = np.frombuffer(values, kind).reshape(shape[::-1] if fortran else shape)
    return array.T if fortran else array
