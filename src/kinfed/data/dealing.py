"""What the recipes are made of: an owner for every sample, drawn or dealt.

Letters: ``n`` samples, ``N`` clients, ``K`` classes. Owners are 0..N-1, or `NOBODY`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kinfed.data.partition import NOBODY, Indices, Partition, rows_by
from kinfed.errors import InputError

__all__ = [
    "classes_of", "dealt", "even", "in_proportion", "owned", "parts", "read_labels", "shuffled", "split_locally",
]  # fmt: skip

LOCAL_TEST = 0.2  # of a client's own samples (FedCRC)


def read_labels(train: ArrayLike, test: ArrayLike, clients: int) -> tuple[Indices, Indices]:
    """Labels of any container as int64 arrays; refuses more clients than training samples."""
    arrays = np.asarray(train, dtype=np.int64), np.asarray(test, dtype=np.int64)
    if clients > len(arrays[0]):
        raise InputError(f"clients: {clients} is more than the {len(arrays[0])} training samples")
    return arrays


def classes_of(train: Indices, test: Indices) -> int:
    """K, when labels are 0..K-1."""
    return int(max(train.max(initial=-1), test.max(initial=-1))) + 1


def even(count: int, parts: int) -> Indices:
    """Sizes that differ by one at most, the larger ones first."""
    return np.full(parts, count // parts) + (np.arange(parts) < count % parts)


def parts(shares: NDArray[np.float64], count: int) -> Indices:
    """``count`` in the given proportions, rounded."""
    sizes: Indices = np.diff(np.round(shares.cumsum() / shares.sum() * count), prepend=0).astype(np.int64)
    return sizes


def shuffled(sizes: Indices, rng: np.random.Generator) -> Indices:
    """Owners of as many samples as the sizes add up to, at random."""
    owner = np.empty(sizes.sum(), dtype=np.int64)
    owner[rng.permutation(len(owner))] = np.repeat(np.arange(len(sizes)), sizes)
    return owner


def dealt(labels: Indices, counts: Indices, rng: np.random.Generator) -> Indices:
    """Owner of every sample when each class, shuffled, is dealt in the given counts (K×N)."""
    owner = np.full_like(labels, NOBODY)
    for rows, of_client in zip(rows_by(labels, len(counts)), counts, strict=True):
        owner[rng.permutation(rows)[: of_client.sum()]] = np.repeat(np.arange(len(of_client)), of_client)
    return owner


def in_proportion(counts: Indices, test: Indices) -> Indices:
    """Test samples of each class and client, K×N, in the proportions of the training samples."""
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    sizes = np.bincount(test, minlength=len(counts))
    counted: Indices = np.diff(np.round(shares.cumsum(axis=1) * sizes[:, None]), prepend=0).astype(np.int64)
    return counted


def owned(train: Indices, test: Indices, clients: int) -> Partition:
    """The partition of two arrays of owners."""
    return Partition(rows_by(train, clients), rows_by(test, clients))


def split_locally(owner: Indices, clients: int, rng: np.random.Generator, names: tuple[str, ...] = ()) -> Partition:
    """Keep a fifth of each client's pooled samples, one at least, to be tested on; a single sample is trained on."""
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    sizes = np.bincount(owner + 1, minlength=clients + 1)
    rank = np.arange(len(owner)) - np.repeat(sizes.cumsum() - sizes, sizes)
    kept = np.where(sizes > 1, np.round(LOCAL_TEST * sizes).clip(min=1), 0)
    tested = np.empty(len(owner), dtype=bool)
    tested[order] = rank < np.repeat(kept, sizes)
    train, test = (rows_by(np.where(mask, owner, NOBODY), clients) for mask in (~tested, tested))
    return Partition(train, test, pooled=True, names=names)
