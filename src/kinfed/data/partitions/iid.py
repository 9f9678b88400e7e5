"""Samples of all classes for everybody, at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kinfed.data.partitions.assign import assign_at_random, equal_sizes, partition_by_owner, read_labels
from kinfed.data.partitions.partition import Partition
from kinfed.data.partitions.partitioner import Partitioner

__all__ = ["IID", "iid"]


@dataclass(frozen=True)
class IID(Partitioner):
    """Equal parts at random."""

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client; see `iid`."""
        return iid(train, test, clients, rng)


def iid(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """A random permutation in N equal parts; sizes differ by one at most (specification F.5).

    Raises:
        InputError: If there are more clients than training samples.
    """
    train, test = read_labels(train, test, clients)
    owner = assign_at_random(equal_sizes(len(train), clients), rng)
    return partition_by_owner(owner, assign_at_random(equal_sizes(len(test), clients), rng), clients)
