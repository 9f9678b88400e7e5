"""A vote for a source model: the ranking for the terminal, and the scores behind it as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

if TYPE_CHECKING:
    from kinfed.experiment.vote import Ballots

__all__ = ["provenance", "ranking_table", "save_picture"]

NUMBERED = 240  # cells that have room for their numbers


def provenance(vote: Ballots) -> str:
    """What the numbers depend on."""
    about = vote.about
    return (
        f"{len(vote.clients)} clients of {about['data']} (partition {about['partition']}, seed {about['seed']}) vote "
        f"after {about['rounds']} rounds of {about['method']}: {vote.measure} of {vote.taps}, on {vote.images} "
        f"training images a client at most, without labels; a ballot names {max(map(len, vote.ballots))} sources."
    )


def ranking_table(vote: Ballots) -> Table:
    """Sources, the winner first: votes, Borda points, and the scores over the clients."""
    table = Table(box=None, pad_edge=False)
    table.add_column("source", no_wrap=True)
    for heading in ("votes", "points", "mean score", "lowest", "highest"):
        table.add_column(heading, justify="right")
    told = np.array(vote.scores, dtype=float)
    for place, name in enumerate(vote.ranking):
        i = vote.sources.index(name)
        scores = told[:, i][~np.isnan(told[:, i])]
        numbers = [f"{f(scores):.3f}" if len(scores) else "–" for f in (np.mean, np.min, np.max)]
        shown = f"[bold green]{name}*[/]" if place == 0 else name
        table.add_row(shown, str(vote.votes[i]), str(vote.points[i]), *numbers)
    return table


def save_picture(vote: Ballots, path: Path) -> Path:
    """Clients × sources, the sources in the order of the ranking, each client's first choice marked; votes above."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    order = [vote.sources.index(name) for name in vote.ranking]
    matrix = np.array(vote.scores, dtype=float)[:, order]
    rows, columns = matrix.shape
    figure = Figure(figsize=(3 + 0.8 * columns, 2.4 + min(0.32 * rows, 9)), layout="constrained")
    FigureCanvasAgg(figure)
    above, axis = figure.subplots(2, 1, sharex=True, height_ratios=(1, max(2, min(0.3 * rows, 8))))
    above.bar(range(columns), [vote.votes[i] for i in order], color=["#2a7f62"] + ["#9bb8ad"] * (columns - 1))
    above.set(ylabel="votes", title=f"{vote.ranking[0]} wins")
    above.spines[["top", "right"]].set_visible(False)
    image = axis.imshow(matrix, cmap="viridis", interpolation="nearest", aspect="auto")
    axis.set_xticks(range(columns), vote.ranking, rotation=30, ha="right")
    every = max(1, rows // 40)
    axis.set_yticks(range(0, rows, every), vote.clients[::every], fontsize=8)
    axis.set_ylabel("client")
    middle = np.nanmean([np.nanmin(matrix), np.nanmax(matrix)])
    for i, cast in enumerate(vote.ballots):
        if cast:
            axis.plot(order.index(cast[0]), i, marker="s", mfc="none", mec="#e4572e", mew=1.4, ms=9)
        for j in range(columns if matrix.size <= NUMBERED else 0):
            if not np.isnan(matrix[i, j]):
                ink = "black" if matrix[i, j] > middle else "white"
                axis.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", color=ink, fontsize=7)
    figure.colorbar(image, ax=axis, label=f"{vote.measure} of {vote.taps}")
    figure.savefig(path, dpi=110)
    return path
