"""Shards: near-equal pieces of the training set in the order of its labels, a few for each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge
from numpy.typing import ArrayLike

from kinfed.data.partitions.assign import (
    assign_by_class,
    class_counts,
    equal_sizes,
    number_of_classes,
    partition_by_owner,
    proportional_counts,
    read_labels,
)
from kinfed.data.partitions.partition import Indices, Partition, rows_by
from kinfed.data.partitions.partitioner import Partitioner
from kinfed.errors import InputError

__all__ = ["Shards", "SortedShards", "shards", "sorted_shards"]


@dataclass(frozen=True)
class Shards(Partitioner):
    """Shards of one class each, and test shards of the same classes.

    Attributes:
        per_client: Number of shards that a client gets, and of classes that it holds at most.
    """

    options: ClassVar[Mapping[str, str]] = {"shards": "per_client"}

    per_client: Annotated[int, Ge(1)] = 2

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client; see `shards`."""
        return shards(train, test, clients, self.per_client, rng)


@dataclass(frozen=True)
class SortedShards(Partitioner):
    """Two random ones of the 2N shards of a training set that is sorted by label."""

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client; see `sorted_shards`."""
        return sorted_shards(train, test, clients, rng)


def shards(train: ArrayLike, test: ArrayLike, clients: int, per_client: int, rng: np.random.Generator) -> Partition:
    """Each client gets ``per_client`` shards of a class each, and test shards of the same classes (specification F.1).

    Each class is cut, in data-set order, into N·s/K near-equal shards; a shuffled N×s table says which classes a client
    gets, and the test set is cut by the same table. A client may get a class twice, so it holds at most s classes.

    Raises:
        InputError: If N·s is no multiple of K, or a class has fewer samples than shards.
    """
    train, test = read_labels(train, test, clients)
    classes = number_of_classes(train, test)
    if per_client < 1:
        raise InputError(f"shards: {per_client} is not allowed; 1 or more")
    if clients * per_client % classes:
        raise InputError(
            f"shards: {clients} clients × {per_client} shards = {clients * per_client} is no multiple of the "
            f"{classes} classes"
        )
    each = clients * per_client // classes
    table = rng.permutation(np.repeat(np.arange(classes), each)).reshape(clients, per_client)
    # Row by row of the table, the clients that hold a shard of each class.
    holders = [slots // per_client for slots in rows_by(table.ravel(), classes)]
    for k, rows in enumerate(rows_by(train, classes)):
        if len(rows) < each:
            raise InputError(f"shards: class {k} has {len(rows)} training samples for {each} shards")

    def owners(labels: Indices) -> Indices:
        owner = np.empty_like(labels)
        for rows, holding in zip(rows_by(labels, classes), holders, strict=True):
            of_shard = np.empty(each, dtype=np.int64)
            of_shard[rng.permutation(each)[::-1]] = holding
            owner[rows] = np.repeat(of_shard, equal_sizes(len(rows), each))
        return owner

    return partition_by_owner(owners(train), owners(test), clients)


def sorted_shards(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """The training set, sorted by label, is cut into 2N equal shards, two random ones a client (specification F.6).

    A shard may hold the end of one class and the start of the next. The test set is cut in the proportions in which the
    clients hold the classes, as `dirichlet` does it: sorted alike, it would test a client on other classes.

    Raises:
        InputError: If there are fewer than 2N training samples.
    """
    train, test = read_labels(train, test, clients)
    if len(train) < 2 * clients:
        raise InputError(
            f"clients: {clients} is too many; sort makes {2 * clients} shards of {len(train)} training samples"
        )
    of_shard = rng.permutation(np.repeat(np.arange(clients), 2))
    owner = np.empty_like(train)
    owner[np.argsort(train, kind="stable")] = np.repeat(of_shard, equal_sizes(len(train), 2 * clients))
    counts = class_counts(train, owner, number_of_classes(train, test), clients)
    return partition_by_owner(owner, assign_by_class(test, proportional_counts(counts, test), rng), clients)
