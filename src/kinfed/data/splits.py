"""Assembly of a data set from its training and test split: decode images, check shapes, number the classes.

Letters: ``n`` samples, ``p`` features, ``c`` channels, ``h`` and ``w`` height and width.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.data.classes import as_labels, class_names, number
from kinfed.data.holdout import draw_test_set
from kinfed.data.images import Decoding, Encoded, adapt, decode, repeat_grey
from kinfed.data.reading import PLAIN, Reading, named_column
from kinfed.data.roles import Roles
from kinfed.data.samples import CLIENT, GROUP, Dataset, Normalisation, Samples
from kinfed.data.tables import Encoding, Table
from kinfed.errors import InputError

__all__ = ["TEST_NAMES", "Labelled", "Split", "as_inputs", "assemble", "labelled"]

TEST_NAMES = ("test", "val", "valid", "validation")  # names of a test split; the first one found is used
SKIPPED_NAMES = 5  # largest number of names in `Dataset.skipped_names`


@dataclass(frozen=True)
class Split:
    """One split of a data set (training or test), or a share of it, such as one file or one client's samples.

    Attributes:
        name: Name of the split in messages.
        inputs: Image files, an array of n samples (see `as_inputs`), or a table of plain features.
        labels: Label of each sample, whole numbers or text, n; None if only a column that the user names can be it.
        columns: Other values of each sample by name, n each.
        skipped: Names of the images that could not be decoded and were left out.
        label: Name of the column that the labels are from; None if they have no column.

    >>> Split("train", np.zeros((2, 3)), np.array(["cat", "dog"])).labels.tolist()
    ['cat', 'dog']
    """

    name: str
    inputs: Encoded | NDArray[Any] | Table
    labels: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    label: str | None = None

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Labelled:
    """Labelled samples for the test of a model of other data, not yet prepared for it.

    Attributes:
        which: Which samples these are, in words.
        inputs: uint8 images n×c×h×w, other arrays n×…, or a table of plain features.
        labels: Name of the class of each sample, n.
    """

    which: str
    inputs: NDArray[Any] | Table
    labels: tuple[str, ...]


@dataclass(frozen=True)
class _Ready(Split):
    """A share with decoded inputs, as in `Samples`, without the skipped images."""

    inputs: NDArray[Any] | Table
    labels: NDArray[Any]

    def take(self, rows: NDArray[np.int64]) -> _Ready:
        """Return some of the samples."""
        columns = {column: values[rows] for column, values in self.columns.items()}
        inputs = self.inputs.take(rows) if isinstance(self.inputs, Table) else self.inputs[rows]
        return replace(self, inputs=inputs, labels=self.labels[rows], columns=columns, skipped=())


def assemble(
    name: str, train: Sequence[Split], test: Sequence[Split], decoding: Decoding, reading: Reading = PLAIN
) -> Dataset:
    """Decode the shares of both splits and join them to a data set; hold out a test set if there is none.

    uint8 images are standardised per channel, and features n×p per feature, by the training set; other arrays are used
    unchanged. Of a table, numbers are standardised, and categories become features that are 1 or 0. Images without
    labels get no test set.

    Args:
        name: Name of the data set.
        train: Shares of the training split.
        test: Shares of the test split; none if the data have no split.
        decoding: Options of the decoding of images.
        reading: Columns with a role, and the share of the samples that is held out.

    Raises:
        InputError: If a share is invalid, shares differ in the type or shape of their inputs or the type of labels,
            there is one class only, no column that is named, or no test set, or one where a share should be held out.
    """
    if not test and reading.label is None and all(s.labels is None and isinstance(s.inputs, Encoded) for s in train):
        return _unlabelled(name, train, decoding, reading)
    if not test and reading.test_fraction is None:
        raise InputError(
            f"data: {name!r} has no test set; hold out a share of the samples as one, as in test_fraction=0.2"
        )
    if test:
        reading.refuse("test_fraction", why=f"{name!r} has a test set")
    if decoding.on_error != "stop" and not any(isinstance(share.inputs, Encoded) for share in (*train, *test)):
        raise InputError(f"on_error: {decoding.on_error!r} would do nothing; {name!r} has no image files to decode")
    whole = [
        _joined(name, [_ready(share, decoding, reading) for share in shares]) for shares in (train, test) if shares
    ]
    skipped = tuple(left for split in whole for left in split.skipped)
    if reading.test_fraction is not None:
        whole = _cut(whole[0], reading.test_fraction)
    encoding, remarks, arrays = _encoded(name, whole, reading)
    inputs = _alike(arrays, [f"{name!r} for {split}" for split in ("training", "test")])
    classes, *labels = number(name, whole[0].labels, whole[1].labels)
    if len(classes) < 2:
        raise InputError(f"data: {name!r} has one class in the training set, {classes[0]!r}; must have two or more")
    of_train, of_test = (torch.from_numpy(split) for split in inputs)
    normalise = _normalisation(name, of_train, reading, 0 if encoding is None else encoding.one_hot)
    return Dataset(
        name,
        Samples(of_train, torch.from_numpy(labels[0]), normalise),
        Samples(of_test, torch.from_numpy(labels[1]), normalise),
        classes,
        {column: (values[0], values[1]) for column, values in _shared(whole).items()},
        len(skipped),
        skipped[:SKIPPED_NAMES],
        encoding=encoding,
        remarks=remarks,
    )


def labelled(which: str, shares: Sequence[Split], decoding: Decoding, reading: Reading) -> Labelled:
    """Decode the shares of one split and join them, without a look at any other split.

    Args:
        which: Which samples these are, in words.
        shares: The shares.
        decoding: Options of the decoding of images; without effect on other data.
        reading: Column that is the label.

    Raises:
        InputError: If a share is invalid or has no labels, or shares differ in the type or shape of their inputs or the
            type of labels.
    """
    ready = []
    for share in shares:
        images = isinstance(share.inputs, Encoded) or getattr(share.inputs, "dtype", None) == np.uint8
        ready.append(_ready(share, decoding if images else Decoding(), reading))
    whole = _joined(which, ready)
    return Labelled(which, whole.inputs, class_names(whole.labels))


def _unlabelled(name: str, train: Sequence[Split], decoding: Decoding, reading: Reading) -> Dataset:
    """Make a data set of images without labels."""
    reading.refuse("test_fraction", why=f"{name!r} has no labels; label names a column that has them")
    alike = [replace(share, labels=np.zeros(len(share), dtype=np.int64)) for share in train]  # they are dropped below
    whole = _joined(name, [_ready(share, decoding, reading) for share in alike])
    inputs = torch.from_numpy(whole.inputs)
    normalise = Normalisation.of(inputs)
    return Dataset(
        name,
        Samples(inputs, None, normalise),
        Samples(inputs[:0], None, normalise),
        (),
        {column: (values, values[:0]) for column, values in whole.columns.items()},
        len(whole.skipped),
        whole.skipped[:SKIPPED_NAMES],
    )


def _cut(whole: _Ready, share: float) -> list[_Ready]:
    """Cut data without a split into a training and a test split, within each client and by groups if there are any."""
    classes = np.unique(whole.labels, return_inverse=True)[1]
    tested = draw_test_set(classes, share, whole.columns.get(CLIENT), whole.columns.get(GROUP))
    return [whole.take(np.flatnonzero(mask)) for mask in (~tested, tested)]


def _encoded(
    name: str, whole: Sequence[_Ready], reading: Reading
) -> tuple[Encoding | None, tuple[str, ...], list[NDArray[Any]]]:
    """Return the arrays of both splits; those of a table are features that are learned from the training rows."""
    train, test = (split.inputs for split in whole)
    if isinstance(train, Table) and isinstance(test, Table):
        encoding = Encoding.of(train)
        arrays = [encoding(train), encoding(test)]  # raises InputError if the test rows lack a column
        return encoding, encoding.remarks(train, test), arrays
    if isinstance(train, Table) or isinstance(test, Table):
        raise InputError(f"data: {name!r} must be a table of features in both splits or in none")
    reading.refuse("drop", why=f"{name!r} has no columns that are features")
    return None, (), [train, test]


def _normalisation(name: str, train: Tensor, reading: Reading, one_hot: int) -> Normalisation:
    """Return the normalisation of a data set from its training inputs; the last ``one_hot`` features keep 1 and 0."""
    if train.dim() == 2 and train.dtype != torch.uint8:
        if reading.standardise is False:
            return _identity(train.shape[1])
        numbers = train.shape[1] - one_hot
        learned, rest = Normalisation.of_features(train[:, :numbers]) if numbers else _identity(0), _identity(one_hot)
        return Normalisation(learned.mean + rest.mean, learned.std + rest.std)
    reading.refuse("standardise", why=f"{name!r} has inputs of shape {_shape(train.shape[1:])}, not features n×p")
    if train.dtype == torch.uint8:
        return Normalisation.of(train)
    _warn_of_unscaled(name, train.numpy())
    return _identity(train.shape[1])


def as_inputs(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Convert a raw array to model inputs: uint8 images, n×c×h×w, or float32 features, n×p or n×… of any dimensions.

    uint8 and uint16 arrays of three or four dimensions are images. Three dimensions are grey images n×h×w. Of four
    dimensions, the second one is the channels if it is 1 or 3; otherwise the last one is. 16-bit images are converted
    to 8 bits: values are divided by 257 and rounded, as for 16-bit image files. All other arrays are features. The
    result is a copy.

    Args:
        array: Array of numbers; the first dimension is the n samples.
        where: Name of the array in error messages, such as ``arrays, x_train``.

    Raises:
        InputError: If the array has fewer than two dimensions, no values per sample, uint8 values but no shape of
            images, or a value that is not finite in float32.
    """
    if array.ndim < 2 or array.dtype.kind not in "buif":
        raise InputError(
            f"data: {where}: {array.dtype} of shape {_shape(array.shape)} is not allowed; inputs must be numbers with "
            "two or more dimensions, samples first"
        )
    if 0 in array.shape[1:]:
        raise InputError(
            f"data: {where}: the shape {_shape(array.shape)} is not allowed; samples must have at least one value"
        )
    axes, kind = _axes(array.shape), array.dtype.newbyteorder("=")
    if kind == np.uint8 and array.ndim > 2 and axes is None:
        raise InputError(
            f"data: {where}: uint8 of shape {_shape(array.shape)} is not allowed; must be images n×h×w, n×c×h×w or "
            "n×h×w×c with 1 or 3 channels, or floats of any shape"
        )
    if kind in (np.uint8, np.uint16) and axes is not None:
        images = array[:, None] if array.ndim == 3 else array.transpose(axes)
        return images.copy() if kind == np.uint8 else _of_16_bits(images)
    with np.errstate(over="ignore"):  # values too large for float32 are refused below
        features = array.astype(np.float32)
    strange = ~np.isfinite(features.reshape(len(features), -1)).all(axis=1)
    if strange.any():
        raise InputError(f"data: {where}, row {strange.argmax()}: a feature is not finite in float32")
    return features


