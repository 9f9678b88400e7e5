"""Building blocks of the partitions: assign every sample to a client, at random or by class.

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
    "read_labels", "read_pool", "rounded_sizes", "split_locally",
]  # fmt: skip

LOCAL_TEST = 0.2  # fraction of a client's own samples that is held out for testing (FedCRC)
MOST_CLASSES = 1 << 20  # larger values are not class labels


def read_labels(train: ArrayLike, test: ArrayLike, clients: int) -> tuple[Indices, Indices]:
    """Return the labels of both sets as int64 arrays, after a check of the number of clients.

    Args:
        train: Labels of the training set, in any container.
        test: Labels of the test set.
        clients: Number of clients N.

    Raises:
        InputError: If N is less than 1 or more than the number of training samples, or labels are not 0..K-1.
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


def read_pool(partition: str, train: ArrayLike, test: ArrayLike, clients: int) -> Indices:
    """Return the labels of the training set followed by the test set, for a partition that splits locally.

    Args:
        partition: Name of the partition, for the message.
        train: Labels of the training set, in any container.
        test: Labels of the test set.
        clients: Number of clients N.

    Raises:
        InputError: As `read_labels`, or if a client would get fewer than two samples.
    """
    check_clients(clients)
    pool = np.concatenate(read_labels(train, test, clients=1))
    if len(pool) < 2 * clients:
        raise InputError(
            f"clients: {clients} is too many; {partition} gives each one 2 of the {len(pool)} samples or more"
        )
    return pool


def check_clients(clients: int) -> None:
    """Refuse a number of clients below 1."""
    if clients < 1:
        raise InputError(f"clients: {clients} is not allowed; 1 or more")


def number_of_classes(train: Indices, test: Indices) -> int:
    """Return the number of classes K of labels 0..K-1."""
    return int(max(train.max(initial=-1), test.max(initial=-1))) + 1


