"""The IID partition: equal random parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kinfed.data.partitions.assign import (
    assign_at_random,
    equal_sizes,
    partition_by_owner,
    read_labels,
    read_pool,
    split_locally,
)
from kinfed.data.partitions.partition import Partition
from kinfed.data.partitions.partitioner import Partitioner

__all__ = ["IID"]


@dataclass(frozen=True)
class IID(Partitioner):
    """Equal random parts.

    Both sets are divided at random into N parts, one for each client, whose sizes differ by at most one
    (specification F.5).

    Attributes:
        pooled: True to pool both sets, divide the pool, and hold out a fifth of each client's samples for testing,
            stratified by class, as ``dirichlet_clients`` does (specification F.3).

    Raises:
        InputError: If there are more clients than training samples, or, pooled, a client would get fewer than two
            samples.

    >>> partition = IID()([0, 1] * 5, [0, 1], 2, np.random.default_rng(0))
    >>> [len(rows) for rows in partition.train], [len(rows) for rows in partition.test]
    ([5, 5], [1, 1])
    """

    pooled: bool = False

    @property
    def reads_labels(self) -> bool:
        """True if a part of each client's samples is held out, stratified by class."""
        return self.pooled

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels."""
        if self.pooled:
            pool = read_pool("iid", train, test, clients)
            return split_locally(assign_at_random(equal_sizes(len(pool), clients), rng), pool, clients, rng)
        train, test = read_labels(train, test, clients)
        owner = assign_at_random(equal_sizes(len(train), clients), rng)
        return partition_by_owner(owner, assign_at_random(equal_sizes(len(test), clients), rng), clients)
