"""Subsets of a data set: fewer training samples, or some of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kinfed.data.partitions.partition import Indices
from kinfed.data.samples import Dataset, labels_of, strata
from kinfed.errors import InputError
from kinfed.streams import numpy_stream

__all__ = ["balanced", "select_classes", "subsample"]


def subsample(dataset: Dataset, count: int, seed: int) -> Dataset:
    """Draw training samples at random, with classes as balanced as the data allow; the test set stays whole.

    Args:
        dataset: The data set; its normalisation stays.
        count: Number of training samples.
        seed: Seed of the run.

    Raises:
        InputError: If ``count`` is less than 1 or more than the number of training samples.

    >>> from kinfed.data import from_arrays
    >>> dataset = from_arrays([[0.1]] * 6, [0, 0, 0, 0, 1, 1], [[0.1]], [0])
    >>> sorted(subsample(dataset, 4, seed=0).train.labels.tolist())
    [0, 0, 1, 1]
    """
    if not 1 <= count <= len(dataset.train):
        raise InputError(
            f"train_images: {count} is not allowed; must be from 1 to {len(dataset.train)}, the training "
            f"images of {dataset.name}"
        )
    rows = balanced(strata(dataset.train), count, numpy_stream(seed, "train images"))
    columns = {name: (train[rows], test) for name, (train, test) in dataset.columns.items()}
    return replace(dataset, train=dataset.train.take(rows), columns=columns)


def select_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """Select the samples of some classes; the labels, the names of all classes and the normalisation stay.

    Args:
        dataset: The data set.
        classes: Names of the classes.

    Raises:
        InputError: If there is no such class, or a split has no sample of these classes.

    >>> from kinfed.data import from_arrays
    >>> dataset = from_arrays([[0.1]] * 3, ["cat", "dog", "fox"], [[0.1]], ["fox"])
    >>> select_classes(dataset, ["dog", "fox"]).train.labels.tolist()
    [1, 2]
    """
    if not dataset.labelled:
        raise InputError(f"classes: {', '.join(classes)} is not allowed; {dataset.name} has no labels")
    for name in classes:
        if name not in dataset.classes:
            raise InputError(f"classes: {name!r} is not known; {dataset.name} has {', '.join(dataset.classes)}")
    wanted = [dataset.classes.index(name) for name in classes]
    train, test = (np.flatnonzero(np.isin(labels_of(split), wanted)) for split in (dataset.train, dataset.test))
    if not len(train) or not len(test):
        raise InputError(
            f"classes: {dataset.name} must have training and test samples of {', '.join(classes) or 'none'}"
        )
    columns = {name: (before[train], after[test]) for name, (before, after) in dataset.columns.items()}
    return replace(dataset, train=dataset.train.take(train), test=dataset.test.take(test), columns=columns)


def balanced(labels: Indices, count: int, rng: np.random.Generator) -> Indices:
    """Draw rows at random with class counts as equal as the data allow.

    Args:
        labels: Labels, n.
        count: Number of rows.
        rng: Random generator.

    Returns:
        The rows, ascending.

    >>> labels = np.array([0, 0, 0, 0, 1, 1])
    >>> labels[balanced(labels, 4, np.random.default_rng(0))]
    array([0, 0, 1, 1])
    """
    turn = np.empty(len(labels), dtype=np.int64)
    for k in np.unique(labels):
        of_class = np.flatnonzero(labels == k)
        turn[of_class] = rng.permutation(len(of_class))
    return np.sort(np.lexsort((rng.permutation(len(labels)), turn))[:count])
