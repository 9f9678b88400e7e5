"""Clients that differ in which classes they have."""

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

__all__ = ["Disjoint", "TwoGroups", "disjoint", "two_groups"]


@dataclass(frozen=True)
class Disjoint(Partitioner):
    """Some classes for each client and no others.

    Attributes:
        classes_per_client: Number of classes that each client has and shares with others; if not given, whole classes
            where there are more of them than clients, else a fifth of all.
    """

    options: ClassVar[Mapping[str, str]] = {"classes_per_client": "classes_per_client"}

    classes_per_client: Annotated[int, Ge(1)] | None = None

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client; see `disjoint`."""
        return disjoint(train, test, clients, self.classes_per_client, rng)


@dataclass(frozen=True)
class TwoGroups(Partitioner):
    """Two groups of clients, each with its half of the classes."""

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client; see `two_groups`."""
        return two_groups(train, test, clients, rng)


def disjoint(
    train: ArrayLike, test: ArrayLike, clients: int, classes_per_client: int | None, rng: np.random.Generator
) -> Partition:
    """Every client gets some classes and no others; the test set is cut by the same classes (specification F.4).

    Without ``classes_per_client`` and with N < K, the shuffled classes are shared out, each whole, and the numbers of
    classes differ by one at most. Otherwise every client has c classes; the default then is a fifth of them, as in
    EasyFL. If N·c is a multiple of K, clients take the classes that were taken least, at random among these, and each
    class is cut into equal parts among those that took it. If it is not, the parts differ, so that nevertheless all
    clients get as much of the classes together (`kinfed.data.partitions.assign.overlapping_shares`).

    Raises:
        InputError: If c classes are too few to share all of them equally, or more than there are; or if a class has
            fewer samples than clients.
    """
    train, test = read_labels(train, test, clients)
    classes = number_of_classes(train, test)
    if classes_per_client is None and clients < classes:
        owner = assign_at_random(equal_sizes(classes, clients), rng)
        return partition_by_owner(owner[train], owner[test], clients)
    each = max(classes // 5, 1) if classes_per_client is None else classes_per_client
    least = min_classes_per_client(classes, clients)
    if not least <= each <= classes:
        allowed = f"{least} to {classes}" if least < classes else classes
        raise InputError(
            f"classes_per_client: {each} is not allowed; {clients} clients share {classes} classes equally if each has "
            f"{allowed}"
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


def two_groups(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """Two groups: the first half of the clients share the first half of the classes IID (specification F.7).

    The rest share the rest, and the test set is cut likewise. The first half is the smaller one of an odd number.

    Raises:
        InputError: If there are fewer than two clients or classes, or a group has fewer training samples than clients.
    """
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
