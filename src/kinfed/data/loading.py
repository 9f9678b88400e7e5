"""Loading of data sets by name, hub name or path. Decoded data sets are cached."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from kinfed.data.cache import cache_folder, cached, digest, is_entry, open_kept
from kinfed.data.classes import class_names
from kinfed.data.formats import Files, find_files, find_in_format
from kinfed.data.formats.digits import read_digits
from kinfed.data.formats.folders import ClassFolders, ClientFolders, left_out
from kinfed.data.formats.hub import Fetched, HubSet
from kinfed.data.images import Decoding, OnError
from kinfed.data.names import EMBEDDED, InFormat, locate, path_of, readable
from kinfed.data.reading import PLAIN, Reading
from kinfed.data.samples import Dataset, labels_of
from kinfed.data.splits import Labelled, Split, assemble, labelled
from kinfed.errors import InputError

__all__ = [
    "cache_folder",
    "find",
    "lacks_labels",
    "load",
    "load_files",
    "load_labelled",
    "names_clients",
]

FORMATS_OF_KINFED = "kinfed.data.formats."
RACY_SECONDS = 2.0  # upper bound of the resolution of file times, within which a change goes unnoticed


@dataclass(frozen=True)
class _OnDisk:
    """Data files found at a path."""

    root: Path
    files: Files

    def stat_key(self, decoding: Decoding, reading: Reading) -> str | None:
        """Compute a digest of the files' paths, sizes and times; None if a file has just changed and may change again.

        The resolution of file times may be too coarse to show a second change.
        """
        seen, newest = [], 0.0
        for path in self.files.paths():
            stat = path.stat()
            newest = max(newest, stat.st_mtime, stat.st_ctime)
            seen.append((str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
        if newest >= time.time() - RACY_SECONDS:
            return None
        return digest(str(self.root.absolute()), seen, self._format, decoding, reading, *(self.reader or ()))

    def content(self, decoding: Decoding, reading: Reading) -> str:
        """Compute a digest of the files' relative paths and contents."""
        contents = []
        for path in self.files.paths():
            with path.open("rb") as file:
                contents.append((os.path.relpath(path, self.root), hashlib.file_digest(file, "sha256").hexdigest()))
        named = str(self.root) if decoding.on_error == "skip" else ""  # the entry has the paths of skipped files
        return digest(contents, self._format, decoding, reading, named, *(self.reader or ()))

    def read(self, reading: Reading) -> tuple[list[Split], list[Split]]:
        if isinstance(self.files, ClassFolders) and reading.label is None:
            self.files.refuse_one_class()
            folders = self.files.test is None and self.files.listings[0].label is None
            if folders and reading.test_fraction is None:
                raise InputError(
                    f"data: {str(self.root)!r} has no test set; hold out a share of the samples as one, as in "
                    f"test_fraction=0.2; or, if its folders are clients and there are no labels: unlabelled:{self.root}"
                )
        return self.files.read()

    def left_out(self) -> tuple[str, ...]:
        return tuple(left_out(self.files))

    @property
    def _format(self) -> str:
        """The name of the format: two formats may read the same files differently."""
        return type(self.files).__qualname__

    @cached_property
    def reader(self) -> tuple[str, ...] | None:
        """The source code of the user's formats that read the files, which is part of the digest; None if unavailable.

        It is empty if only kinfed's own formats read the files.
        """
        found = self.files.clients.values() if isinstance(self.files, ClientFolders) else [self.files]
        modules = {type(files).__module__ for files in found}
        others = sorted(module for module in modules if not module.startswith(FORMATS_OF_KINFED))
        try:
            return tuple(inspect.getsource(sys.modules[module]) for module in others)
        except (OSError, TypeError, KeyError):
            return None


