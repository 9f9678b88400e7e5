"""Data sets of the package ``datasets`` (Hugging Face) from memory. The package itself is not needed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfed.data.cache import keep_files
from kinfed.data.formats.parquet import IMAGE, readable
from kinfed.data.splits import TEST_NAMES
from kinfed.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["as_tables", "keep_tables"]


def as_tables(data: Any) -> tuple[pa.Table, ...] | None:
    """Return the tables of a ``Dataset``, of two of them for training and test, or of a ``DatasetDict``.

    Returns:
        The training and the test rows; or all rows, if there is no test split; None for other data.

    Raises:
        InputError: If a ``DatasetDict`` has no split ``train``, the data are a stream, or an image cannot be read.
    """
    if _kind(data) == "DatasetDict":
        if "train" not in data:
            raise InputError(
                f"data: the DatasetDict has the splits {', '.join(data) or 'none'}; must have train and test"
            )
        test = next((name for name in TEST_NAMES if name in data), None)
        parts = [data["train"]] if test is None else [data["train"], data[test]]
    elif _kind(data):
        parts = [data]
    elif isinstance(data, tuple | list) and len(data) == 2 and all(map(_kind, data)):
        parts = [*data]
    else:
        return None
    if odd := next((_kind(part) for part in parts if _kind(part) != "Dataset"), None):
        raise InputError(f"data: {odd} of datasets is not allowed; must be a Dataset or a DatasetDict")
    return tuple(_table(part) for part in parts)


def keep_tables(*tables: pa.Table) -> Path:
    """Write tables to a folder in the cache folder, unless they are there, so that a run on them can be resumed.

    Args:
        *tables: The training rows and the test rows.

    Returns:
        Path of the folder with ``train.parquet`` and ``test.parquet``, whose name is a digest of their contents.

    Raises:
        InputError: If the cache folder cannot be written.
    """
    import pyarrow.parquet as pq

    files = {}
    for which, table in zip(("train", "test"), tables, strict=False):
        with io.BytesIO() as buffer:
            pq.write_table(table, buffer)
            files[f"{which}.parquet"] = buffer.getvalue()
    return keep_files(files)


def _kind(data: Any) -> str:
    """Return the name of a class of the package ``datasets``; empty for objects of other packages."""
    kind = type(data)
    return kind.__name__ if kind.__module__.partition(".")[0] == "datasets" and hasattr(data, "with_format") else ""


def _table(part: Any) -> pa.Table:
    """Return the rows of a ``Dataset``, with the files of its images."""
    with readable("the Dataset"):
        table = part.with_format("arrow")[:].replace_schema_metadata(None)
        for name in IMAGE:
            if name in table.column_names and _by_path(table.schema.field(name).type):
                cells = [_with_bytes(cell) for cell in table.column(name).to_pylist()]
                table = table.set_column(table.column_names.index(name), name, [cells])
        return table


def _by_path(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind})


def _with_bytes(cell: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return an image with the bytes of its file, if it has only a path."""
    if cell is None or cell["bytes"] is not None or cell["path"] is None:
        return cell
    return {"bytes": Path(cell["path"]).read_bytes(), "path": None}
