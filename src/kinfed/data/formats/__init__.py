"""Formats of data on disk, by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kinfed.errors import InputError
from kinfed.registry import Registry

if TYPE_CHECKING:
    from kinfed.data.splits import Split

__all__ = ["FORMATS", "Files", "Format", "find_files", "find_in_format"]


class Files(Protocol):
    """A data set in files that are found but not read.

    An attribute ``by_client`` that is True means that the shares have a column ``client``; then the clients are its
    values, unless the user names a partition.
    """

    def paths(self) -> list[Path]:
        """Return all files of the data set, always in the same order."""

    def read(self) -> tuple[list[Split], list[Split]]:
        """Read the shares of the training split and of the test split, without decoding images.

        The second list is empty if the data have no split.
        """


class Format(Protocol):
    """A format of data on disk: a class or an object with this method.

    >>> FORMATS["npz"].find(Path("no_such_file.npz")) is None
    True
    """

    def find(self, path: Path) -> Files | None:
        """Find a data set of this format at a path, by file names if these are enough; None if there is none.

        Raises:
            InputError: If the data set is incomplete.
        """


FORMATS: Registry[Format] = Registry(
    "format",
    {
        "parquet": "kinfed.data.formats.parquet:ParquetFiles",
        "idx": "kinfed.data.formats.idx:IdxFiles",
        "npz": "kinfed.data.formats.npz:NpzFile",
        "leaf": "kinfed.data.formats.leaf:LeafFiles",
        "flamby": "kinfed.data.formats.flamby:FlambyFiles",
        "images": "kinfed.data.formats.folders:ClassFolders",
        "csv": "kinfed.data.formats.csv:CsvFiles",
        "clients": "kinfed.data.formats.folders:ClientFolders",
        "unlabelled": "kinfed.data.formats.unlabelled:UnlabelledImages",
    },
    lambda found: None if callable(getattr(found, "find", None)) else "has no method find(path)",
)


def find_files(path: Path, but: str | None = None) -> Files | None:
    """Find a data set of any format at a path; None if there is none.

    Formats of installed packages are tried first, since `images` accepts every folder that has a folder ``train``;
    then kinfed's own formats, in the order of `FORMATS`. Of images without labels, only those in the folder itself are
    found.

    Args:
        path: File or folder.
        but: Name of a format that is not tried.

    Raises:
        InputError: If the data set is incomplete.
    """
    from kinfed.data.formats.unlabelled import UnlabelledImages

    names: list[Any] = sorted(FORMATS, key=lambda name: FORMATS.origin(name) == "kinfed")
    for name in names:
        if name not in (but, "unlabelled") and (files := FORMATS[name].find(path)) is not None:
            return files
    return None if but else UnlabelledImages.flat(path)


def find_in_format(name: str, path: Path) -> Files:
    """Find a data set of one format at a path.

    Args:
        name: Name of the format.
        path: File or folder.

    Raises:
        InputError: If there is no such format, or no data set of this format.
    """
    files = FORMATS.find(name).find(path)
    if files is None:
        raise InputError(f"data: {str(path)!r} has no data in the format {name}")
    return files
