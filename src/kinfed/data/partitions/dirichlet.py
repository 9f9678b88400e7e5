"""Proportions drawn from a Dirichlet distribution: of the clients in a class, of the classes, of the sizes.

Letters: ``n`` samples, ``N`` clients, ``K`` classes. Labels are 0..K-1, in any container.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt
from numpy.typing import ArrayLike

from kinfed.data.partitions.assign import (
    assign_at_random,
    assign_by_class,
    check_clients,
    equal_sizes,
    number_of_classes,
    partition_by_owner,
    proportional_counts,
    read_labels,
    rounded_sizes,
    split_locally,
)
from kinfed.data.partitions.partition import Indices, Partition
from kinfed.data.partitions.partitioner import Partitioner
from kinfed.errors import InputError

__all__ = ["Dirichlet", "DirichletClients", "Quantity", "dirichlet", "dirichlet_clients", "quantity"]

SMALLEST = 10  # training samples of a client (MOON's and NIID-Bench's code)
DIRICHLET_TRIES = 1000
# If m clients are too small on average, a draw without any has a chance of about exp(-m): at 14, a thousand draws would
# find one once in a thousand times.
HOPELESS, TRIED = 14, 20


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Every class spread over the clients in proportions from Dir(α·1_N).

    Attributes:
        alpha: Concentration α; the smaller it is, the more the clients differ.
    """

    options: ClassVar[Mapping[str, str]] = {"alpha": "alpha"}

    alpha: Annotated[float, Gt(0)] = 0.5

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client; see `dirichlet`."""
        return dirichlet(train, test, clients, self.alpha, rng)


@dataclass(frozen=True)
class DirichletClients(Partitioner):
    """Class proportions of its own for every client, from Dir(α·1_K), and equal sizes.

    Attributes:
        alpha: Concentration α; the smaller it is, the more the clients differ.
    """

    options: ClassVar[Mapping[str, str]] = {"alpha": "alpha"}

    alpha: Annotated[float, Gt(0)] = 0.5

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client; see `dirichlet_clients`."""
        return dirichlet_clients(train, test, clients, self.alpha, rng)


@dataclass(frozen=True)
class Quantity(Partitioner):
    """Unequal sizes, in proportions from Dir(α·1_N), of the same classes.

    Attributes:
        alpha: Concentration α; the smaller it is, the more the clients differ.
    """

    options: ClassVar[Mapping[str, str]] = {"alpha": "alpha"}

    alpha: Annotated[float, Gt(0)] = 0.5

    def __call__(self, train: ArrayLike, test: ArrayLike, clients: int, rng: np.random.Generator) -> Partition:
        """Rows of each client; see `quantity`."""
        return quantity(train, test, clients, self.alpha, rng)


def dirichlet(train: ArrayLike, test: ArrayLike, clients: int, alpha: float, rng: np.random.Generator) -> Partition:
    """Every class is spread over the clients in proportions drawn from Dir(alpha·1_N) (specification F.2).

    A client that holds n/N samples gets no more; the draw is repeated until every client has at least 10. That ends: 20
    draws tell whether a thousand have a chance, and a thousand are the most. The papers that use it test one global
    model only; here the test set is cut in the proportions that the training set got, so that a client is tested
    on what it trains on. A client may get no test sample of a rare class, or none.

    Raises:
        InputError: If alpha is not positive, or no draw gives every client 10 samples; it names an alpha that does.
    """
    train, test = read_labels(train, test, clients)
    _positive(alpha)
    _enough("dirichlet", len(train), clients)
    counts = _dirichlet_draw(np.bincount(train, minlength=number_of_classes(train, test)), clients, alpha, rng)
    return partition_by_owner(
        assign_by_class(train, counts, rng), assign_by_class(test, proportional_counts(counts, test), rng), clients
    )


def dirichlet_clients(
    train: ArrayLike, test: ArrayLike, clients: int, alpha: float, rng: np.random.Generator
) -> Partition:
    """Each client has its own class proportions, drawn from Dir(alpha·1_K), and as many samples (specification F.3).

    The pool is the training and the test set together. Clients take turns in random order; what a class cannot give any
    more is drawn from the classes that are left, in the client's proportions. Then each client keeps a fifth of its
    samples of each class to be tested on. Sizes differ by one at most, and every sample is used.

    Raises:
        InputError: If alpha is not positive, or a client would get fewer than two samples.
    """
    check_clients(clients)
    train, test = read_labels(train, test, clients=1)
    _positive(alpha)
    pool = np.concatenate([train, test])
    if len(pool) < 2 * clients:
        raise InputError(
            f"clients: {clients} is too many; dirichlet_clients gives each one 2 of the {len(pool)} samples or more"
        )
    left = np.bincount(pool)
    wanted = rng.dirichlet(np.full(len(left), alpha), clients)
    counts = np.zeros((clients, len(left)), dtype=np.int64)
    for client, size in zip(rng.permutation(clients), equal_sizes(len(pool), clients), strict=True):
        missing = int(size)
        while missing:  # each time around, all is found or one more class is used up
            p = np.where(left > 0, wanted[client], 0.0)
            if not p.any():
                p = (left > 0).astype(float)
            found = np.minimum(rng.multinomial(missing, p / p.sum()), left)
            counts[client] += found
            left -= found
            missing -= int(found.sum())
    return split_locally(assign_by_class(pool, counts.T, rng), pool, clients, rng)


def quantity(train: ArrayLike, test: ArrayLike, clients: int, alpha: float, rng: np.random.Generator) -> Partition:
    """IID classes, unequal sizes: 10 training samples each, the rest in proportions drawn from Dir(alpha·1_N).

    The test set is cut in the proportions of the training sizes. [OURS]: NIID-Bench draws until the smallest share
    gives 10 samples, which with many clients never happens.

    Raises:
        InputError: If alpha is not positive, or there are fewer than 10 training samples a client.
    """
    train, test = read_labels(train, test, clients)
    _positive(alpha)
    _enough("quantity", len(train), clients)
    rest = rounded_sizes(rng.dirichlet(np.full(clients, alpha)), len(train) - SMALLEST * clients)
    sizes = SMALLEST + rest
    owner = assign_at_random(sizes, rng)
    return partition_by_owner(owner, assign_at_random(rounded_sizes(sizes / len(train), len(test)), rng), clients)


def _dirichlet_draw(sizes: Indices, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Counts K×N that leave nobody with fewer than 10."""
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


def _positive(alpha: float) -> None:
    if not 0 < alpha < math.inf:
        raise InputError(f"alpha: {alpha} is not allowed; must be greater than 0")


def _enough(partition: str, samples: int, clients: int) -> None:
    if samples < clients * SMALLEST:
        raise InputError(
            f"partition: {partition} gives every client at least {SMALLEST} samples, and {samples} training "
            f"samples suffice for {samples // SMALLEST} clients, not for {clients}"
        )
