"""CKA of count-sketched activations, "s-CKA" (Tang et al. 2020; as SFTL uses it; METHODS.md A.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kinfed.similarity.cka import alignment_matrix
from kinfed.similarity.inputs import centred, full_precision, measure, precision
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

    Raises:
        ValueError: If there are fewer ``rows`` than ``nonzeros``, no ``repeats``, or another ``center``.
    """
    return sketched_alignment([x, y], rows=rows, seed=seed, nonzeros=nonzeros, repeats=repeats, center=center)[0, 1]


def sketched_alignment(
    xs: Sequence[Tensor],
    ys: Sequence[Tensor] | None = None,
    /,
    *,
    rows: int | None = None,
    seed: int = 0,
    nonzeros: int = 1,
    repeats: int = 1,
    center: Literal["before", "after"] = "before",
) -> Tensor:
    """`sketched_cka` of every pair of ``N`` n×p matrices, N×N, or of each with each of ``M`` others, N×M."""
    if center not in {"before", "after"}:
        raise ValueError(f"center is 'before' or 'after', got {center!r}")
    if repeats < 1:
        raise ValueError(f"repeats is at least 1, got {repeats}")
    n = len(xs[0])
    dtype, _ = precision(*xs, *(ys or []))
    sketch_rows = min(max(n // 4, 16), 128) if rows is None else rows
    sketches = [
        count_sketch(n, sketch_rows, seed, repeat, nonzeros).to(xs[0].device, dtype) for repeat in range(repeats)
    ]

    def sketched(sides: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Every side by one sketch, for each sketch."""
        ready = (centred(x.to(dtype)) if center == "before" else x.to(dtype) for x in sides)
        return list(zip(*([sketch @ x for sketch in sketches] for x in ready), strict=True))

    with full_precision(xs[0]):
        rest = [None] * repeats if ys is None else sketched(ys)
        matrices = [alignment_matrix(x, y, center=center == "after") for x, y in zip(sketched(xs), rest, strict=True)]
    return torch.stack(matrices).mean(dim=0)


def count_sketch(n: int, rows: int, seed: int, repeat: int, nonzeros: int) -> Tensor:
    """``S``, rows×n and sparse: each column has ``nonzeros`` entries ±1/√nonzeros (Clarkson and Woodruff 2013)."""
    if not 1 <= nonzeros <= rows:
        raise ValueError(f"each example goes into 1 to {rows} rows of the sketch, not into {nonzeros}")
    stream = numpy_stream(seed, "count sketch", repeat)
    targets = stream.permuted(np.tile(np.arange(rows), (n, 1)), axis=1)[:, :nonzeros]
    signs = stream.choice([-1.0, 1.0], size=targets.shape) / np.sqrt(nonzeros)
    places = np.stack([targets.T.ravel(), np.tile(np.arange(n), nonzeros)])
    return torch.sparse_coo_tensor(
        torch.from_numpy(places), torch.from_numpy(signs.T.ravel()), (rows, n), check_invariants=True
    )
