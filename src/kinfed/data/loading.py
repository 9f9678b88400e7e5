"""Data sets by what is typed: a name, a data set of the hub, or a path; each is decoded once and cached."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import inspect
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from kinfed.data.cache import cache_folder, cached, digest, is_entry, open_kept
from kinfed.data.formats import FORMATS, Files, find_files, find_in_format
from kinfed.data.formats.digits import EMBEDDED, read_digits
from kinfed.data.formats.folders import ClassFolders, ClientFolders, left_out
from kinfed.data.formats.hub import HUB, Fetched, HubSet
from kinfed.data.images import Decoding, OnError
from kinfed.data.samples import Dataset
from kinfed.data.splits import Split, assemble
from kinfed.errors import InputError

__all__ = ["EMBEDDED", "PATHS", "cache_folder", "find", "known", "load", "load_files"]

PACKAGED = {"fashion_mnist": Path("/usr/share/datasets/fashion-mnist")}  # Debian's dataset-fashion-mnist

PATHS = (  # besides names: what may be typed, and what it is
    ("hub:OWNER/NAME[/CONFIG]", "any data set of images and labels of the Hugging Face hub"),
    ("FOLDER", "parquet: train.parquet and test.parquet, or train-*.parquet and test-*.parquet"),
    ("FOLDER", "images: train/CLASS/*.png and test/CLASS/*.png, or any other format"),
    ("FOLDER", "IDX: train-images-idx3-ubyte.gz, train-labels-…, t10k-images-… and t10k-labels-…"),
    ("FILE.npz", "arrays: x_train, y_train, x_test and y_test"),
    ("FOLDER", "a federation: one folder a client, each of them one of the above"),
    ("FORMAT:PATH", f"what one format reads: {', '.join(FORMATS)}, or your own, package.module:Format:PATH"),
)
OWN_FORMAT = re.compile(r"((?:\w+\.)*\w+:\w+(?:\.\w+)*):(.+)")

FORMATS_OF_KINFED = "kinfed.data.formats."
RACY_SECONDS = 2.0  # a file may change twice within the grain of its times


@dataclass(frozen=True)
class _OnDisk:
    """Files found at a path."""

    root: Path
    files: Files

    def stat_key(self, decoding: Decoding) -> str | None:
        """A digest of paths, sizes and times; None while a file is so new that it may yet change unseen."""
        seen, newest = [], 0.0
        for path in self.files.paths():
            stat = path.stat()
            newest = max(newest, stat.st_mtime, stat.st_ctime)
            seen.append((str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
        if newest >= time.time() - RACY_SECONDS:
            return None
        return digest(str(self.root.absolute()), seen, decoding, *(self.reader or ()))

    def content(self, decoding: Decoding) -> str:
        """A digest of names below the path and contents."""
        contents = []
        for path in self.files.paths():
            with path.open("rb") as file:
                contents.append((os.path.relpath(path, self.root), hashlib.file_digest(file, "sha256").hexdigest()))
        named = str(self.root) if decoding.on_error == "skip" else ""  # the entry names the files that were skipped
        return digest(contents, decoding, named, *(self.reader or ()))

    def read(self) -> tuple[list[Split], list[Split]]:
        if isinstance(self.files, ClassFolders):
            self.files.refuse_one_class()
        return self.files.read()

    def left_out(self) -> tuple[str, ...]:
        return tuple(left_out(self.files))

    @cached_property
    def reader(self) -> tuple[str, ...] | None:
        """The code of formats that are not kinfed's, which may read the same files as others; None if it has no file.

        Of kinfed's own there is nothing to tell: the files say which of them it is.
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
    """A data set of the hub; once cached here, the hub is not asked again."""

    hub: HubSet

    def stat_key(self, decoding: Decoding) -> str:
        return digest(str(self.hub), decoding)

    def content(self, decoding: Decoding) -> str:
        return digest(self._fetched.fingerprints(), decoding)

    def read(self) -> tuple[list[Split], list[Split]]:
        return self._fetched.read()

    def left_out(self) -> tuple[str, ...]:
        return ()

    @cached_property
    def _fetched(self) -> Fetched:
        return self.hub.fetch()


@dataclass(frozen=True)
class _Kept:
    """A data set from memory that was kept in the cache folder."""

    path: Path

    def dataset(self, decoding: Decoding) -> Dataset:
        """The data set as it was given."""
        if decoding != Decoding():
            raise InputError(
                f"data: {str(self.path)!r} is a data set that was given from Python, decoded; channels, image_size and "
                "on_error cannot change it"
            )
        return open_kept(self.path)


