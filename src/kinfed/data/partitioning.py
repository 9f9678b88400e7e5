"""Federations from a data set and a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.data.federation import Federation
from kinfed.data.holdout import draw_public_groups
from kinfed.data.partitions import as_partition
from kinfed.data.partitions.columns import ByColumn, Folders
from kinfed.data.partitions.partition import Indices, Partition
from kinfed.data.partitions.partitioner import Partitioner
from kinfed.data.partitions.saved import Saved
from kinfed.data.samples import CLIENT, Dataset, strata
from kinfed.data.subsets import balanced
from kinfed.errors import InputError
from kinfed.fields import short
from kinfed.streams import numpy_stream

__all__ = ["make_federation"]

NAMED = 20  # largest number of names in a message
PUBLIC = 128  # default number of public images, unless a tenth of the training images is fewer


def make_federation(
    dataset: Dataset,
    partition: str | Partitioner | Saved | Callable[..., Any],
    *,
    clients: int | None,
    seed: int,
    public: int | None = None,
    groups: NDArray[Any] | None = None,
    new_clients: int = 0,
    hold_out: Sequence[str] = (),
) -> Federation:
    """Withhold the public images, divide the other samples among the clients, and hold back the new clients.

    The public images are balanced over the classes as far as possible. They are withheld for every method, so that all
    methods see the same client data (specification F.0).

    Args:
        dataset: Data set that is divided.
        partition: Name (``"dirichlet"``), object (``Dirichlet(alpha=0.1)``), or function
            ``(labels, clients, rng) -> rows of each client``.
        clients: Number of clients, including those that ``new_clients`` draws. If the data define the clients, the
            largest number, beside those of ``hold_out``. None for all that the data or a saved partition define.
        seed: Seed of the run.
        public: Number of training samples that the server holds as public images; if not given, 128, but at most a
            tenth of the training samples.
        groups: Group of each training sample, n: all samples of a group are public, or none. There are as many public
            images as whole groups allow, and a group of each class and client stays. None to draw single samples.
        new_clients: Number of clients, drawn at random, that never train.
        hold_out: Names of clients that never train either.

    Raises:
        InputError: If there are not enough samples, the data do not suit the partition, no client has a name in
            ``hold_out``, or a saved partition has other numbers of clients or public images.

    >>> from kinfed.data import from_arrays
    >>> dataset = from_arrays([[0.1]] * 40, [0, 1] * 20, [[0.1]] * 10, [0, 1] * 5)
    >>> federation = make_federation(dataset, "iid", clients=3, seed=0)
    >>> [len(federation.train(client)) for client in range(3)], len(federation.public_images)
    ([12, 12, 12], 4)
    """
    made, labels = as_partition(partition), strata(dataset.train)
    if isinstance(made, Saved):
        if hold_out:
            raise InputError(
                f"hold_out: {', '.join(hold_out)} would do nothing; {str(made.path)!r} names the new clients"
            )
        return made.federation(dataset, clients=clients, public=public, new_clients=new_clients)
    by_data = isinstance(made, ByColumn | Folders)
    if clients is None and not by_data:
        raise InputError("clients: must be given; the data do not define them")
    for field, count, least in (("clients", clients, 1), ("public", public, 0), ("new_clients", new_clients, 0)):
        if count is not None and count < least:
            raise InputError(f"{field}: {count} is not allowed; must be {least} or more")
    withheld = _public_rows(dataset, public, groups, seed)
    rest = np.setdiff1d(np.arange(len(labels)), withheld)
    stream = numpy_stream(seed, "partition")
    every = len(labels) + len(dataset.test)
    cut = made.of_dataset(dataset, rest, every if clients is None or (by_data and hold_out) else clients, stream)
    if by_data and clients is not None:
        cut = _some_of(cut, clients, hold_out, stream)
    if cut.pooled:
        rest = np.concatenate([rest, len(labels) + np.arange(len(dataset.test))])
        cut = replace(cut, test=[rest[rows] for rows in cut.test])
    cut = replace(cut, train=[rest[rows] for rows in cut.train])
    named = _places(cut.names, hold_out)
    others = np.setdiff1d(np.arange(len(cut)), named)
    if new_clients >= len(others):
        if not new_clients:
            raise InputError(f"hold_out: {', '.join(hold_out)} is not allowed; no client is left that trains")
        raise InputError(
            f"new_clients: {new_clients} is not allowed; must be less than {len(others)}, the number of clients"
        )
    idle = next((i for i, rows in enumerate(cut.train) if not len(rows)), None)
    if idle is not None:
        raise InputError(f"partition: client {cut.name(idle)} of {len(cut)} gets no training sample; use fewer clients")
    drawn = numpy_stream(seed, "new clients").choice(others, new_clients, replace=False)
    held_back = np.sort(np.concatenate([named, drawn]))
    return Federation(dataset, cut.of(np.setdiff1d(np.arange(len(cut)), held_back)), withheld, cut.of(held_back))


def _public_rows(dataset: Dataset, public: int | None, groups: NDArray[Any] | None, seed: int) -> Indices:
    """Draw the training samples that are public images, as `make_federation` describes it.

    Raises:
        InputError: If there are too few samples, or no group is small enough.
    """
    labels, stream = strata(dataset.train), numpy_stream(seed, "probe")
    count = min(PUBLIC, len(labels) // 10) if public is None else public
    if count >= len(labels):
        raise InputError(
            f"public: {count} is not allowed; must be less than {len(labels)}, the number of training samples"
        )
    if groups is None:
        return balanced(labels, count, stream)
    clients = dataset.columns[CLIENT][0] if CLIENT in dataset.columns else np.zeros(len(labels))
    rows = draw_public_groups(labels, count, groups, clients, stream)
    if public and not len(rows):
        raise InputError(
            f"public: {public} is not allowed; no group is small enough that may be public as a whole, since one of "
            "each class and client stays"
        )
    return rows


def _some_of(cut: Partition, clients: int, hold_out: Sequence[str], stream: np.random.Generator) -> Partition:
    """Return the partition with the clients that are held out and, drawn at random, so many of the others."""
    named = _places(cut.names, hold_out)
    others = np.setdiff1d(np.arange(len(cut)), named)
    if len(others) <= clients:
        return cut
    return cut.of(np.sort(np.concatenate([named, stream.choice(others, clients, replace=False)])))


def _places(names: Sequence[str], hold_out: Sequence[str]) -> Indices:
    """Return the places of some of the clients by their names.

    Args:
        names: Names of all clients; empty if they have none.
        hold_out: Names to look for.

    Raises:
        InputError: If no client has one of these names.
    """
    for name in hold_out:
        if name not in names:
            known = (
                f"{', '.join(names[:NAMED])}{', …' if len(names) > NAMED else ''}" if names else "none, only numbers"
            )
            raise InputError(f"hold_out: {short(name)} is not allowed; the names of the clients are {known}")
    return np.array([names.index(name) for name in dict.fromkeys(hold_out)], dtype=np.int64)
