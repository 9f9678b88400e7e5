"""Building blocks of the partitions: an owner for every sample, at random or by class.

Letters: ``n`` samples, ``N`` clients, ``K`` classes. Owners are 0..N-1, or `NOBODY`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data.classes import as_labels
from kinfed.data.partitions.partition import NOBODY, Indices, Partition, rows_by
from kinfed.errors import InputError

__all__ = [
    "assign_at_random", "assign_by_class", "check_clients", "class_counts", "counts_from_shares", "equal_sizes",
    "min_classes_per_client", "number_of_classes", "overlapping_shares", "partition_by_owner", "proportional_counts",
    "read_labels", "rounded_sizes", "split_locally",
]  # fmt: skip

LOCAL_TEST = 0.2  # of a client's own samples (FedCRC)
MOST_CLASSES = 1 << 20  # a larger number was meant for something else


def read_labels(train: ArrayLike, test: ArrayLike, clients: int) -> tuple[Indices, Indices]:
    """Labels of any container as int64 arrays.

    Raises:
        InputError: If there are fewer clients than one or more than training samples, or labels are not 0..K-1.
    """
    check_clients(clients)
    before, after = as_labels(train, "training labels"), as_labels(test, "test labels")
    for labels in (before, after):
        text = labels.dtype.kind == "U"
        if text or labels.min(initial=0) < 0 or labels.max(initial=0) >= MOST_CLASSES:
            told = repr("".join(labels[:1])) if text else f"{labels.min()} to {labels.max()}"
            raise InputError(f"labels: {told} is not allowed; recipes take the numbers of classes, 0..K-1")
    if clients > len(before):
        raise InputError(f"clients: {clients} is more than the {len(before)} training samples")
    return before, after


def check_clients(clients: int) -> None:
    """Refuse fewer clients than one."""
    if clients < 1:
        raise InputError(f"clients: {clients} is not allowed; 1 or more")


def number_of_classes(train: Indices, test: Indices) -> int:
    """K, when labels are 0..K-1."""
    return int(max(train.max(initial=-1), test.max(initial=-1))) + 1


def equal_sizes(count: int, parts: int) -> Indices:
    """Sizes that differ by one at most, the larger ones first."""
    return np.full(parts, count // parts) + (np.arange(parts) < count % parts)


def rounded_sizes(shares: NDArray[np.float64], count: int) -> Indices:
    """Sizes that add up to ``count``, in the given proportions, rounded."""
    sizes: Indices = np.diff(np.round(shares.cumsum() / shares.sum() * count), prepend=0).astype(np.int64)
    return sizes


def assign_at_random(sizes: Indices, rng: np.random.Generator) -> Indices:
    """Owners of as many samples as the sizes add up to, at random."""
    owner = np.empty(sizes.sum(), dtype=np.int64)
    owner[rng.permutation(len(owner))] = np.repeat(np.arange(len(sizes)), sizes)
    return owner


def assign_by_class(labels: Indices, counts: Indices, rng: np.random.Generator) -> Indices:
    """Owner of every sample when each class, shuffled, is cut in the given counts (K×N)."""
    owner = np.full_like(labels, NOBODY)
    for rows, of_client in zip(rows_by(labels, len(counts)), counts, strict=True):
        owner[rng.permutation(rows)[: of_client.sum()]] = np.repeat(np.arange(len(of_client)), of_client)
    return owner


def class_counts(labels: Indices, owner: Indices, classes: int, clients: int) -> Indices:
    """Samples of each class and client, K×N."""
    held = owner != NOBODY
    cells = labels[held] * clients + owner[held]
    return np.bincount(cells, minlength=classes * clients).reshape(classes, clients)


def proportional_counts(counts: Indices, test: Indices) -> Indices:
    """Test samples of each class and client, K×N, in the proportions of the training samples."""
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    sizes = np.bincount(test, minlength=len(counts))
    counted: Indices = np.diff(np.round(shares.cumsum(axis=1) * sizes[:, None]), prepend=0).astype(np.int64)
    return counted


def min_classes_per_client(classes: int, clients: int) -> int:
    """The fewest classes a client with which all clients can have as much of them as the others, ⌈1 + (K − g)/N⌉.

    Clients and classes of which the ones share the others fall into at most g groups, g being the greatest common
    divisor of K and N, and a group of a clients and b classes takes a + b − 1 pairs or more.
    """
    return -(-(clients + classes - math.gcd(classes, clients)) // clients)


def overlapping_shares(classes: int, clients: int, each: int) -> NDArray[np.float64]:
    """Shares of the classes, K×N: every client has ``each`` of them, not equally, and in all as much as the others.

    The classes lie on a circle, 1 apart. An arc of K/N is a client's part of them, and the arcs of all, end to end,
    cover the circle. A client's share is the mean over all turns of the arcs by 0 to D = each − 1 − (K − g)/N: it then
    reaches into ``each`` classes, wherever the arc begins.
    """
    common = math.gcd(classes, clients)
    arc, step = classes // common, clients // common  # in units of which a class has `step`
    turns = step * (each - 1) - arc + 2
    length = arc + turns - 1
    unit = np.arange(length)
    weights = np.minimum(np.minimum(unit + 1, length - unit), min(arc, turns))
    before = np.append(0, weights.cumsum())
    first = np.arange(clients) * arc // step
    edges = (first[:, None] + np.arange(each + 1)) * step - np.arange(clients)[:, None] * arc
    shares = np.zeros((clients, classes))
    np.put_along_axis(
        shares, (first[:, None] + np.arange(each)) % classes, np.diff(before[edges.clip(0, length)], axis=1), axis=1
    )
    return shares.T / (turns * step)


def counts_from_shares(shares: NDArray[np.float64], sizes: Indices) -> Indices:
    """Classes of the given sizes cut in the given shares, K×N: whole numbers, one at least where there are so many.

    What rounding gives or takes in one class is made up for in the next, so that clients stay as equal as they are.
    """
    counts = np.zeros(shares.shape, dtype=np.int64)
    owed = np.zeros(shares.shape[1])
    for k, size in enumerate(sizes):
        holders = np.flatnonzero(shares[k])
        owed[holders] += shares[k, holders] * size
        least = int(size >= len(holders))
        got = np.floor(owed[holders]).clip(min=least).astype(np.int64)
        while (rest := size - got.sum()) != 0:
            able = np.flatnonzero((got > least) | (rest > 0))
            gap = (owed[holders] - got)[able] * np.sign(rest)
            got[able[np.argsort(-gap, kind="stable")[: abs(rest)]]] += np.sign(rest)
        counts[k, holders] = got
        owed[holders] -= got
    return counts


def partition_by_owner(train: Indices, test: Indices, clients: int) -> Partition:
    """The partition of two arrays of owners."""
    return Partition(rows_by(train, clients), rows_by(test, clients))


def split_locally(
    owner: Indices, labels: Indices, clients: int, rng: np.random.Generator, names: tuple[str, ...] = ()
) -> Partition:
    """Keep a fifth of each client's pooled samples, one at least, to be tested on; a single sample is trained on.

    Of a client's classes as much is kept as their sizes say, rounded as Sainte-Laguë rounds, and of none the last
    sample, as long as there are others to keep: a client is tested on what it trains on.
    """
    shuffle = rng.permutation(len(owner))
    cell = owner[shuffle] * (labels.max() + 1) + labels[shuffle]  # a client's class
    place = np.argsort(cell, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(cell[place]) != 0))
    sizes = np.diff(first, append=len(place))
    rank, size = np.arange(len(place)) - np.repeat(first, sizes), np.repeat(sizes, sizes)
    turn = np.empty(len(place))
    turn[place] = np.where(rank < size - 1, (rank + 0.5) / size, 1.0)
    order = shuffle[np.argsort(owner[shuffle] + turn / 2, kind="stable")]  # by client and turn; equal turns at random
    sizes = np.bincount(owner + 1, minlength=clients + 1)
    rank = np.arange(len(order)) - np.repeat(sizes.cumsum() - sizes, sizes)
    kept = np.where(sizes > 1, np.round(LOCAL_TEST * sizes).clip(min=1), 0)
    tested = np.empty(len(owner), dtype=bool)
    tested[order] = rank < np.repeat(kept, sizes)
    train, test = (rows_by(np.where(mask, owner, NOBODY), clients) for mask in (~tested, tested))
    return Partition(train, test, pooled=True, names=names)
