"""The IID partition: equal random parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kinfed.data.partitions.assign import assign_at_random, equal_sizes, partition_by_owner, read_labels
from kinfed.data.partitions.partition import Partition
from kinfed.data.partitions.partitioner import Partitioner

__all__ = ["IID"]


@dataclass(frozen=True)
class IID(Partitioner):
    """Equal random parts.

    Both sets are divided at random into N parts, one for each client, whose sizes differ by at most one
    (specification F.5).

    Raises:
        InputError: If there are more clients than training samples.

    >>> partition = IID()([0, 1] * 5, [0, 1], 2, np.random.default_rng(0))
    >>> [len(rows) for rows in partition.train], [len(rows) for rows in partition.test]
    ([5, 5], [1, 1])
    """

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels."""
        train, test = read_labels(train, test, clients)
        owner = assign_at_random(equal_sizes(len(train), clients), rng)
        return partition_by_owner(owner, assign_at_random(equal_sizes(len(test), clients), rng), clients)
