"""Mean Gram of the clients of Hetero-SSFL: what is in it, and how the server cleans it before it is sent.

Specification D.5. Letters: L common images, K̄ the mean Gram, L×L, or its factors A, L×D, with K̄ = A Aᵀ; H = I − 11ᵀ/L
centres; C the mean colours of the images, L×c; λ the eigenvalues of HK̄H, and U its eigenvectors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.learning.frozen import store
from kinfed.models import Tensors
from kinfed.similarity import Gram, UndefinedSimilarityWarning, cka
from kinfed.similarity.gram import centred_gram, square_distances

__all__ = ["FACTORS", "GRAM", "Cleaning", "cka_with_colour", "cleaned", "mean_colours", "participation_ratio"]

# Names of the two forms of a mean Gram: A, L×D, or K̄, L×L.
FACTORS, GRAM = "factors", "gram"

Cleaning = Literal["none", "colour", "whitened", "neighbours"]

LEADING = 0.01  # least eigenvalue of a leading direction, as a fraction of the largest
ONE_IN = 20  # one in so many images is a nearest neighbour of an image
ROUNDING = 1e-5  # what is left of a matrix below this fraction of its norm is the rounding of its float32 entries


def mean_colours(images: Samples) -> Tensor:
    """Mean over the pixels of each image, L×c; with one channel, the mean brightness."""
    stored = store(lambda inputs: [inputs.mean(dim=(2, 3))], images)
    assert stored is not None
    return stored[0].cpu()


# -- what is in it ----------------------------------------------------------------------------------------------------


def participation_ratio(mean: Mapping[str, Tensor]) -> float | None:
    """Compute the participation ratio of HK̄H, (Σλ)² / Σλ² = tr(HK̄H)² / ‖HK̄H‖²; None if K̄ is constant.

    It is the number of directions if all count alike, and near 1 if one of them outweighs the rest.

    >>> round(participation_ratio({"factors": torch.eye(5)}), 6)
    4.0

    Args:
        mean: Mean Gram: ``gram``, L×L, or ``factors``, L×D.
    """
    form, centred = _centred(mean)
    gram = centred.T @ centred if form == FACTORS else centred  # AᵀHA, D×D, has the same eigenvalues above 0
    norm = torch.linalg.matrix_norm(gram)
    return float((gram.trace() / norm) ** 2) if norm else None


def cka_with_colour(mean: Mapping[str, Tensor], colours: Tensor) -> float | None:
    """Compute what colour explains of K̄: its debiased linear CKA with CCᵀ; None if undefined or if L < 4.

    Args:
        mean: Mean Gram: ``gram``, L×L, or ``factors``, L×D.
        colours: Mean colours C, L×c.
    """
    if len(colours) < 4:
        return None
    side = mean[FACTORS] if FACTORS in mean else Gram.of_matrix(mean[GRAM], debiased=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedSimilarityWarning)  # images of one colour
        value = float(cka(side, colours, debiased=True))
    return None if math.isnan(value) else value


# -- how it is cleaned ------------------------------------------------------------------------------------------------


def cleaned(mean: Tensors, how: Cleaning, colours: Tensor) -> Tensors:
    """Clean a mean Gram; the result is centred, or unchanged with ``none``, and all 0 if nothing is left.

    * ``colour`` takes out what is linear in the mean colours: (H − P) K̄ (H − P), with P the projection on the columns
      of HC.
    * ``whitened`` gives the leading directions, those with λ ≥ 0.01 λ₁, equal eigenvalues: λ̄ U Uᵀ, with λ̄ the mean of
      theirs; all other directions are dropped.
    * ``neighbours`` makes two images as similar as they have nearest neighbours in common: G Gᵀ / k, with Gᵢⱼ = 1 if j
      is among the k = ⌈L/20⌉ ≥ 2 nearest of i, itself included, and 0 otherwise. Distances are those of K̄,
      d²ᵢⱼ = K̄ᵢᵢ + K̄ⱼⱼ − 2 K̄ᵢⱼ.

    Args:
        mean: Mean Gram: ``gram``, L×L, or ``factors``, L×D.
        how: How it is cleaned.
        colours: Mean colours C, L×c.

    Returns:
        Cleaned mean Gram, ``gram`` or ``factors``.
    """
    if how == "colour":
        return _without(mean, colours)
    if how == "whitened":
        return _whitened(mean)
    return _by_neighbours(mean) if how == "neighbours" else mean


def _without(mean: Tensors, colours: Tensor) -> Tensors:
    form, centred = _centred(mean)
    directions, sizes, _ = torch.linalg.svd(colours.double() - colours.double().mean(dim=0), full_matrices=False)
    basis = directions[:, sizes > 1e-6 * len(colours) ** 0.5]  # images of one colour have no direction
    rest = centred - basis @ (basis.T @ centred)
    if form == GRAM:
        rest = rest - (rest @ basis) @ basis.T
    return {form: _unless_rounding(rest, centred).to(mean[form].dtype)}


def _whitened(mean: Tensors) -> Tensors:
    form, centred = _centred(mean)
    if form == FACTORS:
        directions, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
        values = sizes.square()
    else:
        values, directions = torch.linalg.eigh(centred)
    leads = values >= LEADING * values.max()
    return {FACTORS: (directions[:, leads] * values[leads].mean().sqrt()).to(mean[form].dtype)}


def _by_neighbours(mean: Tensors) -> Tensors:
    form, centred = _centred(mean)
    gram = centred @ centred.T if form == FACTORS else centred
    images = len(gram)
    count = min(max(2, -(-images // ONE_IN)), images)
    distances = square_distances(gram).fill_diagonal_(-1)  # itself first
    nearest = torch.zeros_like(gram, dtype=mean[form].dtype)
    nearest.scatter_(1, distances.topk(count, largest=False).indices, 1)
    return {GRAM: nearest @ nearest.T / count if gram.any() else nearest.zero_()}


def _centred(mean: Mapping[str, Tensor]) -> tuple[str, Tensor]:
    """Return the form of a mean Gram, and HA or HK̄H in float64; all 0 if K̄ is constant."""
    ((form, given),) = mean.items()
    whole = given.double()
    centred = whole - whole.mean(dim=0) if form == FACTORS else centred_gram(whole, debiased=False)
    return form, _unless_rounding(centred, whole)


def _unless_rounding(rest: Tensor, whole: Tensor) -> Tensor:
    left, before = torch.linalg.matrix_norm(rest), torch.linalg.matrix_norm(whole)
    return rest if left > ROUNDING * before else torch.zeros_like(rest)
