"""Similarity of every pair of many representations."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfed.similarity.cca import cca, pwcca, svcca
from kinfed.similarity.cka import alignment_matrix
from kinfed.similarity.emd import emd
from kinfed.similarity.entrywise import cosine, frobenius
from kinfed.similarity.gram import Gram
from kinfed.similarity.inputs import (
    Array,
    Measure,
    UndefinedSimilarityWarning,
    centred,
    flatten,
    precision,
    same_rows,
    tensor,
    warn_undefined,
)
from kinfed.similarity.procrustes import procrustes
from kinfed.similarity.rsa import rsa
from kinfed.similarity.sketch import sketched_cka

__all__ = ["METRICS", "similarity_matrix"]

_PAIRWISE: dict[str, Measure[...]] = {
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
METRICS = ("cka", "feature_cov", "class_mean", *_PAIRWISE)


def similarity_matrix(representations: Sequence[Array] | Sequence[Gram], metric: str = "cka", **options: Any) -> Any:
    """Similarity of every pair of ``N`` representations.

    CKA, linear or RBF, `feature_cov` and `class_mean` take one normalised Gram each and one matrix product in all, in
    bounded memory; the other measures a call a pair.

    Args:
        representations: N activations, each n×p (p may differ) or n×c×h×w, of the same examples in the same order; for
            ``feature_cov`` and ``emd`` of any examples, for ``class_mean`` matrices of `class_means`. For ``cka`` also
            a `Gram` of each, which takes n×n however many features there are; they are taken as they are.
        metric: One of `METRICS`.
        **options: Keywords of the measure of that name; for ``cka`` those are ``kernel``, ``bandwidth``, ``debiased``
            and ``center``.

    Returns:
        N×N, of the kind that the representations are (tensor or array); symmetric, but for ``pwcca``, where the row
        gives the weights. The row and column of a representation that is constant or not finite are NaN, with one
        warning that names all such.

    Raises:
        ValueError: If the metric is not known, there is no representation, or the measure refuses a pair.
    """
    if metric not in METRICS:
        raise ValueError(f"metric is one of {', '.join(METRICS)}; got {metric!r}")
    if len(representations) == 0:
        raise ValueError("similarity_matrix needs at least one representation")
    grams = [x for x in representations if isinstance(x, Gram)]
    if grams and not (metric == "cka" and len(grams) == len(representations)):
        raise ValueError("similarity_matrix takes Grams for cka, and then of all representations")
    sides = [x.unit if isinstance(x, Gram) else tensor(x) for x in representations]
    if grams:
        if any(gram.debiased != options.get("debiased", False) for gram in grams):
            raise ValueError(f"similarity_matrix: a Gram is not as debiased={options.get('debiased', False)} wants it")
        same_rows("similarity_matrix", sides)
        matrix = _of_units(torch.stack(sides).flatten(1))
    elif metric in _PAIRWISE:
        matrix = _pair_by_pair(functools.partial(_PAIRWISE[metric], **options), sides, symmetric=metric != "pwcca")
    elif metric == "feature_cov":
        matrix = alignment_matrix([centred(flatten(x).double()).T for x in sides], center=False, **options)
    else:
        same_rows("similarity_matrix", sides)
        if metric == "class_mean":
            options = {"center": False, **options}
        matrix = alignment_matrix([flatten(x) for x in sides], **options)
    undefined = matrix.diagonal().isnan().nonzero().flatten().tolist()
    if undefined:
        warn_undefined(metric, {f"representation {i}": sides[i] for i in undefined})
    return matrix if isinstance(representations[0], Tensor | Gram) else matrix.numpy()


def _of_units(units: Tensor) -> Tensor:
    """CKA from unit Grams, one a row; NaN beside one that is all 0."""
    matrix = units @ units.T
    matrix = ((matrix + matrix.T) / 2).clamp(-1, 1).fill_diagonal_(1)
    undefined = ~units.any(dim=1)
    return matrix.masked_fill(undefined[:, None] | undefined, torch.nan)


def _pair_by_pair(similarity: Callable[[Tensor, Tensor], Tensor], sides: Sequence[Tensor], symmetric: bool) -> Tensor:
    """The measure of every pair; NaN beside a side that is not finite, which the measure would refuse."""
    count = len(sides)
    finite = [bool(x.isfinite().all()) for x in sides]
    matrix = torch.full((count, count), torch.nan, dtype=precision(*sides)[0], device=sides[0].device)
    with warnings.catch_warnings():
        # One warning for all is given by `similarity_matrix`.
        warnings.simplefilter("ignore", UndefinedSimilarityWarning)
        for i in range(count):
            for j in range(i + 1 if symmetric else count):
                if finite[i] and finite[j]:
                    matrix[i, j] = similarity(sides[i], sides[j])
                    if symmetric:
                        matrix[j, i] = matrix[i, j]
    return matrix
