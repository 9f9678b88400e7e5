"""Folders of image files, one a class, and folders of data folders, one a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from kinfed.data.formats import Files, find_files
from kinfed.data.formats.listing import Listing, list_images
from kinfed.data.images import Encoded
from kinfed.data.samples import CLIENT
from kinfed.data.splits import TEST_NAMES, Split
from kinfed.errors import InputError

__all__ = ["ClassFolders", "ClientFolders", "left_out"]

NAMED = 5  # of what is left out: how many a message names


@dataclass(frozen=True)
class ClassFolders:
    """``train/CLASS/…`` and ``test/CLASS/…`` with image files at any depth; what else lies there is left out."""

    path: Path
    test: str  # what the folder of the test split is called

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Those in a folder; None if it has no folder ``train``."""
        if not (path / "train").is_dir():
            return None
        test = next((name for name in TEST_NAMES if (path / name).is_dir()), None)
        if test is None:
            raise InputError(f"data: {str(path)!r} has a folder train, but no folder test (nor val, valid, validation)")
        return cls(path, test)

    def paths(self) -> list[Path]:
        """All image files, training split first, by class and name."""
        return [Path(file) for split in self.listings for _, file in split.images]

    def read(self) -> tuple[list[Split], list[Split]]:
        """The training and the test split."""
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
        """Refuse a training split with one class or none; a client's may be like that, a whole data set may not.

        Raises:
            InputError: If it is; it says what was found.
        """
        train, _ = self.listings
        classes = {label for label, _ in train.images}
        if len(classes) < 2:
            found = f"one class, {min(classes)!r}" if classes else "no images"
            left = f"; left out: {', '.join(train.left_out[:NAMED])}" if train.left_out else ""
            raise InputError(
                f"data: {str(self.path / 'train')!r} holds {found}; an image is train/CLASS/NAME, of two classes or "
                f"more{left}"
            )

    @cached_property
    def listings(self) -> tuple[Listing, Listing]:
        """What lies in the folders of the training and of the test split."""
        return list_images(self.path, "train"), list_images(self.path, self.test)


@dataclass(frozen=True)
class ClientFolders:
    """One folder a client, each a data set of its own with the same classes: a federation as it stands."""

    clients: Mapping[str, Files]

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Those in a folder; None if no folder in it is a data set."""
        inside = sorted(path.iterdir()) if path.is_dir() else []
        folders = [folder for folder in inside if folder.is_dir() and not folder.name.startswith(".")]
        found = {folder: find_files(folder, but="clients") for folder in folders}
        if not any(found.values()):
            return None
        clients = {folder.name: files for folder, files in found.items() if files is not None}
        if missing := [folder.name for folder, files in found.items() if files is None]:
            raise InputError(
                f"data: {str(path)!r} has a folder a client, as {next(iter(clients))!r}, but {missing[0]!r} has no "
                f"training and test split"
            )
        if links := [folder.name for folder in folders if folder.is_symlink()]:
            raise InputError(f"data: {str(path)!r} has a folder a client, and {links[0]!r} is a link")
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


def left_out(files: Files) -> list[str]:
    """What lies in the folders of images and is no part of the data, below the folder that was given.

    Files with another ending, links that lead out, upwards or to what is there already, and classes without images.
    What is hidden is not meant to be seen.
    """
    if isinstance(files, ClassFolders):
        return [name for split in files.listings for name in split.left_out]
    if isinstance(files, ClientFolders):
        return [f"{name}/{left}" for name, own in files.clients.items() for left in left_out(own)]
    return []
