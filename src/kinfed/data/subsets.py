"""Parts of a data set: fewer training samples, some of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kinfed.data.partitions.partition import Indices
from kinfed.data.samples import Dataset, labels_of
from kinfed.errors import InputError
from kinfed.streams import numpy_stream

__all__ = ["balanced", "select_classes", "subsample"]


def subsample(dataset: Dataset, count: int, seed: int) -> Dataset:
    """The data set with only some of its training samples, at random, the classes as balanced as the data allow.

    Args:
        dataset: Data set, whose test set and normalisation stay.
        count: Number of training samples.
        seed: Seed of the run.

    Raises:
        InputError: If there are not so many.
    """
    if not 1 <= count <= len(dataset.train):
        raise InputError(f"train_images: {count} is not allowed; {dataset.name} has {len(dataset.train)}")
    rows = balanced(labels_of(dataset.train), count, numpy_stream(seed, "train images"))
    columns = {name: (train[rows], test) for name, (train, test) in dataset.columns.items()}
    return replace(dataset, train=dataset.train.take(rows), columns=columns)


def select_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The data set with only the samples of some classes; labels, names of all classes and normalisation stay.

    Raises:
        InputError: If there is no such class, or a split has no sample of these.
    """
    for name in classes:
        if name not in dataset.classes:
            raise InputError(f"classes: {name!r} is not known; {dataset.name} has {', '.join(dataset.classes)}")
    wanted = [dataset.classes.index(name) for name in classes]
    train, test = (np.flatnonzero(np.isin(labels_of(split), wanted)) for split in (dataset.train, dataset.test))
    if not len(train) or not len(test):
        raise InputError(f"classes: {dataset.name} has no samples of {', '.join(classes) or 'none'} to train and test")
    columns = {name: (before[train], after[test]) for name, (before, after) in dataset.columns.items()}
    return replace(dataset, train=dataset.train.take(train), test=dataset.test.take(test), columns=columns)


def balanced(labels: Indices, count: int, rng: np.random.Generator) -> Indices:
    """``count`` rows with as equal class counts as the data allow: the classes take turns until one runs out."""
    turn = np.empty(len(labels), dtype=np.int64)
    for k in np.unique(labels):
        of_class = np.flatnonzero(labels == k)
        turn[of_class] = rng.permutation(len(of_class))
    return np.sort(np.lexsort((rng.permutation(len(labels)), turn))[:count])
