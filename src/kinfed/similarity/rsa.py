"""Representational similarity analysis (Kriegeskorte et al. 2008). No gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.errors import InputError
from kinfed.similarity.inputs import (
    Array,
    UndefinedSimilarityWarning,
    centred,
    flatten,
    like_the_first,
    magnitude,
    measure,
    refuse_gradient,
    tensor,
    warn,
)

__all__ = ["dissimilarities", "rsa", "spearman"]

TIED = 1e-12  # numbers so near to each other are ties: their order would be rounding
NAMED = 5  # examples that a warning names


@measure(gradient=False, as_they_came=True)
def rsa(x: Tensor, y: Tensor) -> Tensor:
    """Spearman correlation of what the two representations find dissimilar among the same examples.

    Args:
        x: Activations, n×p or n×c×h×w (flattened); p ≥ 2.
        y: Activations of the same examples in the same order, n×q; q ≥ 2.

    Returns:
        A similarity in [-1, 1]. Invariant to scaling and shifting each example of a side by numbers of its own, and to
        monotone changes of its dissimilarities; not to rotation or to a shift of the features. An example with equal
        features throughout correlates with none: its pairs are left out, with a warning that names it. NaN, with a
        warning, if all dissimilarities of a side are equal, or none is left.
    """
    upper = np.triu_indices(len(x), 1)
    u, v = (_dissimilarities(flatten(side)).cpu().numpy()[upper] for side in (x, y))
    both = ~(np.isnan(u) | np.isnan(v))
    warn_left_out({"x": x, "y": y})
    correlation = spearman(u[both], v[both]) if both.any() else torch.nan
    return torch.tensor(correlation, dtype=torch.float64, device=x.device)


def warn_left_out(sides: Mapping[str, Tensor]) -> None:
    """One warning that names the examples of a side whose pairs `rsa` leaves out, unless these are all."""
    told = []
    for side, x in sides.items():
        alone = _alike_throughout(flatten(x)).nonzero().flatten().tolist()
        if 0 < len(alone) < len(x):
            more = f" and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
            told.append(f"{', '.join(map(str, alone[:NAMED]))}{more} of {side}")
    if told:
        what = f"leaves out all pairs of example {'; '.join(told)}: equal features throughout, so not defined"
        warn(f"rsa {what}", UndefinedSimilarityWarning)


def dissimilarities(x: Array) -> Any:
    """1 - Pearson correlation of every pair of examples across the features.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).

    Returns:
        n×n, in [0, 2], of the kind that ``x`` is (tensor or array); NaN in the row and column of an example whose
        features are all equal.
    """
    given = {"x": tensor("dissimilarities: x", x)}
    refuse_gradient("dissimilarities", given)
    matrix = _dissimilarities(flatten(given["x"]))
    return matrix if isinstance(x, Tensor) else matrix.numpy()


def _dissimilarities(x: Tensor) -> Tensor:
    double = x.detach().double()
    rows = centred((double / magnitude(double)).T)
    rows = rows / torch.linalg.vector_norm(rows, dim=0)
    matrix: Tensor = 1 - (rows.T @ rows).clamp(-1, 1)
    alone = _alike_throughout(x)
    matrix[alone[:, None] | alone] = torch.nan
    return matrix


def _alike_throughout(x: Tensor) -> Tensor:
    """Which examples of ``x``, n×p in the precision that it came in, have features that are all equal; n."""
    return like_the_first(x.T).all(dim=0)


def spearman(u: Array, v: Array) -> float:
    """Spearman correlation of two vectors of equal length; ties share their mean rank, NaN if a side is constant.

    Numbers that lie within 1e-12 of each other are ties: their order would be rounding.

    Raises:
        InputError: If the sides are not two vectors of equal length, or one has NaN; the positions are named, for
            leaving them out may misalign the sides.
    """
    sides = {name: tensor(f"spearman: {name}", w).detach().cpu().numpy() for name, w in (("u", u), ("v", v))}
    shapes = [w.shape for w in sides.values()]
    if shapes[0] != shapes[1] or len(shapes[0]) != 1:
        raise InputError(f"spearman takes two vectors of equal length, got shapes {shapes[0]} and {shapes[1]}")
    missing = {name: np.flatnonzero(np.isnan(w)).tolist() for name, w in sides.items() if np.isnan(w).any()}
    if missing:
        raise InputError(f"spearman: NaN at positions {missing}")
    a, b = (ranks - ranks.mean() for ranks in map(_ranks, sides.values()))
    norms = np.sqrt((a @ a) * (b @ b))
    return float(np.clip(a @ b / norms, -1, 1)) if norms else float("nan")


def _ranks(w: NDArray[Any]) -> NDArray[np.float64]:
    """Ranks from 1; of ties the mean."""
    order = np.argsort(w)
    groups = np.empty(len(w), np.int64)
    groups[order] = np.cumsum(np.diff(w[order].astype(np.float64), prepend=w[order[0]]) > TIED)
    ranks: NDArray[np.float64] = scipy.stats.rankdata(groups)
    return ranks
