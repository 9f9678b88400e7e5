"""Samples that are held out of training, by class, by client and in whole groups.

Letters: ``n`` samples.
"""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.data.federation import Federation
from kinfed.data.partitions.assign import held_out
from kinfed.data.partitions.partition import Indices, rows_by
from kinfed.data.samples import GROUP
from kinfed.data.tables import shown
from kinfed.errors import InputError
from kinfed.streams import numpy_stream

__all__ = ["draw_public_groups", "draw_test_set", "groups_by_client", "refuse_divided_groups"]

MOST_FOLDS = 20  # largest denominator of a share of groups; others are rounded to the nearest fraction


def draw_test_set(
    labels: Indices,
    share: float,
    clients: NDArray[Any] | None = None,
    groups: NDArray[Any] | None = None,
) -> NDArray[np.bool_]:
    """Draw the test set of data without a split: a share of each client's samples, stratified by class.

    The draw does not depend on the seed of a run: the test set belongs to the data, so that no sample is in the test
    set of one run and in the training set of another. Every class keeps a training sample. Groups are drawn as a
    whole, as `groups_by_client` does it.

    Args:
        labels: Labels of the samples, 0 or more, n; all 0 if they have none.
        share: Share of the samples, in (0, 1).
        clients: Client of each sample, n; None if the data name no clients.
        groups: Group of each sample, n; None for no groups.

    Returns:
        A mask of the samples of the test set, n.

    Raises:
        InputError: If nothing is held out, since there are too few samples or groups.

    >>> labels = np.repeat([0, 1], [30, 20])
    >>> np.bincount(labels[draw_test_set(labels, 0.2)])
    array([6, 4])
    """
    stream = numpy_stream(0, "test set")
    owner = np.zeros(len(labels), dtype=np.int64)
    if clients is not None:
        owner = np.unique(clients, return_inverse=True)[1].astype(np.int64)
    if groups is None:
        mask = held_out(owner, labels, int(owner.max(initial=-1)) + 1, share, stream)
    else:
        parts = Fraction(share).limit_denominator(MOST_FOLDS)
        folds, drawn = max(parts.denominator, 2), max(parts.numerator, 1)
        mask = groups_by_client(owner, labels, groups, folds, drawn, stream)
    mask = _kept_for(labels, np.arange(len(labels)) if groups is None else groups, mask)
    if not mask.any():
        units = "samples" if groups is None else "groups"
        raise InputError(f"test_fraction: {share:g} holds nothing out; there are too few {units}")
    return mask


