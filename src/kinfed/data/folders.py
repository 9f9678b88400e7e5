"""Folders of image files, one a class, and folders of data folders, one a client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from kinfed.data.idx import IdxFiles
from kinfed.data.images import Encoded
from kinfed.data.npz import NpzFile
from kinfed.data.parquet import ParquetFiles
from kinfed.data.splits import TEST_NAMES, Split
from kinfed.errors import InputError

__all__ = ["ClassFolders", "ClientFolders", "Files", "find_files"]

CLIENT = "client"  # the column that names the folder
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class Files(Protocol):
    """A data set that lies in files, found but not read."""

    def paths(self) -> list[Path]:
        """The files that it consists of, always in the same order."""

    def read(self) -> tuple[list[Split], list[Split]]:
        """The shares of the training and of the test split, not decoded."""


@dataclass(frozen=True)
class ClassFolders:
    """``train/CLASS/…`` and ``test/CLASS/…`` with image files at any depth; other files are no part of it."""

    train: Path
    test: Path

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Those in a folder; None if it has no folder ``train``."""
        if not (path / "train").is_dir():
            return None
        test = next((path / name for name in TEST_NAMES if (path / name).is_dir()), None)
        if test is None:
            raise InputError(f"data: {str(path)!r} has a folder train, but no folder test (nor val, valid, validation)")
        return cls(path / "train", test)

    def paths(self) -> list[Path]:
        """All image files, training split first, by class and name."""
        return [Path(file) for split in (self.train, self.test) for _, file in _images(split)]

    def read(self) -> tuple[list[Split], list[Split]]:
        """The training and the test split."""
        return [_of_classes(self.train)], [_of_classes(self.test)]


@dataclass(frozen=True)
class ClientFolders:
    """One folder a client, each a data set of its own with the same classes: a federation as it stands."""

    clients: Mapping[str, Files]

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Those in a folder; None if no folder in it is a data set."""
        inside = sorted(path.iterdir()) if path.is_dir() else []
        folders = [folder for folder in inside if folder.is_dir() and not folder.name.startswith(".")]
        found = {folder: find_one(folder) for folder in folders}
        if not any(found.values()):
            return None
        clients = {folder.name: files for folder, files in found.items() if files is not None}
        if missing := [folder.name for folder, files in found.items() if files is None]:
            raise InputError(
                f"data: {str(path)!r} has a folder a client, as {next(iter(clients))!r}, but {missing[0]!r} has no "
                f"training and test split"
            )
        return cls(clients)

    def paths(self) -> list[Path]:
        """The files of all clients."""
        return [path for files in self.clients.values() for path in files.paths()]

    def read(self) -> tuple[list[Split], list[Split]]:
        """The shares of all clients, each with its name in the column ``client``."""
        train: list[Split] = []
        test: list[Split] = []
        for name, files in self.clients.items():
            for whole, shares in zip((train, test), files.read(), strict=True):
                for share in shares:
                    whole.append(replace(share, columns={**share.columns, CLIENT: np.full(len(share.labels), name)}))
        return train, test


def find_one(path: Path) -> Files | None:
    """The data set at a path, of one client or before it is shared out; None if there is none."""
    kinds = (ParquetFiles, IdxFiles, NpzFile, ClassFolders)
    return next((found for kind in kinds if (found := kind.find(path)) is not None), None)


def find_files(path: Path) -> Files | None:
    """The data set at a path, of whatever form; None if there is none.

    Raises:
        InputError: If only part of one is there.
    """
    return find_one(path) or ClientFolders.find(path)


def _images(split: Path) -> list[tuple[str, str]]:
    """Class and path of every image below the folder of a split, sorted."""
    images = []
    for folder, _, names in os.walk(split, followlinks=True):
        inside = [name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
        label = next(iter(Path(folder).relative_to(split).parts), None)
        if inside and label is None:
            raise InputError(f"data: {folder}/{inside[0]} lies in no class folder; an image is {split.name}/CLASS/NAME")
        images += [(str(label), os.path.join(folder, name)) for name in inside]
    return sorted(images)


def _of_classes(split: Path) -> Split:
    images = _images(split)
    names = [file for _, file in images]
    return Split(str(split), Encoded(names, [Path(name) for name in names]), np.array([label for label, _ in images]))
