"""Earth mover's distance between two sets of activations (specification A.9)."""

from __future__ import annotations

import torch
from torch import Tensor

from kinfed.similarity.inputs import measure
from kinfed.streams import numpy_stream

__all__ = ["emd", "emd_distance"]

# The time of the assignment grows with the cube of the rows; for so many it is about a second.
MOST_ROWS = 1000


@measure(same_width=True)
def emd(x: Tensor, y: Tensor, *, seed: int = 0) -> Tensor:
    """Negative earth mover's distance, a similarity ≤ 0; see `emd_distance` for arguments and properties.

    >>> import numpy as np
    >>> x = np.arange(6.0).reshape(3, 2)
    >>> emd(x, x[::-1] + [3, 4])
    -5.0
    """
    return -_matched_distance(x, y, seed)


@measure(same_width=True)
def emd_distance(x: Tensor, y: Tensor, *, seed: int = 0) -> Tensor:
    """Mean Euclidean distance between matched rows of ``x`` and ``y``, for the matching that makes it smallest.

    No other paired measure here ignores the order of the rows. Features must correspond, so models from different
    initialisations are not comparable. Differentiable, with the matching held fixed.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).
        y: Activations of the same shape.
        seed: Seed of the draw of 1000 rows, the same for both sides, if there are more.

    Returns:
        A distance ≥ 0, in the unit of the activations. Invariant to permuting the rows of a side, and to a common
        rotation or shift of both sides.

    >>> import numpy as np
    >>> x = np.arange(6.0).reshape(3, 2)
    >>> emd_distance(x, x[::-1] + [3, 4])
    5.0
    """
    return _matched_distance(x, y, seed)


def _matched_distance(x: Tensor, y: Tensor, seed: int) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    if len(x) > MOST_ROWS:
        drawn = torch.from_numpy(numpy_stream(seed, "emd rows").choice(len(x), MOST_ROWS, replace=False)).to(x.device)
        x, y = x[drawn], y[drawn]
    with torch.no_grad():
        _, match = linear_sum_assignment(torch.cdist(x, y).cpu().numpy())
    # Compute the distances again from differences: cdist uses products, which are imprecise for small distances.
    matched: Tensor = torch.linalg.vector_norm(x - y[torch.from_numpy(match).to(y.device)], dim=1)
    return matched.mean()
