"""Partitions by a column of the data: one client for each writer, hospital or folder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data.partitions.assign import check_clients, split_locally
from kinfed.data.partitions.partition import NOBODY, Indices, Partition, rows_by
from kinfed.data.partitions.partitioner import Partitioner
from kinfed.data.samples import CLIENT, Dataset, labels_of
from kinfed.errors import InputError

__all__ = ["ByColumn", "Folders"]


@dataclass(frozen=True)
class ByColumn(Partitioner):
    """Partition by a column of the data: samples with the same value go to the same client.

    There is one client for each distinct value, in sorted order. If there are more values than ``clients``, ``clients``
    of them are drawn at random and the other samples are not used. If there are fewer, there are fewer clients. The
    test set is assigned by the same values. If it has none of the training set's values, a fifth of each client's own
    samples is held out for testing instead, stratified by class; a client with one sample has no test sample. Of data
    without labels, nothing is held out.

    Attributes:
        column: Name of the column.

    Raises:
        InputError: If the data set has no such column, or the column has no value in the training set.

    >>> partition = ByColumn("writer")(["ann", "bob", "ann"], ["bob", "ann"], 2, np.random.default_rng(0))
    >>> partition.names, [rows.tolist() for rows in partition.train], [rows.tolist() for rows in partition.test]
    (('ann', 'bob'), [[0, 2], [1]], [[1], [0]])
    """

    column: str

    def __call__(
        self,
        train: ArrayLike,
        test: ArrayLike | None,
        clients: int,
        rng: np.random.Generator,
        labels: ArrayLike | None = None,
    ) -> Partition:
        """Assign the rows of both sets to clients, from the values of the column.

        Args:
            train: Value of each training sample, n.
            test: Value of each test sample; None if nothing is tested, so that nothing is held out.
            clients: Largest number of clients.
            rng: Random generator, the only source of randomness.
            labels: Labels of the training samples followed by those of the test samples; without them, the samples
                that are held out are not stratified.
        """
        check_clients(clients)
        before, after = _values(train), _values([] if test is None else test)
        values = np.unique(before)
        values = values[values == values]  # noqa: PLR0124 - drops NaN, the only value that differs from itself
        if not len(values):
            raise InputError("partition: the column that says who the clients are has no value in the training set")
        shared = np.isin(after, values)
        if len(values) > clients:
            values = values[np.sort(rng.choice(len(values), clients, replace=False))]
        names = tuple(str(value) for value in values)
        owner, test_owner = (_places(column, values) for column in (before, after))
        if shared.any() or test is None:
            return Partition(rows_by(owner, len(values)), rows_by(test_owner, len(values)), names=names)
        owner = np.concatenate([owner, test_owner])
        classes = np.zeros_like(owner) if labels is None else np.asarray(labels, dtype=np.int64)
        return split_locally(owner, classes, len(values), rng, names)

    def of_dataset(self, dataset: Dataset, rows: Indices, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from the data set's column."""
        if self.column not in dataset.columns:
            has = ", ".join(dataset.columns) or "none"
            raise InputError(f"partition: {f'by:{self.column}'!r} names no column of {dataset.name}; it has {has}")
        train, test = dataset.columns[self.column]
        if not dataset.labelled:
            return self(train[rows], None, clients, rng)
        labels = np.concatenate([labels_of(dataset.train)[rows], labels_of(dataset.test)])
        return self(train[rows], test, clients, rng, labels)


@dataclass(frozen=True)
class Folders(Partitioner):
    """Partition by folder: samples whose files lie in the same folder go to the same client.

    It is `ByColumn` with the column ``client``, which has the names of the folders.

    Raises:
        InputError: If the data do not have one folder per client.

    >>> partition = Folders()(["ann", "bob", "ann"], ["bob", "ann"], 2, np.random.default_rng(0))
    >>> partition.names
    ('ann', 'bob')
    """

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from the names of their folders."""
        return ByColumn(CLIENT)(train, test, clients, rng)

    def of_dataset(self, dataset: Dataset, rows: Indices, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from the column ``client``."""
        if CLIENT not in dataset.columns:
            raise InputError(f"partition: 'folders' is not allowed; {dataset.name} does not have a folder a client")
        return ByColumn(CLIENT).of_dataset(dataset, rows, clients, rng)


def _places(column: NDArray[np.generic], values: NDArray[np.generic]) -> Indices:
    """Return the index of each entry of a column in the sorted values, or `NOBODY` for other values."""
    if not len(column):
        return np.empty(0, dtype=np.int64)
    places = np.searchsorted(values, column).clip(max=len(values) - 1)
    return np.where(values[places] == column, places, NOBODY).astype(np.int64)


def _values(column: ArrayLike) -> NDArray[np.generic]:
    array = np.asarray(column)
    return array.astype(str) if array.dtype == object else array
