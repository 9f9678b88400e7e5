"""Measures of label skew, the difference between a client's class distribution and that of all clients.

Letters: ``N`` clients, ``K`` classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["effective_classes", "total_variation"]


def total_variation(counts: NDArray[np.int64], pooled: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the total variation distance between each client's class distribution and a common one.

    It is half the sum of the absolute differences between the class shares: the fraction of its samples that a client
    would have to exchange to have the common distribution.

    Args:
        counts: Samples of each client and class, N×K.
        pooled: Samples of each class in the common distribution, K.

    Returns:
        N distances in [0, 1]; NaN for a client without samples.

    >>> total_variation(np.array([[4, 0], [1, 1]]), np.array([5, 5]))
    array([0.5, 0. ])
    """
    result: NDArray[np.float64] = np.abs(_shares(counts) - pooled / max(pooled.sum(), 1)).sum(axis=1) / 2
    return result


def effective_classes(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the effective number of classes of each client: the exponential of the entropy of its class shares.

    A client with m equally large classes has exactly m effective classes.

    Args:
        counts: Samples of each client and class, N×K.

    Returns:
        N numbers in [1, K]; NaN for a client without samples.

    >>> effective_classes(np.array([[4, 0], [1, 1]]))
    array([1., 2.])
    """
    p = _shares(counts)
    result: NDArray[np.float64] = np.exp(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=1))
    return result


def _shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    sizes = counts.sum(axis=1, keepdims=True)
    return np.where(sizes > 0, counts / sizes.clip(min=1), np.nan)
