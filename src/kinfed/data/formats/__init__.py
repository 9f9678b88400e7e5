"""Formats: what data look like on disk. Each has a name, and says whether a path holds data of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from kinfed.data.splits import Split
from kinfed.errors import InputError
from kinfed.registry import Registry

__all__ = ["FORMATS", "Files", "Format", "find_files", "find_in_format"]


class Files(Protocol):
    """A data set that lies in files, found but not read."""

    def paths(self) -> list[Path]:
        """The files that it consists of, always in the same order."""

    def read(self) -> tuple[list[Split], list[Split]]:
        """The shares of the training and of the test split, not decoded."""


class Format(Protocol):
    """A kind of data on disk: one of kinfed's, or your own, a class or an object with this method."""

    def find(self, path: Path) -> Files | None:
        """The data set at a path; None if there is none of this kind. Looks at names of files as far as that is enough.

        Raises:
            InputError: If only part of one is there.
        """


FORMATS: Registry[Format] = Registry(
    "format",
    {
        "parquet": "kinfed.data.formats.parquet:ParquetFiles",
        "idx": "kinfed.data.formats.idx:IdxFiles",
        "npz": "kinfed.data.formats.npz:NpzFile",
        "images": "kinfed.data.formats.folders:ClassFolders",
        "clients": "kinfed.data.formats.folders:ClientFolders",
    },
    lambda found: None if callable(getattr(found, "find", None)) else "has no method find(path)",
)


def find_files(path: Path, but: str | None = None) -> Files | None:
    """The data set at a path, of whatever format; None if there is none.

    Formats of installed packages are asked first, since `images` takes every folder that has a folder ``train``; then
    kinfed's own in the order in which they are listed.

    Args:
        path: File or folder.
        but: Name of a format that is not asked.

    Raises:
        InputError: If only part of one is there.
    """
    names: list[Any] = sorted(FORMATS, key=lambda name: FORMATS.origin(name) == "kinfed")
    for name in names:
        if name != but and (files := FORMATS[name].find(path)) is not None:
            return files
    return None


def find_in_format(name: str, path: Path) -> Files:
    """The data set of one format at a path.

    Raises:
        InputError: If there is no such format, or no data of its kind.
    """
    files = FORMATS.find(name).find(path)
    if files is None:
        raise InputError(f"data: {str(path)!r} holds no data of the format {name}")
    return files
