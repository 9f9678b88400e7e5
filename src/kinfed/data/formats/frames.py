"""Tables from memory: pandas DataFrames."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfed.data.cache import keep_files
from kinfed.data.formats.parquet import readable
from kinfed.data.tables import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["as_frames", "keep_frames"]


def as_frames(data: Any) -> tuple[pd.DataFrame, ...] | None:
    """Return the DataFrames in ``data``: one, or two with the same columns for training and test; None for other data.

    A pair with different columns, of which the second one has a single column, is inputs and labels.
    """
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        return (data,)
    both = isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, pd.DataFrame) for part in data)
    labels = both and len(data[1].columns) == 1 and {*data[0].columns} != {*data[1].columns}
    return (data[0], data[1]) if both and not labels else None


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
    return keep_files(files)
