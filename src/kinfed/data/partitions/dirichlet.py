"""Partitions by a Dirichlet distribution, over the clients of each class, the classes of each client, or the sizes.

Letters: ``n`` samples, ``N`` clients, ``K`` classes. Labels are 0..K-1, in any container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt
from numpy.typing import ArrayLike

from kinfed.data.partitions.assign import (
    assign_at_random,
    assign_by_class,
    equal_sizes,
    number_of_classes,
    partition_by_owner,
    proportional_counts,
    read_labels,
    read_pool,
    rounded_sizes,
    split_locally,
)
from kinfed.data.partitions.partition import Indices, Partition
from kinfed.data.partitions.partitioner import Partitioner
from kinfed.errors import InputError

__all__ = ["Dirichlet", "DirichletClients", "Quantity"]

SMALLEST = 10  # smallest number of training samples of a client (as in the code of MOON and NIID-Bench)
DIRICHLET_TRIES = 1000
# If on average m clients are too small, a draw has no such client with probability about exp(-m). For m = 14, one of a
# thousand draws succeeds with probability about 0.001; m is estimated from at least TRIED draws.
HOPELESS, TRIED = 14, 20


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each class divided among the clients in proportions drawn from Dir(α·1_N).

    A client that holds n/N training samples gets no more (specification F.2). The draw is repeated until every client
    has at least 10 training samples: at most 1,000 times, and as few as 20 times if success is unlikely. The test
    samples of each class are divided in the same proportions as the training samples, so that a client is tested on
    classes that it trains on; the papers test only the global model. A client may get no test samples of a rare class,
    or none at all.

    Attributes:
        alpha: Concentration α > 0; the smaller it is, the more the clients differ.

    Raises:
        InputError: If alpha is not positive, or no draw gives every client 10 training samples. The message then names
            an alpha that does, if there is one.

    >>> partition = Dirichlet(alpha=0.5)([0, 1] * 50, [0, 1] * 10, 3, np.random.default_rng(0))
    >>> len(partition), sum(len(rows) for rows in partition.train)
    (3, 100)
    """

    options: ClassVar[Mapping[str, str]] = {"alpha": "alpha"}

    alpha: Annotated[float, Gt(0)] = 0.5

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels."""
        train, test = read_labels(train, test, clients)
        _enough("dirichlet", len(train), clients)
        counts = _dirichlet_draw(np.bincount(train, minlength=number_of_classes(train, test)), clients, self.alpha, rng)
        return partition_by_owner(
            assign_by_class(train, counts, rng), assign_by_class(test, proportional_counts(counts, test), rng), clients
        )


@dataclass(frozen=True)
class DirichletClients(Partitioner):
    """Clients of equal sizes, each with class proportions drawn from Dir(α·1_K).

    The training and the test set are pooled (specification F.3). Clients draw their samples one after another, in
    random order. If a class runs out, the missing samples are drawn from the remaining classes, in the client's
    proportions. Then a fifth of each client's samples is held out for testing, stratified by class. Sizes differ by at
    most one, and every sample is used.

    Attributes:
        alpha: Concentration α > 0; the smaller it is, the more the clients differ.

    Raises:
        InputError: If alpha is not positive, or a client would get fewer than two samples.

    >>> partition = DirichletClients(alpha=0.5)([0, 1] * 50, [0, 1] * 10, 3, np.random.default_rng(0))
    >>> [len(rows) for rows in partition.train], [len(rows) for rows in partition.test]
    ([32, 32, 32], [8, 8, 8])
    """

    options: ClassVar[Mapping[str, str]] = {"alpha": "alpha"}

    alpha: Annotated[float, Gt(0)] = 0.5

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels."""
        pool = read_pool("dirichlet_clients", train, test, clients)
        left = np.bincount(pool)
        wanted = rng.dirichlet(np.full(len(left), self.alpha), clients)
        counts = np.zeros((clients, len(left)), dtype=np.int64)
        for client, size in zip(rng.permutation(clients), equal_sizes(len(pool), clients), strict=True):
            missing = int(size)
            while missing:  # each pass finds all missing samples or uses up a class
                p = np.where(left > 0, wanted[client], 0.0)
                if not p.any():
                    p = (left > 0).astype(float)
                found = np.minimum(rng.multinomial(missing, p / p.sum()), left)
                counts[client] += found
                left -= found
                missing -= int(found.sum())
        return split_locally(assign_by_class(pool, counts.T, rng), pool, clients, rng)