def known() -> dict[str, str]:
    """The data sets that can be named here and now, and where each one would come from."""
    names = {EMBEDDED: "8×8 grey, 10 classes, 1,400 + 397 images; comes with scikit-learn"}
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
    """Where ``data`` lies; None for the embedded digits. Looks at names of files, and reads none.

    A known name is looked for in ``$KINFED_DATA``, then on the hub; anything else is ``hub:OWNER/NAME``, a path, the
    name of something in ``$KINFED_DATA``, or either of these after the name of a format: ``images:PATH``,
    ``package.module:Format:PATH``.

    Raises:
        InputError: If there is nothing, or nothing that can be read as data.
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
        root, near = _root(), difflib.get_close_matches(data, [EMBEDDED, *HUB], 1)
        where = f"$KINFED_DATA is {root}" if root is not None else "$KINFED_DATA is not set"
        raise InputError(
            f"data: {data!r} is neither a name ({', '.join([EMBEDDED, *HUB])}), nor a path, nor in $KINFED_DATA "
            f"({where}), nor hub:OWNER/NAME{f'; did you mean {near[0]}?' if near else ''}"
        )
    if is_entry(path):
        return _Kept(path)
    with _readable(data):
        files = find_files(path)
    if files is None:
        raise InputError(
            f"data: {str(path)!r} holds no data; a folder of data has train.parquet and test.parquet, or train/CLASS "
            f"and test/CLASS with images, or IDX files, or one .npz, or a folder like that for each client"
        )
    return _OnDisk(path, files)


def load(
    data: str | Path, *, channels: int | None = None, image_size: int | None = None, on_error: OnError = "stop"
) -> Dataset:
    """Load a data set by name or path, labels remapped to 0..C-1 in sorted order.

    Args:
        data: A name, ``hub:OWNER/NAME`` or a path; see `find`.
        channels: 1 or 3, which images are brought to; None for 1 if all images are grey, else 3.
        image_size: Height and width in pixels, which images are resized to; None leaves them as they are.
        on_error: Whether an image that cannot be decoded is an error (``stop``) or left out and counted (``skip``).

    Raises:
        InputError: If it is not there, a file cannot be read, images differ in size and ``image_size`` is not given, or
            the test set has a class that the training set lacks.
    """
    data = os.fspath(data)
    decoding = Decoding(channels, image_size, on_error)
    source = find(data)
    if source is None and on_error != "stop":
        raise InputError(f"on_error: {on_error!r} would do nothing; {data!r} holds no image files to decode")
    if source is None:
        return read_digits(decoding)
    if isinstance(source, _Kept):
        return replace(source.dataset(decoding), name=data)
    return _decoded(source, data, decoding)


def load_files(files: Files, name: str) -> Dataset:
    """Load a data set that a format has found.

    Args:
        files: What the ``find`` of a `Format` returned.
        name: What the data set is called in messages and results.

    Raises:
        InputError: As `load`.
    """
    with _readable(name):
        paths = [str(path.absolute().parent) for path in files.paths()]
    return _decoded(_OnDisk(Path(os.path.commonpath(paths) if paths else os.curdir), files), name, Decoding())


def _decoded(source: _OnDisk | _OnHub, name: str, decoding: Decoding) -> Dataset:
    with _readable(name):

        def make() -> Dataset:
            return assemble(name, *source.read(), decoding)

        if isinstance(source, _OnDisk) and source.reader is None:
            dataset = make()  # code that may change unseen: what it made before is not trusted
        else:
            dataset = cached(source.stat_key(decoding), lambda: source.content(decoding), make)
        return replace(dataset, name=name, left_out=source.left_out())


@contextlib.contextmanager
def _readable(data: str) -> Iterator[None]:
    """Turn what keeps data from being read into one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"data: {error.filename or data} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"data: {data} needs more memory than there is: {error}") from error


def _in_format(data: str) -> tuple[str, str] | None:
    """Format and path of ``FORMAT:PATH``; None if it does not begin with a format."""
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
    """The path that is typed, or what lies in ``$KINFED_DATA`` under that name."""
    return next((path for path in (Path(data), _named(data)) if path is not None and path.exists()), None)


def _root() -> Path | None:
    return Path(os.environ["KINFED_DATA"]) if os.environ.get("KINFED_DATA") else None


def _named(name: str) -> Path | None:
    """What lies in ``$KINFED_DATA`` under a name, or where a package of the system has put it."""
    root = _root()
    paths = [] if root is None or "/" in name else [root / name, root / f"{name}.npz"]
    return next((path for path in [*paths, *filter(None, [PACKAGED.get(name)])] if path.exists()), None)
