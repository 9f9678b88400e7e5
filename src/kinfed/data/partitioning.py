"""From a data set and a partition to a federation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kinfed.data.federation import Federation
from kinfed.data.partitions import as_partition
from kinfed.data.partitions.partitioner import Partitioner
from kinfed.data.partitions.saved import Saved
from kinfed.data.samples import Dataset, labels_of
from kinfed.data.subsets import balanced
from kinfed.errors import InputError
from kinfed.streams import numpy_stream

__all__ = ["make_federation"]

PROBE = 128  # images of the server where no number is given: at most so many, and a tenth of the training images


def make_federation(
    dataset: Dataset,
    partition: str | Partitioner | Saved | Callable[..., Any],
    *,
    clients: int,
    seed: int,
    probe: int | None = None,
    new_clients: int = 0,
) -> Federation:
    """Withhold the probe set, share out the rest, and hold back the new clients.

    The probe set is balanced over the classes as far as possible and is withheld whatever the method, so that methods
    are compared on the same clients (specification F.0).

    Args:
        dataset: Data set that is shared out.
        partition: A name (``"dirichlet"``), an object (``Dirichlet(alpha=0.1)``), or a function of one's own
            ``(labels, clients, rng) -> rows of each client``.
        clients: Number of clients, new ones among them; at most so many where the data say who they are.
        seed: Seed of the run.
        probe: Training samples that the server holds; 128, and at most a tenth of them, if not given.
        new_clients: Number of the clients, at random, that never train.

    Raises:
        InputError: If there are fewer samples than asked for, the data do not allow the partition, or saved clients are
            others than those asked for.
    """
    made, labels = as_partition(partition), labels_of(dataset.train)
    if isinstance(made, Saved):
        return made.federation(dataset, clients=clients, probe=probe, new_clients=new_clients)
    probe = min(PROBE, len(labels) // 10) if probe is None else probe
    for field, count, least in (("clients", clients, 1), ("probe", probe, 0), ("new_clients", new_clients, 0)):
        if count < least:
            raise InputError(f"{field}: {count} is not allowed; {least} or more")
    if probe >= len(labels):
        raise InputError(f"probe: {probe} leaves none of the {len(labels)} training samples for the clients")
    withheld = balanced(labels, probe, numpy_stream(seed, "probe"))
    rest = np.setdiff1d(np.arange(len(labels)), withheld)
    cut = made.of_dataset(dataset, rest, clients, numpy_stream(seed, "partition"))
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
