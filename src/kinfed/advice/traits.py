"""Traits of a federation: sizes, label skew, feature skew, and labels that contradict each other.

The last two look at samples of all clients together, which only a simulation can.

Letters: ``N`` clients, ``K`` classes, ``n`` samples that are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.data import Federation
from kinfed.data.heterogeneity import effective_classes, total_variation
from kinfed.data.samples import labels_of
from kinfed.streams import numpy_stream

__all__ = ["Excess", "Traits", "traits"]

SAMPLES = 2000  # samples that are looked at, at most; their neighbours cost the square
CLIENTS = 100  # clients that are looked at, at most, so that each has some neighbours of its own
NEIGHBOURS = 5  # of each sample
SHUFFLES = 99  # draws of what chance gives

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Excess:
    """A quantity of a federation beside what it would be by chance.

    Attributes:
        value: The quantity.
        chance: Its mean over random federations, in which the samples are dealt to the clients anew.
        most: The largest value in these federations.

    >>> Excess(0.3, chance=0.1, most=0.12).found
    True
    """

    value: float
    chance: float
    most: float

    @property
    def found(self) -> bool:
        """True if chance gives less in each of 99 random federations."""
        return self.value > self.most

    @property
    def size(self) -> float:
        """How much of the quantity is not due to chance; 0 if chance could give it."""
        return self.value - self.chance if self.found else 0.0


@dataclass(frozen=True)
class Traits:
    """Traits of a federation.

    Attributes:
        clients: Number N of clients, 1 or more.
        least: Training samples of the client with the fewest, 1 or more.
        median: Median of the clients' training samples.
        samples: Training samples of all clients.
        classes: Number K of classes.
        own_classes: Median of the clients' effective numbers of classes, in [1, K]; None without labels.
        label_skew: Share of its samples that a client would have to exchange to have the class distribution of all
            clients (total variation), the mean over the samples, in [0, 1]. Chance deals the labels anew. None without
            labels.
        feature_skew: Share of the nearest neighbours of a sample that are at its own client, in [0, 1]. Chance deals
            the samples of each class anew among its holders, so that label skew alone is no feature skew. Without
            labels, all samples are dealt anew, and label skew counts as feature skew.
        conflict: How often the nearest neighbours at the own client have a sample's label, less how often those at
            other clients have it, in [-1, 1]. Chance is as for ``feature_skew``. None without labels.
    """

    clients: int
    least: int
    median: float
    samples: int
    classes: int
    own_classes: float | None
    label_skew: Excess | None
    feature_skew: Excess
    conflict: Excess | None

    @property
    def labelled(self) -> bool:
        """True if the clients have labels."""
        return self.label_skew is not None


def traits(federation: Federation, seed: int, *, labelled: bool = True) -> Traits:
    """Measure the traits of a federation on its training samples.

    Nearest neighbours are those of the normalised inputs by Euclidean distance, among at most 2,000 samples of at most
    100 clients. Each client gives the same share of its samples.

    Args:
        federation: The federation.
        seed: Seed of the run.
        labelled: False if the clients have no labels, so that none may be read.

    >>> from kinfed.data import load, make_federation, with_shift
    >>> plain = make_federation(load("digits"), "iid", clients=8, seed=0)
    >>> told = traits(with_shift(plain, "rotate:4", seed=0), seed=0)
    >>> told.label_skew.found, told.feature_skew.found, round(told.feature_skew.value, 1)
    (False, True, 0.5)
    """
    sizes = [len(rows) for rows in federation.partition.train]
    rows, client = _looked_at(federation, numpy_stream(seed, "traits", "samples"))
    samples = federation.splits[0].take(rows)
    label = labels_of(samples) if labelled else np.zeros(len(rows), dtype=np.int64)
    near = _neighbours(samples.batch(slice(None)).flatten(1).double())
    feature_skew, conflict = _excesses(
        lambda dealt: np.array([_at_own_client(near, dealt), _conflict(near, label, dealt)]),
        client,
        label,
        numpy_stream(seed, "traits", "chance"),
    )
    counts = federation.class_counts()
    return Traits(
        clients=len(sizes),
        least=min(sizes),
        median=float(np.median(sizes)),
        samples=sum(sizes),
        classes=len(federation.dataset.classes),
        own_classes=float(np.median(effective_classes(counts))) if labelled else None,
        label_skew=_label_skew(counts, numpy_stream(seed, "traits", "labels")) if labelled else None,
        feature_skew=feature_skew,
        conflict=conflict if labelled else None,
    )


def _looked_at(federation: Federation, stream: np.random.Generator) -> tuple[Labels, Labels]:
    """Draw samples of the clients; return their rows and their clients, n each."""
    chosen = np.sort(stream.permutation(len(federation))[:CLIENTS])
    held = [federation.partition.train[client] for client in chosen]
    share = min(1.0, SAMPLES / sum(map(len, held)))
    drawn = [stream.permutation(rows)[: max(1, round(share * len(rows)))] for rows in held]
    return np.concatenate(drawn), np.repeat(chosen, [len(rows) for rows in drawn])


def _neighbours(inputs: torch.Tensor) -> Labels:
    """Return the nearest neighbours of each input, n×k; k is less than 5 if there are fewer others."""
    inputs = inputs - inputs.mean(dim=0)  # so that the squares lose no digits
    squares = inputs.square().sum(dim=1)
    distances = squares[:, None] + squares - 2 * inputs @ inputs.T
    distances.fill_diagonal_(torch.inf)
    nearest: Labels = distances.topk(min(NEIGHBOURS, len(inputs) - 1), largest=False).indices.numpy()
    return nearest


def _at_own_client(near: Labels, client: Labels) -> float:
    """Return the share of the neighbours that are at the client of their sample; 0 without neighbours."""
    return float((client[near] == client[:, None]).mean()) if near.size else 0.0


def _conflict(near: Labels, label: Labels, client: Labels) -> float:
    """Return how much oftener neighbours at the own client have the label of a sample than those at other clients.

    It is 0 if one of the two kinds does not occur.
    """
    own, same = client[near] == client[:, None], label[near] == label[:, None]
    return float(same[own].mean() - same[~own].mean()) if own.any() and not own.all() else 0.0


def _excesses(
    measure: Callable[[Labels], NDArray[np.float64]], client: Labels, label: Labels, stream: np.random.Generator
) -> list[Excess]:
    """Measure quantities of the clients of samples, and the same where the samples of each class are dealt anew.

    Args:
        measure: Function of the client of each sample, n, that returns several quantities.
        client: Client of each sample, n.
        label: Label of each sample, n.
        stream: Random stream.
    """
    by_label = np.argsort(label, kind="stable")
    chance = []
    for _ in range(SHUFFLES):
        dealt = np.empty_like(client)
        dealt[by_label] = client[np.lexsort((stream.random(len(label)), label))]
        chance.append(measure(dealt))
    return [
        Excess(float(value), float(mean), float(most))
        for value, mean, most in zip(measure(client), np.mean(chance, axis=0), np.max(chance, axis=0), strict=True)
    ]


def _label_skew(counts: Labels, stream: np.random.Generator) -> Excess:
    """Return the mean total variation, and that of clients of the same sizes whose labels are dealt anew.

    Args:
        counts: Samples of each client and class, N×K.
        stream: Random stream.
    """
    sizes, pooled = counts.sum(axis=1), counts.sum(axis=0)

    def mean(of: Labels) -> float:
        return float(np.average(total_variation(of, pooled), weights=sizes))

    chance = [mean(_dealt(sizes, pooled, stream)) for _ in range(SHUFFLES)]
    return Excess(mean(counts), float(np.mean(chance)), max(chance))


def _dealt(sizes: Labels, pooled: Labels, stream: np.random.Generator) -> Labels:
    """Deal samples with K class counts to N clients at random; return the samples of each client and class, N×K."""
    counts = np.empty((len(sizes), len(pooled)), dtype=np.int64)
    left = pooled.copy()
    for client, size in enumerate(sizes):
        counts[client] = stream.multivariate_hypergeometric(left, size)
        left -= counts[client]
    return counts
