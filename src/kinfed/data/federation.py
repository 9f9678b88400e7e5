"""The clients and what each one holds, and the images that the server itself holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfed.data.partition import Indices, Partition
from kinfed.data.samples import Dataset, Samples
from kinfed.errors import InputError
from kinfed.streams import numpy_stream

__all__ = ["Federation", "federate"]

Recipe = Callable[[Indices, Indices, int, np.random.Generator], Partition]


@dataclass(frozen=True)
class Federation:
    """N clients, numbered 0..N-1, over one data set.

    Attributes:
        dataset: What is shared out.
        partition: Rows of ``dataset.train`` and ``dataset.test`` of each client.
        probe_rows: Rows of ``dataset.train`` that the server holds and no client has; empty if it holds none.
    """

    dataset: Dataset
    partition: Partition
    probe_rows: Indices

    def __post_init__(self) -> None:
        for name, cut, size in (
            ("training", [*self.partition.train, self.probe_rows], len(self.dataset.train)),
            ("test", self.partition.test, len(self.dataset.test)),
        ):
            rows = np.concatenate(cut)
            if len(np.unique(rows)) < len(rows) or (len(rows) and not 0 <= rows.min() <= rows.max() < size):
                raise ValueError(
                    f"a {name} sample belongs to two clients, to a client and the server, or does not exist"
                )

    def __len__(self) -> int:
        return len(self.partition)

    def train(self, client: int) -> Samples:
        """A client's training samples."""
        return self.dataset.train.take(self.partition.train[client])

    def test(self, client: int) -> Samples:
        """A client's test samples; there may be none."""
        return self.dataset.test.take(self.partition.test[client])

    @property
    def probe(self) -> Samples | None:
        """The server's own images, unlabelled, or None."""
        return self.dataset.train.take(self.probe_rows).without_labels() if len(self.probe_rows) else None

    def pooled(self) -> Federation:
        """The same data with one client that holds all training and test samples of the clients."""
        whole = Partition(*([np.sort(np.concatenate(cut))] for cut in (self.partition.train, self.partition.test)))
        return Federation(self.dataset, whole, self.probe_rows)

    def class_counts(self) -> NDArray[np.int64]:
        """Training samples of each client and class, N×K."""
        labels = _labels(self.dataset.train)
        classes = len(self.dataset.classes)
        return np.stack([np.bincount(labels[rows], minlength=classes) for rows in self.partition.train])


def federate(dataset: Dataset, recipe: Recipe, *, clients: int, probe: int, seed: int) -> Federation:
    """Withhold the probe set, then share out the rest.

    The probe set is balanced over the classes as far as possible and is withheld whatever the method, so that methods
    are compared on the same clients (METHODS.md F.0).

    Args:
        dataset: What to share out.
        recipe: ``(train labels, test labels, clients, rng) -> Partition``.
        clients: N.
        probe: How many training images the server holds.
        seed: Of the run.

    Raises:
        InputError: If there are fewer samples than asked for, or the recipe cannot be met.
    """
    labels = _labels(dataset.train)
    if probe >= len(labels):
        raise InputError(f"probe: {probe} leaves none of the {len(labels)} training samples for the clients")
    withheld = _balanced(labels, probe, numpy_stream(seed, "probe"))
    rest = np.setdiff1d(np.arange(len(labels)), withheld)
    cut = recipe(labels[rest], _labels(dataset.test), clients, numpy_stream(seed, "partition"))
    return Federation(dataset, Partition([rest[rows] for rows in cut.train], cut.test), withheld)


def _balanced(labels: Indices, count: int, rng: np.random.Generator) -> Indices:
    """``count`` rows with as equal class counts as the data allow: the classes take turns until one runs out."""
    turn = np.empty(len(labels), dtype=np.int64)
    for k in np.unique(labels):
        of_class = np.flatnonzero(labels == k)
        turn[of_class] = rng.permutation(len(of_class))
    return np.sort(np.lexsort((rng.permutation(len(labels)), turn))[:count])


def _labels(samples: Samples) -> Indices:
    assert samples.labels is not None
    return samples.labels.numpy()