@dataclass(frozen=True)
class Quantity(Partitioner):
    """IID samples in unequal numbers, in proportions drawn from Dir(α·1_N).

    Every client gets 10 training samples; the rest is divided in the drawn proportions. The test set is divided in the
    proportions of the training sizes. This differs from NIID-Bench, which repeats the draw until the smallest share
    gives 10 samples; with many clients that never happens.

    Attributes:
        alpha: Concentration α > 0; the smaller it is, the more the clients differ.

    Raises:
        InputError: If alpha is not positive, or there are fewer than 10·N training samples.

    >>> partition = Quantity(alpha=0.5)([0, 1] * 50, [0, 1] * 10, 3, np.random.default_rng(0))
    >>> min(len(rows) for rows in partition.train) >= 10
    True
    """

    options: ClassVar[Mapping[str, str]] = {"alpha": "alpha"}

    alpha: Annotated[float, Gt(0)] = 0.5

    @property
    def reads_labels(self) -> bool:
        """False: only the sizes of the clients differ."""
        return False

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Assign the rows of both sets to clients, from their labels."""
        train, test = read_labels(train, test, clients)
        _enough("quantity", len(train), clients)
        rest = rounded_sizes(rng.dirichlet(np.full(clients, self.alpha)), len(train) - SMALLEST * clients)
        sizes = SMALLEST + rest
        owner = assign_at_random(sizes, rng)
        return partition_by_owner(owner, assign_at_random(rounded_sizes(sizes / len(train), len(test)), rng), clients)


def _dirichlet_draw(sizes: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Draw samples of each class and client, K×N, until every client has at least 10."""
    few = 0
    for tried in range(1, DIRICHLET_TRIES + 1):
        counts = _dirichlet_counts(sizes, clients, alpha, rng)
        now = int((counts.sum(axis=0) < SMALLEST).sum())
        if not now:
            return counts
        few += now
        if tried >= TRIED and few > HOPELESS * tried:
            break
    larger = (float(alpha * 2**i) for i in range(1, 20))
    feasible = (a for a in larger if _dirichlet_counts(sizes, clients, a, rng).sum(axis=0).min() >= SMALLEST)
    hint = next((f"alpha {a:.3g} or fewer clients are" for a in feasible), "only fewer clients are")
    raise InputError(
        f"alpha: {alpha} left some of {clients} clients with fewer than {SMALLEST} samples in each of {tried} draws, "
        f"{few / tried:,.1f} on average; {hint} feasible"
    )


def _dirichlet_counts(sizes: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Draw samples of each class and client once, K×N."""
    fair = sizes.sum() / clients
    held = np.zeros(clients)
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    for k, size in enumerate(sizes):
        p = rng.dirichlet(np.full(clients, alpha)) * (held < fair)
        if p.sum() == 0:  # with a tiny alpha, all mass can fall on clients that are full
            p = (held < fair).astype(float)
        ends = np.floor(p.cumsum() / p.cumsum()[-1] * size).astype(np.int64)
        counts[k] = np.diff(ends, prepend=0)
        held += counts[k]
    return counts


def _enough(partition: str, samples: int, clients: int) -> None:
    if samples < clients * SMALLEST:
        raise InputError(
            f"partition: {partition} gives every client at least {SMALLEST} samples, and {samples} training "
            f"samples suffice for {samples // SMALLEST} clients, not for {clients}"
        )
