"""The format of LEAF (leaf.cmu.edu): JSON files of features, with the user of each sample."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from kinfed.data.formats.arrays import as_array
from kinfed.data.samples import CLIENT
from kinfed.data.splits import TEST_NAMES, Split
from kinfed.errors import InputError
from kinfed.files import read_json_object

__all__ = ["LeafFiles"]


@dataclass(frozen=True)
class LeafFiles:
    """Files ``train/*.json`` and ``test/*.json``, each with ``users`` and their ``user_data``; a user is a client."""

    by_client: ClassVar[bool] = True

    train: tuple[Path, ...]
    test: tuple[Path, ...]

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find the files in a folder; None if its folder ``train`` has no JSON files, or has folders beside them.

        Raises:
            InputError: If a file is a link.
        """
        train, *tests = (_files(path / split) for split in ("train", *TEST_NAMES))
        test = next((files for files in tests if files), ())
        return cls(train, test) if train and test else None

    def paths(self) -> list[Path]:
        """Return the files, the training split first."""
        return [*self.train, *self.test]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Read the training and the test split, one share per file; the column ``client`` has the users."""
        return [_read(file) for file in self.train], [_read(file) for file in self.test]


def _files(folder: Path) -> tuple[Path, ...]:
    """Return the JSON files in a folder; none if it has folders, since it then has images in class folders."""
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    folders = any(path.is_dir() for path in inside if not path.name.startswith("."))
    files = () if folders else tuple(path for path in inside if path.suffix == ".json" and path.is_file())
    if links := [path for path in files if path.is_symlink()]:
        raise InputError(f"data: {links[0]} is a link, which is not followed")
    return files


def _read(file: Path) -> Split:
    told = read_json_object(file)
    try:
        users = [str(user) for user in told["users"]]
        x, y = ([told["user_data"][user][name] for user in users] for name in ("x", "y"))
        sizes = [(len(of_x), len(of_y)) for of_x, of_y in zip(x, y, strict=True)]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"data: {file} must have users, and user_data with the x and y of each user; wrong or missing: {error}"
        ) from error
    if len({*users}) < len(users):
        twice = next(user for user, count in Counter(users).items() if count > 1)
        raise InputError(f"data: {file} has the user {twice!r} twice")
    odd = next((user for user, (of_x, of_y) in zip(users, sizes, strict=True) if of_x != of_y), None)
    if odd is not None:
        raise InputError(f"data: {file}: user {odd!r} must have as many x as y")
    inputs = as_array([sample for own in x for sample in own])
    if inputs.dtype.kind not in "buif":
        raise InputError(f"data: {file}: x must be numbers; text and the names of image files are not allowed")
    labels = as_array([label for own in y for label in own])
    return Split(str(file), inputs.astype(np.float32), labels, {CLIENT: np.repeat(users, [of_y for _, of_y in sizes])})
