"""Tables from memory: pandas DataFrames."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfed.data.cache import cache_folder, digest, unfinished
from kinfed.data.formats.parquet import readable
from kinfed.data.tables import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["as_frames", "keep_frames"]


def as_frames(data: Any) -> tuple[pd.DataFrame, ...] | None:
    """Return the DataFrames in ``data``: one, or two with the same columns for training and test; None for other data.

    A pair with different columns is not of this kind, but inputs and labels.
    """
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        return (data,)
    both = isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, pd.DataFrame) for part in data)
    return (data[0], data[1]) if both and {*data[0].columns} == {*data[1].columns} else None


def keep_frames(*frames: pd.DataFrame) -> Path:
    """Write tables to a folder in the cache folder, unless they are there, so that a run on them can be resumed.

    Args:
        *frames: The training rows and the test rows; or all rows of data without a split. Their index is dropped.

    Returns:
        Path of the folder with ``train.parquet`` and ``test.parquet``, whose name is a digest of the tables.

    Raises:
        InputError: If a table has no rows, or a column with values of several types; or the cache folder cannot be
            written.
    """
    files = {}
    for which, frame in zip(("train", "test"), frames, strict=False):
        with readable(f"the DataFrame for {which}"), io.BytesIO() as buffer:
            Table.of(frame, f"the DataFrame for {which}").frame.to_parquet(buffer, index=False)
            files[f"{which}.parquet"] = buffer.getvalue()
    folder = (
        cache_folder() / "tables" / digest([(name, hashlib.sha256(own).hexdigest()) for name, own in files.items()])
    )
    if not all((folder / name).is_file() and (folder / name).read_bytes() == own for name, own in files.items()):
        with unfinished(folder.parent) as place:
            folder.mkdir(exist_ok=True)
            for name, own in files.items():
                (place / name).write_bytes(own)
                (place / name).replace(folder / name)
    return folder
