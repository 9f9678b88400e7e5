"""The format of FLamby's Fed-ISIC2019: a table of samples with their centers and splits, beside images or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from kinfed.data.formats.listing import SUFFIXES
from kinfed.data.formats.npz import read_npy
from kinfed.data.images import Encoded
from kinfed.data.samples import CLIENT
from kinfed.data.splits import Split
from kinfed.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FlambyFiles"]

TABLES = ("train_test_split", "train_test_split.csv")  # file names of the table; the first is that of FLamby
IMAGE, TARGET, CENTER, FOLD = "image", "target", "center", "fold"  # columns of the table
ARRAY = ".npy"


@dataclass(frozen=True)
class FlambyFiles:
    """A CSV ``train_test_split`` with the columns ``image``, ``target``, ``center`` and ``fold``, and files beside it.

    ``image`` is the name of a file, with or without its suffix, in the folder of the table or in one folder below it:
    an image, or an array ``.npy``, all of one kind and shape; only one file may have it. ``fold`` is ``train`` or
    ``test``. Centers are clients.
    """

    by_client: ClassVar[bool] = True

    table: Path

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find the table in a folder; None if there is none."""
        return next((cls(path / name) for name in TABLES if (path / name).is_file()), None)

    def paths(self) -> list[Path]:
        """Return the table and the files of the samples."""
        return [self.table, *(self._file(name) for name in self._rows[IMAGE])]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Read both splits, without decoding images; the column ``client`` has the centers."""
        train, test = (self._split(fold) for fold in ("train", "test"))
        return [train], [test]

    def _split(self, fold: str) -> Split:
        rows = self._rows[self._rows[FOLD] == fold]
        files = [self._file(name) for name in rows[IMAGE]]
        return Split(
            f"{self.table}, {fold}", _inputs(files), rows[TARGET].to_numpy(), {CLIENT: rows[CENTER].to_numpy(np.str_)}
        )

    @cached_property
    def _rows(self) -> pd.DataFrame:
        """The table, checked.

        Raises:
            InputError: If the table cannot be read, lacks a column or a value, or names another fold.
        """
        import pandas as pd

        try:
            table = pd.read_csv(self.table, dtype={IMAGE: str, CENTER: str, FOLD: str}, skipinitialspace=True)
        except (ValueError, OSError) as error:
            raise InputError(f"data: {self.table} cannot be read as a table: {error}") from error
        needed = [IMAGE, TARGET, CENTER, FOLD]
        if missing := [name for name in needed if name not in table]:
            has = ", ".join(map(str, table.columns))
            raise InputError(
                f"data: {self.table} must have the columns {', '.join(needed)}; lacks {missing[0]}, has {has}"
            )
        empty = table[needed].isna()
        if empty.any(axis=None):
            column = empty.any().idxmax()
            raise InputError(f"data: {self.table}, row {empty[column].idxmax()}: {column} is missing")
        if len(odd := table[~table[FOLD].isin(["train", "test"])]):
            raise InputError(f"data: {self.table}: fold {odd[FOLD].iloc[0]!r} is not allowed; must be train or test")
        return table[needed]

    @cached_property
    def _found(self) -> dict[str, list[Path]]:
        """The images and arrays in the folder and in the folders in it, by name with and without suffix.

        Links and hidden files are left out, so that no file outside of the folder is read.
        """
        top = self.table.parent
        folders = [top, *sorted(f for f in top.iterdir() if f.is_dir() and not f.is_symlink() and f.name[0] != ".")]
        files = [file for folder in folders for file in sorted(folder.iterdir()) if file.name[0] != "."]
        own = [f for f in files if f.name.lower().endswith((*SUFFIXES, ARRAY)) and f.is_file() and not f.is_symlink()]
        found: dict[str, list[Path]] = {}
        for file in own:
            for name in (file.stem, file.name):
                found.setdefault(name, []).append(file)
        return found

    def _file(self, name: str) -> Path:
        files = self._found.get(name, [])
        if len(files) > 1:
            raise InputError(f"data: {self.table} names {name!r}, which is {files[0]} as well as {files[1]}")
        if not files:
            raise InputError(
                f"data: {self.table} names {name!r}, which is no image or array (.npy) in its folder or a folder in it"
            )
        return files[0]


def _inputs(files: Sequence[Path]) -> Encoded | NDArray[Any]:
    """Return the arrays of all files, stacked; or the image files, which are decoded later.

    Raises:
        InputError: If an array cannot be read, arrays differ in shape, or there are both images and arrays.
    """
    arrays = [file.suffix.lower() == ARRAY for file in files]
    if not any(arrays):
        return Encoded([str(file) for file in files], list(files))
    if not all(arrays):
        raise InputError(f"data: {files[arrays.index(False)]} is an image, but {files[arrays.index(True)]} an array")
    read = [_array(file) for file in files]
    if odd := next((i for i, array in enumerate(read) if array.shape != read[0].shape), None):
        raise InputError(
            f"data: {files[0]} and {files[odd]} have different shapes, {read[0].shape} and {read[odd].shape}"
        )
    return np.stack(read)


def _array(file: Path) -> NDArray[Any]:
    try:
        with file.open("rb") as opened:
            return read_npy(opened, file.name)
    except Exception as error:  # broken files raise exceptions of many types
        raise InputError(f"data: {file} cannot be read as an array: {error}") from error
