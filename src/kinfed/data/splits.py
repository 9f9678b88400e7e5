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

from kinfed.data.classes import as_labels, number
from kinfed.data.images import Decoding, Encoded, adapt, decode, repeat_grey
from kinfed.data.samples import Dataset, Normalisation, Samples
from kinfed.errors import InputError

__all__ = ["TEST_NAMES", "Split", "as_inputs", "assemble"]

TEST_NAMES = ("test", "val", "valid", "validation")  # names of a test split; the first one found is used
SKIPPED_NAMES = 5  # largest number of names in `Dataset.skipped_names`


@dataclass(frozen=True)
class Split:
    """One split of a data set (training or test), or a share of it, such as one file or one client's samples.

    Attributes:
        name: Name of the split in messages.
        inputs: Image files, or an array of n samples (see `as_inputs`).
        labels: Label of each sample, whole numbers or text, n; None without labels.
        columns: Other values of each sample by name, n each.
        skipped: Names of the images that could not be decoded and were left out.

    >>> Split("train", np.zeros((2, 3)), np.array(["cat", "dog"])).labels.tolist()
    ['cat', 'dog']
    """

    name: str
    inputs: Encoded | NDArray[Any]
    labels: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ready(Split):
    """A share with decoded inputs, as in `Samples`, without the skipped images."""

    inputs: NDArray[Any]


def assemble(name: str, train: Sequence[Split], test: Sequence[Split], decoding: Decoding) -> Dataset:
    """Decode the shares of both splits and join them to a data set.

    uint8 images are standardised per channel; features are used unchanged. Data without labels have no test split.

    Args:
        name: Name of the data set.
        train: Shares of the training split.
        test: Shares of the test split; none without labels.
        decoding: Options of the decoding of images.

    Raises:
        InputError: If a share is invalid, or shares differ in the type or shape of their inputs or the type of labels.
    """
    if decoding.on_error != "stop" and not any(isinstance(share.inputs, Encoded) for share in (*train, *test)):
        raise InputError(f"on_error: {decoding.on_error!r} would do nothing; {name!r} has no image files to decode")
    if all(share.labels is None for share in train):
        return _unlabelled(name, _joined(name, [_ready(share, decoding) for share in train]), test)
    whole = [_joined(name, [_ready(share, decoding) for share in shares]) for shares in (train, test)]
    inputs = _alike([share.inputs for share in whole], [f"{name!r} for {split}" for split in ("training", "test")])
    before, after = (share.labels for share in whole)
    if before is None or after is None:
        raise InputError(f"data: {name!r} must have labels in both splits or in none")
    classes, *labels = number(name, before, after)
    of_train, of_test = (torch.from_numpy(split) for split in inputs)
    if of_train.dtype != torch.uint8:
        _warn_of_unscaled(name, inputs[0])
    normalise = Normalisation.of(of_train) if of_train.dtype == torch.uint8 else _identity(of_train.shape[1])
    skipped = whole[0].skipped + whole[1].skipped
    return Dataset(
        name,
        Samples(of_train, torch.from_numpy(labels[0]), normalise),
        Samples(of_test, torch.from_numpy(labels[1]), normalise),
        classes,
        {column: (whole[0].columns[column], whole[1].columns[column]) for column in _shared(whole)},
        len(skipped),
        skipped[:SKIPPED_NAMES],
    )


def _unlabelled(name: str, train: _Ready, test: Sequence[Split]) -> Dataset:
    """Make a data set without labels from its training split; refuse a test split."""
    if test:
        raise InputError(f"data: {name!r} has no labels, so that {test[0].name} would do nothing")
    inputs = torch.from_numpy(train.inputs)
    normalise = Normalisation.of(inputs) if inputs.dtype == torch.uint8 else _identity(inputs.shape[1])
    return Dataset(
        name,
        Samples(inputs, None, normalise),
        Samples(inputs[:0], None, normalise),
        (),
        {column: (values, values[:0]) for column, values in train.columns.items()},
        len(train.skipped),
        train.skipped[:SKIPPED_NAMES],
    )


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


def _ready(share: Split, decoding: Decoding) -> _Ready:
    name, inputs, columns = share.name, share.inputs, share.columns
    if not isinstance(inputs, Encoded) and not inputs.ndim:
        raise InputError(
            f"data: {name} is a single value; inputs must be numbers with two or more dimensions, samples first"
        )
    labels = None if share.labels is None else as_labels(share.labels, name)
    if labels is not None and len(labels) != len(inputs):
        raise InputError(f"data: {name} has {len(inputs)} inputs, but {len(labels)} labels")
    if not len(inputs):
        return _Ready(name, np.empty((0, 1), dtype=np.uint8), labels)
    if isinstance(inputs, Encoded):
        decoded = decode(inputs, decoding)
        columns = {column: values[decoded.rows] for column, values in columns.items()}
        labels = None if labels is None else labels[decoded.rows]
        return _Ready(name, decoded.pixels, labels, columns, decoded.skipped)
    inputs = as_inputs(inputs, name)
    if inputs.dtype == np.uint8:
        return _Ready(name, adapt(inputs, decoding), labels, columns)
    for option in ("channels", "image_size"):
        if getattr(decoding, option) is not None:
            raise InputError(f"{option}: {getattr(decoding, option)} is not allowed; {name} has features, not images")
    return _Ready(name, inputs, labels, columns)


def _joined(name: str, shares: Sequence[_Ready]) -> _Ready:
    """Join all shares of a split, with the columns that all of them have."""
    skipped = tuple(skipped for share in shares for skipped in share.skipped)
    first, shares = shares[0].name, [share for share in shares if len(share.inputs)]
    if not shares:
        raise InputError(f"data: {first} has no images{' that can be decoded' if skipped else ''}")
    if len(shares) == 1:
        return replace(shares[0], skipped=skipped)
    inputs = _alike([share.inputs for share in shares], [share.name for share in shares])
    return _Ready(
        name,
        np.concatenate(inputs),
        _joined_labels(shares),
        {column: np.concatenate([share.columns[column] for share in shares]) for column in _shared(shares)},
        skipped,
    )


def _joined_labels(shares: Sequence[_Ready]) -> NDArray[Any] | None:
    """Join the labels of all shares; None if none of them has labels."""
    labels = [share.labels for share in shares if share.labels is not None]
    if not labels:
        return None
    for share in shares:
        if share.labels is None or share.labels.dtype.kind != labels[0].dtype.kind:
            raise InputError(
                f"data: {shares[0].name} and {share.name}: the labels must be numbers in both or text in both"
            )
    return np.concatenate(labels)


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


def _shared(shares: Sequence[Split]) -> list[str]:
    """Return the columns that all shares have with the same type."""
    kinds = [{column: values.dtype.kind for column, values in share.columns.items()} for share in shares]
    return [column for column, kind in kinds[0].items() if all(own.get(column) == kind for own in kinds)]


def _identity(channels: int) -> Normalisation:
    return Normalisation((0.0,) * channels, (1.0,) * channels)


def _form(inputs: NDArray[Any]) -> str:
    return f"{_shape(inputs.shape[1:])}{'' if inputs.dtype == np.uint8 else ' features'}"


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))
