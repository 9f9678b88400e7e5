"""Accuracy, and its spread over clients (METHODS.md G.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.learning.frozen import features
from kinfed.models import Model

__all__ = ["hits", "over_clients"]


def hits(model: Model, samples: Samples) -> Tensor:
    """Which of n labelled samples the model gets right, bool."""
    assert samples.labels is not None
    if not len(samples):
        return torch.zeros(0, dtype=torch.bool)
    return features(model, samples, "head").argmax(dim=1) == samples.labels


def over_clients(accuracies: Sequence[float | None], sizes: Sequence[int]) -> dict[str, float | None]:
    """Means and spread of the clients' accuracies; clients without test samples (None) do not count.

    Args:
        accuracies: One a client, in [0, 1], or None.
        sizes: Test samples of each client.

    Returns:
        ``acc_weighted`` by test samples, ``acc_mean`` over clients, ``acc_std`` over clients (population), and
        ``acc_worst_tenth``, the mean of the tenth of the clients (one at least) that are served worst. All None if no
        client has test samples.
    """
    tested = [(a, n) for a, n in zip(accuracies, sizes, strict=True) if a is not None]
    if not tested:
        return dict.fromkeys(("acc_weighted", "acc_mean", "acc_std", "acc_worst_tenth"))
    ordered = sorted(a for a, _ in tested)
    mean = math.fsum(ordered) / len(ordered)
    worst = ordered[: max(1, len(ordered) // 10)]
    return {
        "acc_weighted": math.fsum(a * n for a, n in tested) / sum(n for _, n in tested),
        "acc_mean": mean,
        "acc_std": math.sqrt(math.fsum((a - mean) ** 2 for a in ordered) / len(ordered)),
        "acc_worst_tenth": math.fsum(worst) / len(worst),
    }
