"""NumPy archives with four arrays."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from kinfed.data.splits import Split
from kinfed.errors import InputError

__all__ = ["NpzFile"]

KEYS = (  # the first set that is there counts
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),  # MedMNIST
)


@dataclass(frozen=True)
class NpzFile:
    """``x_train``, ``y_train``, ``x_test`` and ``y_test``, or MedMNIST's ``train_images`` and so on."""

    path: Path

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """The file itself, or the only one in a folder."""
        if path.is_file():
            return cls(path) if path.suffix == ".npz" else None
        archives = [*path.glob("*.npz")]
        return cls(archives[0]) if len(archives) == 1 else None

    def paths(self) -> list[Path]:
        """The one file."""
        return [self.path]

    def read(self) -> tuple[list[Split], list[Split]]:
        """The training and the test split."""
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                keys = next((keys for keys in KEYS if all(key in archive.files for key in keys)), None)
                if keys is None:
                    raise InputError(
                        f"data: {self.path} does not have the arrays {', '.join(KEYS[0])} (or {', '.join(KEYS[1])}): "
                        f"it has {', '.join(archive.files) or 'none'}"
                    )
                arrays = [archive[key] for key in keys]
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"data: {self.path} cannot be read without pickle: {error}") from error
        return (
            [Split(f"{self.path}, {keys[0]}", arrays[0], arrays[1])],
            [Split(f"{self.path}, {keys[2]}", arrays[2], arrays[3])],
        )
