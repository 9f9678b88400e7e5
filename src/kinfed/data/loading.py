"""Loading of data sets by name, hub name or path. Decoded data sets are cached."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from kinfed.data.cache import cache_folder, cached, digest, is_entry, open_kept
from kinfed.data.classes import class_names
from kinfed.data.formats import FORMATS, Files, find_files, find_in_format
from kinfed.data.formats.digits import EMBEDDED, read_digits
from kinfed.data.formats.folders import ClassFolders, ClientFolders, left_out
from kinfed.data.formats.hub import HUB, Fetched, HubSet
from kinfed.data.images import Decoding, OnError
from kinfed.data.reading import PLAIN, Reading
from kinfed.data.samples import Dataset, labels_of
from kinfed.data.splits import Labelled, Split, assemble, labelled
from kinfed.errors import InputError, nearest

__all__ = [
    "EMBEDDED",
    "PATHS",
    "cache_folder",
    "find",
    "known",
    "lacks_labels",
    "load",
    "load_files",
    "load_labelled",
    "names_clients",
]

PACKAGED = {"fashion_mnist": Path("/usr/share/datasets/fashion-mnist")}  # Debian's dataset-fashion-mnist

PATHS = (  # other forms than names, with descriptions for the command `kinfed datasets`
    ("hub:OWNER/NAME[/CONFIG]", "any data set of images and labels on the Hugging Face hub"),
    ("FOLDER", "parquet: train.parquet and test.parquet, or train-*.parquet and test-*.parquet"),
    ("FILE.csv", "a table of features: CSV, TSV or parquet; or a folder with train.csv and test.csv"),
    ("FOLDER", "images: train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png without a split; or any other format"),
    ("FOLDER", "images and a table metadata.csv with a column file_name, as on the hub"),
    ("FOLDER", "images without labels: *.png; unlabelled:FOLDER for one folder per client"),
    ("FOLDER", "IDX: train-images-idx3-ubyte.gz, train-labels-…, t10k-images-… and t10k-labels-…"),
    ("FILE.npz", "arrays: x_train, y_train, x_test and y_test"),
    ("FOLDER", "LEAF: train/*.json and test/*.json; its users are the clients"),
    ("FOLDER", "FLamby: the table train_test_split beside images or arrays; its centers are the clients"),
    ("FOLDER", "a federation: one folder per client, each of them one of the above"),
    ("FORMAT:PATH", f"data in a given format: {', '.join(FORMATS)}, or your own, package.module:Format:PATH"),
)
OWN_FORMAT = re.compile(r"((?:\w+\.)*\w+:\w+(?:\.\w+)*):(.+)")

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


def known() -> dict[str, str]:
    """Return the names of the available data sets, each with its source."""
    names = {EMBEDDED: "8×8 greyscale, 10 classes, 1,400 + 397 images; part of scikit-learn"}
    extra = "" if importlib.util.find_spec("datasets") else "; needs pip install 'kinfed[hub]'"
    for name, hub in HUB.items():
        path = _named(name)
        names[name] = str(path) if path is not None else f"{hub}{extra}"
    root = _root()
    with _readable("$KINFED_DATA"):
        paths = sorted(root.iterdir()) if root is not None and root.is_dir() else []
    for path in paths:
        try:
            if find_files(path) is not None:
                names.setdefault(path.stem if path.is_file() else path.name, str(path))
        except (InputError, OSError) as error:
            names.setdefault(path.name, str(error))
    return names


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
    hub = HubSet.parse(data)
    with _readable(data):
        path = _named(data) if data in HUB else _path(data)
    if hub is None and path is None:
        hub = HUB.get(data)
    if hub is not None:
        return _OnHub(hub)
    if path is None and (form := _in_format(data)) is not None:
        return _find_in_format(*form)
    if path is None:
        root, names = _root(), [EMBEDDED, *HUB]
        where = f"$KINFED_DATA is {root}" if root is not None else "$KINFED_DATA is not set"
        raise InputError(
            f"data: {data!r} is neither a name ({', '.join(names)}), nor a path, nor in $KINFED_DATA "
            f"({where}), nor hub:OWNER/NAME{nearest(data, names)}"
        )
    if is_entry(path):
        return _Kept(path)
    with _readable(data):
        files = find_files(path)
    if files is None:
        raise InputError(
            f"data: {str(path)!r} has no data; a data folder must have train.parquet or train.csv, or train/CLASS and "
            "test/CLASS, or CLASS with images, or images without labels, or IDX files, or one .npz, or such a folder "
            "for each client"
        )
    return _OnDisk(path, files)


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
    with _readable(data):
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
    with _readable(name):
        paths = [str(path.absolute().parent) for path in files.paths()]
    found = _OnDisk(Path(os.path.commonpath(paths) if paths else os.curdir), files)
    return _decoded(found, name, Decoding(), PLAIN)


def _decoded(source: _OnDisk | _OnHub, name: str, decoding: Decoding, reading: Reading) -> Dataset:
    with _readable(name):

        def make() -> Dataset:
            return assemble(name, *source.read(reading), decoding, reading)

        if isinstance(source, _OnDisk) and source.reader is None:
            dataset = make()  # the code of the format may have changed, so that the cache cannot be trusted
        else:
            dataset = cached(source.stat_key(decoding, reading), lambda: source.content(decoding, reading), make)
        return replace(dataset, name=name, left_out=source.left_out())


@contextlib.contextmanager
def _readable(data: str) -> Iterator[None]:
    """Context manager that turns errors of reading data into an `InputError` of one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"data: {error.filename or data} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"data: {data} needs more memory than is available: {error}") from error


def _in_format(data: str) -> tuple[str, str] | None:
    """Split ``FORMAT:PATH`` into format and path; None if it does not begin with a format."""
    first, _, rest = data.partition(":")
    if rest and first in FORMATS:
        return first, rest
    form = OWN_FORMAT.fullmatch(data)
    return None if form is None else (form[1], form[2])


def _find_in_format(name: str, data: str) -> _OnDisk:
    with _readable(data):
        path = _path(data)
        if path is None:
            raise InputError(f"data: {data!r} is neither a path nor in $KINFED_DATA")
        return _OnDisk(path, find_in_format(name, path))


def _path(data: str) -> Path | None:
    """Return the path if it exists, or else the path of that name in ``$KINFED_DATA``; None if neither exists."""
    return next((path for path in (Path(data), _named(data)) if path is not None and path.exists()), None)


def _root() -> Path | None:
    return Path(os.environ["KINFED_DATA"]) if os.environ.get("KINFED_DATA") else None


def _named(name: str) -> Path | None:
    """Return the path of a name in ``$KINFED_DATA`` or in a package of the system; None if there is none."""
    root = _root()
    paths = [] if root is None or "/" in name else [root / name, root / f"{name}.npz"]
    return next((path for path in [*paths, *filter(None, [PACKAGED.get(name)])] if path.exists()), None)
