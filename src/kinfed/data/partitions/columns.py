"""Clients that the data name: each writer, each hospital, each folder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data.partitions.assign import check_clients, split_locally
from kinfed.data.partitions.partition import NOBODY, Indices, Partition, rows_by
from kinfed.data.partitions.partitioner import Partitioner
from kinfed.data.samples import CLIENT, Dataset, labels_of
from kinfed.errors import InputError

__all__ = ["ByColumn", "Folders", "by_column"]


@dataclass(frozen=True)
class ByColumn(Partitioner):
    """One client for each value of a column of the data.

    Attributes:
        column: Name of the column.
    """

    column: str

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client, from the column's values; see `by_column`."""
        return by_column(train, test, clients, rng)

    def of_dataset(self, dataset: Dataset, rows: Indices, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client, from the data set's column.

        Raises:
            InputError: If there is no such column, or as `by_column`.
        """
        if self.column not in dataset.columns:
            has = ", ".join(dataset.columns) or "none"
            raise InputError(f"partition: {f'by:{self.column}'!r} names no column of {dataset.name}; it has {has}")
        train, test = dataset.columns[self.column]
        labels = np.concatenate([labels_of(dataset.train)[rows], labels_of(dataset.test)])
        return by_column(train[rows], test, clients, rng, labels=labels)


@dataclass(frozen=True)
class Folders(Partitioner):
    """One client for each folder, of data that have a folder a client."""

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client, from the names of the samples' folders; see `by_column`."""
        return by_column(train, test, clients, rng)

    def of_dataset(self, dataset: Dataset, rows: Indices, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client, from the column that names its folder.

        Raises:
            InputError: If the data do not have a folder a client.
        """
        if CLIENT not in dataset.columns:
            raise InputError(f"partition: 'folders' is not allowed; {dataset.name} does not have a folder a client")
        return ByColumn(CLIENT).of_dataset(dataset, rows, clients, rng)


def by_column(
    train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator, labels: ArrayLike | None = None
) -> Partition:
    """One client for each distinct value of a column, sorted: each writer, each hospital (``by:COLUMN``).

    If there are more values than ``clients``, so many are drawn at random and the other samples are not used; if there
    are fewer, that is how many clients there are. The test set is cut by the same values. Where it has none of them,
    it is not used, and a fifth of each client's own samples, of each class, is kept to be tested on; a client with one
    sample has no test sample.

    Args:
        train: The column's values in the training set.
        test: The column's values in the test set.
        clients: N at most.
        rng: The partition's stream.
        labels: Of the training samples and the test samples after them; without them all are of one class.

    Raises:
        InputError: If the training set has no value.
    """
    check_clients(clients)
    before, after = _values(train), _values(test)
    values = np.unique(before)
    values = values[values == values]  # noqa: PLR0124 - NaN, which belongs to nobody, is not itself
    if not len(values):
        raise InputError("partition: the column that says who the clients are has no value in the training set")
    shared = np.isin(after, values)
    if len(values) > clients:
        values = values[np.sort(rng.choice(len(values), clients, replace=False))]
    names = tuple(str(value) for value in values)
    owner, test_owner = (_places(column, values) for column in (before, after))
    if shared.any():
        return Partition(rows_by(owner, len(values)), rows_by(test_owner, len(values)), names=names)
    owner = np.concatenate([owner, test_owner])
    classes = np.zeros_like(owner) if labels is None else np.asarray(labels, dtype=np.int64)
    return split_locally(owner, classes, len(values), rng, names)


def _places(column: NDArray[np.generic], values: NDArray[np.generic]) -> Indices:
    """Where in the sorted values each entry of a column stands, or `NOBODY`."""
    if not len(column):
        return np.empty(0, dtype=np.int64)
    places = np.searchsorted(values, column).clip(max=len(values) - 1)
    return np.where(values[places] == column, places, NOBODY).astype(np.int64)


def _values(column: ArrayLike) -> NDArray[np.generic]:
    array = np.asarray(column)
    return array.astype(str) if array.dtype == object else array