@dataclass(frozen=True)
class _OnHub:
    """A data set of the hub. If it is in the cache, the hub is not contacted."""

    hub: HubSet

    def stat_key(self, decoding: Decoding, reading: Reading) -> str:
        return digest(str(self.hub), decoding, reading)

    def content(self, decoding: Decoding, reading: Reading) -> str:
        return digest(self._fetched.fingerprints(), decoding, reading)

    def read(self, reading: Reading) -> tuple[list[Split], list[Split]]:
        del reading
        return self._fetched.read()

    def left_out(self) -> tuple[str, ...]:
        return ()

    @cached_property
    def _fetched(self) -> Fetched:
        return self.hub.fetch()


@dataclass(frozen=True)
class _Kept:
    """A data set from memory that was stored in the cache."""

    path: Path

    def dataset(self, decoding: Decoding, reading: Reading) -> Dataset:
        """Open the data set; it is decoded already, so that only roles of its columns can be given."""
        if decoding != Decoding():
            raise InputError(
                f"data: {str(self.path)!r} was given from Python and is already decoded; channels, image_size and "
                "on_error would do nothing"
            )
        others = ("label", "test_fraction", "drop", "standardise")
        reading.refuse(*others, why=f"{str(self.path)!r} was given as a complete data set")
        dataset = open_kept(self.path)
        train, test = (
            reading.with_roles({name: both[split] for name, both in dataset.columns.items()}) for split in (0, 1)
        )
        return replace(dataset, columns={name: (train[name], test[name]) for name in train})


def find(data: str) -> _OnDisk | _OnHub | _Kept | None:
    """Find the source of a data set by file names, without reading files; None for the embedded digits.

    Args:
        data: A known name, which is looked up in ``$KINFED_DATA`` and then on the hub; or ``hub:OWNER/NAME``; or a
            path, or the name of a file or folder in ``$KINFED_DATA``. A path may follow the name of a format:
            ``images:PATH``, ``package.module:Format:PATH``.

    Raises:
        InputError: If nothing is found, or nothing that can be read as data.
    """
    if data == EMBEDDED:
        return None
    place = locate(data)
    if isinstance(place, HubSet):
        return _OnHub(place)
    if isinstance(place, InFormat):
        return _find_in_format(place)
    if is_entry(place):
        return _Kept(place)
    with readable(data):
        files = find_files(place)
    if files is None:
        raise InputError(
            f"data: {str(place)!r} has no data; a data folder must have train.parquet or train.csv, or train/CLASS and "
            "test/CLASS, or CLASS with images, or images without labels, or IDX files, or one .npz, or such a folder "
            "for each client"
        )
    return _OnDisk(place, files)


def names_clients(data: str) -> bool:
    """Return True if the files of a data set say who the clients are, as one folder per client does.

    Raises:
        InputError: If nothing is found, or nothing that can be read as data.
    """
    source = find(data)
    return isinstance(source, _OnDisk) and getattr(source.files, "by_client", False)


def lacks_labels(data: str) -> bool:
    """Return True if the files of a data set have no labels, as far as is known before they are read.

    Raises:
        InputError: If nothing is found, or nothing that can be read as data.
    """
    source = find(data)
    if isinstance(source, _Kept):
        return not open_kept(source.path).labelled
    return isinstance(source, _OnDisk) and getattr(source.files, "unlabelled", False)


