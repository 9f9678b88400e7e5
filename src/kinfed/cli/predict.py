"""The command ``kinfed predict RUN FILES``: the classes of images or of the rows of a table, by a model of a run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinfed.errors import InputError, plain

if TYPE_CHECKING:
    import pandas as pd

    from kinfed.experiment.predictor import Predictor

__all__ = ["answers", "described"]

TABLES = (".csv", ".tsv", ".parquet")


def answers(model: Predictor, paths: Sequence[Path]) -> pd.DataFrame:
    """Return the class and its probability for each image, or for each row of a table.

    Args:
        model: The model.
        paths: Image files and folders of images, or one table (CSV, TSV or parquet).

    Returns:
        A DataFrame with the columns ``file``, or for a table ``row`` from 1 on, ``class`` and ``probability``.

    Raises:
        InputError: If a path is none of these, or does not fit the model.
    """
    import pandas as pd

    if any(path.suffix.lower() in TABLES for path in paths):
        if len(paths) > 1:
            raise InputError(f"files: {str(paths[1])!r} is not allowed; a table must be the only file")
        inputs = _frame(paths[0], model)
        told = pd.DataFrame({"row": range(1, len(inputs) + 1)})
    else:
        inputs = [image for path in paths for image in _images(path)]
        told = pd.DataFrame({"file": map(str, inputs)})
    probabilities = model.predict_proba(inputs)
    best = [model.classes[k] for k in probabilities.argmax(axis=1)]
    return told.assign(**{"class": best, "probability": probabilities.max(axis=1)})


def described(model: Predictor, run: Path, client: str | None) -> str:
    """Say which model answers."""
    which = f"model of client {client}" if client is not None else "global model" if run.is_dir() else "model"
    accuracy = model.card.accuracy
    tested = "" if accuracy is None else f", accuracy {accuracy:.3f} in the test of the run"
    return plain(f"{which} of {run}: {model.card.architecture}, {len(model.classes)} classes{tested}")


def _images(path: Path) -> list[Path]:
    """Return an image file, or the images below a folder, sorted."""
    from kinfed.data.formats.listing import SUFFIXES, list_all

    if path.is_dir():
        listing = list_all(path)
        if not listing.images:
            raise InputError(f"files: {str(path)!r} has no images")
        if listing.left_out:
            more = f" and {len(listing.left_out) - 1} more" if len(listing.left_out) > 1 else ""
            warnings.warn(f"{path}: left out, since no images: {listing.left_out[0]}{more}", stacklevel=2)
        return [path / os.path.relpath(image, os.path.abspath(path)) for _, image in listing.images]
    if not path.is_file():
        raise InputError(f"files: {str(path)!r} does not exist")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"files: {str(path)!r} is not allowed; must be images, folders of images, or one table: {', '.join(TABLES)}"
        )
    return [path]


def _frame(path: Path, model: Predictor) -> pd.DataFrame:
    """Read a table; categories stay as they are written, since a number would lose its form."""
    from kinfed.data.formats.csv import read_frame
    from kinfed.data.formats.parquet import read_table, readable

    if model.encoding is None:
        size = "×".join(map(str, model.shape))
        raise InputError(f"files: {str(path)!r} is a table, but the model takes inputs of shape {size}")
    if path.suffix.lower() == ".parquet":
        with readable(path):
            frame: pd.DataFrame = read_table(path).to_pandas(ignore_metadata=True)
            return frame
    truths = {"True", "False"}  # which the file may write otherwise
    return read_frame(path, [column for column, values in model.encoding.categories.items() if {*values} - truths])
