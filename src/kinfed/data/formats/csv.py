"""Tables of plain features as text: CSV and TSV."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kinfed.data.formats.parquet import readable
from kinfed.data.splits import TEST_NAMES, Split
from kinfed.data.tables import Table
from kinfed.errors import InputError

__all__ = ["CsvFiles"]

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


def _read(path: Path) -> Split:
    """Read a file; columns are separated by commas, or by semicolons if there are more of these in the first line."""
    import pandas as pd

    with readable(path), path.open(encoding="utf-8-sig") as file, warnings.catch_warnings():
        first = file.readline()
        file.seek(0)
        comma = ";" if first.count(";") > first.count(",") else ","
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(
                file,
                sep="\t" if path.suffix.lower() == ".tsv" else comma,
                index_col=False,
                na_values=MISSING,
                keep_default_na=False,
                low_memory=False,
            )
        except pd.errors.ParserWarning as error:
            raise InputError(f"data: {path} has rows with more values than the first line has names") from error
        return Split(str(path), Table.of(frame, str(path)), None)
