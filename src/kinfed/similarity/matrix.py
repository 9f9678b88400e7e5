"""Similarity of every pair of many representations."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfed.errors import InputError
from kinfed.similarity.cca import cca, cca_of_sides, pwcca, pwcca_of_sides, side, svcca, svcca_of_sides
from kinfed.similarity.cka import alignment_matrix, alignments, cka
from kinfed.similarity.gram import Gram
from kinfed.similarity.inputs import (
    Array,
    UndefinedSimilarityWarning,
    centred,
    exact,
    flatten,
    precision,
    refuse_gradient,
    same_features,
    same_rows,
    several,
    tensor,
    warn_undefined,
)
from kinfed.similarity.measures import Measure, as_measure
from kinfed.similarity.options import check_options
from kinfed.similarity.rsa import rsa, warn_left_out
from kinfed.similarity.sketch import sketched_alignments, sketched_cka
from kinfed.similarity.unpaired import class_mean, feature_cov

__all__ = ["similarity_matrix"]

# Functions of two decomposed sides, so that each side is decomposed only once.
_OF_SIDES: dict[Callable[..., Any], Callable[..., Tensor]] = {
    cca: cca_of_sides,
    svcca: svcca_of_sides,
    pwcca: pwcca_of_sides,
}
_OF_ALL = (cka, sketched_cka, class_mean, feature_cov)  # computed for all pairs at once


def similarity_matrix(
    representations: Sequence[Array] | Sequence[Gram],
    measure: str | Measure | Callable[..., Any] = "cka",
    *,
    against: Sequence[Array] | Sequence[Gram] | None = None,
    **options: Any,
) -> Any:
    """Compute the similarity of every pair of ``N`` representations, or of the ``N`` with ``M`` others.

    Linear, RBF and sketched CKA, `feature_cov` and `class_mean` compute one normalised Gram for each representation and
    one matrix product, in bounded memory. The CCA family decomposes each representation once. The other measures
    compute each pair separately.

    Args:
        representations: N activations, each n×p (p may differ) or n×c×h×w, of the same examples in the same order. For
            ``feature_cov`` the examples may differ; for ``class_mean`` they are matrices of `class_means`. For ``cka``
            also N `Gram` objects, each n×n whatever the number of features.
        measure: Name of one of `MEASURES`, a `Measure`, or a function of two representations (see `Measure.of`).
        against: M other representations; Gram objects if the N are.
        **options: Keywords of the measure; for ``cka`` these are ``kernel``, ``bandwidth``, ``debiased`` and
            ``center``.

    Returns:
        Similarities, N×N, or N×M with ``against``; a tensor if a representation is a tensor, otherwise an array. For
        ``pwcca`` the row gives the weights. Rows and columns of representations that are constant or not finite are
        NaN, with one warning that names them.

    Raises:
        InputError: If the measure is not known, there is no representation, or the measure refuses a pair, which the
            message names.
        TypeError: If the measure has no such option.

    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(2, 100, 3))
    >>> similarity_matrix([x, 2 * x, y]).round(2)
    array([[1.  , 1.  , 0.02],
           [1.  , 1.  , 0.02],
           [0.02, 0.02, 1.  ]])
    """
    by = as_measure(measure)
    keywords = inspect.signature(by.function).parameters.values()
    known = [parameter.name for parameter in keywords if parameter.kind is parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise TypeError(f"{by.name} has no option {option!r}; it has {', '.join(known) or 'none'}")
    check_options(by.function, options)
    options = {**by.options, **options}
    given = {f"representation {i}": x for i, x in enumerate(several("similarity_matrix", representations))}
    others = {} if against is None else {f"against {j}": y for j, y in enumerate(several("against", against))}
    every = given | others
    grams = [x for x in every.values() if isinstance(x, Gram)]
    if grams and not (by.of_grams and len(grams) == len(every)):
        raise InputError("similarity_matrix takes Grams only for cka, and only if all representations are Grams")
    if any(gram.debiased != options.get("debiased", False) for gram in grams):
        raise InputError(
            f"similarity_matrix: debiased={options.get('debiased', False)} needs Grams that were made "
            "with the same option"
        )
    sides = {name: x.unit if isinstance(x, Gram) else tensor(name, x) for name, x in every.items()}
    if not by.differentiable:
        refuse_gradient(by.name, sides)
    if by.paired:
        same_rows("similarity_matrix", [*sides.values()])
    rows, columns = [sides[name] for name in given], [sides[name] for name in others] or None
    matrix = _of_units(rows, columns) if grams else _of_activations(by, rows, columns, options)
    undefined = _all_nan(given, matrix) + ([] if columns is None else _all_nan(others, matrix.T))
    if undefined:
        warn_undefined(by.name, {name: sides[name] for name in undefined})
    if by.function is rsa:
        warn_left_out({name: x for name, x in sides.items() if name not in undefined})
    return matrix if any(isinstance(x, Tensor | Gram) for x in every.values()) else matrix.numpy()


def _all_nan(names: Iterable[str], matrix: Tensor) -> list[str]:
    """Names of the rows that are all NaN."""
    return [name for name, undefined in zip(names, matrix.isnan().all(dim=1).tolist(), strict=True) if undefined]


def _of_units(rows: Sequence[Tensor], columns: Sequence[Tensor] | None) -> Tensor:
    """CKA from unit Grams; NaN for a Gram that is all 0."""
    units = torch.stack([*rows, *(columns or [])]).flatten(1)
    one, other = units[: len(rows)], units if columns is None else units[len(rows) :]
    matrix = (one @ other.T).clamp(-1, 1)
    if columns is None:
        matrix = ((matrix + matrix.T) / 2).fill_diagonal_(1)
    return matrix.masked_fill(~one.any(dim=1)[:, None] | ~other.any(dim=1), torch.nan)


def _of_activations(
    measure: Measure, rows: Sequence[Tensor], columns: Sequence[Tensor] | None, options: dict[str, Any]
) -> Tensor:
    """Matrix of a measure from activations; work that concerns one side alone is done once if possible."""
    every = [*rows, *(columns or [])]
    # The reading of a map, by position or as means, depends on the pair, unless all maps have the same h and w.
    function = measure.function
    if function in _OF_SIDES and len({x.shape[2:] for x in every}) == 1:
        of_sides = functools.partial(_OF_SIDES[function], **options)
        return _pair_by_pair(of_sides, rows, columns, symmetric=measure.symmetric, prepare=side)
    if function not in _OF_ALL:
        of_pair = functools.partial(function, **options)
        return _pair_by_pair(of_pair, rows, columns, symmetric=measure.symmetric)
    xs, ys = [flatten(x) for x in rows], None if columns is None else [flatten(y) for y in columns]
    if function is sketched_cka:
        return sketched_alignments(xs, ys, **options)
    if function is cka:
        return alignments(measure.name, xs, ys, **options)
    if function is feature_cov:
        others = xs if ys is None else ys
        # All have one width if none differs from the first of the other side.
        for i, j in [*((0, j) for j in range(len(others))), *((i, 0) for i in range(len(xs)))]:
            with _naming(i, j):
                same_features(measure.name, xs[i], others[j])
        xs, ys = _features(xs), None if ys is None else _features(ys)
    return alignment_matrix(xs, ys, center=False)


def _features(xs: Sequence[Tensor]) -> list[Tensor]:
    """Transpose the centred features, so that their alignment is that of the covariances."""
    return [centred(exact(x)).T for x in xs]


def _pair_by_pair(
    similarity: Callable[[Any, Any], Tensor],
    rows: Sequence[Tensor],
    columns: Sequence[Tensor] | None,
    *,
    symmetric: bool = True,
    prepare: Callable[[Tensor], Any] = lambda x: x,
) -> Tensor:
    """Apply a measure to every pair of prepared sides; NaN for sides that are not finite, which it would refuse."""
    symmetric = symmetric and columns is None
    sides = [*rows, *(columns or [])]
    ready = [prepare(x) if x.isfinite().all() else None for x in sides]
    others = ready if columns is None else ready[len(rows) :]
    shape = len(rows), len(others)
    matrix = torch.full(shape, torch.nan, dtype=precision(*sides)[0], device=sides[0].device)
    with warnings.catch_warnings():
        # `similarity_matrix` gives one warning for all pairs.
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
    """Add the pair to the message of an InputError in the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"representation {i} against {j}: {error}") from error
