"""Accuracy and its distribution over clients (specification G.1), and the relation of similarity to common classes.

Letters: ``n`` samples, ``N`` clients, ``K`` classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kinfed.data.samples import Samples
from kinfed.learning.frozen import features
from kinfed.models import Model

__all__ = [
    "NotFinite", "adjusted_rand_index", "class_overlap", "correct", "finite", "losses", "over_clients", "pair_auc",
    "rank_correlation", "scores",
]  # fmt: skip

RAREST = 1e-9  # smallest frequency of a class that a model is taken to believe in


class NotFinite(ValueError):
    """Error for NaN or infinite outputs of a model."""


def finite(outputs: Tensor, what: str) -> Tensor:
    """Return a model's outputs unchanged if all are finite.

    Args:
        outputs: Outputs of any shape.
        what: Name of the outputs for the message.

    Raises:
        NotFinite: If an output is NaN or infinite.

    >>> finite(torch.tensor([1.0, torch.nan]), "logits")
    Traceback (most recent call last):
    kinfed.learning.evaluation.NotFinite: its logits are not finite
    """
    if not outputs.isfinite().all():
        raise NotFinite(f"its {what} are not finite")
    return outputs


def scores(model: Model, samples: Samples, among: Tensor | None = None) -> Tensor:
    """Compute the logits of a model for n samples, n×K; the class with the highest one is its answer.

    Args:
        model: Model to test; it is left in evaluation mode.
        samples: n samples on the model's device.
        among: Mask of the classes that the answer is limited to, bool, K, on the same device; None for all. The logits
            of the others are -inf.

    Raises:
        NotFinite: If the model's outputs are not finite.
    """
    if not len(samples):
        return torch.zeros(0, model.head.out_features)
    logits = finite(features(model, samples, "head"), "outputs")
    return logits if among is None else logits.masked_fill(~among, -torch.inf)


def correct(model: Model, samples: Samples) -> Tensor:
    """Classify n labelled samples and return n booleans, True where the prediction is correct.

    Args:
        model: Model to test; it is left in evaluation mode.
        samples: n samples on the model's device.

    Raises:
        NotFinite: If the model's outputs are not finite.
    """
    assert samples.labels is not None
    return scores(model, samples).argmax(dim=1) == samples.labels


def losses(model: Model, samples: Samples, frequencies: Tensor | None = None) -> Tensor:
    """Compute the cross-entropy of a model on each of n labelled samples, n in float64.

    Args:
        model: Model to test; it is left in evaluation mode.
        samples: n samples on the model's device.
        frequencies: Frequency of each class where the samples are from, K, all > 0: the probability of each class is
            multiplied by its frequency over the model's mean probability on the samples, as in Saerens, Latinne and
            Decaestecker 2002 (https://doi.org/10.1162/089976602753284446). What the model believes of the frequencies
            of classes is then left out of the loss. None for the model as it is.
    """
    assert samples.labels is not None
    logits = features(model, samples, "head").double()
    if frequencies is not None:
        believed = logits.softmax(dim=1).mean(dim=0).clamp(min=RAREST)
        logits = logits.log_softmax(dim=1) + (frequencies / believed).log()
    return functional.cross_entropy(logits, samples.labels, reduction="none")


def over_clients(
    accuracies: Sequence[float | None], sizes: Sequence[int], name: str = "acc"
) -> dict[str, float | None]:
    """Compute the means and the standard deviation of the clients' accuracies, without clients that have none.

    Args:
        accuracies: Accuracy, or another measure, of each client in [0, 1]; None without one.
        sizes: Number of test samples of each client.
        name: Name of the measure, with which the names of the results begin.

    Returns:
        ``acc_weighted``, the mean weighted by test samples; ``acc_mean``, the mean over clients; ``acc_std``, the
        population standard deviation over clients; and ``acc_worst_tenth``, the mean over the tenth of the clients (at
        least one) with the lowest accuracies. All are None if there is no accuracy; the first also if no client has
        test samples of its own.

    >>> over_clients([0.5, 1.0, None], sizes=[30, 10, 0])
    {'acc_weighted': 0.625, 'acc_mean': 0.75, 'acc_std': 0.25, 'acc_worst_tenth': 0.5}
    """
    tested = [(a, n) for a, n in zip(accuracies, sizes, strict=True) if a is not None]
    if not tested:
        return dict.fromkeys(f"{name}_{quantity}" for quantity in ("weighted", "mean", "std", "worst_tenth"))
    ordered = sorted(a for a, _ in tested)
    mean = math.fsum(ordered) / len(ordered)
    worst = ordered[: max(1, len(ordered) // 10)]
    samples = sum(n for _, n in tested)
    return {
        f"{name}_weighted": math.fsum(a * n for a, n in tested) / samples if samples else None,
        f"{name}_mean": mean,
        f"{name}_std": math.sqrt(math.fsum((a - mean) ** 2 for a in ordered) / len(ordered)),
        f"{name}_worst_tenth": math.fsum(worst) / len(worst),
    }


def class_overlap(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the cosine of the class counts of every two of N clients, N×N in [0, 1].

    It is 1 for equal class proportions and 0 without common classes.

    Args:
        counts: Number of samples of each client in each class, N×K.

    >>> class_overlap(np.array([[2, 2], [5, 5], [0, 3]])).round(2)
    array([[1.  , 1.  , 0.71],
           [1.  , 1.  , 0.71],
           [0.71, 0.71, 1.  ]])
    """
    directions = counts / np.linalg.norm(counts, axis=1, keepdims=True).clip(min=1)
    overlap: NDArray[np.float64] = directions @ directions.T
    return overlap


def adjusted_rand_index(one: Sequence[int], other: Sequence[int]) -> float:
    """Compute the agreement of two divisions of clients into groups (Hubert and Arabie 1985).

    It counts the pairs of clients that both divisions put into one group, and is 1 for equal divisions and 0 on average
    for unrelated ones; it can be below 0.

    >>> adjusted_rand_index([0, 0, 1, 1], [5, 5, 3, 3])
    1.0

    Args:
        one: Group of each client, N.
        other: Group of each client in the other division, N.
    """
    _, rows = np.unique(one, return_inverse=True)
    _, columns = np.unique(other, return_inverse=True)
    table = np.zeros((rows.max(initial=0) + 1, columns.max(initial=0) + 1))
    np.add.at(table, (rows, columns), 1)
    pairs, of_one, of_other = (float((n * (n - 1) / 2).sum()) for n in (table, table.sum(axis=1), table.sum(axis=0)))
    every = len(rows) * (len(rows) - 1) / 2
    expected, most = of_one * of_other / every if every else 0.0, (of_one + of_other) / 2
    return 1.0 if most == expected else (pairs - expected) / (most - expected)


def pair_auc(similarity: NDArray[np.float64], groups: Sequence[int]) -> float | None:
    """Compute how well a similarity tells pairs of clients of one group from other pairs: the area under the ROC curve.

    >>> similarity = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.3], [0.1, 0.3, 1.0]])
    >>> pair_auc(similarity, [0, 0, 1])
    1.0

    Args:
        similarity: Similarities of the clients, N×N; NaN where unknown.
        groups: Group of each client, N.

    Returns:
        The probability that a pair within a group is more similar than another pair, in [0, 1]; 0.5 by chance. None if
        the known pairs are all within groups, or all of different ones.
    """
    from sklearn.metrics import roc_auc_score

    of = np.asarray(groups)
    pairs = np.triu_indices(len(of), 1)
    told, same = ((similarity + similarity.T) / 2)[pairs], (of[:, None] == of)[pairs]
    known = np.isfinite(told)
    return float(roc_auc_score(same[known], told[known])) if len({*same[known].tolist()}) == 2 else None


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Compute Spearman's rank correlation of two N×N matrices over all pairs of different clients.

    Pairs with NaN in a matrix are left out. None with fewer than three pairs, or if a matrix has the same value for all
    pairs.

    >>> similarity = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.5], [0.1, 0.5, 1.0]])
    >>> round(rank_correlation(similarity, similarity**2), 3)
    1.0
    """
    from scipy.stats import rankdata

    pairs = np.triu_indices(len(one), 1)
    values = np.stack([(matrix + matrix.T)[pairs] for matrix in (one, other)]).round(12)  # rounding must not break ties
    known = values[:, ~np.isnan(values).any(axis=0)]
    if known.shape[1] < 3 or not np.ptp(known, axis=1).all():
        return None
    return float(np.corrcoef(rankdata(known, axis=1))[0, 1])
