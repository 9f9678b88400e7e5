"""Earth mover's distance between two clouds of activations (METHODS.md A.9)."""

from __future__ import annotations

import scipy.optimize
import torch
from torch import Tensor

from kinfed.similarity.inputs import measure
from kinfed.streams import numpy_stream

__all__ = ["emd", "emd_distance"]

# The assignment takes time in the cube of the rows: a second or so for this many.
MOST_ROWS = 1000


@measure(same_width=True)
def emd(x: Tensor, y: Tensor, *, seed: int = 0) -> Tensor:
    """Minus the earth mover's distance, a similarity ≤ 0; arguments and properties as for `emd_distance`."""
    return -_matched_distance(x, y, seed)


@measure(same_width=True)
def emd_distance(x: Tensor, y: Tensor, *, seed: int = 0) -> Tensor:
    """Mean Euclidean distance between the rows of ``x`` and the rows of ``y``, matched so that it is least.

    The only measure here to which the order of the rows says nothing. Features must correspond, so models from
    different initialisations are not comparable. Differentiable, with the matching held fixed.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).
        y: Activations of the same shape.
        seed: Of more than 1000 rows, 1000 are drawn: the same of both sides.

    Returns:
        A distance ≥ 0, in the unit of the activations. Invariant to permuting the rows of a side, and to one rotation
        or shift of both sides.
    """
    return _matched_distance(x, y, seed)


def _matched_distance(x: Tensor, y: Tensor, seed: int) -> Tensor:
    if len(x) > MOST_ROWS:
        drawn = torch.from_numpy(numpy_stream(seed, "emd rows").choice(len(x), MOST_ROWS, replace=False)).to(x.device)
        x, y = x[drawn], y[drawn]
    with torch.no_grad():
        _, match = scipy.optimize.linear_sum_assignment(torch.cdist(x, y).cpu().numpy())
    # Again from the differences: cdist goes by products, which lose the digits of small distances.
    matched: Tensor = torch.linalg.vector_norm(x - y[torch.from_numpy(match).to(y.device)], dim=1)
    return matched.mean()
