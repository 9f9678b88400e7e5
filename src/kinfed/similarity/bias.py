"""A warning where a biased similarity is high for want of examples, and not because two sides are alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kinfed.similarity.inputs import precision, warn

__all__ = ["BiasedSimilarityWarning", "unless_biased"]

MISLEADING = 0.1  # so far above the debiased value a biased one may be


class BiasedSimilarityWarning(RuntimeWarning):
    """A similarity of more features than examples is far above its debiased value, as it is of unrelated sides."""


class Alignments(Protocol):
    """Biased similarities of all pairs of N sides, N×N, or of each with each of M others, N×M.

    Whatever is ``apart`` comes after the N, and after the M.
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
    """The alignments, with one warning that names the most biased pair if its bias misleads. In a loss there is none.

    If the examples of a side were shuffled, it would come to ``c = s(x, I) s(I, y)`` on average, with examples in ``I``
    that are all equally far apart; and the debiased value is about ``(s - c) / (1 - c)``. Of the pair that is named it
    is computed.

    Args:
        name: Of the measure.
        alignments: Each in [0, 1].
        debiased: The value of a pair without the bias.
        xs: N sides of the same n examples, n×p each.
        ys: M others, if not all pairs of the N are wanted.
        rows: n, or how many sums the examples were sketched into; a side of no more features is not warned of.
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
        sketched, few = ("", "examples") if rows == n else (f" in {rows} rows", "rows")
        said = "debiased it is not defined" if math.isnan(without) else f"debiased {without:.2f}"
        warn(
            f"{which}{name} of n={n} examples{sketched} and p={int(features[i, j])} features is {value:.2f}, {said}: "
            f"where features outnumber {few} unrelated sides look alike, the wider the more; cka has debiased=True",
            BiasedSimilarityWarning,
        )
    return values