def equal_sizes(count: int, parts: int) -> Indices:
    """Divide ``count`` into sizes that differ by at most one, the larger ones first."""
    return np.full(parts, count // parts) + (np.arange(parts) < count % parts)


def rounded_sizes(shares: NDArray[np.float64], count: int) -> Indices:
    """Divide ``count`` into whole sizes in the given proportions."""
    sizes: Indices = np.diff(np.round(shares.cumsum() / shares.sum() * count), prepend=0).astype(np.int64)
    return sizes


def assign_at_random(sizes: Indices, rng: np.random.Generator) -> Indices:
    """Assign samples to clients at random; ``sizes`` are the clients' numbers of samples."""
    owner = np.empty(sizes.sum(), dtype=np.int64)
    owner[rng.permutation(len(owner))] = np.repeat(np.arange(len(sizes)), sizes)
    return owner


def assign_by_class(labels: Indices, counts: Indices, rng: np.random.Generator) -> Indices:
    """Assign samples to clients at random so that each client gets the given number of each class.

    Args:
        labels: Labels of the samples, n.
        counts: Samples of each class and client, K×N.
        rng: Random generator.

    Returns:
        The owner of each sample, n.
    """
    owner = np.full_like(labels, NOBODY)
    for rows, of_client in zip(rows_by(labels, len(counts)), counts, strict=True):
        owner[rng.permutation(rows)[: of_client.sum()]] = np.repeat(np.arange(len(of_client)), of_client)
    return owner


def class_counts(labels: Indices, owner: Indices, classes: int, clients: int) -> Indices:
    """Count the samples of each class and client, K×N."""
    held = owner != NOBODY
    cells = labels[held] * clients + owner[held]
    return np.bincount(cells, minlength=classes * clients).reshape(classes, clients)


def proportional_counts(counts: Indices, test: Indices) -> Indices:
    """Divide the test samples of each class in the proportions of the training samples.

    Args:
        counts: Training samples of each class and client, K×N.
        test: Labels of the test set.

    Returns:
        Test samples of each class and client, K×N.
    """
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    sizes = np.bincount(test, minlength=len(counts))
    counted: Indices = np.diff(np.round(shares.cumsum(axis=1) * sizes[:, None]), prepend=0).astype(np.int64)
    return counted


def min_classes_per_client(classes: int, clients: int) -> int:
    """Return the smallest number of classes per client with which all clients can have equal sums of class shares.

    It is ⌈1 + (K − g)/N⌉, where g is the greatest common divisor of K and N. Proof: connect each client with its
    classes. If all sums are equal, there are at most g connected groups, and a group of a clients and b classes has at
    least a + b − 1 connections.
    """
    return -(-(clients + classes - math.gcd(classes, clients)) // clients)


def overlapping_shares(classes: int, clients: int, each: int) -> NDArray[np.float64]:
    """Compute class shares such that every client has ``each`` classes and the same sum of shares.

    The classes lie on a circle, at distance 1. Each client owns an arc of length K/N, and the arcs together cover the
    circle once. A client's shares are the mean over all rotations of its arc by 0 to D = each − 1 − (K − g)/N, where g
    is the greatest common divisor of K and N. The rotated arc covers ``each`` classes wherever it begins.

    Returns:
        Share of each class that each client gets, K×N; each row sums to 1.
    """
    common = math.gcd(classes, clients)
    arc, step = classes // common, clients // common  # lengths in units of 1/step of a class
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
    """Round shares of the classes to whole numbers of samples.

    A client with a share in a class gets at least one of its samples, if there are enough. Rounding errors of one
    class are corrected in the next, so that the clients' totals stay close to equal.

    Args:
        shares: Share of each class that each client gets, K×N.
        sizes: Number of samples of each class, K.

    Returns:
        Samples of each class and client, K×N.
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
    """Make a partition from the owner of each training and each test sample."""
    return Partition(rows_by(train, clients), rows_by(test, clients))


def split_locally(
    owner: Indices, labels: Indices, clients: int, rng: np.random.Generator, names: tuple[str, ...] = ()
) -> Partition:
    """Hold out a fifth of each client's samples for testing, stratified by class (specification F.3); see `held_out`.

    Args:
        owner: Owner of each sample, n.
        labels: Labels of the samples, n.
        clients: Number of clients N.
        rng: Random generator.
        names: Names of the clients; empty if they have none.
    """
    tested = held_out(owner, labels, clients, LOCAL_TEST, rng)
    train, test = (rows_by(np.where(mask, owner, NOBODY), clients) for mask in (~tested, tested))
    return Partition(train, test, pooled=True, names=names)


def held_out(
    owner: Indices, labels: Indices, clients: int, share: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw a share of each client's samples, stratified by class; return a mask of the drawn samples, n.

    Of a client with two or more samples, at least one is drawn and one is left; a single sample is left. The number
    drawn of each class follows the class sizes, rounded by the Sainte-Laguë method. The last sample of a class is drawn
    only if no others are left, so that the classes that are drawn are also among those that are left.

    Args:
        owner: Owner of each sample, n; `NOBODY` for samples without one.
        labels: Labels of the samples, n.
        clients: Number of clients N.
        share: Share of the samples, in (0, 1).
        rng: Random generator.
    """
    shuffle = rng.permutation(len(owner))
    cell = owner[shuffle] * (labels.max() + 1) + labels[shuffle]  # one number for each pair of client and class
    place = np.argsort(cell, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(cell[place]) != 0))
    sizes = np.diff(first, append=len(place))
    rank, size = np.arange(len(place)) - np.repeat(first, sizes), np.repeat(sizes, sizes)
    turn = np.empty(len(place))
    turn[place] = np.where(rank < size - 1, (rank + 0.5) / size, 1.0)
    order = shuffle[np.argsort(owner[shuffle] + turn / 2, kind="stable")]  # by client and turn; ties at random
    sizes = np.bincount(owner + 1, minlength=clients + 1)
    rank = np.arange(len(order)) - np.repeat(sizes.cumsum() - sizes, sizes)
    drawn = np.where(sizes > 1, np.round(share * sizes).clip(1, np.maximum(sizes - 1, 1)), 0)
    mask = np.empty(len(owner), dtype=bool)
    mask[order] = rank < np.repeat(drawn, sizes)
    mask &= owner != NOBODY
    return mask