def load(
    data: str | Path,
    *,
    channels: int | None = None,
    image_size: int | None = None,
    on_error: OnError = "stop",
    label: str | None = None,
    client: str | None = None,
    group: str | None = None,
    test_fraction: float | None = None,
    drop: Sequence[str] | None = None,
    standardise: bool | None = None,
) -> Dataset:
    """Load a data set by name or path. Labels become 0..K-1 in the sorted order of the classes.

    Args:
        data: Name, ``hub:OWNER/NAME`` or path; see `find`.
        channels: Number of channels of the images, 1 or 3; None for 1 if all images are grey, else 3.
        image_size: Height and width in pixels that images are resized to; None keeps their sizes.
        on_error: Reaction to an image that cannot be decoded: ``stop`` raises an error, ``skip`` leaves it out and
            counts it.
        label: Name of the column that is the label; None for the label that the format itself gives.
        client: Name of the column whose values are the clients; it becomes the column ``client``.
        group: Name of the column of groups, such as patients; it becomes the column ``group``. Samples of one group
            stay together when a test set is held out.
        test_fraction: Share of the samples that is held out as test set where the data have no split, stratified by
            class, within each client and by groups if these are named; see `kinfed.data.holdout.draw_test_set`.
        drop: Names of columns of a table that are no features.
        standardise: False if features n×p are standardised already; by default they are standardised by the training
            rows.

    Raises:
        InputError: If the data set is not found, a file cannot be read, images differ in size and ``image_size`` is not
            given, the test set has a class that the training set lacks, or an option would do nothing.

    >>> load("digits").shape  # doctest: +SKIP
    (1, 8, 8)
    """
    data = os.fspath(data)
    decoding = Decoding(channels, image_size, on_error)
    reading = Reading(label, client, group, test_fraction, tuple(drop or ()), standardise)
    source = find(data)
    if source is None and on_error != "stop":
        raise InputError(f"on_error: {on_error!r} would do nothing; {data!r} has no image files to decode")
    if source is None:
        reading.refuse(*reading.given, why=f"{data!r} has a test set, and no columns beside images and labels")
        return read_digits(decoding)
    if isinstance(source, _Kept):
        return replace(source.dataset(decoding, reading), name=data)
    return _decoded(source, data, decoding, reading)


def load_labelled(
    data: str | Path, *, label: str | None = None, channels: int | None = None, image_size: int | None = None
) -> Labelled:
    """Load labelled samples on which a model of other data is tested: the test set, or all if there is no split.

    Nothing is written to the cache, and no class has to be in a training set.

    Args:
        data: Name or path of the data; see `find`.
        label: Name of the column that is the label; None for the label that the format itself gives.
        channels: Number of channels of images, 1 or 3; None for 1 if all images are grey, else 3.
        image_size: Height and width in pixels that images are resized to; None keeps their sizes.

    Raises:
        InputError: If the data are not found, a file cannot be read, or there are no labels.
    """
    data = os.fspath(data)
    source = find(data)
    if source is None or isinstance(source, _Kept):
        dataset = load(data, label=label)
        if not dataset.labelled:
            raise InputError(f"data: {data!r} has no labels")
        names = class_names(np.array(dataset.classes)[labels_of(dataset.test)])
        return Labelled(f"the test set of {data}", dataset.test.inputs.numpy(), names)
    with readable(data):
        train, test = source.files.read() if isinstance(source, _OnDisk) else source.read(PLAIN)
        which = f"the test set of {data}" if test else f"all samples of {data}"
        return labelled(which, test or train, Decoding(channels, image_size), Reading(label))


def load_files(files: Files, name: str) -> Dataset:
    """Load a data set that a format has found.

    Args:
        files: The files, as ``find`` of a `Format` returns them.
        name: Name of the data set in messages and results.

    Raises:
        InputError: If a file cannot be read, images differ in size, or the test set has a class that the training set
            lacks.
    """
    with readable(name):
        paths = [str(path.absolute().parent) for path in files.paths()]
    found = _OnDisk(Path(os.path.commonpath(paths) if paths else os.curdir), files)
    return _decoded(found, name, Decoding(), PLAIN)


def _decoded(source: _OnDisk | _OnHub, name: str, decoding: Decoding, reading: Reading) -> Dataset:
    with readable(name):

        def make() -> Dataset:
            return assemble(name, *source.read(reading), decoding, reading)

        if isinstance(source, _OnDisk) and source.reader is None:
            dataset = make()  # the code of the format may have changed, so that the cache cannot be trusted
        else:
            dataset = cached(source.stat_key(decoding, reading), lambda: source.content(decoding, reading), make)
        return replace(dataset, name=name, left_out=source.left_out())


def _find_in_format(asked: InFormat) -> _OnDisk:
    with readable(asked.data):
        path = path_of(asked.data)
        if path is None:
            raise InputError(f"data: {asked.data!r} is neither a path nor in $KINFED_DATA")
        return _OnDisk(path, find_in_format(asked.format, path))
