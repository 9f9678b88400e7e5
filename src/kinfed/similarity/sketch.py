"""CKA of count-sketched activations, "s-CKA" (Tang et al. 2020, as used by SFTL; specification A.5)."""

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
    """Linear CKA after the same sketch has hashed the n examples of both sides into ``rows`` signed sums.

    It has a noise floor: for n = 600, unrelated sides get about 0.5 with 16 rows and about 0.1 with 128. If a side has
    more features than the sketch has rows and the value misleads, a `BiasedSimilarityWarning` gives the debiased value.
    For n ≤ 256, `cka` is cheaper, and exact.

    Args:
        x: Activations, n×p or n×c×h×w (flattened).
        y: Activations of the same examples in the same order, n×q.
        rows: Number of rows of the sketch; None for n/4, within 16…128.
        seed: Seed of the sketch; only values of one seed are comparable.
        nonzeros: Number of rows that each example is added to.
        repeats: Number of independent sketches, over which the mean is taken.
        center: ``before`` the sketch, or ``after`` it as in Tang's code. Random signs hide the mean from centring
            after, so that unrelated ReLU activations look similar.

    Returns:
        A similarity in [0, 1]. Invariant to rotation and isotropic scaling of either side, and to shifts if centred
        before; not to the order of the examples. NaN, with a warning, if a side is constant.

    Raises:
        InputError: If ``nonzeros`` exceeds ``rows``, or an option is not allowed.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(512, 4))
    >>> round(sketched_cka(x, 2 * x + 1, seed=1), 3)
    1.0
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
    """Compute `sketched_cka` of every pair of ``N`` n×p matrices, N×N, or of the ``N`` with ``M`` others, N×M."""
    n = len(xs[0])
    dtype, _ = precision(*xs, *(ys or []))
    sketch_rows = min(max(n // 4, 16), 128) if rows is None else rows
    sketches = [
        count_sketch(n, sketch_rows, seed, repeat, nonzeros).to(xs[0].device, dtype) for repeat in range(repeats)
    ]

    def sketched(sides: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Apply every sketch to all sides; one tuple of sides for each sketch."""
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
    """Sparse sketch matrix, rows×n: each column has ``nonzeros`` entries ±1/√nonzeros (Clarkson and Woodruff 2013)."""
    if not 1 <= nonzeros <= rows:
        raise InputError(f"nonzeros: {nonzeros} is not allowed; must be from 1 to {rows}, the rows of the sketch")
    stream = numpy_stream(seed, "count sketch", repeat)
    targets = stream.permuted(np.tile(np.arange(rows), (n, 1)), axis=1)[:, :nonzeros]
    signs = stream.choice([-1.0, 1.0], size=targets.shape) / np.sqrt(nonzeros)
    places = np.stack([targets.T.ravel(), np.tile(np.arange(n), nonzeros)])
    return torch.sparse_coo_tensor(
        torch.from_numpy(places), torch.from_numpy(signs.T.ravel()), (rows, n), check_invariants=True
    )
