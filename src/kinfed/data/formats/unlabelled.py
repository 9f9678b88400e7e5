"""Format of images without labels: all in one folder, or in one folder per client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from kinfed.data.formats.listing import Listing, image_depth, list_all
from kinfed.data.formats.metadata import Metadata
from kinfed.data.samples import CLIENT
from kinfed.data.splits import Split
from kinfed.errors import InputError

__all__ = ["UnlabelledImages"]


@dataclass(frozen=True)
class UnlabelledImages:
    """Image files without labels, ``NAME`` or ``CLIENT/…/NAME``; other files are left out.

    ``CLIENT/NAME`` looks like ``CLASS/NAME``, so that folders of clients are read only if the format is named, as in
    ``unlabelled:PATH``. A ``metadata.csv`` gives the images columns.
    """

    path: Path
    unlabelled: ClassVar[bool] = True

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
        clients = {client for client, _ in found.listing.images}
        if len(clients) > 1 and "" in clients:
            beside = next(file for client, file in found.listing.images if not client)
            raise InputError(f"data: {beside} lies beside folders of images; all images must be in folders, or none")
        return found if clients else None

    @classmethod
    def flat(cls, path: Path) -> Self | None:
        """Find images in a folder itself; None if it has none."""
        return cls.find(path) if path.is_dir() and image_depth(path) == 0 else None

    @property
    def by_client(self) -> bool:
        """True if the folders in the folder are the clients."""
        return all(client for client, _ in self.listing.images)

    def paths(self) -> list[Path]:
        """Return all image files, sorted by client and name, and then the table."""
        about = [] if self._about is None else [self._about.path]
        return [*(Path(file) for _, file in self.listing.images), *about]

    def read(self) -> tuple[list[Split], list[Split]]:
        """Return the images as the training split, without decoding them, and no test split."""
        split = replace(self.listing, label=None).split(str(self.path), None)
        if self.by_client:
            clients = np.array([client for client, _ in self.listing.images], dtype=np.str_)
            split = replace(split, columns={**split.columns, CLIENT: clients})
        return [split], []

    @property
    def left_out(self) -> list[str]:
        """Files and folders that are not part of the data, relative to the folder."""
        files = [path for _, path in self._found.images]
        return [*self.listing.left_out, *(self._about.without_file(files) if self._about is not None else [])]

    @cached_property
    def listing(self) -> Listing:
        """The contents of the folder."""
        return self._found if self._about is None else self._about.described(self._found, self.path)

    @cached_property
    def _found(self) -> Listing:
        return list_all(self.path)

    @cached_property
    def _about(self) -> Metadata | None:
        return Metadata.find(self.path)
