"""The clients and what each one holds, and the images that the server itself holds."""

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
    """N clients, numbered 0..N-1, over one data set.

    Attributes:
        dataset: What is shared out.
        partition: Rows of the `splits` of each client.
        probe_rows: Rows of ``dataset.train`` that the server holds and no client has; empty if it holds none.
        new_clients: Likewise of clients that are held back: they never train, and are not among the N; they are
            numbered on from N.

    Raises:
        ValueError: If a sample belongs to two of them, or does not exist.
    """

    dataset: Dataset
    partition: Partition
    probe_rows: Indices
    new_clients: Partition = Partition([], [])  # noqa: RUF009 - frozen, and nobody fills its lists

    def __post_init__(self) -> None:
        train = [*self.partition.train, *self.new_clients.train, self.probe_rows]
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
        """What the partition's rows are rows of: training set and test set, or twice the one followed by the other."""
        train, test = self.dataset.train, self.dataset.test
        if not self.partition.pooled:
            return train, test
        labels = torch.from_numpy(np.concatenate([labels_of(train), labels_of(test)]))
        together = replace(train, inputs=torch.cat([train.inputs, test.inputs]), labels=labels)
        return together, together

    def train(self, client: int) -> Samples:
        """The training samples of a client, or a new one.

        Raises:
            IndexError: If there is no such client.
        """
        return self.splits[0].take(self._rows(client)[0])

    def test(self, client: int) -> Samples:
        """The test samples of a client, or a new one; there may be none.

        Raises:
            IndexError: If there is no such client.
        """
        return self.splits[1].take(self._rows(client)[1])

    def _rows(self, client: int) -> tuple[Indices, Indices]:
        clients = len(self) + len(self.new_clients)
        if not 0 <= client < clients:
            raise IndexError(f"client: {client} is not there; valid ids are 0..{clients - 1}")
        holder, at = (self.partition, client) if client < len(self) else (self.new_clients, client - len(self))
        return holder.train[at], holder.test[at]

    @cached_property
    def probe(self) -> Samples | None:
        """The server's own images, unlabelled, or None."""
        return self.dataset.train.take(self.probe_rows).without_labels() if len(self.probe_rows) else None

    @cached_property
    def tested(self) -> tuple[Samples, list[Indices]]:
        """What one global model is tested on, and which of these samples are each client's own.

        The official test set, whoever holds it (specification G.1). Where the clients' samples were split locally,
        it is the test samples of the clients that train: those of the official test set may have been trained on.
        """
        own = self.partition.test
        if not self.partition.pooled:
            return self.dataset.test, own
        rows = np.sort(np.concatenate(own))
        return self.splits[1].take(rows), [np.searchsorted(rows, mine) for mine in own]

    @property
    def unused(self) -> int:
        """How many training and test samples nobody holds."""
        holders = (self.partition, self.new_clients)
        held = sum(len(rows) for holder in holders for rows in (*holder.train, *holder.test))
        return len(self.dataset.train) + len(self.dataset.test) - held - len(self.probe_rows)

    def pooled(self) -> Federation:
        """The same data with one client that holds all training and test samples of the clients."""
        train, test = ([np.sort(np.concatenate(cut))] for cut in (self.partition.train, self.partition.test))
        return replace(self, partition=Partition(train, test, self.partition.pooled))

    def class_counts(self) -> NDArray[np.int64]:
        """Training samples of each client and class, N×K."""
        return self._counts(self.partition.train, self.dataset.train)

    def new_class_counts(self) -> NDArray[np.int64]:
        """Training samples of each new client and class."""
        return self._counts(self.new_clients.train, self.dataset.train)

    def test_class_counts(self) -> NDArray[np.int64]:
        """Test samples of each client and class, N×K."""
        return self._counts(self.partition.test, self.dataset.test)

    def new_test_class_counts(self) -> NDArray[np.int64]:
        """Test samples of each new client and class."""
        return self._counts(self.new_clients.test, self.dataset.test)

    def _counts(self, cut: Cut, split: Samples) -> NDArray[np.int64]:
        labels = labels_of(split)
        if self.partition.pooled:
            labels = np.concatenate([labels_of(self.dataset.train), labels_of(self.dataset.test)])
        clients, classes = len(cut), len(self.dataset.classes)
        client = np.repeat(np.arange(clients), [len(rows) for rows in cut])
        cells = client * classes + labels[np.concatenate([np.arange(0), *cut])]
        return np.bincount(cells, minlength=clients * classes).reshape(clients, classes)
