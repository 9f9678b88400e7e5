"""Who gets which sample: pure functions from labels to index arrays, and the recipe's random stream.

Letters: ``n`` samples, ``N`` clients, ``K`` classes. Labels are 0..K-1. Every sample goes to exactly one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.errors import InputError

__all__ = ["Partition", "dirichlet", "iid", "shards"]

Indices = NDArray[np.int64]
Cut = list[Indices]  # one index array a client

DIRICHLET_MIN_SIZE = 10  # fewest training samples of a client (MOON's and NIID-Bench's code)
DIRICHLET_TRIES = 1000


@dataclass(frozen=True)
class Partition:
    """Index arrays into the training and the test set, one of each a client."""

    train: Cut
    test: Cut

    def __len__(self) -> int:
        return len(self.train)


def iid(train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
    """A random permutation in N equal parts; sizes differ by one at most (METHODS.md F.5)."""
    sizes = [_labels(labels, clients, split).size for labels, split in ((train, "training"), (test, None))]
    return Partition(*(_sorted(np.array_split(rng.permutation(size), clients)) for size in sizes))


def shards(train: ArrayLike, test: ArrayLike, clients: int, per_client: int, rng: np.random.Generator) -> Partition:
    """Every client gets ``per_client`` shards of one class each, and test shards of the same classes (METHODS.md F.1).

    Each class is cut, in data-set order, into N·s/K near-equal shards; a shuffled N×s table says which classes a client
    gets, and the test set is cut by the same table. A client may get a class twice, so it holds at most s classes.

    Raises:
        InputError: If N·s is no multiple of K, or a class has fewer samples than shards.
    """
    train, test = _labels(train, clients, "training"), _labels(test, clients, None)
    classes = int(train.max()) + 1
    if clients * per_client % classes:
        raise InputError(
            f"shards: {clients} clients × {per_client} shards = {clients * per_client} is no multiple of the "
            f"{classes} classes"
        )
    each = clients * per_client // classes
    table = rng.permutation(np.repeat(np.arange(classes), each)).reshape(clients, per_client)

    def cut(labels: Indices, split: str) -> Cut:
        dealt: list[list[Indices]] = []
        for k in range(classes):
            of_class = np.flatnonzero(labels == k)
            if split == "training" and len(of_class) < each:
                raise InputError(f"shards: class {k} has {len(of_class)} {split} samples for {each} shards")
            pieces = np.array_split(of_class, each)
            dealt.append([pieces[i] for i in rng.permutation(each)])
        return [np.concatenate([dealt[k].pop() for k in row]) for row in table]

    return Partition(_sorted(cut(train, "training")), _sorted(cut(test, "test")))


def dirichlet(train: ArrayLike, test: ArrayLike, clients: int, alpha: float, rng: np.random.Generator) -> Partition:
    """Every class is spread over the clients in proportions drawn from Dir(alpha·1_N) (METHODS.md F.2).

    A client that holds n/N samples gets no more; the draw is repeated until every client has at least 10. The papers
    that use this recipe test one global model only; here the test set is cut in the proportions that the training set
    got, so that a client is tested on what it trains on. A client may get no test sample of a rare class, or none.

    Raises:
        InputError: If no draw gives every client 10 samples.
    """
    train, test = _labels(train, clients, "training"), _labels(test, clients, None)
    if len(train) < clients * DIRICHLET_MIN_SIZE:
        raise InputError(
            f"partition: dirichlet gives every client at least {DIRICHLET_MIN_SIZE} samples, and {len(train)} training "
            f"samples suffice for {len(train) // DIRICHLET_MIN_SIZE} clients, not for {clients}"
        )
    for _ in range(DIRICHLET_TRIES):
        counts = _dirichlet_counts(np.bincount(train), clients, alpha, rng)
        if counts.sum(axis=0).min() >= DIRICHLET_MIN_SIZE:
            break
    else:
        raise InputError(
            f"alpha: {alpha} left some client with fewer than {DIRICHLET_MIN_SIZE} samples in {DIRICHLET_TRIES} draws "
            f"over {clients} clients; a larger alpha or fewer clients are feasible"
        )
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    test_counts = np.diff(
        np.round(shares.cumsum(axis=1) * np.bincount(test, minlength=len(counts))[:, None]), prepend=0
    )
    return Partition(_deal(train, counts, rng), _deal(test, test_counts.astype(np.int64), rng))


def _dirichlet_counts(sizes: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """How many samples of each class each client gets, K×N."""
    fair = sizes.sum() / clients
    held = np.zeros(clients)
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    for k, size in enumerate(sizes):
        p = rng.dirichlet(np.full(clients, alpha)) * (held < fair)
        if p.sum() == 0:  # with a tiny alpha the whole mass can fall on clients that are full
            p = (held < fair).astype(float)
        ends = np.floor(p.cumsum() / p.cumsum()[-1] * size).astype(np.int64)
        counts[k] = np.diff(ends, prepend=0)
        held += counts[k]
    return counts


def _deal(labels: Indices, counts: Indices, rng: np.random.Generator) -> Cut:
    """Deal every class, shuffled, in the given counts (K×N)."""
    dealt: list[list[Indices]] = [[] for _ in range(counts.shape[1])]
    for k, of_client in enumerate(counts):
        pieces = np.split(rng.permutation(np.flatnonzero(labels == k)), of_client.cumsum()[:-1])
        for mine, piece in zip(dealt, pieces, strict=True):
            mine.append(piece)
    return _sorted([np.concatenate(mine) for mine in dealt])


def _labels(labels: ArrayLike, clients: int, split: str | None) -> Indices:
    """Labels of any container as one int64 array; refuses more clients than samples where ``split`` is named."""
    array = np.asarray(labels, dtype=np.int64)
    if split is not None and clients > len(array):
        raise InputError(f"clients: {clients} is more than the {len(array)} {split} samples")
    return array


def _sorted(cut: Sequence[Indices]) -> Cut:
    return [np.sort(piece) for piece in cut]
