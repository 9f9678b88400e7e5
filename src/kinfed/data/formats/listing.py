"""Listing of the image files in a folder: of a split, ``SPLIT/CLASS/…``, or of data without labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kinfed.errors import InputError

__all__ = ["SUFFIXES", "Listing", "has_images", "list_images", "list_unlabelled"]

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
    """

    images: list[tuple[str, str]]
    left_out: list[str]


def list_images(root: Path, split: str) -> Listing:
    """List the files below the folder of a split, without hidden ones.

    Args:
        root: Data folder.
        split: Name of the folder of the split.

    Raises:
        InputError: If an image lies in no class folder, or a class folder holds several folders with images.
    """
    top = os.path.join(root, split)
    images: list[tuple[str, str]] = []
    left: list[str] = []
    inner: dict[str, set[str]] = {}  # folders with images in each class folder
    for path, kind in _entries(top, os.path.realpath(root)):
        name = path[len(top) + 1 :]
        label, *below = name.split(os.sep)
        if kind == "folder":
            inner.setdefault(label, set())
        elif kind == "link":
            left.append(f"{split}/{name} (a link out, upwards, or to what is there already)")
        elif kind == "other" or not name.lower().endswith(SUFFIXES):
            left.append(f"{split}/{name}")
        elif not below:
            raise InputError(f"data: {path} is not in a class folder; images must be {split}/CLASS/NAME")
        else:
            images.append((label, path))
            inner[label].update(below[:-1][:1])
    for label, folders in sorted(inner.items()):
        if len(folders) > 1:
            raise InputError(
                f"data: {os.path.join(top, label)!r} has several folders of images, {', '.join(sorted(folders))}; "
                f"images must be {split}/CLASS/NAME, with at most one folder in a class"
            )
    empty = inner.keys() - {label for label, _ in images}
    return Listing(sorted(images), sorted([*left, *(f"{split}/{label} (no images)" for label in empty)]))


def list_unlabelled(root: Path) -> Listing:
    """List the images below a folder, all of them in the folder itself, or all in folders in it, one per client.

    Raises:
        InputError: If some images lie in the folder itself and others in folders.
    """
    top = os.path.abspath(root)  # a folder "." would seem to lead upwards
    images: list[tuple[str, str]] = []
    left: list[str] = []
    folders: set[str] = set()
    for path, kind in _entries(top, os.path.realpath(root)):
        name = path[len(top) + 1 :]
        client, _, below = name.partition(os.sep)
        if kind == "folder":
            folders.add(client)
        elif kind == "link":
            left.append(f"{name} (a link out, upwards, or to what is there already)")
        elif kind == "other" or not name.lower().endswith(SUFFIXES):
            left.append(name)
        else:
            images.append((client if below else "", path))
    clients = {client for client, _ in images}
    if len(clients) > 1 and "" in clients:
        beside = next(path for client, path in images if not client)
        raise InputError(f"data: {beside} lies beside folders of images; all images must be in folders, or none")
    return Listing(sorted(images), sorted([*left, *(f"{folder} (no images)" for folder in folders - clients)]))


def has_images(folder: Path) -> bool:
    """Return True if an image lies in a folder itself, as far as the names of its files tell."""
    with os.scandir(folder) as entries:
        return any(not e.name.startswith(".") and e.name.lower().endswith(SUFFIXES) and e.is_file() for e in entries)


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
