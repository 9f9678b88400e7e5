"""Representational similarity analysis (Kriegeskorte et al. 2008); it has no gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
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

TIED = 1e-12  # numbers that differ by less are ties, since rounding decides their order
NAMED = 5  # examples listed in a warning


@measure(gradient=False, as_they_came=True)
def rsa(x: Tensor, y: Tensor) -> Tensor:
    """Spearman correlation between the dissimilarities of the same examples in two representations.

    The dissimilarity of two examples is 1 minus the Pearson correlation of their features; see `dissimilarities`.

    Args:
        x: Activations, n×p or n×c×h×w (flattened); p ≥ 2.
        y: Activations of the same examples in the same order, n×q; q ≥ 2.

    Returns:
        A similarity in [-1, 1]. Invariant to scaling and shifting each example separately and to monotone changes of
        the dissimilarities; not to rotation or to a shift of the features. Pairs with an example whose features are all
        equal are left out, with a warning that names it. NaN, with a warning, if all dissimilarities of a side are
        equal, or none is left.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(10, 5))
    >>> round(rsa(x, 2 * x + 1), 3)
    1.0
    """
    upper = np.triu_indices(len(x), 1)
    u, v = (_dissimilarities(flatten(side)).cpu().numpy()[upper] for side in (x, y))
    both = ~(np.isnan(u) | np.isnan(v))
    warn_left_out({"x": x, "y": y})
    correlation = spearman(u[both], v[both]) if both.any() else torch.nan
    return torch.tensor(correlation, dtype=torch.float64, device=x.device)


def warn_left_out(sides: Mapping[str, Tensor]) -> None:
    """Warn once, naming the examples of each side whose pairs `rsa` leaves out, unless these are all examples."""
    told = []
    for side, x in sides.items():
        alone = _alike_throughout(flatten(x)).nonzero().flatten().tolist()
        if 0 < len(alone) < len(x):
            more = f" and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
            told.append(f"{', '.join(map(str, alone[:NAMED]))}{more} of {side}")
    if told:
        what = (
            f"leaves out all pairs with example {'; '.join(told)}: all their features are equal, so that the "
            "correlation is not defined"
        )
        warn(f"rsa {what}", UndefinedSimilarityWarning)


def dissimilarities(x: Array) -> Any:
    """Dissimilarity of every pair of examples: 1 minus the Pearson correlation of their features.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).

    Returns:
        Dissimilarities in [0, 2], n×n; a tensor if ``x`` is a tensor, otherwise an array. NaN in the row and column of
        an example whose features are all equal.

    >>> dissimilarities([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).round(3)
    array([[0., 2.],
           [2., 0.]])
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
    """Mark the examples of ``x`` (n×p, original precision) whose features are all equal, as n booleans."""
    return like_the_first(x.T).all(dim=0)


def spearman(u: Array, v: Array) -> float:
    """Spearman correlation of two vectors of equal length, in [-1, 1]; NaN if one is constant.

    Ties get their mean rank. Numbers within 1e-12 of each other are ties, since rounding decides their order.

    Raises:
        InputError: If the sides are not two vectors of equal length, or one contains NaN; the message names the
            positions.

    >>> round(spearman([1, 2, 3, 4], [10, 20, 40, 30]), 3)
    0.8
    """
    sides = {name: tensor(f"spearman: {name}", w).detach().cpu().numpy() for name, w in (("u", u), ("v", v))}
    shapes = [w.shape for w in sides.values()]
    if shapes[0] != shapes[1] or len(shapes[0]) != 1:
        raise InputError(f"spearman needs two vectors of equal length, got shapes {shapes[0]} and {shapes[1]}")
    missing = {name: np.flatnonzero(np.isnan(w)).tolist() for name, w in sides.items() if np.isnan(w).any()}
    if missing:
        raise InputError(f"spearman: NaN at positions {missing}")
    a, b = (ranks - ranks.mean() for ranks in map(_ranks, sides.values()))
    norms = np.sqrt((a @ a) * (b @ b))
    return float(np.clip(a @ b / norms, -1, 1)) if norms else float("nan")


def _ranks(w: NDArray[Any]) -> NDArray[np.float64]:
    """Ranks, starting at 1; the mean rank for ties."""
    from scipy.stats import rankdata

    order = np.argsort(w)
    groups = np.empty(len(w), np.int64)
    groups[order] = np.cumsum(np.diff(w[order].astype(np.float64), prepend=w[order[0]]) > TIED)
    ranks: NDArray[np.float64] = rankdata(groups)
    return ranks
