"""Federations: a data set, the samples of each client, and the public images of the server.

Letters: ``N`` clients, ``K`` classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.data.partitions.partition import Cut, Indices, Partition
from kinfed.data.samples import Dataset, Samples, joined, labels_of

__all__ = ["Federation", "TestSet"]


@dataclass(frozen=True)
class TestSet:
    """Samples on which a global model is tested: the pooled test set, followed by the clients' validation samples.

    Attributes:
        samples: The samples.
        size: Number n of samples of the pooled test set, which are the first ones.
        test: Rows of each client's own test samples.
        validation: Rows of each client's validation samples; empty without validation.
    """

    __test__ = False  # pytest collects classes named Test…

    samples: Samples
    size: int
    test: Cut
    validation: Cut

    def parts(self, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two parts of a mask of the samples: the pooled test set, and the validation samples."""
        return right[: self.size], right[self.size :]

    @cached_property
    def owned(self) -> list[tuple[Tensor, Tensor]]:
        """The owner and the row of each client's own test sample, n each, and those of validation samples if any."""
        return [
            (torch.arange(len(cut)).repeat_interleave(torch.tensor([*map(len, cut)])), torch.from_numpy(np.hstack(cut)))
            for cut in (self.test, self.validation)
            if cut
        ]

    def own(self, right: Tensor, client: int) -> tuple[Tensor, Tensor]:
        """Return the entries of a mask for a client's own test samples, and for its validation samples."""
        validation = self.validation[client] if self.validation else np.arange(0)
        return right[torch.from_numpy(self.test[client])], right[torch.from_numpy(validation)]


@dataclass(frozen=True)
class Federation:
    """A data set divided among N clients, numbered 0..N-1.

    Attributes:
        dataset: Data set with the samples of all clients.
        partition: Rows of each client in `splits`.
        public_rows: Rows of ``dataset.train`` that the server holds as public images; empty if it holds none.
        new_clients: Rows of each new client in `splits`. New clients never train; their numbers begin at N.
        validation: Rows of each client's validation samples in the training split of `splits`; empty for none.
        groups: Group of each client, then of each new client, under a planted shift; empty for none. No method sees it.
        labelled: Other data with labels, on which representations are tested if ``dataset`` has none; None for none.
        labelled_validation: Rows of ``labelled.train`` that are validation samples, of every client; empty for none.

    Raises:
        ValueError: If a sample belongs to two clients, to a client and the server, or does not exist; or if there are
            groups, but not one of each client and new client.

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
    validation: Cut = field(default_factory=list)
    groups: tuple[int, ...] = ()
    labelled: Dataset | None = None
    labelled_validation: Indices = field(default_factory=lambda: np.arange(0))

    def __post_init__(self) -> None:
        train = [*self.partition.train, *self.new_clients.train, *self.validation, self.public_rows]
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
        if len(self.groups) not in (0, len(self.partition) + len(self.new_clients)):
            raise ValueError(f"there are {len(self.groups)} groups, but not one of each client and new client")

    def __len__(self) -> int:
        return len(self.partition)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that models are tested on: of the data, or of ``labelled``; empty without labels."""
        return (self.labelled or self.dataset).classes

    @cached_property
    def splits(self) -> tuple[Samples, Samples]:
        """The two sample sets to which the row numbers of a partition refer, for training and for test.

        These are the training set and the test set; for a pooled partition, both are the training set followed by the
        test set.
        """
        train, test = self.dataset.train, self.dataset.test
        if not self.partition.pooled:
            return train, test
        together = joined(train, test)
        return together, together

    def name(self, client: int) -> str:
        """Return the name of a client or new client in the data, or its number if the data have no names."""
        holder, at = self._held(client)
        return holder.name(at) if holder.names else str(client)

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

    def validate(self, client: int) -> Samples:
        """Return a copy of the validation samples of a client; there may be none."""
        return self.splits[0].take(self.validation[client] if client < len(self.validation) else [])

    def _rows(self, client: int) -> tuple[Indices, Indices]:
        holder, at = self._held(client)
        return holder.train[at], holder.test[at]

    def _held(self, client: int) -> tuple[Partition, int]:
        """Return the partition that has a client or new client, and its place in it."""
        clients = len(self) + len(self.new_clients)
        if not 0 <= client < clients:
            raise IndexError(f"client: {client} is not allowed; must be from 0 to {clients - 1}")
        return (self.partition, client) if client < len(self) else (self.new_clients, client - len(self))

    @cached_property
    def public_images(self) -> Samples | None:
        """The public images that the server holds, without labels; None if it holds none."""
        return self.dataset.train.take(self.public_rows).without_labels() if len(self.public_rows) else None

    @cached_property
    def tested(self) -> TestSet:
        """The samples on which a global model is tested.

        The pooled test set is the whole test set (specification G.1). If the clients' samples were split locally, it is
        instead the test samples of all clients but the new ones, since clients may train on samples of the official
        test set. The same holds under a planted shift, where a sample without a client has no group. For data without
        labels it is the test set of ``labelled``, of which no sample belongs to a client, and its validation samples
        are those of every client.
        """
        if self.labelled is not None:
            pooled, rows = self.labelled.test, self.labelled_validation
            size, validation = len(pooled), [len(pooled) + np.arange(len(rows))] * len(self) if len(rows) else []
            if len(rows):
                pooled = joined(pooled, self.labelled.train.take(rows))
            return TestSet(pooled, size, [np.arange(0)] * len(self), validation)
        own, pooled = self.partition.test, self.dataset.test
        if self.partition.pooled or self.groups:
            rows = np.sort(np.concatenate(own))
            own, pooled = [np.searchsorted(rows, mine) for mine in own], self.splits[1].take(rows)
        sizes = [len(rows) for rows in self.validation]
        ends = len(pooled) + np.cumsum(sizes, dtype=np.int64)
        validation = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        if sizes:
            pooled = joined(pooled, self.splits[0].take(np.concatenate(self.validation)))
        return TestSet(pooled, len(pooled) - sum(sizes), own, validation)

    @property
    def unused(self) -> int:
        """The number of training and test samples that neither a client nor the server holds."""
        holders = (self.partition, self.new_clients)
        cuts = [self.validation, *(cut for holder in holders for cut in (holder.train, holder.test))]
        held = sum(len(rows) for cut in cuts for rows in cut)
        return len(self.dataset.train) + len(self.dataset.test) - held - len(self.public_rows)

    def pooled(self) -> Federation:
        """Return a federation with one client, which holds the training and test samples of all clients."""
        train, test = ([np.sort(np.concatenate(cut))] for cut in (self.partition.train, self.partition.test))
        return replace(self, partition=Partition(train, test, self.partition.pooled), validation=[], groups=())

    def class_counts(self) -> NDArray[np.int64]:
        """Count the training samples of each client and class, N×K; N×0 without labels."""
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
        if not self.dataset.labelled:
            return np.zeros((len(cut), 0), dtype=np.int64)
        labels = labels_of(split)
        if self.partition.pooled:
            labels = np.concatenate([labels_of(self.dataset.train), labels_of(self.dataset.test)])
        clients, classes = len(cut), len(self.dataset.classes)
        client = np.repeat(np.arange(clients), [len(rows) for rows in cut])
        cells = client * classes + labels[np.concatenate([np.arange(0), *cut])]
        return np.bincount(cells, minlength=clients * classes).reshape(clients, classes)
