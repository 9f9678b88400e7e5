"""Votes of clients for a source model: scores, ballots and their count (specification E.2).

A source (model) is a model that was trained before on other data. A client's score for a source is the similarity of
their activations on the client's images, read at tap points, which are named places in a model. A client's ballot is
the list of the sources with the highest scores. Letters: ``P`` sources, ``n`` images, ``m`` sources on a ballot.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.learning import activations
from kinfed.models import Model, Source
from kinfed.similarity import MEASURES, BiasedSimilarityWarning, UndefinedSimilarityWarning, similarity_matrix

__all__ = ["Count", "Seen", "ballot", "bias", "count", "scores", "seen"]


@dataclass(frozen=True)
class Seen:
    """Activations of a client's model and of the sources on n of the client's images, from which scores are computed.

    Attributes:
        own: Activations of the client's model, n×… for each tap point.
        theirs: Activations of the P sources, n×… each, for each tap point.
    """

    own: Sequence[Tensor]
    theirs: Sequence[Sequence[Tensor]]


def seen(model: Model, sources: Sequence[Source], samples: Samples, taps: Sequence[tuple[str, str]]) -> Seen:
    """Compute the activations of a client's model and of the sources, without labels.

    Args:
        model: Model of the client.
        sources: P source models, on the model's device.
        samples: n samples of the client.
        taps: Pairs of tap points that are compared: one of the model, one of every source.
    """
    images = replace(samples, labels=None)
    own, theirs = zip(*taps, strict=True)
    of_sources = [activations(source.model, images, theirs) for source in sources]
    return Seen(activations(model, images, own), [*zip(*of_sources, strict=True)])


def scores(seen: Seen, measure: str) -> Tensor:
    """Compute the similarity between a client's model and each source.

    A warning that the measure is biased is left to the caller, who gives it once for all clients (`bias`).

    Args:
        seen: Activations, of widths that the measure can compare.
        measure: Name of a measure of `kinfed.similarity.MEASURES`.

    Returns:
        Similarities to the P sources, means over the tap points; the larger, the more similar. NaN if a representation
        is constant or not finite, or if there are fewer images than the measure needs.

    Raises:
        ValueError: If the measure cannot compare two of the activations.
    """
    similarity = MEASURES[measure]
    if len(seen.own[0]) < similarity.least_examples:
        return torch.full((len(seen.theirs[0]),), torch.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasedSimilarityWarning)
        warnings.simplefilter("ignore", UndefinedSimilarityWarning)  # an undefined score is NaN and gets no vote
        rows = [
            similarity_matrix([own], similarity, against=theirs)[0]
            for own, theirs in zip(seen.own, seen.theirs, strict=True)
        ]
    return torch.stack(rows).mean(dim=0).cpu()


def bias(measure: str, images: Sequence[int], features: int) -> str | None:
    """Return a warning if the scores of a vote are biased, since features outnumber images; None if they are not.

    >>> bias("debiased_cka", images=[100, 200], features=4096) is None
    True

    Args:
        measure: Name of a measure of `kinfed.similarity.MEASURES`.
        images: Number of images of each client in the vote.
        features: Largest number of features that are compared.
    """
    usual, counterpart = int(statistics.median(images)), MEASURES[measure].counterpart
    if counterpart is None or features <= usual:
        return None
    return (
        f"{measure} of n = {usual} images (median client) and p = {features} features is biased upwards, most for "
        f"wide sources, since there are few images; {counterpart} is not."
    )


def ballot(scores: Tensor, size: int) -> list[int]:
    """Return the indices of the sources with the highest scores, best first; ties go to the smaller index.

    >>> ballot(torch.tensor([0.2, float("nan"), 0.9]), size=2)
    [2, 0]

    Args:
        scores: Similarities to the P sources, P; a source with NaN gets no vote.
        size: Largest number of sources on the ballot.
    """
    told = scores.tolist()
    order = sorted((i for i, score in enumerate(told) if not math.isnan(score)), key=lambda i: -told[i])
    return order[:size]


@dataclass(frozen=True)
class Count:
    """Result of a vote.

    Attributes:
        votes: Number of ballots that name each of the P sources.
        points: Borda points of each source: on a ballot of at most m sources, m for the first, m - 1 for the second, …
        ranking: Indices of all sources, the winner first: by votes, then by points, then by index.
    """

    votes: list[int]
    points: list[int]
    ranking: list[int]


def count(ballots: Mapping[Any, Sequence[int]], sources: int, size: int) -> Count:
    """Count ballots; their order does not matter.

    >>> count({0: [2, 0], 1: [0, 1]}, sources=3, size=2)
    Count(votes=[2, 1, 1], points=[3, 1, 2], ranking=[0, 2, 1])

    Args:
        ballots: Ballots by client: indices of sources, best first, at most ``size``.
        sources: Number P of sources.
        size: Largest number m of sources on a ballot.
    """
    votes, points = [0] * sources, [0] * sources
    for choices in ballots.values():
        for place, source in enumerate(choices):
            votes[source] += 1
            points[source] += size - place
    return Count(votes, points, sorted(range(sources), key=lambda i: (-votes[i], -points[i], i)))
