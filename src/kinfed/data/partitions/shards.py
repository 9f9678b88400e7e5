"""Partitions by shards: the training set, ordered by label, is cut into near-equal pieces, a few for each client."""

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

__all__ = ["Shards", "SortedShards"]


@dataclass(frozen=True)
class Shards(Partitioner):
    """A few shards of one class each for every client, with test shards of the same classes.

    Each of the K classes is cut, in the order of the data set, into N·s/K near-equal shards (specification F.1). A
    shuffled N×s table has the classes of the N clients; it is used for both sets. A client may get a class twice, so it
    holds at most s classes.

    Attributes:
        per_client: Number of shards s of each client.

    Raises:
        InputError: If N·s is no multiple of K, or a class has fewer training samples than shards.

    >>> partition = Shards(per_client=1)([0, 0, 1, 1], [0, 1], 2, np.random.default_rng(0))
    >>> sorted(rows.tolist() for rows in partition.train)
    [[0, 1], [2, 3]]
    """

    options: ClassVar[Mapping[str, str]] = {"shards": "per_client"}

    per_client: Annotated[int, Ge(1)] = 2

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels."""
        train, test = read_labels(train, test, clients)
        classes = number_of_classes(train, test)
        total = clients * self.per_client
        if total % classes:
            raise InputError(
                f"shards: {clients} clients × {self.per_client} shards = {total} is no multiple of the {classes} "
                f"classes"
            )
        each = total // classes
        table = rng.permutation(np.repeat(np.arange(classes), each)).reshape(clients, self.per_client)
        # The clients that hold a shard of each class, in the order of the table.
        holders = [slots // self.per_client for slots in rows_by(table.ravel(), classes)]
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


@dataclass(frozen=True)
class SortedShards(Partitioner):
    """Two random shards for every client, from 2N shards of the training set sorted by label.

    Their sizes differ by at most one (specification F.6). A shard may hold the end of one class and the start of the
    next. The test samples of each class are divided in the same proportions as its training samples; shards of the
    test set would have other classes than those of training.

    Raises:
        InputError: If there are fewer than 2N training samples.

    >>> partition = SortedShards()([0, 1, 0, 1], [0, 1], 2, np.random.default_rng(0))
    >>> [len(rows) for rows in partition.train]
    [2, 2]
    """

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels."""
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