def groups_by_client(
    owner: Indices, labels: Indices, groups: NDArray[Any], folds: int, drawn: int, stream: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw whole groups of each client that hold about ``drawn`` of ``folds`` parts of its samples.

    A group with samples of several clients counts for the one that has most of them. A client with one group keeps it,
    and so does one that would have no sample left.

    Args:
        owner: Client of each sample, 0 or more, n.
        labels: Labels of the samples, 0 or more, n.
        groups: Group of each sample, n.
        folds: Number of parts, 2 or more; fewer if a client has fewer groups.
        drawn: Number of parts that are drawn, less than ``folds``.
        stream: Random generator, the only source of randomness.

    Returns:
        A mask of the drawn samples, n.
    """
    group = np.unique(groups, return_inverse=True)[1]
    mask = np.zeros(len(labels), dtype=bool)
    for own in rows_by(_homes(owner, group), owner.max() + 1):
        parts = min(folds, len(np.unique(group[own])))
        if parts > 1:
            part = min(max(round(drawn / folds * parts), 1), parts - 1)
            mask[own] = _whole_groups(labels[own], group[own], parts, part, stream)
    return _kept_for(owner, group, mask)


def draw_public_groups(
    labels: Indices, count: int, groups: NDArray[Any], clients: NDArray[Any], rng: np.random.Generator
) -> Indices:
    """Draw public images in whole groups, with class counts as equal as this allows.

    A group of the rarest class so far is drawn, one after another, as long as one fits. Of every class and client one
    group stays. The draw of as many images as were drawn is the same again.

    Args:
        labels: Labels of the training samples, 0 or more, n.
        count: Largest number of samples.
        groups: Group of each sample, n.
        clients: Client of each sample, n; all equal if the data name no clients.
        rng: Random generator.

    Returns:
        The rows, ascending.

    >>> groups = np.repeat(np.arange(10), 3)
    >>> rows = draw_public_groups(groups % 2, 13, groups, np.zeros(30), np.random.default_rng(0))
    >>> len(rows), len(np.unique(groups[rows]))
    (12, 4)
    """
    names, group = np.unique(groups, return_inverse=True)
    group = rng.permutation(len(names))[group]  # the numbers of the groups are a random order
    rows, main = rows_by(group, len(names)), np.empty(len(names), dtype=np.int64)
    main[group] = _homes(labels, group)
    sizes = np.bincount(group)
    order = np.argsort(group, kind="stable")
    staying = [group[order[np.unique(values[order], return_index=True)[1]]] for values in (labels, clients)]
    free = np.setdiff1d(group, np.concatenate(staying))
    taken, drawn = np.zeros(labels.max() + 1, dtype=np.int64), [np.arange(0)]
    while len(free := free[sizes[free] <= count]):
        chosen = free[np.argmin(taken[main[free]])]
        drawn.append(rows[chosen])
        taken += np.bincount(labels[rows[chosen]], minlength=len(taken))
        count -= sizes[chosen]
        free = free[free != chosen]
    return np.sort(np.concatenate(drawn))


def _homes(owner: Indices, group: NDArray[Any]) -> Indices:
    """Return for each sample the client, or class, that has most samples of its group; of several the first."""
    clients = owner.max() + 1
    pairs, counts = np.unique(group * clients + owner, return_counts=True)
    of_group, of_client = np.divmod(pairs, clients)
    order = np.lexsort((-of_client, counts))  # of equal indices, NumPy assigns the last value
    home = np.empty(group.max() + 1, dtype=np.int64)
    home[of_group[order]] = of_client[order]
    homes: Indices = home[group]
    return homes


def _kept_for(values: Indices, group: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask without the groups of those values, clients or classes, of which all samples are drawn."""
    lost = np.setdiff1d(values, values[~mask])
    return mask & ~np.isin(group, group[np.isin(values, lost)])


def refuse_divided_groups(federation: Federation) -> None:
    """Refuse a federation with a group, such as a patient, in the training set as well as in the test set.

    Raises:
        InputError: If there is one. Either the data have such a split, or a partition that cuts each client's own
            samples divides groups.
    """
    train, test = federation.dataset.columns[GROUP]
    if federation.partition.pooled:
        both = np.concatenate([train, test])
        own, new = federation.partition, federation.new_clients
        train, test = (
            both[np.concatenate([np.arange(0), *cut])] for cut in (own.train + new.train, own.test + new.test)
        )
    divided = np.intersect1d(train, test)
    if len(divided):
        raise InputError(
            f"group: {len(divided):,} groups are in the training set and in the test set, such as {shown(divided[0])}; "
            "give data that are split by groups, or data without a split and test_fraction"
        )


def _whole_groups(
    labels: Indices, groups: NDArray[Any], folds: int, drawn: int, stream: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw whole groups that hold about ``drawn`` of ``folds`` parts of the samples, with classes in proportion.

    Args:
        labels: Labels of the samples, n.
        groups: Group of each sample, n; at least ``folds`` different ones.
        folds: Number of parts of about the same size, 2 or more.
        drawn: Number of parts that are drawn, less than ``folds``.
        stream: Random generator, the only source of randomness.

    Returns:
        A mask of the drawn samples, n; none is drawn if the parts that are drawn would hold all samples.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    mask = np.zeros(len(labels), dtype=bool)
    # The splitter refuses labels that are all rarer than the folds; then it has nothing to balance.
    classes = labels if np.bincount(labels).max() >= folds else np.zeros_like(labels)
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=int(stream.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes with fewer samples than folds
        parts = [rows for _, rows in splitter.split(labels, classes, groups)]
    mask[np.concatenate(parts[:drawn])] = True
    return mask & (not mask.all())
