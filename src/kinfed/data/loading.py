"""Where data come from: a name, a data set of the hub, or a path; whatever it is, it is decoded once and cached."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from kinfed.data.cache import cache_folder, cached, digest
from kinfed.data.formats.folders import ClassFolders, Files, find_files, left_out
from kinfed.data.formats.hub import HUB, Fetched, HubSet
from kinfed.data.images import Decoding, OnError, adapt
from kinfed.data.samples import Dataset, Normalisation, Samples
from kinfed.data.splits import Split, assemble
from kinfed.errors import InputError

__all__ = ["EMBEDDED", "PATHS", "cache_folder", "find", "known", "load"]

EMBEDDED = "digits"
DIGITS_TRAIN = 1400  # of 1797; the rest is the test set
PACKAGED = {"fashion_mnist": Path("/usr/share/datasets/fashion-mnist")}  # Debian's dataset-fashion-mnist

PATHS = (  # besides names: what may be typed, and what it is
    ("hub:OWNER/NAME[/CONFIG]", "any data set of images and labels of the Hugging Face hub"),
    ("FOLDER", "parquet: train.parquet and test.parquet, or train-*.parquet and test-*.parquet"),
    ("FOLDER", "images: train/CLASS/*.png and test/CLASS/*.png, or any other format"),
    ("FOLDER", "IDX: train-images-idx3-ubyte.gz, train-labels-…, t10k-images-… and t10k-labels-…"),
    ("FILE.npz", "arrays: x_train, y_train, x_test and y_test"),
    ("FOLDER", "a federation: one folder a client, each of them one of the above"),
)

RACY_SECONDS = 2.0  # a file may change twice within the grain of its times


@dataclass(frozen=True)
class _OnDisk:
    """Files found at a path."""

    root: Path
    files: Files

    def sight(self, decoding: Decoding) -> str | None:
        """A digest of paths, sizes and times; None while a file is so new that it may yet change unseen."""
        seen, newest = [], 0.0
        for path in self.files.paths():
            stat = path.stat()
            newest = max(newest, stat.st_mtime, stat.st_ctime)
            seen.append((str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
        return digest(str(self.root.absolute()), seen, decoding) if newest < time.time() - RACY_SECONDS else None

    def content(self, decoding: Decoding) -> str:
        """A digest of names below the path and contents."""
        contents = []
        for path in self.files.paths():
            with path.open("rb") as file:
                contents.append((os.path.relpath(path, self.root), hashlib.file_digest(file, "sha256").hexdigest()))
        named = str(self.root) if decoding.on_error == "skip" else ""  # the entry names the files that were skipped
        return digest(contents, decoding, named)

    def read(self) -> tuple[list[Split], list[Split]]:
        if isinstance(self.files, ClassFolders):
            self.files.refuse_one_class()
        return self.files.read()

    def left_out(self) -> tuple[str, ...]:
        return tuple(left_out(self.files))


@dataclass(frozen=True)
class _OnHub:
    """A data set of the hub; once cached here, the hub is not asked again."""

    hub: HubSet

    def sight(self, decoding: Decoding) -> str:
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


def find(data: str) -> _OnDisk | _OnHub | None:
    """Where ``data`` lies; None for the embedded digits. Looks at names of files, and reads none.

    A known name is looked for in ``$KINFED_DATA``, then on the hub; anything else is ``hub:OWNER/NAME``, a path, or the
    name of something in ``$KINFED_DATA``.

    Raises:
        InputError: If there is nothing, or nothing that can be read as data.
    """
    if data == EMBEDDED:
        return None
    hub = HubSet.parse(data)
    with _readable(data):
        path = _named(data) if data in HUB else next((p for p in (Path(data), _named(data)) if p and p.exists()), None)
    if hub is None and path is None:
        hub = HUB.get(data)
    if hub is not None:
        return _OnHub(hub)
    if path is None:
        root, near = _root(), difflib.get_close_matches(data, [EMBEDDED, *HUB], 1)
        where = f"$KINFED_DATA is {root}" if root is not None else "$KINFED_DATA is not set"
        raise InputError(
            f"data: {data!r} is neither a name ({', '.join([EMBEDDED, *HUB])}), nor a path, nor in $KINFED_DATA "
            f"({where}), nor hub:OWNER/NAME{f'; did you mean {near[0]}?' if near else ''}"
        )
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
        return _digits(decoding)
    with _readable(data):
        dataset = cached(
            source.sight(decoding),
            lambda: source.content(decoding),
            lambda: assemble(data, *source.read(), decoding),
        )
        return replace(dataset, name=data, left_out=source.left_out())


@contextlib.contextmanager
def _readable(data: str) -> Iterator[None]:
    """Turn what keeps data from being read into one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"data: {error.filename or data} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"data: {data} needs more memory than there is: {error}") from error


def _digits(decoding: Decoding) -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = adapt(np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None], decoding)
    # The file is in the order of its writers; one fixed shuffle gives both sets all of them.
    order = np.random.default_rng(0).permutation(len(images))
    channels = images.shape[1]
    scaled = Normalisation((0.0,) * channels, (255.0,) * channels)  # digits are customarily scaled to [0, 1]
    train, test = (
        Samples(torch.from_numpy(images[rows]), torch.from_numpy(bunch.target[rows].astype(np.int64)), scaled)
        for rows in (order[:DIGITS_TRAIN], order[DIGITS_TRAIN:])
    )
    return Dataset(EMBEDDED, train, test, tuple(str(c) for c in bunch.target_names))


def _root() -> Path | None:
    return Path(os.environ["KINFED_DATA"]) if os.environ.get("KINFED_DATA") else None


def _named(name: str) -> Path | None:
    """What lies in ``$KINFED_DATA`` under a name, or where a package of the system has put it."""
    root = _root()
    paths = [] if root is None or "/" in name else [root / name, root / f"{name}.npz"]
    return next((path for path in [*paths, *filter(None, [PACKAGED.get(name)])] if path.exists()), None)
