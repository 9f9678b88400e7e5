"""Warning about a biased similarity that is high only because there are few examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kinfed.similarity.inputs import precision, warn

__all__ = ["BiasedSimilarityWarning", "unless_biased"]

MISLEADING = 0.1  # a biased value that exceeds the debiased one by more gives a warning


class BiasedSimilarityWarning(RuntimeWarning):
    """A biased similarity far above its debiased value, with more features than examples."""


class Alignments(Protocol):
    """Function for the biased similarities of all pairs of N sides, N×N, or of N sides with M others, N×M.

    The k sides in ``apart`` are appended to the N and to the M; they give k more rows and k more columns.
    """

    def __call__(self, xs: Sequence[Tensor], ys: Sequence[Tensor] | None, apart: Sequence[Tensor], /) -> Tensor: ...


def unless_biased(
    name: str,
    alignments: Alignments,
    debiased: Callable[[Tensor, Tensor], Tensor],
    xs: Sequence[Tensor],
    ys: Sequence[Tensor] | None = None,
    *,
    rows: int,
) -> Tensor:
    """Compute biased similarities and warn once, naming the most biased pair, if its bias misleads; never in a loss.

    After shuffling the examples of one side, the mean similarity of a pair is about ``c = s(x, I) s(I, y)``, where the
    examples in ``I`` are all equally far apart. The debiased value is then about ``(s - c) / (1 - c)``. For the pair
    in the warning it is computed exactly.

    Args:
        name: Name of the measure.
        alignments: Function for the biased similarities, each in [0, 1].
        debiased: Function for the debiased similarity of one pair.
        xs: N sides of the same n examples, n×p each.
        ys: M other sides; None for all pairs of the N.
        rows: n, or the number of rows of the sketch; sides with at most so many features give no warning.

    Returns:
        N×N, or N×M.
    """
    others = xs if ys is None else ys
    p, q = (torch.tensor([x.shape[1] for x in side]) for side in (xs, others))
    features = torch.maximum(p[:, None], q)
    if features.max() <= rows or precision(*xs, *others)[1]:
        return alignments(xs, ys, [])
    matrix = alignments(xs, ys, [torch.eye(rows, dtype=torch.float64, device=xs[0].device)])
    values, chance = matrix[:-1, :-1], matrix[:-1, -1:] * matrix[-1:, :-1]
    excess = (chance * (1 - values) / (1 - chance).clamp_min(1e-9)).nan_to_num(0).cpu() * (features > rows)
    i, j = divmod(int(excess.argmax()), len(others))
    if excess[i, j] <= MISLEADING:
        return values
    n, value = len(xs[0]), float(values[i, j])
    without = float(debiased(xs[i], others[j])) if n > 3 else math.nan
    if not value - without <= MISLEADING:
        which = "" if len(xs) == 2 and ys is None else f"representation {i} against {j}: "
        sketched, few = ("", "examples") if rows == n else (f" sketched to {rows} rows", "rows")
        said = "the debiased value is not defined" if math.isnan(without) else f"the debiased value is {without:.2f}"
        warn(
            f"{which}{name} of n={n} examples{sketched} and p={int(features[i, j])} features is {value:.2f}, {said}: "
            f"with more features than {few}, unrelated representations have high similarities, the more features the "
            "higher; cka has debiased=True",
            BiasedSimilarityWarning,
        )
    return values
