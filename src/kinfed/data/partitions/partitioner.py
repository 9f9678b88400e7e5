"""The base class of partitions, and partitions by a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from kinfed.data.partitions.assign import (
    assign_by_class,
    class_counts,
    number_of_classes,
    partition_by_owner,
    proportional_counts,
    read_labels,
)
from kinfed.data.partitions.partition import NOBODY, Indices, Partition
from kinfed.data.samples import Dataset, strata
from kinfed.errors import InputError
from kinfed.fields import check_fields
from kinfed.registry import import_path

__all__ = ["ByFunction", "Partitioner", "RowsOfClients"]

RowsOfClients = Callable[[Indices, int, np.random.Generator], Sequence[ArrayLike]]  # labels, clients, rng -> rows


@dataclass(frozen=True)
class Partitioner:
    """Base class of the partitions, which assign the samples of a data set to clients.

    To write your own, derive a frozen dataclass whose fields all have defaults; they are checked when an object is
    made. Override one of three methods: `rows` to assign the training set and let the test set follow; `__call__` to
    assign both sets by their labels; `of_dataset` to read more than labels.

    Attributes:
        options: Command-line options with the fields that they fill, such as ``{"shards": "per_client"}``.

    >>> @dataclass(frozen=True)
    ... class Alternating(Partitioner):
    ...     def rows(self, labels, clients, rng):
    ...         return [range(client, len(labels), clients) for client in range(clients)]
    >>> [rows.tolist() for rows in Alternating()([0, 1, 1, 0], [0, 1], 2, np.random.default_rng(0)).train]
    [[0, 2], [1, 3]]
    """

    options: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def reads_labels(self) -> bool:
        """True if the clients follow from the labels, so that data without labels are refused."""
        return True

    def rows(self, labels: Indices, clients: int, rng: np.random.Generator) -> Sequence[ArrayLike]:
        """Assign the rows of the training set to clients.

        Args:
            labels: Labels of the training set, 0..K-1, n.
            clients: Number of clients N.
            rng: Random generator, the only source of randomness.

        Returns:
            N lists or arrays of row numbers. They must be disjoint; rows in none of them are not used.
        """
        raise NotImplementedError(f"{type(self).__name__} has none of the methods rows, __call__ and of_dataset")

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels.

        `rows` assigns the training set. The test samples of each class are divided in the same proportions as its
        training samples; test samples of a class that no client holds are not used.

        Args:
            train: Labels of the training set, n.
            test: Labels of the test set.
            clients: Number of clients N.
            rng: Random generator, the only source of randomness.

        Raises:
            InputError: If labels are not 0..K-1, or `rows` returns rows that do not exist or belong to two clients.
        """
        train, test = read_labels(train, test, clients)
        owner = _owners(self.rows(train, clients, rng), len(train), clients, _name(self))
        counts = class_counts(train, owner, number_of_classes(train, test), clients)
        return partition_by_owner(owner, assign_by_class(test, proportional_counts(counts, test), rng), clients)

    def of_dataset(self, dataset: Dataset, rows: Indices, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from a data set.

        Args:
            dataset: The data set, with its labels and columns.
            rows: Rows of its training set that clients may get, since the server holds the others. The training rows
                of the result are indices into ``rows``.
            clients: Number of clients N.
            rng: Random generator, the only source of randomness.

        Raises:
            InputError: If the partition reads labels, and the data have none.
        """
        if self.reads_labels and not dataset.labelled:
            raise InputError(
                f"partition: {_name(self).rpartition(':')[2]} reads labels, and {dataset.name} has none; iid, "
                "quantity, folders and by:COLUMN read none"
            )
        return self(strata(dataset.train)[rows], strata(dataset.test), clients, rng)


@dataclass(frozen=True)
class ByFunction(Partitioner):
    """A partition by a user's function, ``(labels, clients, rng) -> rows of each client``.

    The function gets the labels of the training set. The test samples of each class are divided in the same
    proportions as its training samples.

    Attributes:
        function: The function, with arguments and result as in `Partitioner.rows`.
    """

    function: Any  # RowsOfClients

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.function).bind(None, None, None)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"partition: {_name(self)} is not allowed; a function takes labels, clients and rng"
            ) from error

    def rows(self, labels: Indices, clients: int, rng: np.random.Generator) -> Sequence[ArrayLike]:
        """Assign the rows of the training set by the function."""
        rows: Sequence[ArrayLike] = self.function(labels, clients, rng)
        return rows


def _name(partition: Partitioner) -> str:
    thing = partition.function if isinstance(partition, ByFunction) else type(partition)
    return import_path(thing) or str(getattr(thing, "__name__", thing))


def _owners(rows: Sequence[ArrayLike], samples: int, clients: int, name: str) -> Indices:
    """Return the owner of each sample from the rows of each client, after a check of these rows."""
    try:
        lists = [np.atleast_1d(np.asarray(own)) for own in rows]
    except (TypeError, ValueError) as error:
        raise InputError(f"partition: {name} must return the rows of each client: {error}") from error
    if len(lists) != clients:
        raise InputError(f"partition: {name} returns rows of {len(lists)} clients; there are {clients}")
    owner = np.full(samples, NOBODY)
    for client, own in enumerate(lists):
        if own.ndim != 1 or (len(own) and own.dtype.kind not in "iu"):
            raise InputError(f"partition: {name}: the rows of client {client} are no whole numbers")
        if len(own) and not 0 <= own.min() <= own.max() < samples:
            raise InputError(f"partition: {name}: client {client} has rows beyond 0..{samples - 1}")
        of_client = own.astype(np.int64)
        if len(np.unique(of_client)) < len(own) or (owner[of_client] != NOBODY).any():
            raise InputError(f"partition: {name}: client {client} has a row twice, or one of another client's")
        owner[of_client] = client
    return owner
