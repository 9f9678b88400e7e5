"""Federations: a data set, the samples of each client, and the public images of the server.

Letters: ``N`` clients, ``K`` classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.data.partitions.partition import Cut, Indices, Partition
from kinfed.data.samples import Dataset, Samples, labels_of

__all__ = ["Federation"]


@dataclass(frozen=True)
class Federation:
    """A data set divided among N clients, numbered 0..N-1.

    Attributes:
        dataset: Data set with the samples of all clients.
        partition: Rows of each client in `splits`.
        public_rows: Rows of ``dataset.train`` that the server holds as public images; empty if it holds none.
        new_clients: Rows of each new client in `splits`. New clients never train; their numbers begin at N.

    Raises:
        ValueError: If a sample belongs to two clients, to a client and the server, or does not exist.

    >>> from kinfed.data import from_arrays
    >>> dataset = from_arrays([[0.1], [0.2], [0.3]], [0, 1, 1], [[0.2], [0.3]], [0, 1])
    >>> partition = Partition(train=[np.array([0, 1]), np.array([2])], test=[np.array([0]), np.array([1])])
    >>> federation = Federation(dataset, partition, public_rows=np.array([], dtype=np.int64))
    >>> federation.class_counts()
    array([[1, 1],
           [0, 1]])
    """

    dataset: Dataset
    partition: Partition
    public_rows: Indices
    new_clients: Partition = Partition([], [])  # noqa: RUF009 - its lists are never changed

    def __post_init__(self) -> None:
        train = [*self.partition.train, *self.new_clients.train, self.public_rows]
        test = [*self.partition.test, *self.new_clients.test]
        sizes = len(self.dataset.train), len(self.dataset.test)
        splits = [("training", train, sizes[0]), ("test", test, sizes[1])]
        if self.partition.pooled:
            splits = [("pooled", train + test, sum(sizes))]
        for name, cut, size in splits:
            rows = np.concatenate(cut)
            there = not len(rows) or 0 <= rows.min() <= rows.max() < size
            if not there or np.bincount(rows).max(initial=0) > 1:
                raise ValueError(
                    f"a {name} sample belongs to two clients, to a client and the server, or does not exist"
                )

    def __len__(self) -> int:
        return len(self.partition)

    @cached_property
    def splits(self) -> tuple[Samples, Samples]:
        """The two sample sets to which the row numbers of a partition refer, for training and for test.

        These are the training set and the test set; for a pooled partition, both are the training set followed by the
        test set.
        """
        train, test = self.dataset.train, self.dataset.test
        if not self.partition.pooled:
            return train, test
        labels = torch.from_numpy(np.concatenate([labels_of(train), labels_of(test)]))
        together = replace(train, inputs=torch.cat([train.inputs, test.inputs]), labels=labels)
        return together, together

    def train(self, client: int) -> Samples:
        """Return a copy of the training samples of a client or new client.

        Raises:
            IndexError: If there is no such client.
        """
        return self.splits[0].take(self._rows(client)[0])

    def test(self, client: int) -> Samples:
        """Return a copy of the test samples of a client or new client; there may be none.

        Raises:
            IndexError: If there is no such client.
        """
        return self.splits[1].take(self._rows(client)[1])

    def _rows(self, client: int) -> tuple[Indices, Indices]:
        clients = len(self) + len(self.new_clients)
        if not 0 <= client < clients:
            raise IndexError(f"client: {client} is not allowed; must be from 0 to {clients - 1}")
        holder, at = (self.partition, client) if client < len(self) else (self.new_clients, client - len(self))
        return holder.train[at], holder.test[at]

    @cached_property
    def public_images(self) -> Samples | None:
        """The public images that the server holds, without labels; None if it holds none."""
        return self.dataset.train.take(self.public_rows).without_labels() if len(self.public_rows) else None

    @cached_property
    def tested(self) -> tuple[Samples, list[Indices]]:
        """The test samples of the global model, and the rows of each client's own samples among them.

        These are the whole test set (specification G.1). If the clients' samples were split locally, they are instead
        the test samples of all clients but the new ones, since clients may train on samples of the official test set.
        """
        own = self.partition.test
        if not self.partition.pooled:
            return self.dataset.test, own
        rows = np.sort(np.concatenate(own))
        return self.splits[1].take(rows), [np.searchsorted(rows, mine) for mine in own]

    @property
    def unused(self) -> int:
        """The number of training and test samples that neither a client nor the server holds."""
        holders = (self.partition, self.new_clients)
        held = sum(len(rows) for holder in holders for rows in (*holder.train, *holder.test))
        return len(self.dataset.train) + len(self.dataset.test) - held - len(self.public_rows)

    def pooled(self) -> Federation:
        """Return a federation with one client, which holds the training and test samples of all clients."""
        train, test = ([np.sort(np.concatenate(cut))] for cut in (self.partition.train, self.partition.test))
        return replace(self, partition=Partition(train, test, self.partition.pooled))

    def class_counts(self) -> NDArray[np.int64]:
        """Count the training samples of each client and class, N×K."""
        return self._counts(self.partition.train, self.dataset.train)

    def new_class_counts(self) -> NDArray[np.int64]:
        """Count the training samples of each new client and class, one row per new client."""
        return self._counts(self.new_clients.train, self.dataset.train)

    def test_class_counts(self) -> NDArray[np.int64]:
        """Count the test samples of each client and class, N×K."""
        return self._counts(self.partition.test, self.dataset.test)

    def new_test_class_counts(self) -> NDArray[np.int64]:
        """Count the test samples of each new client and class, one row per new client."""
        return self._counts(self.new_clients.test, self.dataset.test)

    def _counts(self, cut: Cut, split: Samples) -> NDArray[np.int64]:
        labels = labels_of(split)
        if self.partition.pooled:
            labels = np.concatenate([labels_of(self.dataset.train), labels_of(self.dataset.test)])
        clients, classes = len(cut), len(self.dataset.classes)
        client = np.repeat(np.arange(clients), [len(rows) for rows in cut])
        cells = client * classes + labels[np.concatenate([np.arange(0), *cut])]
        return np.bincount(cells, minlength=clients * classes).reshape(clients, classes)
