"""Tables with a column of images and one of labels: parquet files as the hub writes them, and tables in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kinfed.data.images import Encoded
from kinfed.data.splits import TEST_NAMES, Split
from kinfed.errors import InputError

__all__ = ["ParquetFiles", "split_of"]

IMAGE = ("image", "img")  # the first that is there counts
LABEL = ("label", "fine_label", "labels")


@dataclass(frozen=True)
class ParquetFiles:
    """``train.parquet`` and ``test.parquet``, or several files a split, as ``train-00000-of-00002.parquet``."""

    folder: Path
    train: tuple[Path, ...]
    test: tuple[Path, ...]

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Those in a folder; None if it holds no training split in this form."""
        train, *tests = (_files(path, split) for split in ("train", *TEST_NAMES))
        if not train:
            return None
        test = next((files for files in tests if files), None)
        if test is None:
            raise InputError(
                f"data: {str(path)!r} has no test.parquet; a data folder holds train.parquet and test.parquet"
            )
        return cls(path, train, test)

    def paths(self) -> list[Path]:
        """The files, training split first."""
        return [*self.train, *self.test]

    def read(self) -> tuple[list[Split], list[Split]]:
        """The training and the test split, a share a file."""
        return [_read(file) for file in self.train], [_read(file) for file in self.test]


def split_of(table: Any, name: str, folder: Path = Path()) -> Split:
    """A table of pyarrow as a split: images, labels, and every other column of whole numbers or text without gaps.

    Args:
        table: With a column ``image`` or ``img`` and a column ``label``, ``fine_label`` or ``labels``. An image is the
            bytes of a file, or a struct of ``bytes`` and ``path`` as Hugging Face ``datasets`` has it.
        name: What a message calls it.
        folder: What relative paths are relative to.

    Raises:
        InputError: If a column is missing or has gaps.
    """
    import pyarrow as pa

    names = table.column_names
    image, label = (next((name for name in known if name in names), None) for known in (IMAGE, LABEL))
    if image is None or label is None:
        raise InputError(
            f"data: {name} does not have the columns 'image' and 'label' ('img'; 'fine_label', 'labels'): it has "
            f"{', '.join(names) or 'none'}"
        )
    if pa.types.is_nested(table.column(label).type):
        raise InputError(f"data: {name} has several labels a sample in {label!r}; a sample has one class")
    if table.column(label).null_count:
        raise InputError(f"data: {name} has {table.column(label).null_count} samples without a label")
    files = [_file(cell, folder) for cell in table.column(image).to_pylist()]
    others = {other: _values(table.column(other)) for other in names if other not in (image, label)}
    return Split(
        name,
        Encoded([f"{name}, row {row}" for row in range(len(files))], files),
        np.asarray(table.column(label).to_pylist()),
        {other: values for other, values in others.items() if values is not None},
    )


def _files(folder: Path, split: str) -> tuple[Path, ...]:
    return tuple(sorted({*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")}))


def _read(path: Path) -> Split:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return split_of(pq.read_table(path, partitioning=None), str(path), path.parent)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"data: {path} cannot be read as parquet: {error}") from error


def _file(cell: Any, folder: Path) -> bytes | Path | None:
    """The bytes of an image, or its path where only that is there."""
    if not isinstance(cell, dict):
        return cell if isinstance(cell, bytes) else None
    encoded, path = cell.get("bytes"), cell.get("path")
    return encoded if encoded is not None or path is None else folder / path


def _values(column: Any) -> NDArray[Any] | None:
    """A column of whole numbers, booleans or text as an array that needs no pickle; None for any other."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if column.null_count or not (text or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return None
    return np.asarray(column.to_pylist(), dtype=np.str_ if text else None)
