"""Accuracy, its spread over clients (METHODS.md G.1), and whether who is alike also holds the same classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.learning.frozen import features
from kinfed.models import Model

__all__ = ["NotFinite", "class_overlap", "correct", "finite", "over_clients", "rank_correlation"]


class NotFinite(ValueError):
    """What a model says is NaN or infinite, and means nothing."""


def finite(outputs: Tensor, what: str) -> Tensor:
    """The same outputs.

    Raises:
        NotFinite: If they are not finite.
    """
    if not outputs.isfinite().all():
        raise NotFinite(f"its {what} are not finite")
    return outputs


def correct(model: Model, samples: Samples) -> Tensor:
    """Which of n labelled samples the model gets right, bool.

    Raises:
        NotFinite: If the model's outputs are not finite.
    """
    assert samples.labels is not None
    if not len(samples):
        return torch.zeros(0, dtype=torch.bool)
    return finite(features(model, samples, "head"), "outputs").argmax(dim=1) == samples.labels


def over_clients(accuracies: Sequence[float | None], sizes: Sequence[int]) -> dict[str, float | None]:
    """Means and spread of the clients' accuracies; clients without test samples (None) do not count.

    Args:
        accuracies: One a client, in [0, 1], or None.
        sizes: Test samples of each client.

    Returns:
        ``acc_weighted`` by test samples, ``acc_mean`` over clients, ``acc_std`` over clients (population), and
        ``acc_worst_tenth``, the mean of the tenth of the clients (one at least) that are served worst. All None
        if there is no accuracy; the first also if no client has test samples of its own.
    """
    tested = [(a, n) for a, n in zip(accuracies, sizes, strict=True) if a is not None]
    if not tested:
        return dict.fromkeys(("acc_weighted", "acc_mean", "acc_std", "acc_worst_tenth"))
    ordered = sorted(a for a, _ in tested)
    mean = math.fsum(ordered) / len(ordered)
    worst = ordered[: max(1, len(ordered) // 10)]
    samples = sum(n for _, n in tested)
    return {
        "acc_weighted": math.fsum(a * n for a, n in tested) / samples if samples else None,
        "acc_mean": mean,
        "acc_std": math.sqrt(math.fsum((a - mean) ** 2 for a in ordered) / len(ordered)),
        "acc_worst_tenth": math.fsum(worst) / len(worst),
    }


def class_overlap(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cosine of the class counts of every two of N clients, N×N in [0, 1]: 1 for the same proportions, 0 for no class.

    Args:
        counts: Samples of each client and class, N×K.
    """
    directions = counts / np.linalg.norm(counts, axis=1, keepdims=True).clip(min=1)
    overlap: NDArray[np.float64] = directions @ directions.T
    return overlap


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Spearman's rank correlation of two N×N matrices over the pairs of different clients that both know (not NaN).

    None where there are fewer than three pairs, or one matrix has the same value for all.
    """
    from scipy.stats import rankdata

    pairs = np.triu_indices(len(one), 1)
    values = np.stack([(matrix + matrix.T)[pairs] for matrix in (one, other)]).round(12)  # so that ties are ties
    known = values[:, ~np.isnan(values).any(axis=0)]
    if known.shape[1] < 3 or not np.ptp(known, axis=1).all():
        return None
    return float(np.corrcoef(rankdata(known, axis=1))[0, 1])
