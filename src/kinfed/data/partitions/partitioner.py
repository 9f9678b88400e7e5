"""How a partition is made: an object with its fields, or a function of one's own."""

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
from kinfed.data.samples import Dataset, labels_of
from kinfed.errors import InputError
from kinfed.fields import check_fields
from kinfed.registry import import_path

__all__ = ["ByFunction", "Partitioner", "RowsOfClients"]

RowsOfClients = Callable[[Indices, int, np.random.Generator], Sequence[ArrayLike]]  # labels, clients, rng -> rows


@dataclass(frozen=True)
class Partitioner:
    """A way to share out the samples of a data set among clients.

    One of your own is a frozen dataclass that derives from this class, whose fields all have defaults and are checked
    when an object is made. It overrides one of three methods: `rows`, if it shares out the training set and the test
    set follows; `__call__`, if it shares out both by their labels; `of_dataset`, if it reads more than labels.

    Attributes:
        options: Options of the command line that fill fields, ``{"shards": "per_client"}``.
    """

    options: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        check_fields(self)

    def rows(self, labels: Indices, clients: int, rng: np.random.Generator) -> Sequence[ArrayLike]:
        """Rows of the training set that each client gets.

        Args:
            labels: Labels of the training set, 0..K-1.
            clients: Number of clients N.
            rng: Stream that everything random is drawn from.

        Returns:
            N lists or arrays of row numbers. No row is in two of them; a row that is in none is not used.
        """
        raise NotImplementedError(f"{type(self).__name__} has none of the methods rows, __call__ and of_dataset")

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of both sets that each client gets, from their labels.

        The training set is shared out by `rows`. The test set is cut in the proportions in which the clients then hold
        each class, as that of `Dirichlet` is; test samples of a class that no client holds are not used.

        Raises:
            InputError: If labels are not 0..K-1, or rows are none of the training set, or belong to two clients.
        """
        train, test = read_labels(train, test, clients)
        owner = _owners(self.rows(train, clients, rng), len(train), clients, _name(self))
        counts = class_counts(train, owner, number_of_classes(train, test), clients)
        return partition_by_owner(owner, assign_by_class(test, proportional_counts(counts, test), rng), clients)

    def of_dataset(self, dataset: Dataset, rows: Indices, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of both sets that each client gets, from a data set of which the server may hold some samples.

        Args:
            dataset: The data set, with its labels and columns.
            rows: Rows of its training set that can be shared out; the training rows of the result count in these.
            clients: Number of clients N.
            rng: Stream that everything random is drawn from.
        """
        return self(labels_of(dataset.train)[rows], labels_of(dataset.test), clients, rng)


@dataclass(frozen=True)
class ByFunction(Partitioner):
    """A partition by a function of one's own, ``(labels, clients, rng) -> rows of each client``.

    The function gets the labels of the training set. The test set is cut in the proportions in which the clients then
    hold each class, as that of `Dirichlet` is.

    Attributes:
        function: The function, as `Partitioner.rows`.
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
        """Rows of the training set that each client gets."""
        rows: Sequence[ArrayLike] = self.function(labels, clients, rng)
        return rows


def _name(partition: Partitioner) -> str:
    thing = partition.function if isinstance(partition, ByFunction) else type(partition)
    return import_path(thing) or str(getattr(thing, "__name__", thing))


def _owners(rows: Sequence[ArrayLike], samples: int, clients: int, name: str) -> Indices:
    """Owner of each sample, when each client has some rows."""
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
