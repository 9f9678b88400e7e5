"""Similarity of every pair of many representations."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfed.similarity.cca import cca, cca_of_sides, pwcca, side, svcca, svcca_of_sides
from kinfed.similarity.cka import alignment_matrix, cka
from kinfed.similarity.emd import emd
from kinfed.similarity.entrywise import cosine, frobenius
from kinfed.similarity.gram import Gram
from kinfed.similarity.inputs import (
    Array,
    UndefinedSimilarityWarning,
    centred,
    flatten,
    precision,
    same_features,
    same_rows,
    tensor,
    warn_undefined,
)
from kinfed.similarity.procrustes import procrustes
from kinfed.similarity.rsa import rsa
from kinfed.similarity.sketch import sketched_alignment, sketched_cka
from kinfed.similarity.unpaired import class_mean, feature_cov

__all__ = ["METRICS", "similarity_matrix"]

_MEASURES: dict[str, Callable[..., Any]] = {
    "cka": cka,
    "feature_cov": feature_cov,
    "class_mean": class_mean,
    "sketched_cka": sketched_cka,
    "cca": cca,
    "svcca": svcca,
    "pwcca": pwcca,
    "procrustes": procrustes,
    "rsa": rsa,
    "emd": emd,
    "frobenius": frobenius,
    "cosine": cosine,
}
METRICS = tuple(_MEASURES)


def similarity_matrix(
    representations: Sequence[Array] | Sequence[Gram],
    metric: str = "cka",
    *,
    against: Sequence[Array] | Sequence[Gram] | None = None,
    **options: Any,
) -> Any:
    """Similarity of every pair of ``N`` representations, or of each of them with each of ``M`` others.

    CKA, linear, RBF or sketched, `feature_cov` and `class_mean` take one normalised Gram each and one matrix product in
    all, in bounded memory; `cca` and `svcca` a decomposition each; the other measures a call a pair.

    Args:
        representations: N activations, each n×p (p may differ) or n×c×h×w, of the same examples in the same order; for
            ``feature_cov`` of any examples, for ``class_mean`` matrices of `class_means`. For ``cka`` also a `Gram` of
            each, which takes n×n however many features there are; they are taken as they are.
        metric: One of `METRICS`.
        against: M others, likewise; Grams if the representations are Grams.
        **options: Keywords of the measure of that name; for ``cka`` those are ``kernel``, ``bandwidth``, ``debiased``
            and ``center``.

    Returns:
        N×N, of the kind that the representations are (tensor or array); symmetric, but for ``pwcca``, where the row
        gives the weights. With ``against``, N×M. The row or column of a representation that is constant or not finite
        is NaN, with one warning that names all such.

    Raises:
        ValueError: If the metric is not known, there is no representation, or the measure refuses a pair; then the
            message names the pair.
        TypeError: If the measure has no such option.
    """
    if metric not in _MEASURES:
        raise ValueError(f"metric is one of {', '.join(METRICS)}; got {metric!r}")
    known = [p.name for p in inspect.signature(_MEASURES[metric]).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise TypeError(f"{metric} has no option {option!r}; it has {', '.join(known) or 'none'}")
    if len(representations) == 0:
        raise ValueError("similarity_matrix needs at least one representation")
    if against is not None and len(against) == 0:
        raise ValueError("against needs at least one representation")
    every = [*representations, *(() if against is None else against)]
    grams = [x for x in every if isinstance(x, Gram)]
    if grams and not (metric == "cka" and len(grams) == len(every)):
        raise ValueError("similarity_matrix takes Grams for cka, and then of all representations")
    if any(gram.debiased != options.get("debiased", False) for gram in grams):
        raise ValueError(f"similarity_matrix: a Gram is not as debiased={options.get('debiased', False)} wants it")
    sides = [x.unit if isinstance(x, Gram) else tensor(x) for x in every]
    rows, columns = sides[: len(representations)], None if against is None else sides[len(representations) :]
    if metric != "feature_cov":
        same_rows("similarity_matrix", sides)
    matrix = _of_units(rows, columns) if grams else _of_activations(metric, rows, columns, options)
    undefined = {f"representation {i}": rows[i] for i in _all_nan(matrix)}
    if columns is not None:
        undefined |= {f"against {j}": columns[j] for j in _all_nan(matrix.T)}
    if undefined:
        warn_undefined(metric, undefined)
    return matrix if isinstance(representations[0], Tensor | Gram) else matrix.numpy()


def _all_nan(matrix: Tensor) -> list[int]:
    """The rows that are NaN throughout."""
    return [int(i) for i in matrix.isnan().all(dim=1).nonzero()]


def _of_units(rows: Sequence[Tensor], columns: Sequence[Tensor] | None) -> Tensor:
    """CKA from unit Grams; NaN beside one that is all 0."""
    units = torch.stack([*rows, *(columns or [])]).flatten(1)
    one, other = units[: len(rows)], units if columns is None else units[len(rows) :]
    matrix = (one @ other.T).clamp(-1, 1)
    if columns is None:
        matrix = ((matrix + matrix.T) / 2).fill_diagonal_(1)
    return matrix.masked_fill(~one.any(dim=1)[:, None] | ~other.any(dim=1), torch.nan)


def _of_activations(
    metric: str, rows: Sequence[Tensor], columns: Sequence[Tensor] | None, options: dict[str, Any]
) -> Tensor:
    """The matrix of a measure, from what belongs to a side computed once where that is possible."""
    if metric in {"cca", "svcca"} and len({x.shape[2:] for x in [*rows, *(columns or [])]}) == 1:
        of_sides = functools.partial(cca_of_sides if metric == "cca" else svcca_of_sides, **options)
        return _pair_by_pair(of_sides, rows, columns, prepare=side)
    if metric not in {"cka", "sketched_cka", "class_mean", "feature_cov"}:
        of_pair = functools.partial(_MEASURES[metric], **options)
        return _pair_by_pair(of_pair, rows, columns, symmetric=metric != "pwcca")
    xs, ys = [flatten(x) for x in rows], None if columns is None else [flatten(y) for y in columns]
    if metric == "sketched_cka":
        return sketched_alignment(xs, ys, **options)
    if metric == "cka":
        return alignment_matrix(xs, ys, **options)
    if metric == "feature_cov":
        others = xs if ys is None else ys
        # All are of one width if none differs from the first of the other side.
        for i, j in [*((0, j) for j in range(len(others))), *((i, 0) for i in range(len(xs)))]:
            with _naming(i, j):
                same_features(metric, xs[i], others[j])
        xs, ys = _features(xs), None if ys is None else _features(ys)
    return alignment_matrix(xs, ys, center=False)


def _features(xs: Sequence[Tensor]) -> list[Tensor]:
    """The centred features as rows, so that an alignment is one of covariances."""
    return [centred(x.double()).T for x in xs]


def _pair_by_pair(
    similarity: Callable[[Any, Any], Tensor],
    rows: Sequence[Tensor],
    columns: Sequence[Tensor] | None,
    *,
    symmetric: bool = True,
    prepare: Callable[[Tensor], Any] = lambda x: x,
) -> Tensor:
    """The measure of every pair, each side prepared; NaN beside a side that is not finite, which it would refuse."""
    symmetric = symmetric and columns is None
    sides = [*rows, *(columns or [])]
    ready = [prepare(x) if x.isfinite().all() else None for x in sides]
    others = ready if columns is None else ready[len(rows) :]
    shape = len(rows), len(others)
    matrix = torch.full(shape, torch.nan, dtype=precision(*sides)[0], device=sides[0].device)
    with warnings.catch_warnings():
        # One warning for all is given by `similarity_matrix`.
        warnings.simplefilter("ignore", UndefinedSimilarityWarning)
        for i, x in enumerate(ready[: len(rows)]):
            for j, y in enumerate(others[: i + 1] if symmetric else others):
                if x is not None and y is not None:
                    with _naming(i, j):
                        matrix[i, j] = similarity(x, y)
                    if symmetric:
                        matrix[j, i] = matrix[i, j]
    return matrix


@contextlib.contextmanager
def _naming(i: int, j: int) -> Iterator[None]:
    """A block whose ValueError says of which pair it is."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"representation {i} against {j}: {error}") from error
