"""Who gets which sample: pure functions from labels, or another column, and a random stream to a `Partition`.

Letters: ``n`` samples, ``N`` clients, ``K`` classes. Labels are 0..K-1, in any container. No sample goes to two
clients; where some go to nobody, the recipe says so. The same stream gives the same partition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data.dealing import (
    apportioned,
    classes_of,
    dealt,
    even,
    fewest_classes,
    in_proportion,
    overlapping,
    owned,
    read_labels,
    several,
    shuffled,
    split_locally,
)
from kinfed.data.partition import NOBODY, Indices, Partition, rows_by
from kinfed.errors import InputError

__all__ = ["disjoint", "groups", "iid", "natural", "shards", "sort"]


def iid(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """A random permutation in N equal parts; sizes differ by one at most (METHODS.md F.5).

    Raises:
        InputError: If there are more clients than training samples.
    """
    train, test = read_labels(train, test, clients)
    owner = shuffled(even(len(train), clients), rng)
    return owned(owner, shuffled(even(len(test), clients), rng), clients)


def shards(train: ArrayLike, test: ArrayLike, clients: int, per_client: int, rng: np.random.Generator) -> Partition:
    """Every client gets ``per_client`` shards of one class each, and test shards of the same classes (METHODS.md F.1).

    Each class is cut, in data-set order, into N·s/K near-equal shards; a shuffled N×s table says which classes a client
    gets, and the test set is cut by the same table. A client may get a class twice, so it holds at most s classes.

    Raises:
        InputError: If N·s is no multiple of K, or a class has fewer samples than shards.
    """
    train, test = read_labels(train, test, clients)
    classes = classes_of(train, test)
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
            owner[rows] = np.repeat(of_shard, even(len(rows), each))
        return owner

    return owned(owners(train), owners(test), clients)


def disjoint(
    train: ArrayLike, test: ArrayLike, clients: int, classes_per_client: int | None, rng: np.random.Generator
) -> Partition:
    """Every client gets some classes and no others; the test set is cut by the same classes (METHODS.md F.4).

    Without ``classes_per_client`` and with N < K, the shuffled classes are shared out, each whole, and the numbers of
    classes differ by one at most. Otherwise every client has c classes; the default then is a fifth of them, as in
    EasyFL. If N·c is a multiple of K, clients take the classes that were taken least, at random among these, and each
    class is cut into equal parts among those that took it. If it is not, the parts differ, so that nevertheless all
    clients get as much of the classes together (`kinfed.data.dealing.overlapping`).

    Raises:
        InputError: If c classes are too few to share all of them equally, or more than there are; or if a class has
            fewer samples than clients.
    """
    train, test = read_labels(train, test, clients)
    classes = classes_of(train, test)
    if classes_per_client is None and clients < classes:
        owner = shuffled(even(classes, clients), rng)
        return owned(owner[train], owner[test], clients)
    each = max(classes // 5, 1) if classes_per_client is None else classes_per_client
    least = fewest_classes(classes, clients)
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
        shares = overlapping(classes, clients, each)[rng.permutation(classes)][:, rng.permutation(clients)]
        has = shares > 0
    holders = has.sum(axis=1)
    for k, size in enumerate(np.bincount(train, minlength=classes)):
        if size < holders[k]:
            raise InputError(f"partition: disjoint: class {k} has {size} training samples for {holders[k]} clients")

    def owners(labels: Indices) -> Indices:
        sizes = np.bincount(labels, minlength=classes)
        if not equal:
            return dealt(labels, apportioned(shares, sizes), rng)
        counts = np.zeros(has.shape, dtype=np.int64)
        for k, size in enumerate(sizes):
            counts[k, has[k]] = rng.permutation(even(size, holders[k]))
        return dealt(labels, counts, rng)

    return owned(owners(train), owners(test), clients)


def sort(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """The training set, sorted by label, is cut into 2N equal shards, two random ones a client (METHODS.md F.6).

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
    owner[np.argsort(train, kind="stable")] = np.repeat(of_shard, even(len(train), 2 * clients))
    classes = classes_of(train, test)
    counts = np.bincount(train * clients + owner, minlength=classes * clients).reshape(classes, clients)
    return owned(owner, dealt(test, in_proportion(counts, test), rng), clients)


def groups(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """Two groups: the first half of the clients share the first half of the classes IID (METHODS.md F.7).

    The rest share the rest, and the test set is cut likewise. The first half is the smaller one of an odd number.

    Raises:
        InputError: If there are fewer than two clients or classes, or a group has fewer training samples than clients.
    """
    train, test = read_labels(train, test, clients)
    classes = classes_of(train, test)
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
            owner[ours] = first + shuffled(even(size, end - first), rng)
        return owner

    return owned(owners(train), owners(test), clients)


def natural(
    train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator, labels: ArrayLike | None = None
) -> Partition:
    """One client for each distinct value of a column, sorted: each writer, each hospital (``by:COLUMN``).

    If there are more values than ``clients``, so many are drawn at random and the other samples are not used; if there
    are fewer, that is how many clients there are. The test set is cut by the same values. Where it has none of them,
    it is not used, and a fifth of each client's own samples, of each class, is kept to be tested on; a client with one
    sample has no test sample.

    Args:
        train: The column's values in the training set.
        test: The column's values in the test set.
        clients: N at most.
        rng: The recipe's stream.
        labels: Of the training samples and the test samples after them; without them all are of one class.

    Raises:
        InputError: If the training set has no value.
    """
    several(clients)
    before, after = _values(train), _values(test)
    values = np.unique(before)
    values = values[values == values]  # noqa: PLR0124 - NaN, which belongs to nobody, is not itself
    if not len(values):
        raise InputError("partition: the column that says who the clients are has no value in the training set")
    shared = np.isin(after, values)
    if len(values) > clients:
        values = values[np.sort(rng.choice(len(values), clients, replace=False))]
    names = tuple(str(value) for value in values)
    owner, test_owner = (_places(column, values) for column in (before, after))
    if shared.any():
        return Partition(rows_by(owner, len(values)), rows_by(test_owner, len(values)), names=names)
    owner = np.concatenate([owner, test_owner])
    classes = np.zeros_like(owner) if labels is None else np.asarray(labels, dtype=np.int64)
    return split_locally(owner, classes, len(values), rng, names)


def _places(column: NDArray[np.generic], values: NDArray[np.generic]) -> Indices:
    """Where in the sorted values each entry of a column stands, or `NOBODY`."""
    if not len(column):
        return np.empty(0, dtype=np.int64)
    places = np.searchsorted(values, column).clip(max=len(values) - 1)
    return np.where(values[places] == column, places, NOBODY).astype(np.int64)


def _values(column: ArrayLike) -> NDArray[np.generic]:
    array = np.asarray(column)
    return array.astype(str) if array.dtype == object else array
