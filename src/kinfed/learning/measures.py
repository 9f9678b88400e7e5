"""Measures of a classifier's answers beside the accuracy: balanced accuracy, macro F1, AUROC and the confusion matrix.

They are those of scikit-learn, computed for many clients at once: its functions take about a millisecond for each of
them. Letters: ``n`` samples, ``N`` clients, ``K`` classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["MEASURES", "Answers", "confusion", "measures"]

MEASURES = ("balanced_accuracy", "macro_f1", "auroc")


@dataclass(frozen=True)
class Answers:
    """Answers of classifiers to n samples, whose labels are known.

    Attributes:
        owners: Client of each sample, n integers from 0 to N - 1.
        labels: True class of each sample, n integers from 0 to K - 1.
        scores: Logits, n×K; the answer is the class with the highest one.
    """

    owners: Tensor
    labels: Tensor
    scores: Tensor

    @classmethod
    def of_one(cls, owner: int, labels: Tensor, scores: Tensor) -> Answers:
        """Return the answers to samples of one client."""
        return cls(torch.full_like(labels, owner), labels, scores)

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Return the answers of one or more parts together."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("owners", "labels", "scores")))


def measures(given: Answers, clients: int, *, auroc: bool = True) -> dict[str, list[float | None]]:
    """Compute the measures of the answers to each client's samples.

    * ``balanced_accuracy``: the mean over the classes of the samples of the share that is classified correctly.
    * ``macro_f1``: the mean of F1 over the classes that are in the labels or in the answers.
    * ``auroc``: the area under the ROC curve of each class of the samples against the others, by the probability of
      the class; the mean over these classes.

    Args:
        given: Answers to the samples of all clients.
        clients: Number N of clients.
        auroc: False to leave out ``auroc``, which takes much longer than the others.

    Returns:
        N values in [0, 1] by name of the measure; None for a client without samples, and as ``auroc`` also for one
        whose samples are of one class, where it is undefined.

    >>> scores = torch.tensor([[2.0, 0.0], [1.0, 3.0], [0.0, 1.0], [0.0, 5.0]])
    >>> given = Answers(owners=torch.tensor([0, 0, 0, 1]), labels=torch.tensor([0, 0, 1, 1]), scores=scores)
    >>> found = measures(given, clients=3)
    >>> found["balanced_accuracy"], found["auroc"]
    ([0.75, 1.0, None], [0.5, None, None])
    """
    classes = given.scores.shape[1]
    owner, truth, answers = given.owners.numpy(), given.labels.numpy(), given.scores.argmax(dim=1).numpy()

    def counted(kept: NDArray[np.int64]) -> NDArray[np.float64]:
        counts = np.bincount(kept, minlength=clients * classes)
        return counts.reshape(clients, classes).astype(np.float64)

    own = owner * classes + truth
    present, answered, hits = counted(own), counted(owner * classes + answers), counted(own[truth == answers])
    return {
        "balanced_accuracy": _mean_over_classes(hits, present),
        "macro_f1": _mean_over_classes(2 * hits, present + answered),
        **({"auroc": _auroc(given, present)} if auroc else {}),
    }


def _mean_over_classes(numbers: NDArray[np.float64], of: NDArray[np.float64]) -> list[float | None]:
    """Return the mean of N×K ratios over the classes in which the divisor is not zero; None without such a class."""
    known = of > 0
    sums = (numbers / np.where(known, of, 1)).sum(axis=1)
    return [
        total / count if count else None for total, count in zip(sums.tolist(), known.sum(axis=1).tolist(), strict=True)
    ]


def _auroc(given: Answers, present: NDArray[np.float64]) -> list[float | None]:
    """Return the mean over the classes of each client of the probability that a sample of it has the higher score.

    It is that of Mann and Whitney: the sum of the ranks of the samples of a class among all of the client's samples,
    less its smallest value, in relation to the number of pairs. Equal scores get the mean of their ranks.

    Args:
        given: Answers to the samples of all clients.
        present: Number of samples of each client and class, N×K.
    """
    owner, truth = given.owners.numpy(), given.labels.numpy()
    clients, classes = present.shape
    samples = present.sum(axis=1, keepdims=True)
    asked = (present > 0) & (present < samples)
    row, of = np.nonzero(asked[owner])
    told = given.scores.double().log_softmax(dim=1).numpy()[row, of]  # as probabilities, 1 - 1e-9 and 1 would be a tie
    group = owner[row] * classes + of
    order = np.lexsort((told, group))
    row, told, group = row[order], told[order], group[order]
    ranks = _mean_ranks(told, group)
    positive = truth[row] == group % classes
    sums = np.bincount(group[positive], weights=ranks[positive], minlength=clients * classes).reshape(present.shape)
    firsts = np.concatenate([[0.0], np.cumsum(np.bincount(group, minlength=clients * classes))[:-1]]).reshape(
        present.shape
    )
    above = sums - present * firsts - present * (present + 1) / 2
    pairs = present * (samples - present)
    return _mean_over_classes(np.where(asked, above, 0), np.where(asked, pairs, 0))


def _mean_ranks(values: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the ranks, from 1 on, of values that are sorted by group and within it; equal ones get their mean."""
    new = np.ones(len(values), dtype=bool)
    new[1:] = (values[1:] != values[:-1]) | (groups[1:] != groups[:-1])
    starts = np.append(np.flatnonzero(new), len(values))
    means: NDArray[np.float64] = ((starts[:-1] + starts[1:] + 1) / 2)[np.cumsum(new) - 1]
    return means


def confusion(given: Answers, clients: int) -> list[list[list[int]]]:
    """Count the samples of each client, true class and answer, without those of which there are none.

    Args:
        given: Answers to the samples of all clients.
        clients: Number N of clients.

    Returns:
        For each of the N clients: true class, answer and number of samples of each cell of its confusion matrix that is
        not zero, in the order of the matrix.

    >>> scores = torch.tensor([[2.0, 0.0], [1.0, 0.0], [3.0, 1.0]])
    >>> confusion(Answers.of_one(1, torch.tensor([0, 0, 1]), scores), clients=2)
    [[], [[0, 0, 2], [1, 0, 1]]]
    """
    cells, counts = torch.stack([given.owners, given.labels, given.scores.argmax(dim=1)]).unique(
        dim=1, return_counts=True
    )
    found: list[list[list[int]]] = [[] for _ in range(clients)]
    for (owner, label, answer), count in zip(cells.T.tolist(), counts.tolist(), strict=True):
        found[owner].append([label, answer, count])
    return found
