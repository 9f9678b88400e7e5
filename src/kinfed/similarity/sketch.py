"""CKA of count-sketched activations, "s-CKA" (Tang et al. 2020; as SFTL uses it; METHODS.md A.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kinfed.errors import InputError
from kinfed.similarity.bias import unless_biased
from kinfed.similarity.cka import alignment_matrix
from kinfed.similarity.inputs import centred, full_precision, measure, one_precision, precision
from kinfed.similarity.options import Count
from kinfed.streams import numpy_stream

__all__ = ["sketched_cka"]


@measure()
def sketched_cka(
    x: Tensor,
    y: Tensor,
    *,
    rows: Count | None = None,
    seed: int = 0,
    nonzeros: Count = 1,
    repeats: Count = 1,
    center: Literal["before", "after"] = "before",
) -> Tensor:
    """Linear CKA after the n examples of both sides are hashed into ``rows`` signed sums, by the same sketch.

    It has a noise floor: unrelated sides with n = 600 come out near 0.5 with 16 rows and near 0.1 with 128. Where a
    side has more features than the sketch has rows and the value misleads, a `BiasedSimilarityWarning` says what the
    debiased one is. For n ≤ 256 plain `cka` is cheaper as well as exact.

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
        InputError: If there are fewer ``rows`` than ``nonzeros``, no ``repeats``, or another ``center``.
    """
    return sketched_alignments([x, y], rows=rows, seed=seed, nonzeros=nonzeros, repeats=repeats, center=center)[0, 1]


def sketched_alignments(
    xs: Sequence[Tensor],
    ys: Sequence[Tensor] | None = None,
    *,
    rows: int | None = None,
    seed: int = 0,
    nonzeros: int = 1,
    repeats: int = 1,
    center: Literal["before", "after"] = "before",
) -> Tensor:
    """`sketched_cka` of every pair of ``N`` n×p matrices, N×N, or of each with each of ``M`` others, N×M."""
    n = len(xs[0])
    dtype, _ = precision(*xs, *(ys or []))
    sketch_rows = min(max(n // 4, 16), 128) if rows is None else rows
    sketches = [
        count_sketch(n, sketch_rows, seed, repeat, nonzeros).to(xs[0].device, dtype) for repeat in range(repeats)
    ]

    def sketched(sides: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Every side by one sketch, for each sketch."""
        ready = (centred(x) if center == "before" else x for x in one_precision(*sides)[0])
        return list(zip(*([sketch @ x for sketch in sketches] for x in ready), strict=True))

    def alignments(xs: Sequence[Tensor], ys: Sequence[Tensor] | None, apart: Sequence[Tensor]) -> Tensor:
        rest = [None] * repeats if ys is None else [[*y, *apart] for y in sketched(ys)]
        sides = zip([[*x, *apart] for x in sketched(xs)], rest, strict=True)
        return torch.stack([alignment_matrix(x, y, center=center == "after") for x, y in sides]).mean(dim=0)

    def unbiased(x: Tensor, y: Tensor) -> Tensor:
        return alignment_matrix([x], [y], debiased=True)[0, 0]

    with full_precision(xs[0]):
        return unless_biased("sketched_cka", alignments, unbiased, xs, ys, rows=sketch_rows)


def count_sketch(n: int, rows: int, seed: int, repeat: int, nonzeros: int) -> Tensor:
    """``S``, rows×n and sparse: each column has ``nonzeros`` entries ±1/√nonzeros (Clarkson and Woodruff 2013)."""
    if not 1 <= nonzeros <= rows:
        raise InputError(f"each example goes into 1 to {rows} rows of the sketch, not into {nonzeros}")
    stream = numpy_stream(seed, "count sketch", repeat)
    targets = stream.permuted(np.tile(np.arange(rows), (n, 1)), axis=1)[:, :nonzeros]
    signs = stream.choice([-1.0, 1.0], size=targets.shape) / np.sqrt(nonzeros)
    places = np.stack([targets.T.ravel(), np.tile(np.arange(n), nonzeros)])
    return torch.sparse_coo_tensor(
        torch.from_numpy(places), torch.from_numpy(signs.T.ravel()), (rows, n), check_invariants=True
    )
