"""Tables ``metadata.csv`` beside image files, with a column ``file_name`` (the convention of Hugging Face)."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

from kinfed.data.formats.csv import read_frame
from kinfed.data.formats.listing import Listing
from kinfed.data.roles import LABELS, role_values
from kinfed.data.tables import column_values
from kinfed.errors import InputError
from kinfed.fields import short

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["METADATA", "Metadata"]

METADATA = "metadata.csv"
FILE = "file_name"


@dataclass(frozen=True)
class Metadata:
    """A table of image files. The files lie in its folder or below it.

    Attributes:
        path: The file.
    """

    path: Path

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """Find the table in a folder; None if it has none, or only a link."""
        path = folder / METADATA
        return cls(path) if path.is_file() and not path.is_symlink() else None

    @property
    def label(self) -> str | None:
        """The name of the column that has the labels by its name; None if there is none."""
        return next((name for name in LABELS if name in self._table), None)

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The values of each row by name of the column, of all columns that `column_values` allows but file names."""
        values = {str(name): column_values(self._table[name]) for name in self._table if name != FILE}
        return {name: of_rows for name, of_rows in values.items() if of_rows is not None}

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each file, by its normal path from the folder of the table.

        Raises:
            InputError: If a path is absolute, leads out of the folder, or occurs twice.
        """
        found: dict[str, int] = {}
        for row, name in enumerate(self._table[FILE].fillna("")):
            file = posixpath.normpath(name)
            if posixpath.isabs(file) or os.path.isabs(file) or file.split("/")[0] in ("..", "."):
                raise InputError(
                    f"data: {self.path}, row {row}: {short(name)} is not allowed; must be the path of a file from the "
                    "table's folder, in it or below it"
                )
            if file in found:
                raise InputError(f"data: {self.path}, row {row}: {short(name)} is also in row {found[file]}")
            found[file] = row
        return found

    def described(self, listing: Listing, root: Path) -> Listing:
        """Return the images of a listing that have a row, with their columns; the others are left out.

        Args:
            listing: Image files in the table's folder or below it.
            root: Data folder.
        """
        rows = [self.rows.get(self._name(path)) for _, path in listing.images]
        lacking = [path for (_, path), row in zip(listing.images, rows, strict=True) if row is None]
        told = [f"{os.path.relpath(path, root)} (no row in {METADATA})" for path in lacking]
        others = [name for name in listing.left_out if name != os.path.relpath(self.path, root)]
        there = [row for row in rows if row is not None]
        columns = {name: values[there] for name, values in self.columns.items()}
        if self.label is not None:
            columns[self.label] = role_values(self._table[self.label], "label", str(self.path))[there]
        images = [image for image, row in zip(listing.images, rows, strict=True) if row is not None]
        return Listing(images, sorted([*others, *told]), columns, self.label)

    def without_file(self, paths: Iterable[str]) -> list[str]:
        """Return the files of the rows that are none of the given image files, sorted, for a list of what is left out.

        Args:
            paths: Paths of all image files.
        """
        return sorted(
            f"{file} (no image, a row of {METADATA})" for file in self.rows.keys() - {*map(self._name, paths)}
        )

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.path.parent).replace(os.sep, "/")

    @cached_property
    def _table(self) -> pd.DataFrame:
        table = read_frame(self.path, texts=[FILE])
        if FILE not in table:
            raise InputError(f"data: {self.path} has no column {FILE!r}; it has {short(', '.join(table))}")
        return table
