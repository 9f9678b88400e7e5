"""Names of data sets, and the places that they stand for; no data are read.

The module imports no torch, so that the command can list the data sets, and refuse a mistyped one, at once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kinfed.data.formats import FORMATS, find_files
from kinfed.data.formats.hub import HUB, HubSet
from kinfed.errors import InputError, nearest

__all__ = ["EMBEDDED", "PATHS", "InFormat", "known", "locate", "path_of", "readable"]

EMBEDDED = "digits"
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


@dataclass(frozen=True)
class InFormat:
    """Data in a given format, ``FORMAT:PATH``.

    Attributes:
        format: Name of the format.
        data: Path, or name in ``$KINFED_DATA``.
    """

    format: str
    data: str


def known() -> dict[str, str]:
    """Return the names of the available data sets, each with its source."""
    names = {EMBEDDED: "8×8 greyscale, 10 classes, 1,400 + 397 images; part of scikit-learn"}
    extra = "" if importlib.util.find_spec("datasets") else "; needs pip install 'kinfed[hub]'"
    for name, hub in HUB.items():
        path = _named(name)
        names[name] = str(path) if path is not None else f"{hub}{extra}"
    root = _root()
    with readable("$KINFED_DATA"):
        paths = sorted(root.iterdir()) if root is not None and root.is_dir() else []
    for path in paths:
        try:
            if find_files(path) is not None:
                names.setdefault(path.stem if path.is_file() else path.name, str(path))
        except (InputError, OSError) as error:
            names.setdefault(path.name, str(error))
    return names


def locate(data: str) -> HubSet | Path | InFormat:
    """Find the place that a name of a data set stands for, by the existence of files.

    Args:
        data: A name, a path or another form, as `kinfed.data.loading.find` takes it; not that of the embedded digits.

    Raises:
        InputError: If there is no such place; the message suggests the nearest name.
    """
    hub = HubSet.parse(data)
    with readable(data):
        path = _named(data) if data in HUB else path_of(data)
    if hub is None and path is None:
        hub = HUB.get(data)
    if hub is not None:
        return hub
    if path is not None:
        return path
    if (form := _in_format(data)) is not None:
        return form
    root, names = _root(), [EMBEDDED, *HUB]
    where = f"$KINFED_DATA is {root}" if root is not None else "$KINFED_DATA is not set"
    raise InputError(
        f"data: {data!r} is neither a name ({', '.join(names)}), nor a path, nor in $KINFED_DATA "
        f"({where}), nor hub:OWNER/NAME{nearest(data, names)}"
    )


def path_of(data: str) -> Path | None:
    """Return the path if it exists, or else the path of that name in ``$KINFED_DATA``; None if neither exists."""
    return next((path for path in (Path(data), _named(data)) if path is not None and path.exists()), None)


@contextlib.contextmanager
def readable(data: str) -> Iterator[None]:
    """Context manager that turns errors of reading data into an `InputError` of one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"data: {error.filename or data} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"data: {data} needs more memory than is available: {error}") from error


def _in_format(data: str) -> InFormat | None:
    """Split ``FORMAT:PATH`` into format and path; None if it does not begin with a format."""
    first, _, rest = data.partition(":")
    if rest and first in FORMATS:
        return InFormat(first, rest)
    form = OWN_FORMAT.fullmatch(data)
    return None if form is None else InFormat(form[1], form[2])


def _root() -> Path | None:
    return Path(os.environ["KINFED_DATA"]) if os.environ.get("KINFED_DATA") else None


def _named(name: str) -> Path | None:
    """Return the path of a name in ``$KINFED_DATA`` or in a package of the system; None if there is none."""
    root = _root()
    paths = [] if root is None or "/" in name else [root / name, root / f"{name}.npz"]
    return next((path for path in [*paths, *filter(None, [PACKAGED.get(name)])] if path.exists()), None)
