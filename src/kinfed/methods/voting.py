"""How clients vote for a source model, and how the votes are counted (specification E.2)."""

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
    """What a client's model and the sources make of the client's images: everything that a measure needs.

    Attributes:
        own: Activations of the client's model, n×… a tap point.
        theirs: Those of the P sources, tap by tap.
    """

    own: Sequence[Tensor]
    theirs: Sequence[Sequence[Tensor]]


def seen(model: Model, sources: Sequence[Source], samples: Samples, taps: Sequence[tuple[str, str]]) -> Seen:
    """Every model sees every sample once; no label is looked at.

    Args:
        model: The client's.
        sources: P of them, on the model's device.
        samples: n, of a client.
        taps: Tap points of the model, and which of every source each is compared with.
    """
    images = replace(samples, labels=None)
    own, theirs = zip(*taps, strict=True)
    of_sources = [activations(source.model, images, theirs) for source in sources]
    return Seen(activations(model, images, own), [*zip(*of_sources, strict=True)])


def scores(seen: Seen, measure: str) -> Tensor:
    """How alike a client's model and each source are.

    Args:
        seen: Of any widths that the measure can compare.
        measure: One of `kinfed.similarity.MEASURES`.

    Returns:
        P numbers, larger is more alike: the mean over the tap points. NaN where a side is constant or not finite, and
        where there are fewer images than the measure takes. That a measure is biased is for whoever
        holds the vote to say, once for all clients.

    Raises:
        ValueError: If the measure cannot compare two of them.
    """
    similarity = MEASURES[measure]
    if len(seen.own[0]) < similarity.least_examples:
        return torch.full((len(seen.theirs[0]),), torch.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiasedSimilarityWarning)
        warnings.simplefilter("ignore", UndefinedSimilarityWarning)  # NaN says so, and gets no vote
        rows = [
            similarity_matrix([own], similarity, against=theirs)[0]
            for own, theirs in zip(seen.own, seen.theirs, strict=True)
        ]
    return torch.stack(rows).mean(dim=0).cpu()


def bias(measure: str, images: Sequence[int], features: int) -> str | None:
    """What must be said of a vote of which no scores are known; None if nothing.

    Args:
        measure: One of `kinfed.similarity.MEASURES`.
        images: How many each client looks at.
        features: The most that are compared.
    """
    usual, counterpart = int(statistics.median(images)), MEASURES[measure].counterpart
    if counterpart is None or features <= usual:
        return None
    return (
        f"{measure} of n = {usual} images (the median client) and p = {features} features is high for want of images, "
        f"too, most for wide sources; {counterpart} is not."
    )


def ballot(scores: Tensor, size: int) -> list[int]:
    """The sources with the highest scores, best first, ``size`` at most; of equal ones the first. NaN gets no vote."""
    told = scores.tolist()
    order = sorted((i for i, score in enumerate(told) if not math.isnan(score)), key=lambda i: -told[i])
    return order[:size]


@dataclass(frozen=True)
class Count:
    """What ballots come to.

    Attributes:
        votes: How many ballots name each of the P sources.
        points: Of Borda: on ballots of at most m, m for the first, m - 1 for the second, and so on.
        ranking: All sources, the winner first: by votes, then points, then index.
    """

    votes: list[int]
    points: list[int]
    ranking: list[int]


def count(ballots: Mapping[Any, Sequence[int]], sources: int, size: int) -> Count:
    """Count ballots, in whichever order they come.

    Args:
        ballots: Client → indices of sources, best first; ``size`` at most.
        sources: P.
        size: m.
    """
    votes, points = [0] * sources, [0] * sources
    for choices in ballots.values():
        for place, source in enumerate(choices):
            votes[source] += 1
            points[source] += size - place
    return Count(votes, points, sorted(range(sources), key=lambda i: (-votes[i], -points[i], i)))
