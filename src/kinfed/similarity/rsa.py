"""Representational similarity analysis (Kriegeskorte et al. 2008). No gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.similarity.inputs import Array, centred, flatten, magnitude, measure, one_precision

__all__ = ["dissimilarities", "rsa", "spearman"]


@measure(gradient=False)
def rsa(x: Tensor, y: Tensor) -> Tensor:
    """Spearman correlation of what the two representations find dissimilar among the same examples.

    Args:
        x: Activations, n×p or n×c×h×w (flattened); p ≥ 2.
        y: Activations of the same examples in the same order, n×q; q ≥ 2.

    Returns:
        A similarity in [-1, 1]. Invariant to scaling and shifting each example of a side by numbers of its own, and to
        monotone changes of its dissimilarities; not to rotation or to a shift of the features. NaN, with a warning, if
        all dissimilarities of a side are equal, or if an example has equal features throughout: it correlates with
        none.
    """
    upper = np.triu_indices(len(x), 1)
    u, v = (_dissimilarities(side).cpu().numpy()[upper] for side in (x, y))
    defined = not (np.isnan(u).any() or np.isnan(v).any())
    return torch.tensor(spearman(u, v) if defined else torch.nan, dtype=torch.float64, device=x.device)


def dissimilarities(x: Array) -> Any:
    """1 - Pearson correlation of every pair of examples across the features.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).

    Returns:
        n×n, in [0, 2], of the kind that ``x`` is (tensor or array); NaN in the row and column of an example whose
        features are all equal.
    """
    with torch.no_grad():
        (rows,), _ = one_precision(x)
    matrix = _dissimilarities(flatten(rows))
    return matrix if isinstance(x, Tensor) else matrix.numpy()


def _dissimilarities(x: Tensor) -> Tensor:
    rows = centred((x / magnitude(x)).T)
    rows = rows / torch.linalg.vector_norm(rows, dim=0)
    matrix: Tensor = 1 - (rows.T @ rows).clamp(-1, 1)
    return matrix


def spearman(u: NDArray[Any], v: NDArray[Any]) -> float:
    """Spearman correlation of two vectors of equal length; ties share their mean rank, NaN if a side is constant.

    Numbers that agree to 12 decimals are ties: their order would be rounding.

    Raises:
        ValueError: If a side has NaN; the positions are named, for leaving them out may misalign the sides.
    """
    missing = {name: np.flatnonzero(np.isnan(w)).tolist() for name, w in (("u", u), ("v", v)) if np.isnan(w).any()}
    if missing:
        raise ValueError(f"spearman: NaN at positions {missing}")
    ranks = [scipy.stats.rankdata(np.round(w, 12)) for w in (u, v)]
    a, b = (r - r.mean() for r in ranks)
    norms = np.sqrt((a @ a) * (b @ b))
    return float(np.clip(a @ b / norms, -1, 1)) if norms else float("nan")
