"""The result of a vote for a source model: the ranking for the terminal, and a picture of the scores.

A client's score for a source, a pre-trained model, is their similarity; its ballot names the most similar sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from kinfed.errors import plain
from kinfed.report.ballots import LABELLED, by_ballot
from kinfed.report.names import labels
from kinfed.report.picture import picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kinfed.experiment.vote import Ballots

__all__ = ["provenance", "ranking_table", "save_vote_picture"]

MISLEADING = 0.1  # bias of a mean score above which a note warns
NUMBERED = 240  # largest number of cells that show their scores as numbers


def provenance(vote: Ballots) -> str:
    """Describe how the scores were computed: clients, training, measure, layers and images; and their bias."""
    about, most = vote.about, max(map(len, vote.ballots))
    silent = sum(not cast for cast in vote.ballots)
    without = f" {silent} cast no ballot: no source could be compared with their models." if silent else ""
    return (
        f"{len(vote.clients)} clients of {about['data']} (partition {about['partition']}, seed {about['seed']}) vote "
        f"after {about['rounds']} rounds of {about['method']}: {vote.measure} of {vote.taps}, on {vote.images} "
        f"training images per client at most, without labels; a ballot names {most} "
        f"source{'s' if most > 1 else ''}.{without}{_bias(vote)}"
    )


def _bias(vote: Ballots) -> str:
    """Return a note if a mean score is much higher than its debiased value, else an empty text."""
    if vote.debiased is None:
        return ""
    excess = _means(vote.scores) - _means(vote.debiased.scores)
    if np.isnan(excess).all() or np.nanmax(excess) <= MISLEADING:
        return ""
    first, images = vote.debiased.ranking[0], sorted({min(vote.debiased.images), max(vote.debiased.images)})
    told = f"{first} is first, too" if first == vote.ranking[0] else f"{first} would be first"
    return (
        f" With n = {' to '.join(map(str, images))} images per client and up to p = {vote.debiased.features} "
        f"features, {vote.measure} is up to {np.nanmax(excess):.2f} above {vote.debiased.measure}: this excess comes "
        f"from having few images, mostly in wide layers, and not from similarity. By {vote.debiased.measure}, {told}."
    )


def _means(scores: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    """Compute the mean score of each source over the clients that have one; NaN if none has.

    Args:
        scores: Scores, clients × sources; None where a score is not defined.
    """
    told = np.array(scores, dtype=float)
    counts = (~np.isnan(told)).sum(axis=0)
    means: NDArray[np.float64] = np.where(counts, np.nansum(told, axis=0) / np.maximum(counts, 1), np.nan)
    return means


def ranking_table(vote: Ballots) -> Table:
    """Make the table of the sources, the winner first: votes, Borda points, and scores over the clients.

    The scores are the mean, the lowest and the highest, and the mean of the debiased measure if there is one.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column("source", no_wrap=True)
    for heading in ("votes", "points", "mean score", "lowest", "highest", *(["debiased"] if vote.debiased else [])):
        table.add_column(heading, justify="right")
    debiased = _means(vote.debiased.scores) if vote.debiased else None
    told = np.array(vote.scores, dtype=float)
    for place, name in enumerate(vote.ranking):
        i = vote.sources.index(name)
        scores = told[:, i][~np.isnan(told[:, i])]
        numbers = [f"{f(scores):.3f}" if len(scores) else "–" for f in (np.mean, np.min, np.max)]
        if debiased is not None:
            numbers.append("–" if np.isnan(debiased[i]) else f"{debiased[i]:.3f}")
        shown = Text(f"{plain(name)}*", "bold green") if place == 0 else Text(plain(name))
        table.add_row(shown, str(vote.votes[i]), str(vote.points[i]), *numbers)
    return table


def save_vote_picture(vote: Ballots, path: Path) -> Path:
    """Write a PNG of the scores by source (rows) and client (columns), with the votes beside it.

    The winner is the first row, and clients with similar ballots are side by side. Each client's first choice is
    outlined; cells without a score are hatched.

    Args:
        vote: Result of the vote.
        path: Path of the PNG.

    Returns:
        Path of the PNG.
    """
    with picture(path, 6 + min(_wide(vote) * len(vote.clients), 20), 1.8 + 0.28 * len(vote.sources)) as figure:
        _draw(vote, figure)
    return path


def _wide(vote: Ballots) -> float:
    """Return the width of one client's column in inches."""
    return 0.5 if len(vote.clients) * len(vote.sources) <= NUMBERED else 0.16


def _draw(vote: Ballots, figure: Figure) -> None:
    from matplotlib.patches import Rectangle

    ranking = [vote.sources.index(name) for name in vote.ranking]
    order = by_ballot(vote.ballots, ranking)
    matrix = np.array(vote.scores, dtype=float)[np.ix_(order, ranking)].T
    sources, clients = matrix.shape
    axis, beside = figure.subplots(1, 2, sharey=True, width_ratios=(max(3.0, _wide(vote) * clients), 1.5))
    voters, named = labels(vote.clients), labels(vote.ranking)
    axis.patch.set(facecolor="#eeeeee", edgecolor="#999999", hatch="xxxx")
    image = axis.imshow(matrix, cmap="viridis", interpolation="nearest", aspect="auto")
    axis.set_title(f"{named[0]} wins; \u25a1: first choice of a client; hatched: no score", fontsize=10)
    axis.set_yticks(range(sources), named)
    shown = order if clients <= LABELLED else []
    axis.set_xticks(range(len(shown)), [voters[i] for i in shown], rotation=90, fontsize=7)
    axis.set_xlabel("client")
    axis.tick_params(length=0)
    middle = np.nanmean([np.nanmin(matrix), np.nanmax(matrix)])
    for column, client in enumerate(order):
        if vote.ballots[client]:
            row = ranking.index(vote.ballots[client][0])
            axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#e4572e", linewidth=1.6))
        for row, score in enumerate(matrix[:, column] if matrix.size <= NUMBERED else ()):
            if not np.isnan(score):
                ink = "black" if score > middle else "white"
                axis.text(column, row, f"{score:.2f}", ha="center", va="center", color=ink, fontsize=7)
    bars = beside.barh(
        range(sources), [vote.votes[i] for i in ranking], color=["#2a7f62"] + ["#9bb8ad"] * (sources - 1)
    )
    beside.bar_label(bars, padding=3, fontsize=8)
    beside.set_title("votes", fontsize=10)
    beside.set_xticks([])
    beside.tick_params(length=0)
    beside.spines[["top", "right", "bottom"]].set_visible(False)
    figure.colorbar(image, ax=beside, label=f"{vote.measure} of {vote.taps}")
