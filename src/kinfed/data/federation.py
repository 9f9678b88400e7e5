"""The clients and what each one holds, and the images that the server itself holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.data.partition import Cut, Indices, Partition
from kinfed.data.samples import Dataset, Samples
from kinfed.errors import InputError
from kinfed.streams import numpy_stream

__all__ = ["Federation", "Recipe", "balanced", "federate", "fewer", "of_classes"]

Recipe = Callable[..., Partition]


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
        labels = torch.from_numpy(np.concatenate([_labels(train), _labels(test)]))
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

        The whole official test set, whoever holds it (METHODS.md G.1). Where the clients' samples were split locally,
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
        labels = _labels(split)
        if self.partition.pooled:
            labels = np.concatenate([_labels(self.dataset.train), _labels(self.dataset.test)])
        clients, classes = len(cut), len(self.dataset.classes)
        client = np.repeat(np.arange(clients), [len(rows) for rows in cut])
        cells = client * classes + labels[np.concatenate([np.arange(0), *cut])]
        return np.bincount(cells, minlength=clients * classes).reshape(clients, classes)


def federate(
    dataset: Dataset,
    recipe: Recipe,
    *,
    clients: int,
    probe: int,
    seed: int,
    new_clients: int = 0,
    by: str | None = None,
) -> Federation:
    """Withhold the probe set, share out the rest, and hold back the new clients.

    The probe set is balanced over the classes as far as possible and is withheld whatever the method, so that methods
    are compared on the same clients (METHODS.md F.0).

    Args:
        dataset: What to share out.
        recipe: ``(train labels, test labels, clients, rng) -> Partition``; with ``by`` it is given the column's values,
            and as ``labels`` those of both splits, one after the other.
        clients: N, the new ones among them.
        probe: How many training images the server holds.
        seed: Of the run.
        new_clients: How many of the clients, at random, never train.
        by: The column whose values the recipe reads instead of the labels.

    Raises:
        InputError: If there are fewer samples than asked for, or the recipe cannot be met.
    """
    labels = _labels(dataset.train)
    for field, count, least in (("clients", clients, 1), ("probe", probe, 0), ("new_clients", new_clients, 0)):
        if count < least:
            raise InputError(f"{field}: {count} is not allowed; {least} or more")
    if probe >= len(labels):
        raise InputError(f"probe: {probe} leaves none of the {len(labels)} training samples for the clients")
    withheld = balanced(labels, probe, numpy_stream(seed, "probe"))
    rest = np.setdiff1d(np.arange(len(labels)), withheld)
    after, rng = _labels(dataset.test), numpy_stream(seed, "partition")
    if by is None:
        cut = recipe(labels[rest], after, clients, rng)
    else:
        train, test = dataset.columns[by]
        cut = recipe(train[rest], test, clients, rng, labels=np.concatenate([labels[rest], after]))
    if cut.pooled:
        rest = np.concatenate([rest, len(labels) + np.arange(len(dataset.test))])
        cut = replace(cut, test=[rest[rows] for rows in cut.test])
    cut = replace(cut, train=[rest[rows] for rows in cut.train])
    if new_clients >= len(cut):
        raise InputError(f"new_clients: {new_clients} leaves none of the {len(cut)} clients to train")
    idle = next((i for i, rows in enumerate(cut.train) if not len(rows)), None)
    if idle is not None:
        raise InputError(f"partition: client {idle} of {len(cut)} gets no training sample; fewer clients are feasible")
    held_back = np.sort(numpy_stream(seed, "new clients").choice(len(cut), new_clients, replace=False))
    return Federation(dataset, cut.of(np.setdiff1d(np.arange(len(cut)), held_back)), withheld, cut.of(held_back))


def fewer(dataset: Dataset, count: int, seed: int) -> Dataset:
    """The data set with only some of its training samples, at random, the classes as balanced as the data allow.

    Args:
        dataset: Its test set and normalisation stay.
        count: How many.
        seed: Of the run.

    Raises:
        InputError: If there are not so many.
    """
    if not 1 <= count <= len(dataset.train):
        raise InputError(f"train_images: {count} is not allowed; {dataset.name} has {len(dataset.train)}")
    rows = balanced(_labels(dataset.train), count, numpy_stream(seed, "train images"))
    columns = {name: (train[rows], test) for name, (train, test) in dataset.columns.items()}
    return replace(dataset, train=dataset.train.take(rows), columns=columns)


def of_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The data set with only the samples of some classes; labels, names of all classes and normalisation stay.

    Raises:
        InputError: If there is no such class, or a split has no sample of these.
    """
    for name in classes:
        if name not in dataset.classes:
            raise InputError(f"classes: {name!r} is not known; {dataset.name} has {', '.join(dataset.classes)}")
    wanted = [dataset.classes.index(name) for name in classes]
    train, test = (np.flatnonzero(np.isin(_labels(split), wanted)) for split in (dataset.train, dataset.test))
    if not len(train) or not len(test):
        raise InputError(f"classes: {dataset.name} has no samples of {', '.join(classes) or 'none'} to train and test")
    columns = {name: (before[train], after[test]) for name, (before, after) in dataset.columns.items()}
    return replace(dataset, train=dataset.train.take(train), test=dataset.test.take(test), columns=columns)


def balanced(labels: Indices, count: int, rng: np.random.Generator) -> Indices:
    """``count`` rows with as equal class counts as the data allow: the classes take turns until one runs out."""
    turn = np.empty(len(labels), dtype=np.int64)
    for k in np.unique(labels):
        of_class = np.flatnonzero(labels == k)
        turn[of_class] = rng.permutation(len(of_class))
    return np.sort(np.lexsort((rng.permutation(len(labels)), turn))[:count])


def _labels(samples: Samples) -> Indices:
    assert samples.labels is not None
    return samples.labels.numpy()
