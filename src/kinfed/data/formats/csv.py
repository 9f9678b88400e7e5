"""Tables of plain features as text: CSV and TSV."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kinfed.data.formats.parquet import readable
from kinfed.data.splits import TEST_NAMES, Split
from kinfed.data.tables import Table, shown
from kinfed.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CsvFiles", "read_frame"]

SUFFIXES = (".csv", ".tsv")
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "<NA>", "#N/A")  # "None" may be a category


@dataclass(frozen=True)
class CsvFiles:
    """One file, or ``train.csv`` and ``test.csv`` (or ``.tsv``) in a folder, with the names of the columns on top."""

    train: Path
    test: Path | None = None

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find the files: the path itself, or those in a folder; None if there is none."""
        if path.is_file():
            return cls(path) if path.suffix.lower() in SUFFIXES else None
        train, *tests = (
            next((file for suffix in SUFFIXES if (file := path / f"{split}{suffix}").is_file()), None)
            for split in ("train", *TEST_NAMES)
        )
        return None if train is None else cls(train, next((file for file in tests if file), None))

    def paths(self) -> list[Path]:
        """Return the files, the training split first."""
        return [self.train, *([self.test] if self.test else [])]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Read the files; without a file of the test split, its list is empty."""
        return [_read(self.train)], [_read(self.test)] if self.test else []


def read_frame(path: Path, texts: Sequence[str] = ()) -> pd.DataFrame:
    """Read a file; columns are separated by commas, or by semicolons if there are more of these in the first line.

    Args:
        path: The file.
        texts: Names of columns that are text, even if they look like numbers.

    Raises:
        InputError: If the file cannot be read, two columns have the same name, or a row has too many values.
    """
    import pandas as pd

    with readable(path), path.open(encoding="utf-8-sig") as file, warnings.catch_warnings():
        first = file.readline()
        comma = ";" if first.count(";") > first.count(",") else ","
        separator = "\t" if path.suffix.lower() == ".tsv" else comma
        file.seek(0)
        # pandas would give the second of two equal names another one.
        names = pd.read_csv(file, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
        if len(twice := names[names.duplicated() & (names != "")]):
            raise InputError(f"data: {path} has two columns {shown(twice.iloc[0])}")
        file.seek(0)
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(
                file,
                sep=separator,
                index_col=False,
                na_values=MISSING,
                keep_default_na=False,
                low_memory=False,
                dtype=dict.fromkeys(texts, str),
            )
        except pd.errors.ParserWarning as error:
            raise InputError(f"data: {path} has rows with more values than the first line has names") from error


def _read(path: Path) -> Split:
    return Split(str(path), Table.of(read_frame(path), str(path)), None)
