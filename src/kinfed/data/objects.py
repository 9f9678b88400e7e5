"""Data sets from Python objects: names, arrays, and data sets of kinfed or torch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.data.cache import keep
from kinfed.data.classes import as_labels
from kinfed.data.federation import Federation
from kinfed.data.formats.arrays import as_array, from_arrays, keep_arrays
from kinfed.data.formats.frames import as_frames, keep_frames
from kinfed.data.images import Decoding, fit, repeat_grey
from kinfed.data.loading import load, load_files
from kinfed.data.partitions.assign import split_locally
from kinfed.data.samples import Dataset
from kinfed.errors import InputError
from kinfed.fields import short
from kinfed.registry import import_path
from kinfed.streams import numpy_stream, seeded_globals, torch_stream

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["as_dataset"]

Arrays = tuple[NDArray[Any], NDArray[Any]]  # inputs and labels

ALLOWED = (
    "a name, a path, a Dataset, (x, y), (x, y, x_test, y_test), a pandas DataFrame or a torch Dataset, two of them for "
    "training and test, the files that a Format's find returns, or a Federation"
)


def as_dataset(data: Any, seed: int, **options: Any) -> tuple[Dataset | Federation, str | None]:
    """Make a data set from any object that kinfed accepts as data.

    For data without a test set, (x, y) or one torch Dataset, a fifth of the samples is held out as the test set by the
    seed, stratified by class, with a warning, unless ``test_fraction`` is given. Arrays, tables and objects are written
    to the cache folder, so that a run on them can be resumed.

    Args:
        data: A name or path (see `load`); a `Dataset`; (x, y) or (x, y, x_test, y_test) (see `from_arrays`); a
            map-style torch Dataset of (image or tensor, label), or two of them for training and test; a pandas
            DataFrame, or two of them; the files that ``find`` of a `Format` returns; or a `Federation`, which is
            returned unchanged.
        seed: Seed of the run.
        **options: Options of `load`, such as ``label``, with which the data set is read.

    Returns:
        The data set or federation, and the name or path by which `load` finds the data set again; None for a
        federation.

    Raises:
        InputError: If the data are none of these, or `load` or `from_arrays` refuses them.

    >>> dataset, path = as_dataset((x, y, x_test, y_test), seed=0)  # doctest: +SKIP
    """
    if isinstance(data, Federation):
        return data, None
    if isinstance(data, str | os.PathLike):
        return load(Path(data) if isinstance(data, os.PathLike) else data, **options), os.fspath(data)
    path = _kept(data, seed, hold_out=options.get("test_fraction") is None)
    return load(path, **options), str(path)


def _kept(data: Any, seed: int, *, hold_out: bool) -> Path:
    """Write data from memory to the cache folder; hold out a test set where there is none, if ``hold_out``."""
    if (frames := as_frames(data)) is not None:
        return keep_frames(*frames)
    if isinstance(data, Dataset):
        return keep(data)
    if callable(getattr(data, "paths", None)) and callable(getattr(data, "read", None)):
        return keep(load_files(data, import_path(type(data)) or type(data).__name__))
    train, test = _train_and_test(data, seed)
    if test is None and not hold_out:
        return keep_arrays(*train)
    train, test = (train, test) if test is not None else _split(*train, seed)
    from_arrays(*train, *test)  # raises InputError before anything is written
    return keep_arrays(*train, *test)


def _train_and_test(data: Any, seed: int) -> tuple[Arrays, Arrays | None]:
    """Return the arrays of the training set and of the test set; None for a test set that is not given."""
    if isinstance(data, torch.utils.data.Dataset):
        return _of_torch(data, seed, "train"), None
    if isinstance(data, Sequence) and not isinstance(data, bytes) and len(data) in (2, 4):
        if any(isinstance(part, torch.utils.data.Dataset) for part in data):
            if len(data) == 2 and all(isinstance(part, torch.utils.data.Dataset) for part in data):
                return _of_torch(data[0], seed, "train"), _of_torch(data[1], seed, "test")
        elif not any(isinstance(part, str | Dataset | Federation) or part is None for part in data):
            pairs = [(as_array(x), as_array(y)) for x, y in zip(data[::2], data[1::2], strict=True)]
            return pairs[0], pairs[1] if len(pairs) > 1 else None
    raise InputError(f"data: {short(data)} is not allowed; must be {ALLOWED}")


def _split(x: NDArray[Any], y: NDArray[Any], seed: int) -> tuple[Arrays, Arrays]:
    """Hold out a fifth of the samples as the test set, stratified by class; at least one sample."""
    labels = as_labels(y, "y")
    if len(x) != len(labels):
        raise InputError(f"data: x has {len(x)} samples, but y has {len(labels)} labels")
    if len(x) < 2:
        raise InputError(f"data: {len(x)} samples cannot be split into a training and a test set")
    classes = np.unique(labels, return_inverse=True)[1]
    cut = split_locally(np.zeros_like(classes), classes, 1, numpy_stream(seed, "test set"))
    warnings.warn(
        f"data: no test set was given; {len(cut.test[0])} of the {len(x)} samples, a fifth of each class, are held "
        f"out as test set, drawn with seed {seed}",
        stacklevel=5,
    )
    return (x[cut.train[0]], labels[cut.train[0]]), (x[cut.test[0]], labels[cut.test[0]])


def _of_torch(data: torch.utils.data.Dataset[Any], seed: int, which: str) -> Arrays:
    """Return the inputs and labels of a map-style torch Dataset; its random transforms are seeded."""
    name = type(data).__name__
    if isinstance(data, torch.utils.data.IterableDataset) or not hasattr(data, "__len__"):
        raise InputError(f"data: {name} is not allowed; must be a torch Dataset with a length and indexing")
    inputs, labels = [], []
    with seeded_globals(torch_stream(seed, "torch data set", which)):
        for i in range(len(data)):
            sample = data[i]
            if not isinstance(sample, Sequence) or len(sample) != 2:
                raise InputError(
                    f"data: {name}, sample {i}: {short(sample)} is not allowed; must be a pair of input and label"
                )
            inputs.append(_input(sample[0]))
            labels.append(sample[1].item() if isinstance(sample[1], torch.Tensor | np.ndarray) else sample[1])
    if not inputs:
        raise InputError(f"data: {name} has no samples")
    if len({len(image) for image in inputs if image.dtype == np.uint8 and image.ndim == 3}) > 1:
        inputs = [repeat_grey(image[None])[0] for image in inputs]
    sizes = {image.shape for image in inputs}
    if len(sizes) > 1:
        few = " and ".join("×".join(map(str, size)) for size in sorted(sizes)[:2])
        raise InputError(f"data: {name} has inputs of different sizes, {few}; use a transform that resizes them")
    return np.stack(inputs), np.asarray(labels)


def _input(value: torch.Tensor | NDArray[Any] | Image) -> NDArray[Any]:
    """Convert one input to an array; a PIL image to pixels c×h×w."""
    from PIL import Image

    return fit(value, Decoding()) if isinstance(value, Image.Image) else np.asarray(as_array(value))
