"""Measures of a classifier's answers beside the accuracy: balanced accuracy, macro F1, AUROC and the confusion matrix.

They are those of scikit-learn, computed for many clients at once: its functions take about a millisecond for each of
them. Letters: ``n`` samples, ``N`` clients, ``K`` classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["MEASURES", "Answers", "Grade", "confusion", "grades", "measures"]

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


@dataclass(frozen=True)
class Grade:
    """Sums of a classifier's answers to one client's n samples, which may be told where the answers may not.

    >>> Grade.of(torch.tensor([True, False, True, True])).accuracy
    0.75

    Attributes:
        samples: Number n of samples.
        correct: Number of correct answers; if an answer is right in part, the sum of the shares.
        measures: Measures by name (`measures`), where they were asked for; None where one is not defined.
        by_class: Samples of each class, answers with each class, and correct answers of each class, 3×K; None if no
            measures were asked for.
        cells: True class, answer and number of samples of each cell of the confusion matrix that is not zero; empty
            unless asked for.
    """

    samples: int = 0
    correct: float = 0
    measures: dict[str, float | None] = field(default_factory=dict)
    by_class: NDArray[np.int64] | None = field(default=None, compare=False)
    cells: Sequence[Sequence[int]] = ()

    @classmethod
    def of(cls, right: Tensor) -> Grade:
        """Grade n answers, of each of which is known whether it is right, or to which share in [0, 1]."""
        return cls(len(right), right.double().sum().item())

    @classmethod
    def pooled(cls, parts: Sequence[Grade]) -> Grade:
        """Add the grades of one or more clients; there is no AUROC, for which all scores must be at one place.

        >>> parts = grades(Answers(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.eye(2)), clients=2)
        >>> Grade.pooled(parts).measures
        {'balanced_accuracy': 1.0, 'macro_f1': 1.0, 'auroc': None}
        """
        samples, correct = sum(part.samples for part in parts), sum(part.correct for part in parts)
        known = [part.by_class for part in parts if part.by_class is not None]
        if len(known) < len(parts):
            return cls(samples, correct)
        counts = np.sum(known, axis=0)
        found = {name: value for name, (value,) in _of_counts(counts[None]).items()}
        return cls(samples, correct, {**found, "auroc": None}, counts)

    @property
    def accuracy(self) -> float | None:
        """Share of the correct answers; None without samples."""
        return self.correct / self.samples if self.samples else None


def grades(
    given: Answers, clients: int, *, measured: bool = True, auroc: bool = True, cells: bool = False
) -> list[Grade]:
    """Grade the answers to each client's samples.

    Args:
        given: Answers to the samples of all clients.
        clients: Number N of clients.
        measured: False for grades with the accuracy alone.
        auroc: False to leave out the AUROC, which takes much longer than the others.
        cells: True for the cells of the confusion matrices.

    Returns:
        N grades; that of a client without samples has no samples.
    """
    if not measured:
        owners = given.owners.numpy()
        right = owners[(given.scores.argmax(dim=1) == given.labels).numpy()]
        numbers = (np.bincount(of, minlength=clients).tolist() for of in (owners, right))
        return [Grade(samples, correct) for samples, correct in zip(*numbers, strict=True)]
    counts = _counts(given, clients)
    found = _measures(given, counts, auroc=auroc)
    matrices = confusion(given, clients) if cells else [()] * clients
    sizes, correct = counts[:, 0].sum(axis=1).tolist(), counts[:, 2].sum(axis=1).tolist()
    return [
        Grade(sizes[at], correct[at], {name: of[at] for name, of in found.items()}, counts[at], matrices[at])
        for at in range(clients)
    ]


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
    return _measures(given, _counts(given, clients), auroc=auroc)


def _measures(given: Answers, counts: NDArray[np.int64], *, auroc: bool) -> dict[str, list[float | None]]:
    """Compute the measures of answers from their counts, N×3×K, and for the AUROC from their scores."""
    return _of_counts(counts) | ({"auroc": _auroc(given, counts[:, 0].astype(np.float64))} if auroc else {})


def _counts(given: Answers, clients: int) -> NDArray[np.int64]:
    """Count each client's samples of each class, answers with each class, and correct answers of each, N×3×K."""
    classes = given.scores.shape[1]
    owner, truth, answers = given.owners.numpy(), given.labels.numpy(), given.scores.argmax(dim=1).numpy()
    own = owner * classes + truth
    kept = (own, owner * classes + answers, own[truth == answers])
    counts = [np.bincount(cells, minlength=clients * classes).reshape(clients, classes) for cells in kept]
    return np.stack(counts, axis=1)


def _of_counts(counts: NDArray[np.int64]) -> dict[str, list[float | None]]:
    """Return the measures that follow from the counts of N clients, N×3×K."""
    present, answered, hits = np.moveaxis(counts.astype(np.float64), 1, 0)
    return {
        "balanced_accuracy": _mean_over_classes(hits, present),
        "macro_f1": _mean_over_classes(2 * hits, present + answered),
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
