"""A measure from outside kinfed: the modified RV coefficient of Smilde et al. 2009, RV2."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rv2(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """RV of two matrices with the same rows, without the diagonals of their Grams, which are what biases it."""
    grams = [side @ side.T for side in (x - x.mean(axis=0), y - y.mean(axis=0))]
    a, b = (gram - np.diag(np.diag(gram)) for gram in grams)
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
