"""Parquet files, as on the hub, and tables in memory, with a column of images or of plain features."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kinfed.data.formats.listing import SUFFIXES
from kinfed.data.images import Encoded
from kinfed.data.roles import LABELS
from kinfed.data.splits import TEST_NAMES, Split
from kinfed.data.tables import LONGEST, Table
from kinfed.errors import InputError

__all__ = ["ParquetFiles", "read_labels", "read_table", "readable", "split_of", "usable"]

IMAGE = ("image", "img")  # names of the column of images; the first one found is used


@dataclass(frozen=True)
class ParquetFiles:
    """Files ``train.parquet`` and ``test.parquet``, or several per split, such as ``train-00000-of-00002.parquet``.

    Data without a split have no file of a test split.
    """

    folder: Path
    train: tuple[Path, ...]
    test: tuple[Path, ...]

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find the files: the path itself, or those in a folder; None if it has none of a training split."""
        if path.is_file():
            return cls(path.parent, (path,), ()) if path.suffix == ".parquet" else None
        train, *tests = (_files(path, split) for split in ("train", *TEST_NAMES))
        if not train:
            return None
        return cls(path, train, next((files for files in tests if files), ()))

    def paths(self) -> list[Path]:
        """Return the files, the training split first, and then the image files that they refer to."""
        return [*self.train, *self.test, *(image for file in (*self.train, *self.test) for image in _named(file))]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Read the training and the test split, one share per file, without decoding images."""
        return [_read(file) for file in self.train], [_read(file) for file in self.test]


def split_of(table: Any, name: str, folders: Sequence[Path]) -> Split:
    """Convert a pyarrow table to a `Split`: images, labels, and the other columns that a partition can use.

    A table without images is one of plain features. The other columns beside images are those of integers,
    booleans or texts of up to 256 characters that have no nulls.

    Args:
        table: Table; for images, with a column ``image`` or ``img`` and, unless the user names another one, a column
            ``label``, ``fine_label`` or ``labels``. An image is the bytes of a file, or a struct of ``bytes`` and
            ``path`` as in Hugging Face ``datasets``.
        name: Name of the table in messages.
        folders: Folders that may contain images given by path; relative paths start from the first one.

    Raises:
        InputError: If a label is missing or too long, an image lies outside the folders, or a table of features has no
            rows.
    """
    import pyarrow as pa

    names = table.column_names
    image, label = (next((name for name in known if name in names), None) for known in (IMAGE, LABELS))
    if image is None:
        if any(pa.types.is_struct(kind) or pa.types.is_binary(kind) for kind in table.schema.types):
            raise InputError(
                f"data: {name} must have its images in the column 'image' (or 'img'); it has {', '.join(names)}"
            )
        return Split(name, Table.of(table.to_pandas(ignore_metadata=True), name), None)
    labels = None if label is None else read_labels(table.column(label), label, name)
    called = [f"{name}, row {row}" for row in range(len(table))]
    cells = table.column(image).to_pylist()
    files = [_file(cell, folders, row) for cell, row in zip(cells, called, strict=True)]
    others = {other: usable(table.column(other)) for other in names if other not in (image, label)}
    return Split(
        name,
        Encoded(called, files),
        labels,
        {other: values for other, values in others.items() if values is not None},
        label=label,
    )


def read_labels(column: Any, label: str, name: str) -> NDArray[Any]:
    """Read the column ``label`` of the table ``name``, one class per sample."""
    import pyarrow as pa

    if pa.types.is_nested(column.type):
        raise InputError(f"data: {name} has several labels per sample in {label!r}; must be one class per sample")
    if column.null_count:
        raise InputError(f"data: {name} has {column.null_count} samples without a label")
    labels = column.to_pylist()
    if _longest(labels) > LONGEST:
        raise InputError(f"data: {name} has a label of {_longest(labels):,} characters; must be at most {LONGEST}")
    return np.asarray(labels)


def _files(folder: Path, split: str) -> tuple[Path, ...]:
    found = {*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")}
    return tuple(sorted(file for file in found if file.is_file()))


def _read(path: Path) -> Split:
    with readable(path):
        return split_of(read_table(path), str(path), [path.parent])


def read_table(path: Path, columns: list[str] | None = None) -> Any:
    """Read a file, or some of its columns, to a pyarrow table.

    Raises:
        InputError: If the header claims more rows than the file can have.
    """
    import pyarrow.parquet as pq

    rows, size = pq.read_metadata(path).num_rows, path.stat().st_size
    if rows > size:  # a few bytes can encode billions of equal rows, which would fill the memory
        raise InputError(f"data: {path} cannot have {rows:,} rows in {size:,} bytes, as its header says")
    return pq.read_table(path, columns=columns, partitioning=None)


def _named(path: Path) -> list[Path]:
    """Return the image files that a parquet file refers to by path."""
    import pyarrow.parquet as pq

    if all(other.is_file() and not other.name.lower().endswith(SUFFIXES) for other in path.parent.iterdir()):
        return []  # there are no image files
    with readable(path):
        schema = pq.read_schema(path)
        image = next((name for name in IMAGE if name in schema.names), None)
        if image is None or f"{image}.path" not in [field.name for field in schema.field(image).flatten()]:
            return []
        cells = read_table(path, [f"{image}.path"]).column(0).to_pylist()
        names = (cell.get("path") if isinstance(cell, dict) else cell for cell in cells)
        files = (path.parent / name for name in names if name)
        return [file for file in files if file.is_file() and _lies_in([path.parent], file)]


@contextlib.contextmanager
def readable(table: object) -> Iterator[None]:
    """Context manager that turns any error of reading a table into an `InputError` that names the table."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # pyarrow raises exceptions of many types for broken files
        raise InputError(f"data: {table} cannot be read as a table: {error}") from error


def _file(cell: Any, folders: Sequence[Path], name: str) -> bytes | Path | None:
    """Return the bytes of an image, or its path if it has no bytes; None if it has neither."""
    if not isinstance(cell, dict):
        return cell if isinstance(cell, bytes) else None
    encoded, path = cell.get("bytes"), cell.get("path")
    if encoded is not None or not isinstance(path, str):
        return encoded if isinstance(encoded, bytes) else None
    file = folders[0] / path
    if not _lies_in(folders, file):
        raise InputError(f"data: {name} names the image {path!r}, which is outside of {str(folders[0])!r}")
    return file


def _lies_in(folders: Sequence[Path], file: Path) -> bool:
    return any(file.resolve().is_relative_to(folder.resolve()) for folder in folders)


def usable(column: Any) -> NDArray[Any] | None:
    """Convert a column of whole numbers, booleans or short text to an array; None for any other column."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if column.null_count or not (text or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return None
    values = column.to_pylist()
    return np.asarray(values, dtype=np.str_ if text else None) if _longest(values) <= LONGEST else None


def _longest(values: Sequence[Any]) -> int:
    return max((len(value) for value in values if isinstance(value, str)), default=0)