def _axes(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the order of axes that makes images n×c×h×w, or n×h×w for grey; None if the shape is not of images."""
    if len(shape) == 4 and shape[1] in (1, 3):
        return 0, 1, 2, 3
    if len(shape) == 4 and shape[3] in (1, 3):
        return 0, 3, 1, 2
    return (0, 1, 2) if len(shape) == 3 else None


def _of_16_bits(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert 16-bit images to 8 bits: divide by 257 and round."""
    if images.max() < 4096:
        warnings.warn(
            "data: the uint16 images have only values below 4096, so that their conversion to uint8 (65535 becomes "
            "255) keeps only 16 shades; use floats between 0 and 1 to keep all",
            stacklevel=2,
        )
    rounded: NDArray[np.uint8] = ((images.astype(np.uint32, order="C") + 128) // 257).astype(np.uint8)
    return rounded


def _warn_of_unscaled(name: str, features: NDArray[Any]) -> None:
    """Warn of features that look like images but are not scaled to [0, 1].

    Features of three dimensions may be signals, unless all values are whole numbers from 0 to 255.
    """
    low, high = features.min(), features.max()
    if _axes(features.shape) is None or 0 <= low <= high <= 1:
        return
    if features.ndim == 4 or (0 <= low <= high <= 255 and (features == np.trunc(features)).all()):
        warnings.warn(
            f"data: {name!r} has images with values from {low:g} to {high:g}, which are used unchanged; only uint8 "
            "images are standardised; floats should be between 0 and 1",
            stacklevel=2,
        )


def _ready(share: Split, decoding: Decoding, reading: Reading) -> _Ready:
    if isinstance(share.inputs, Table):
        _refuse_decoding(decoding, share.name)
        roles = Roles.of(share.inputs, reading, share.name)
        return _Ready(
            share.name, roles.features, as_labels(roles.labels, share.name), {**share.columns, **roles.columns}
        )
    name, inputs, columns = share.name, share.inputs, reading.with_roles(share.columns)
    if not isinstance(inputs, Encoded) and not inputs.ndim:
        raise InputError(
            f"data: {name} is a single value; inputs must be numbers with two or more dimensions, samples first"
        )
    labels = as_labels(_labels(share, reading), name)
    if len(labels) != len(inputs):
        raise InputError(f"data: {name} has {len(inputs)} inputs, but {len(labels)} labels")
    if not len(inputs):
        return _Ready(name, np.empty((0, 1), dtype=np.uint8), np.empty(0, dtype=np.int64))
    if isinstance(inputs, Encoded):
        decoded = decode(inputs, decoding)
        columns = {column: values[decoded.rows] for column, values in columns.items()}
        return _Ready(name, decoded.pixels, labels[decoded.rows], columns, decoded.skipped)
    inputs = as_inputs(inputs, name)
    if inputs.dtype == np.uint8:
        return _Ready(name, adapt(inputs, decoding), labels, columns)
    _refuse_decoding(decoding, name)
    return _Ready(name, inputs, labels, columns)


def _refuse_decoding(decoding: Decoding, name: str) -> None:
    for option in ("channels", "image_size"):
        if getattr(decoding, option) is not None:
            raise InputError(f"{option}: {getattr(decoding, option)} is not allowed; {name} has features, not images")


def _labels(share: Split, reading: Reading) -> NDArray[Any]:
    """Return the labels of a share: the column that is named as the label, or else the format's own labels."""
    if reading.label not in (None, share.label):
        return named_column("label", str(reading.label), share.columns)
    if share.labels is None:
        has = ", ".join(share.columns) or "none"
        raise InputError(f"label: must name the column of {share.name} that has the labels; its columns are {has}")
    return share.labels


def _joined(name: str, shares: Sequence[_Ready]) -> _Ready:
    """Join all shares of a split, with the columns that all of them have."""
    skipped = tuple(skipped for share in shares for skipped in share.skipped)
    first, shares = shares[0].name, [share for share in shares if len(share.labels)]
    if not shares:
        raise InputError(f"data: {first} has no images{' that can be decoded' if skipped else ''}")
    if len(shares) == 1:
        return replace(shares[0], skipped=skipped)
    for share in shares:
        if share.labels.dtype.kind != shares[0].labels.dtype.kind:
            raise InputError(
                f"data: {shares[0].name} and {share.name}: the labels must be numbers in both or text in both"
            )
    return _Ready(
        name,
        _together(shares),
        np.concatenate([share.labels for share in shares]),
        {column: np.concatenate(values) for column, values in _shared(shares).items()},
        skipped,
    )


def _together(shares: Sequence[_Ready]) -> NDArray[Any] | Table:
    """Join the inputs of all shares, which are tables or arrays."""
    tables = [share.inputs for share in shares if isinstance(share.inputs, Table)]
    arrays = [share.inputs for share in shares if not isinstance(share.inputs, Table)]
    if tables and arrays:
        raise InputError(f"data: {shares[0].name} must be a table of features in all shares or in none")
    if tables:
        return tables[0].joined(tables[1:])
    return np.concatenate(_alike(arrays, [share.name for share in shares]))


def _alike(inputs: Sequence[NDArray[Any]], names: Sequence[str]) -> list[NDArray[Any]]:
    """Give all inputs one type and shape: convert grey images to RGB if others are RGB; refuse other differences."""
    images = all(own.dtype == np.uint8 for own in inputs)
    alike = [repeat_grey(own) if images and len({i.shape[1] for i in inputs}) > 1 else own for own in inputs]
    for own, name in zip(alike, names, strict=True):
        if own.dtype != alike[0].dtype or own.shape[1:] != alike[0].shape[1:]:
            raise InputError(
                f"data: {names[0]} and {name} have different shapes: {_form(alike[0])} and "
                f"{_form(own)}{'; set image_size to resize all images' if images else ''}"
            )
    return alike


def _shared(shares: Sequence[Split]) -> dict[str, list[NDArray[Any]]]:
    """Return the values of the columns that all shares have with the same type.

    Clients and groups must not get lost: if some shares have numbers and others text, all of them are text.
    """
    common = [column for column in shares[0].columns if all(column in share.columns for share in shares)]
    values = {column: [share.columns[column] for share in shares] for column in common}
    alike = {column: len({own.dtype.kind for own in several}) == 1 for column, several in values.items()}
    return {
        column: several if alike[column] else [own.astype(np.str_) for own in several]
        for column, several in values.items()
        if alike[column] or column in (CLIENT, GROUP)
    }


def _identity(channels: int) -> Normalisation:
    return Normalisation((0.0,) * channels, (1.0,) * channels)


def _form(inputs: NDArray[Any]) -> str:
    return f"{_shape(inputs.shape[1:])}{'' if inputs.dtype == np.uint8 else ' features'}"


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))
