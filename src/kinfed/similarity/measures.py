"""Similarity measures by name, with their requirements on the two sides."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from kinfed.errors import InputError
from kinfed.registry import Registry
from kinfed.similarity.cca import cca, pwcca, svcca
from kinfed.similarity.cka import cka
from kinfed.similarity.emd import emd
from kinfed.similarity.entrywise import cosine, frobenius
from kinfed.similarity.inputs import measure
from kinfed.similarity.procrustes import procrustes
from kinfed.similarity.rsa import rsa
from kinfed.similarity.sketch import sketched_cka
from kinfed.similarity.unpaired import class_mean, feature_cov

__all__ = ["MEASURES", "Measure", "as_measure"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Similarity measure of two representations, the larger the more similar, with its requirements on them.

    Attributes:
        name: Name for messages and tables.
        function: Formula, called as ``(x, y, **options)``; `Measure.of` makes one from a plain function.
        options: Keywords that the function is called with.
        paired: True if row r of both sides is the same example, so that both need the same number of rows.
        same_width: True if column c of both sides is the same feature, so that both need the same number of columns.
        needs_labels: True if the sides are `class_means`, which are made with labels.
        differentiable: True if it has a gradient.
        symmetric: True if exchanging the sides does not change the value.
        debiased: True if it is 0 on average for unrelated representations, for any number of examples.
        counterpart: Name of the debiased version of the measure; None if there is none.
        least_examples: Smallest number of examples that it accepts.
        of_grams: True if it can be computed from the `Gram` of each side.

    >>> MEASURES["debiased_cka"].least_examples
    4
    """

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    paired: bool = True
    same_width: bool = False
    needs_labels: bool = False
    differentiable: bool = False
    symmetric: bool = False
    debiased: bool = False
    counterpart: str | None = None
    least_examples: int = 1
    of_grams: bool = False

    def __call__(self, x: Any, y: Any, **options: Any) -> Any:
        """Compute the similarity of two representations: a tensor if one of them is a tensor, otherwise a float."""
        return self.function(x, y, **{**self.options, **options})

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str | None = None, **about: Any) -> Self:
        """Make a measure from a plain function; its input is checked as for kinfed's own measures.

        Args:
            function: Function ``(x, y) -> number`` of two float64 NumPy arrays, examples × features. If the measure is
                ``differentiable``, they are torch tensors, in a loss of single precision possibly float32.
            name: Name of the measure; None for the name of the function.
            **about: Other attributes that differ from the defaults.

        >>> import numpy as np
        >>> overlap = Measure.of(lambda x, y: (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()), name="overlap")
        >>> overlap([[1.0], [2.0]], [[2.0], [4.0]])
        1.0
        """
        called = name or str(getattr(function, "__name__", type(function).__name__))
        said = cls(name=called, function=function, **about)

        @functools.wraps(function)
        def formula(x: Tensor, y: Tensor, **options: Any) -> Tensor:
            if (fewest := min(len(x), len(y))) < said.least_examples:
                raise InputError(f"{called} needs at least {said.least_examples} examples, got {fewest}")
            sides = (x, y) if said.differentiable else (x.cpu().numpy(), y.cpu().numpy())
            try:
                told = function(*sides, **options)
                value = told if isinstance(told, Tensor) else torch.as_tensor(told, dtype=torch.float64)
            except InputError:
                raise
            except Exception as error:  # whatever a user's function does
                raise InputError(f"{called} failed with {type(error).__name__}: {error}") from error
            if value.numel() != 1 or value.is_complex():
                raise InputError(
                    f"{called} returned {value.dtype} of shape {tuple(value.shape)}; a measure must return one number"
                )
            return value.reshape(()).to(x.device)

        formula.__name__ = called
        rules = measure(paired=said.paired, same_width=said.same_width, gradient=said.differentiable)
        return replace(said, function=rules(formula))


def _measures() -> dict[str, Measure]:
    """Declare the measures that are built in."""
    own = functools.partial(Measure, symmetric=True, differentiable=True)
    of_grams = functools.partial(own, function=cka, of_grams=True)
    debiased = functools.partial(of_grams, debiased=True, least_examples=4)
    not_differentiable = functools.partial(own, differentiable=False)
    every = [
        of_grams(name="cka", counterpart="debiased_cka"),
        debiased(name="debiased_cka", options={"debiased": True}),
        of_grams(name="rbf_cka", options={"kernel": "rbf"}, counterpart="debiased_rbf_cka"),
        debiased(name="debiased_rbf_cka", options={"kernel": "rbf", "debiased": True}),
        own(name="feature_cov", function=feature_cov, paired=False, same_width=True),
        own(name="class_mean", function=class_mean, needs_labels=True),
        own(name="sketched_cka", function=sketched_cka, counterpart="debiased_cka"),
        not_differentiable(name="cca", function=cca),
        not_differentiable(name="svcca", function=svcca),
        not_differentiable(name="pwcca", function=pwcca, symmetric=False),
        own(name="procrustes", function=procrustes),
        not_differentiable(name="rsa", function=rsa),
        own(name="emd", function=emd, same_width=True),
        own(name="frobenius", function=frobenius, same_width=True),
        own(name="cosine", function=cosine, same_width=True),
    ]
    return {one.name: one for one in every}


def _fault(thing: Any) -> str | None:
    return None if callable(thing) else "is not a function of two representations"


def _from_elsewhere(name: str, thing: Any) -> Measure:
    return replace(thing, name=name) if isinstance(thing, Measure) else Measure.of(thing, name=name)


_OWN = _measures()
MEASURES = Registry("measure", _OWN, _fault, _from_elsewhere)
"""Measures by name; a user's own is ``package.module:function`` or an entry point in ``kinfed.measures``."""


def as_measure(given: str | Measure | Callable[..., Any]) -> Measure:
    """Find a measure by name, or make one from a function.

    Args:
        given: Name of one of `MEASURES`, a `Measure`, which is returned unchanged, or a function of two
            representations.

    Raises:
        InputError: If there is no measure of this name, or the argument is none of these.

    >>> as_measure("cka").counterpart
    'debiased_cka'
    """
    if isinstance(given, Measure):
        return given
    if isinstance(given, str) and given in MEASURES:
        return MEASURES[given]
    if not callable(given):
        raise InputError(
            f"measure must be one of {', '.join(MEASURES)}, or a function of two representations; got {given!r}"
        )
    own = [one for one in _OWN.values() if one.function is given and not one.options]
    return own[0] if own else Measure.of(given)
