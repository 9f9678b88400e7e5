"""Listing of the image files in a folder: ``CLASS/NAME``, ``SPLIT/CLASS/NAME``, or at any depth."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from kinfed.data.images import Encoded
from kinfed.data.splits import Split
from kinfed.errors import InputError

__all__ = ["SUFFIXES", "Listing", "image_depth", "list_all", "list_images"]

SUFFIXES = (
    ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga",
    ".tif", ".tiff", ".webp",
)  # fmt: skip

Kind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True)
class Listing:
    """The images of a folder, and other files.

    Attributes:
        images: Folder (class or client) and path of each image, sorted; the folder is empty for an image in none.
        left_out: Other files, links that are not followed, and folders without images; relative to the data folder,
            sorted.
        columns: Other values of each image by name of the column.
        label: Name of the column that has the labels by its name; None if there is none.
    """

    images: list[tuple[str, str]]
    left_out: list[str]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    label: str | None = None

    def split(self, name: str, labels: NDArray[Any] | None) -> Split:
        """Return the images as a split, without decoding them.

        Args:
            name: Name of the split in messages.
            labels: Label of each image, unless a column has the labels; None for images without labels.
        """
        paths = [path for _, path in self.images]
        own = labels if self.label is None else self.columns[self.label]
        others = {column: values for column, values in self.columns.items() if column != self.label}
        return Split(name, Encoded(paths, [*map(Path, paths)]), own, others, label=self.label)


def list_images(root: Path, split: str) -> Listing:
    """List the files in class folders below a folder, without hidden ones.

    Args:
        root: Data folder.
        split: Name of the folder of the split; empty for the data folder itself.

    Raises:
        InputError: If an image lies in no class folder, or a class folder holds several folders with images.
    """
    told = f"{split}/CLASS/NAME" if split else "CLASS/NAME"
    listing, inner = _listed(root, split)
    for folder, path in listing.images:
        if not folder:
            raise InputError(f"data: {path} is not in a class folder; images must be {told}")
    for label, folders in sorted(inner.items()):
        if len(folders) > 1:
            raise InputError(
                f"data: {os.path.join(root, split, label)!r} has several folders of images, "
                f"{', '.join(sorted(folders))}; images must be {told}, with at most one folder in a class"
            )
    return listing


def list_all(root: Path, split: str = "") -> Listing:
    """List the files below a folder at any depth, without hidden ones.

    Args:
        root: Data folder.
        split: Name of the folder of the split; empty for the data folder itself.
    """
    return _listed(root, split)[0]


def _listed(root: Path, split: str) -> tuple[Listing, dict[str, set[str]]]:
    """List the files below a folder, and the folders with images in each folder."""
    # The path of a data folder "." would seem to lead upwards.
    top = os.path.join(root, split) if split else os.path.abspath(root)
    start = f"{split}/" if split else ""
    images: list[tuple[str, str]] = []
    left: list[str] = []
    inner: dict[str, set[str]] = {}
    for path, kind in _entries(top, os.path.realpath(root)):
        name = path[len(top) + 1 :]
        folder, *below = name.split(os.sep)
        if kind == "folder":
            inner.setdefault(folder, set())
        elif kind == "link":
            left.append(f"{start}{name} (a link out, upwards, or to what is there already)")
        elif kind == "other" or not name.lower().endswith(SUFFIXES):
            left.append(f"{start}{name}")
        elif not below:
            images.append(("", path))
        else:
            images.append((folder, path))
            inner[folder].update(below[:-1][:1])
    empty = inner.keys() - {folder for folder, _ in images}
    return Listing(sorted(images), sorted([*left, *(f"{start}{folder} (no images)" for folder in empty)])), inner


def image_depth(root: Path) -> int | None:
    """Return the depth of the images below a folder: 0 for NAME, 1 for FOLDER/NAME, 2 for FOLDER/FOLDER/NAME.

    Below a folder with images, and more than two folders deep, nothing is looked for. None without images.

    Raises:
        InputError: If there are images at different depths; the message has an example of each.
    """
    found: dict[int, str] = {}
    if first := _image_in(root):
        found[0] = first
    for folder in _folders_in(root, root):
        if first := _image_in(folder):
            found.setdefault(1, first)
        elif deeper := next(filter(None, map(_image_in, _folders_in(folder, root))), None):
            found.setdefault(2, deeper)
    if len(found) > 1:
        (_, one), (_, other), *_ = sorted(found.items())
        raise InputError(
            f"data: {str(root)!r} has images at different depths, such as {os.path.relpath(one, root)} and "
            f"{os.path.relpath(other, root)}; all must be NAME, CLASS/NAME or CLIENT/CLASS/NAME"
        )
    return next(iter(found), None)


def _image_in(folder: Path | str) -> str | None:
    """Return the path of an image in a folder itself, as far as the names of its files tell; None without one."""
    with os.scandir(folder) as entries:
        images = (e for e in entries if not e.name.startswith(".") and e.name.lower().endswith(SUFFIXES))
        return next((entry.path for entry in images if entry.is_file()), None)


def _folders_in(folder: Path | str, root: Path) -> list[str]:
    """Return the folders in a folder, sorted, without hidden ones and links that lead out of the data folder."""
    inside = os.path.realpath(root)
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    return sorted(e.path for e in found if not e.is_symlink() or _within(os.path.realpath(e.path), inside))


def _entries(top: str, inside: str) -> Iterator[tuple[str, Kind]]:
    """Yield path and kind of everything below a folder: first its own files and folders, then the targets of links.

    A link is not followed, but yielded as ``link``, if it leads out of the data folder ``inside``, to a parent folder,
    or to a file or folder that was yielded before.
    """
    seen: set[str] = set()  # real paths, without links
    places = [top]  # links below it are appended
    for place in places:
        real = os.path.realpath(place)
        if real in seen or not _within(real, inside) or _within(os.path.realpath(os.path.dirname(place)), real):
            yield place, "link"
        elif os.path.isdir(real):
            if place != top:
                yield place, "folder"
            seen.add(real)
            links = []
            for path, there, kind in _walk(place, real):
                if kind == "link":
                    links.append(path)
                else:
                    yield path, "link" if there in seen else kind
                    seen.add(there)
            places += sorted(links)
        else:
            seen.add(real)
            yield place, "file" if os.path.isfile(real) or not os.path.exists(real) else "other"


def _walk(top: str, real: str) -> Iterator[tuple[str, str, Kind]]:
    """Yield path, real path and kind of everything below a folder, without following links."""
    folders = [(top, real)]
    while folders:
        folder, place = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                there = os.path.join(place, entry.name)
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink():
                    yield entry.path, there, "link"
                elif entry.is_dir():
                    folders.append((entry.path, there))
                    yield entry.path, there, "folder"
                else:
                    yield entry.path, there, "file" if entry.is_file() else "other"


def _within(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
