"""How far clients' classes are from the classes of all: measures of label skew.

Letters: ``N`` clients, ``K`` classes; ``counts`` are samples of each client and class, N×K.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["effective_classes", "total_variation"]


def total_variation(counts: NDArray[np.int64], pooled: NDArray[np.int64]) -> NDArray[np.float64]:
    """Half the sum of the absolute differences between a client's class shares and those of all samples.

    Args:
        counts: N×K.
        pooled: Samples of each class that the clients are compared with, K.

    Returns:
        N numbers in [0, 1): the part of its samples that a client would have to change for other classes; NaN for a
        client without samples.
    """
    result: NDArray[np.float64] = np.abs(_shares(counts) - pooled / max(pooled.sum(), 1)).sum(axis=1) / 2
    return result


def effective_classes(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Exponential of the entropy of a client's class shares: how many classes of equal size would be as varied.

    Returns:
        N numbers in [1, K]; NaN for a client without samples.
    """
    p = _shares(counts)
    result: NDArray[np.float64] = np.exp(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=1))
    return result


def _shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    sizes = counts.sum(axis=1, keepdims=True)
    return np.where(sizes > 0, counts / sizes.clip(min=1), np.nan)
