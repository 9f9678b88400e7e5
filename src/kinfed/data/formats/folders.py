"""Formats of folders: one folder of images per class, or one data folder per client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from kinfed.data.formats import Files, find_files
from kinfed.data.formats.listing import Listing, image_depth, list_all, list_images
from kinfed.data.formats.metadata import Metadata
from kinfed.data.formats.unlabelled import UnlabelledImages
from kinfed.data.samples import CLIENT
from kinfed.data.splits import TEST_NAMES, Split
from kinfed.errors import InputError

__all__ = ["ClassFolders", "ClientFolders", "left_out"]

NAMED = 5  # largest number of left-out files in a message


@dataclass(frozen=True)
class ClassFolders:
    """Image files ``train/CLASS/…`` and ``test/CLASS/…``, or ``CLASS/…`` without a split; other files are left out.

    The nearest ``metadata.csv``, in the folder of a split or above it, gives the images more columns. If one of them
    has the labels by its name, images may lie anywhere.
    """

    path: Path
    test: str | None  # name of the folder of the test split; None if there is no split
    above: Path | None = None  # folder of all clients, which may have a table for this one as well

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find the images in a folder; None if it has neither a folder ``train`` nor images in folders of classes.

        Raises:
            InputError: If it has no folder of a test split, or images at different depths.
        """
        if not path.is_dir():
            return None
        if (path / "train").is_dir():
            test = next((name for name in TEST_NAMES if (path / name).is_dir()), None)
            if test is None:
                raise InputError(
                    f"data: {str(path)!r} has a folder train, but no folder test (nor val, valid, validation)"
                )
            return cls(path, test)
        about = Metadata.find(path)
        labelled = about is not None and about.label is not None
        return cls(path, None) if labelled or image_depth(path) == 1 else None

    def paths(self) -> list[Path]:
        """Return all image files, the training split first, sorted by class and name, and then the tables."""
        return [
            *(Path(file) for split in self.listings for _, file in split.images),
            *dict.fromkeys(about.path for about in self.tables if about is not None),
        ]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Return the training and the test split, without decoding the images."""
        train, *test = (
            listing.split(str(self.path / name), _labels(listing))
            for name, listing in zip(self.splits, self.listings, strict=True)
        )
        return [train], test

    def refuse_one_class(self) -> None:
        """Refuse a training split of one folder of images. Only a single client's share may be one.

        Raises:
            InputError: If the folders are the classes, and there are fewer than two.
        """
        train, where = self.listings[0], self.splits[0]
        classes = {label for label, _ in train.images}
        if len(classes) < 2 and train.label is None and classes != {""}:
            found = f"one class, {min(classes)!r}" if classes else "no images"
            left = f"; left out: {', '.join(train.left_out[:NAMED])}" if train.left_out else ""
            raise InputError(
                f"data: {str(self.path / where)!r} has {found}; must be images {where and f'{where}/'}CLASS/NAME of "
                f"two or more classes{left}"
            )

    @property
    def splits(self) -> tuple[str, ...]:
        """The folders of the training and the test split; one empty name without a split."""
        return ("",) if self.test is None else ("train", self.test)

    @property
    def left_out(self) -> list[str]:
        """Files and folders that are not part of the data, relative to the folder."""
        own = {about.path: about for about in self.tables if about is not None and about.path.parent != self.above}
        files = [path for listing in self._found for _, path in listing.images]
        of_tables = [f"{_prefix(about, self.path)}{row}" for about in own.values() for row in about.without_file(files)]
        return [*(name for listing in self.listings for name in listing.left_out), *of_tables]

    @cached_property
    def tables(self) -> tuple[Metadata | None, ...]:
        """The nearest table of each split; None if there is none."""
        places = [[self.path / name, self.path, *([self.above] if self.above else [])] for name in self.splits]
        return tuple(next(filter(None, map(Metadata.find, folders)), None) for folders in places)

    @cached_property
    def listings(self) -> tuple[Listing, ...]:
        """The contents of the folders of the training and the test split."""
        return tuple(
            listing if about is None else about.described(listing, self.path)
            for listing, about in zip(self._found, self.tables, strict=True)
        )

    @cached_property
    def _found(self) -> tuple[Listing, ...]:
        """The contents of the folders, as they are found: also images without a row."""
        return tuple(
            list_all(self.path, name) if _anywhere(self.path / name, about) else list_images(self.path, name)
            for name, about in zip(self.splits, self.tables, strict=True)
        )


def _anywhere(folder: Path, about: Metadata | None) -> bool:
    """Return True if images need not be in folders of classes, since a table describes them."""
    return about is not None and (about.label is not None or image_depth(folder) == 0)


def _labels(listing: Listing) -> NDArray[np.str_] | None:
    """Return the folder of each image as its label; None if images lie in none."""
    labels = np.array([label for label, _ in listing.images], dtype=np.str_)
    return None if "" in labels else labels


def _prefix(about: Metadata, root: Path) -> str:
    """Return the path of a table's folder from the data folder, with a slash; empty for the data folder itself."""
    return "" if about.path.parent == root else f"{about.path.parent.relative_to(root)}/"


@dataclass(frozen=True)
class ClientFolders:
    """A folder with one data folder per client; all clients have the same classes."""

    path: Path
    clients: Mapping[str, Files]
    by_client: ClassVar[bool] = True

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
        clients = {
            folder.name: replace(files, above=path) if isinstance(files, ClassFolders) else files
            for folder, files in found.items()
            if files is not None
        }
        if missing := [folder.name for folder, files in found.items() if files is None]:
            raise InputError(
                f"data: {str(path)!r} has one folder per client, such as {next(iter(clients))!r}, but {missing[0]!r} "
                "has no training and test split"
            )
        if links := [folder.name for folder in folders if folder.is_symlink()]:
            raise InputError(f"data: {str(path)!r} has one folder per client, but {links[0]!r} is a link")
        return cls(path, clients)

    def paths(self) -> list[Path]:
        """Return the files of all clients."""
        return [path for files in self.clients.values() for path in files.paths()]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Read the shares of all clients; the column ``client`` has the client's name.

        Raises:
            InputError: If some of the clients have a test split and others have none.
        """
        train: list[Split] = []
        test: list[Split] = []
        tested: dict[bool, str] = {}  # a client with and one without a test split
        for name, files in self.clients.items():
            of_client = files.read()
            tested[bool(of_client[1])] = name
            for whole, shares in zip((train, test), of_client, strict=True):
                for share in shares:
                    whole.append(replace(share, columns={**share.columns, CLIENT: np.full(len(share), name)}))
        if len(tested) > 1:
            raise InputError(f"data: the client {tested[True]!r} has a test split, but {tested[False]!r} has none")
        return train, test


def left_out(files: Files) -> list[str]:
    """Return the files and folders among the images that are not part of the data, relative to the data folder.

    These are files with other endings, classes without images, links that are not followed (those to other places, to
    a parent folder, or to files that are already listed), images without a row in a ``metadata.csv``, and rows without
    an image. Hidden files are not returned.
    """
    if isinstance(files, ClassFolders | UnlabelledImages):
        return files.left_out
    if isinstance(files, ClientFolders):
        about, images = Metadata.find(files.path), [str(path) for path in files.paths()]
        of_clients = [f"{name}/{left}" for name, own in files.clients.items() for left in left_out(own)]
        return [*of_clients, *(about.without_file(images) if about is not None else [])]
    return []
