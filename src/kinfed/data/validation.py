"""Validation samples: a share of each client's training samples that no client trains on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kinfed.data.federation import Federation
from kinfed.data.holdout import groups_by_client
from kinfed.data.partitions.partition import NOBODY, Indices, rows_by
from kinfed.data.samples import GROUP, labels_of
from kinfed.errors import InputError
from kinfed.streams import numpy_stream

__all__ = ["with_validation"]


def with_validation(federation: Federation, share: float, seed: int) -> Federation:
    """Set a share of each client's training samples aside for validation, stratified by class.

    Of data without labels, it is a share of the labelled ones beside them (`Federation.labelled`), the same for all
    clients. If the data have a column ``group`` (patients, writers, videos), a group is set aside as a whole, with the
    samples that other clients have of it. A client with one sample, or with one group, has no validation samples. Those
    of new clients are not touched.

    Args:
        federation: Federation without validation samples.
        share: Share of the training samples, in [0, 1); 0 returns the federation unchanged.
        seed: Seed of the run.

    Raises:
        InputError: If no client has enough samples, or the federation already has validation samples.

    >>> from kinfed.data import from_arrays, make_federation
    >>> dataset = from_arrays([[0.1]] * 40, [0, 1] * 20, [[0.1]] * 10, [0, 1] * 5)
    >>> federation = with_validation(make_federation(dataset, "iid", clients=3, seed=0), 0.25, seed=0)
    >>> [(len(federation.train(client)), len(federation.validate(client))) for client in range(3)]
    [(9, 3), (9, 3), (9, 3)]
    """
    if not share:
        return federation
    if federation.validation or len(federation.labelled_validation):
        raise InputError(f"validation: {share:g} is not allowed; the federation already has validation samples")
    if federation.labelled is not None:
        labels = labels_of(federation.labelled.train)
        held = _stratified(labels, share, numpy_stream(seed, "labelled validation"))
        return replace(federation, labelled_validation=np.flatnonzero(held))
    rows = np.concatenate(federation.partition.train)
    owner = np.repeat(np.arange(len(federation)), [len(own) for own in federation.partition.train])
    labels = labels_of(federation.splits[0])[rows]
    stream = numpy_stream(seed, "validation")
    groups, chosen = _groups(federation), np.zeros(len(rows), dtype=bool)
    if groups is None:
        for own in rows_by(owner, len(federation)):
            chosen[own] = _stratified(labels[own], share, stream)
    else:
        chosen = groups_by_client(owner, labels, groups[rows], max(round(1 / share), 2), 1, stream)
    if not chosen.any():
        raise InputError(f"validation: {share:g} sets nothing aside; every client has one sample or group only")
    drawn, left = (
        [rows[at] for at in rows_by(np.where(mask, owner, NOBODY), len(federation))] for mask in (chosen, ~chosen)
    )
    return replace(federation, partition=replace(federation.partition, train=left), validation=drawn)


def _groups(federation: Federation) -> NDArray[np.generic] | None:
    """Return the group of each sample of the training split; None if the data have no such column."""
    if GROUP not in federation.dataset.columns:
        return None
    train, test = federation.dataset.columns[GROUP]
    return np.concatenate([train, test]) if federation.partition.pooled else train


def _stratified(labels: Indices, share: float, stream: np.random.Generator) -> NDArray[np.bool_]:
    """Draw a share of one client's samples by systematic sampling over its classes; return a mask of them.

    Every sample is drawn with the same probability, so that the drawn ones are no easier than test samples: had each
    class its rounded share, small classes would never be drawn, and a model of large classes alone would look good.
    """
    mask = np.zeros(len(labels), dtype=bool)
    if len(labels) > 1:
        count = np.clip(round(share * len(labels)), 1, len(labels) - 1)
        shuffled = stream.permutation(len(labels))
        place = stream.permutation(labels.max() + 1)  # the classes in a random order
        order = shuffled[np.argsort(place[labels[shuffled]], kind="stable")]
        steps = (stream.random() + np.arange(count)) * len(labels) / count
        mask[order[np.minimum(steps.astype(np.int64), len(labels) - 1)]] = True
    return mask
