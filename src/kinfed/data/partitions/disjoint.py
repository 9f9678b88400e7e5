"""Partitions in which clients hold different classes.

Letters: ``n`` samples, ``N`` clients, ``K`` classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge
from numpy.typing import ArrayLike

from kinfed.data.partitions.assign import (
    assign_at_random,
    assign_by_class,
    counts_from_shares,
    equal_sizes,
    min_classes_per_client,
    number_of_classes,
    overlapping_shares,
    partition_by_owner,
    read_labels,
)
from kinfed.data.partitions.partition import Indices, Partition
from kinfed.data.partitions.partitioner import Partitioner
from kinfed.errors import InputError

__all__ = ["Disjoint", "TwoGroups"]


@dataclass(frozen=True)
class Disjoint(Partitioner):
    """Partition in which each client has samples of a few classes only.

    Each of N clients has a fixed number c of the K classes (specification F.4). Clients may share a class, but never a
    sample. The test samples follow the same classes as the training samples.

    * Without ``classes_per_client`` and with N < K, each class belongs to one client, and the clients' numbers of
      classes differ by at most one.
    * Otherwise every client has c classes; the default is c = ⌊K/5⌋, at least 1, as in EasyFL.
    * If N·c is a multiple of K, each client in turn gets the c classes that the fewest clients have so far, with random
      ties, and each class is divided equally among its clients.
    * If it is not, equal division would give some clients more data. A client then gets unequal fractions of its c
      classes, whose sum is K/N for every client (`kinfed.data.partitions.assign.overlapping_shares`).

    Attributes:
        classes_per_client: Number of classes c of each client, which other clients may share.

    Raises:
        InputError: If c is greater than K or too small for equal sums, or a class has fewer training samples than
            clients that share it.

    >>> partition = Disjoint(classes_per_client=1)([0, 0, 1, 1], [0, 1], 2, np.random.default_rng(0))
    >>> sorted(rows.tolist() for rows in partition.train)
    [[0, 1], [2, 3]]
    """

    options: ClassVar[Mapping[str, str]] = {"classes_per_client": "classes_per_client"}

    classes_per_client: Annotated[int, Ge(1)] | None = None

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels."""
        train, test = read_labels(train, test, clients)
        classes = number_of_classes(train, test)
        if self.classes_per_client is None and clients < classes:
            owner = assign_at_random(equal_sizes(classes, clients), rng)
            return partition_by_owner(owner[train], owner[test], clients)
        each = max(classes // 5, 1) if self.classes_per_client is None else self.classes_per_client
        least = min_classes_per_client(classes, clients)
        if not least <= each <= classes:
            allowed = f"{least} to {classes}" if least < classes else classes
            raise InputError(
                f"classes_per_client: {each} is not allowed; {clients} clients share {classes} classes equally if "
                f"each has {allowed}"
            )
        equal = clients * each % classes == 0
        if equal:
            has = np.zeros((classes, clients), dtype=bool)
            for client in range(clients):
                has[np.lexsort((rng.random(classes), has.sum(axis=1)))[:each], client] = True
        else:
            shares = overlapping_shares(classes, clients, each)[rng.permutation(classes)][:, rng.permutation(clients)]
            has = shares > 0
        holders = has.sum(axis=1)
        for k, size in enumerate(np.bincount(train, minlength=classes)):
            if size < holders[k]:
                raise InputError(f"partition: disjoint: class {k} has {size} training samples for {holders[k]} clients")

        def owners(labels: Indices) -> Indices:
            sizes = np.bincount(labels, minlength=classes)
            if not equal:
                return assign_by_class(labels, counts_from_shares(shares, sizes), rng)
            counts = np.zeros(has.shape, dtype=np.int64)
            for k, size in enumerate(sizes):
                counts[k, has[k]] = rng.permutation(equal_sizes(size, holders[k]))
            return assign_by_class(labels, counts, rng)

        return partition_by_owner(owners(train), owners(test), clients)


@dataclass(frozen=True)
class TwoGroups(Partitioner):
    """Partition of the clients into two groups, each with one half of the classes.

    The first half of the classes is divided IID among the first half of the clients, and the rest among the others; the
    test set is assigned in the same way (specification F.7). If a number is odd, the first half is the smaller one.

    Raises:
        InputError: If there are fewer than two clients or classes, or a group has fewer training samples than clients.

    >>> partition = TwoGroups()([0, 1, 0, 1], [0, 1], 2, np.random.default_rng(0))
    >>> [rows.tolist() for rows in partition.train]
    [[0, 2], [1, 3]]
    """

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels."""
        train, test = read_labels(train, test, clients)
        classes = number_of_classes(train, test)
        if min(clients, classes) < 2:
            raise InputError(f"partition: groups needs 2 clients and 2 classes, not {clients} and {classes}")
        halves = ((0, clients // 2), (clients // 2, clients))

        def owners(labels: Indices) -> Indices:
            owner = np.empty_like(labels)
            for second, (first, end) in enumerate(halves):
                ours = (labels >= classes // 2) == bool(second)
                size = int(ours.sum())
                if labels is train and size < end - first:
                    raise InputError(f"clients: a group of {end - first} is more than its {size} training samples")
                owner[ours] = first + assign_at_random(equal_sizes(size, end - first), rng)
            return owner

        return partition_by_owner(owners(train), owners(test), clients)
