"""Formats of folders: one folder of images per class, or one data folder per client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from kinfed.data.formats import Files, find_files
from kinfed.data.formats.listing import Listing, list_images
from kinfed.data.formats.unlabelled import UnlabelledImages
from kinfed.data.images import Encoded
from kinfed.data.samples import CLIENT
from kinfed.data.splits import TEST_NAMES, Split
from kinfed.errors import InputError

__all__ = ["ClassFolders", "ClientFolders", "left_out"]

NAMED = 5  # largest number of left-out files in a message


@dataclass(frozen=True)
class ClassFolders:
    """Image files at any depth in ``train/CLASS/…`` and ``test/CLASS/…``; other files are left out."""

    path: Path
    test: str  # name of the folder of the test split

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find the images in a folder; None if it has no folder ``train``.

        Raises:
            InputError: If it has no folder of a test split.
        """
        if not (path / "train").is_dir():
            return None
        test = next((name for name in TEST_NAMES if (path / name).is_dir()), None)
        if test is None:
            raise InputError(f"data: {str(path)!r} has a folder train, but no folder test (nor val, valid, validation)")
        return cls(path, test)

    def paths(self) -> list[Path]:
        """Return all image files, the training split first, sorted by class and name."""
        return [Path(file) for split in self.listings for _, file in split.images]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Return the training and the test split, without decoding the images."""
        train, test = (
            Split(
                str(self.path / name),
                Encoded([file for _, file in split.images], [Path(file) for _, file in split.images]),
                np.array([label for label, _ in split.images], dtype=np.str_),
            )
            for name, split in zip(("train", self.test), self.listings, strict=True)
        )
        return [train], [test]

    def refuse_one_class(self) -> None:
        """Refuse a training split with fewer than two classes. Only a single client's share may have fewer.

        Raises:
            InputError: If there are fewer than two classes.
        """
        train, _ = self.listings
        classes = {label for label, _ in train.images}
        if len(classes) < 2:
            found = f"one class, {min(classes)!r}" if classes else "no images"
            left = f"; left out: {', '.join(train.left_out[:NAMED])}" if train.left_out else ""
            raise InputError(
                f"data: {str(self.path / 'train')!r} has {found}; must be images train/CLASS/NAME of two or more "
                f"classes{left}"
            )

    @cached_property
    def listings(self) -> tuple[Listing, Listing]:
        """The contents of the folders of the training and the test split."""
        return list_images(self.path, "train"), list_images(self.path, self.test)


@dataclass(frozen=True)
class ClientFolders:
    """A folder with one data folder per client; all clients have the same classes."""

    clients: Mapping[str, Files]

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find the clients in a folder; None if no folder in it holds data.

        Raises:
            InputError: If some of the folders hold no data, or are links.
        """
        inside = sorted(path.iterdir()) if path.is_dir() else []
        folders = [folder for folder in inside if folder.is_dir() and not folder.name.startswith(".")]
        found = {folder: find_files(folder, but="clients") for folder in folders}
        if not any(found.values()):
            return None
        clients = {folder.name: files for folder, files in found.items() if files is not None}
        if missing := [folder.name for folder, files in found.items() if files is None]:
            raise InputError(
                f"data: {str(path)!r} has one folder per client, such as {next(iter(clients))!r}, but {missing[0]!r} "
                "has no training and test split"
            )
        if links := [folder.name for folder in folders if folder.is_symlink()]:
            raise InputError(f"data: {str(path)!r} has one folder per client, but {links[0]!r} is a link")
        return cls(clients)

    def paths(self) -> list[Path]:
        """Return the files of all clients."""
        return [path for files in self.clients.values() for path in files.paths()]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Read the shares of all clients; the column ``client`` has the client's name."""
        train: list[Split] = []
        test: list[Split] = []
        for name, files in self.clients.items():
            for whole, shares in zip((train, test), files.read(), strict=True):
                for share in shares:
                    whole.append(replace(share, columns={**share.columns, CLIENT: np.full(len(share.inputs), name)}))
        return train, test


def left_out(files: Files) -> list[str]:
    """Return the files and folders among the images that are not part of the data, relative to the data folder.

    These are files with other endings, classes without images, and links that are not followed: those to other places,
    to a parent folder, or to files that are already listed. Hidden files are not returned.
    """
    if isinstance(files, ClassFolders):
        return [name for split in files.listings for name in split.left_out]
    if isinstance(files, UnlabelledImages):
        return files.listing.left_out
    if isinstance(files, ClientFolders):
        return [f"{name}/{left}" for name, own in files.clients.items() for left in left_out(own)]
    return []
