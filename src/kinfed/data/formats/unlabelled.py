"""Format of images without labels: all in one folder, or in one folder per client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from kinfed.data.formats.listing import Listing, has_images, list_unlabelled
from kinfed.data.images import Encoded
from kinfed.data.samples import CLIENT
from kinfed.data.splits import Split
from kinfed.errors import InputError

__all__ = ["UnlabelledImages"]


@dataclass(frozen=True)
class UnlabelledImages:
    """Image files without labels, ``NAME`` or ``CLIENT/…/NAME``; other files are left out.

    ``CLIENT/NAME`` looks like ``CLASS/NAME``, so that folders of clients are read only if the format is named, as in
    ``unlabelled:PATH``.
    """

    path: Path

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Find images at any depth in a folder; None if it has none.

        Raises:
            InputError: If the folder has splits, or images both in folders and beside them.
        """
        if not path.is_dir():
            return None
        if (path / "train").is_dir():
            raise InputError(
                f"data: {str(path)!r} has a folder train, but images without labels have no splits; give "
                f"{str(path / 'train')!r}"
            )
        found = cls(path)
        return found if found.listing.images else None

    @classmethod
    def flat(cls, path: Path) -> Self | None:
        """Find images in a folder itself; None if it has none."""
        return cls.find(path) if path.is_dir() and has_images(path) else None

    def paths(self) -> list[Path]:
        """Return all image files, sorted by client and name."""
        return [Path(file) for _, file in self.listing.images]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Return the images as the training split, without decoding them, and no test split."""
        clients, files = zip(*self.listing.images, strict=True)
        columns = {CLIENT: np.array(clients, dtype=np.str_)} if clients[0] else {}
        return [Split(str(self.path), Encoded(files, [*map(Path, files)]), None, columns)], []

    @cached_property
    def listing(self) -> Listing:
        """The contents of the folder."""
        return list_unlabelled(self.path)
