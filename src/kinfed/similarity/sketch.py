"""CKA of count-sketched activations, "s-CKA" (Tang et al. 2020; as SFTL uses it; METHODS.md A.5)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kinfed.similarity.cka import alignment_matrix
from kinfed.similarity.inputs import centred, measure
from kinfed.streams import numpy_stream

__all__ = ["sketched_cka"]


@measure()
def sketched_cka(
    x: Tensor,
    y: Tensor,
    *,
    rows: int | None = None,
    seed: int = 0,
    nonzeros: int = 1,
    repeats: int = 1,
    center: Literal["before", "after"] = "before",
) -> Tensor:
    """Linear CKA after the n examples of both sides are hashed into ``rows`` signed sums, by the same sketch.

    It has a noise floor: unrelated sides with n = 600 come out near 0.5 with 16 rows and near 0.1 with 128. For
    n ≤ 256 plain `cka` is cheaper as well as exact.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).
        y: Activations of the same examples in the same order, n×q.
        rows: Rows of the sketch; n/4 within 16…128 if not given.
        seed: Names the sketch; compare numbers of one seed with each other.
        nonzeros: Into how many of the rows each example goes.
        repeats: Mean over so many independent sketches.
        center: ``before`` the sketch. ``after`` is Tang's code: random signs hide the mean from it, and unrelated
            rectified activations look alike.

    Returns:
        A similarity in [0, 1]. Invariant to rotation and isotropic scaling of either side, and to shifts if centred
        before; not to the order of the examples. NaN, with a warning, if a side is constant.
    """
    sketch_rows = min(max(len(x) // 4, 16), 128) if rows is None else rows
    if center == "before":
        x, y = centred(x), centred(y)
    values = [
        alignment_matrix(
            [count_sketch(side, sketch_rows, seed, repeat, nonzeros) for side in (x, y)], center=center == "after"
        )[0, 1]
        for repeat in range(repeats)
    ]
    return torch.stack(values).mean()


def count_sketch(x: Tensor, rows: int, seed: int, repeat: int, nonzeros: int) -> Tensor:
    """``S X``, rows×p: each column of ``S`` has ``nonzeros`` entries ±1/√nonzeros (Clarkson and Woodruff 2013)."""
    if not 1 <= nonzeros <= rows:
        raise ValueError(f"each example goes into 1 to {rows} rows of the sketch, not into {nonzeros}")
    stream = numpy_stream(seed, "count sketch", repeat)
    targets = stream.permuted(np.tile(np.arange(rows), (len(x), 1)), axis=1)[:, :nonzeros]
    signs = stream.choice([-1.0, 1.0], size=targets.shape) / np.sqrt(nonzeros)
    sketch = x.new_zeros(rows, x.shape[1])
    for target, sign in zip(torch.from_numpy(targets.T).to(x.device), torch.from_numpy(signs.T).to(x), strict=True):
        sketch = sketch.index_add(0, target, sign[:, None] * x)
    return sketch
