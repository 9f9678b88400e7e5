"""The vote of a fedvote run: its result, and the ballots of the clients (specification E.2).

Clients vote for a pre-trained source model; a client's ballot names the sources most similar to its model, best first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.colors import sample_colorscale

from kinfed.errors import plain
from kinfed.report.folders import Run
from kinfed.report.names import hypertext, labels
from kinfed.report.picture import picture
from kinfed.report.rows import in_rows
from kinfed.report.style import styled
from kinfed.report.table import Cell, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LABELLED", "ballot_figure", "by_ballot", "outcomes", "save_ballots", "vote_table", "voted", "votes"]

LABELLED = 120  # largest number of clients whose names are shown
CLASSIFIER = {
    "keep": "the classifier was kept",
    "reinit": "the classifier was re-initialised",
    "source": "and the classifier",
}


def votes(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the rows whose runs have all transferred a source model."""
    return {row: group for row, group in in_rows(runs).items() if all(run.summary.get("vote") for run in group)}


def voted(run: Run) -> bool:
    """Return True if a run has ballots; it has none if the user chose the source model."""
    return bool((run.summary.get("vote") or {}).get("ballots"))


def outcomes(group: Sequence[Run]) -> list[str]:
    """Describe the result of the vote, one line per seed."""
    lines = [_outcome(run) for run in group]
    if len(group) == 1:
        return lines
    return [f"Seed {run.summary['seed']}: {line}" for run, line in zip(group, lines, strict=True)]


def _outcome(run: Run) -> str:
    vote = run.summary.get("vote")
    if vote is None:
        return "No source was transferred: no client sent a usable update in the round of the vote."
    name, (copied, layers) = vote["transferred"], vote["layers"]
    took = f"{copied} of {layers} layers, {CLASSIFIER[run.config[run.method]['classifier']]}"
    if not vote["voted"]:
        return f"{name} was transferred in round {vote['round']}, as configured, without a vote ({took})."
    cast = f"{vote['ballots']} of {len(run.vote_line['clients'])} clients cast a ballot"
    return f"In round {vote['round']}, {cast}; {name} was transferred ({took})."


def vote_table(run: Run) -> Table:
    """Make a table of the source models with their votes and Borda points, the winner first and marked."""
    vote = run.summary["vote"]
    rows = [
        (
            Cell(vote["sources"][i], best=place == 0),
            Cell("transferred" if place == 0 else ""),
            Cell(str(vote["votes"][i]), best=place == 0),
            Cell(str(vote["points"][i])),
        )
        for place, i in enumerate(_ranking(vote))
    ]
    most = run.config[run.method]["ballot"]
    meanings = (
        "",
        "",
        "number of ballots that name the source; the source with the most votes wins",
        f"Borda points: {most} for a first place on a ballot, one less for each further place",
    )
    return Table(("source", "", "votes", "points"), meanings, tuple(rows))


def _ranking(vote: Mapping[str, Any]) -> list[int]:
    """Return the indices of the source models in decreasing order of votes.

    Sources with equal votes are ordered by their Borda points, then by their index.

    Args:
        vote: Record of one vote: the entry ``vote`` of a ``summary.json``.
    """
    return sorted(range(len(vote["sources"])), key=lambda i: (-vote["votes"][i], -vote["points"][i], i))


def by_ballot(ballots: Sequence[Sequence[int]], ranking: Sequence[int]) -> list[int]:
    """Sort clients so that similar ballots are adjacent: ballots for the winner first, empty ballots last.

    Args:
        ballots: Indices of source models on each client's ballot, the best choice first.
        ranking: Indices of all source models, the winner first.

    Returns:
        Indices of the clients.

    >>> by_ballot([[], [1, 0], [0, 1]], ranking=[0, 1])
    [2, 1, 0]
    """
    place = {source: i for i, source in enumerate(ranking)}
    return sorted(range(len(ballots)), key=lambda i: [place[source] for source in ballots[i]] or [len(ranking)])


def _picture(run: Run) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Return the names of the source models and of the clients, and the place of each source on each ballot.

    The places are a matrix of sources × clients; they are NaN for sources that are not on the ballot.
    """
    vote, line = run.summary["vote"], run.vote_line
    ranking, ballots = _ranking(vote), [line["ballots"].get(str(id), []) for id in line["clients"]]
    order = by_ballot(ballots, ranking)
    places = np.full((len(ranking), len(order)), np.nan)
    for column, i in enumerate(order):
        for place, source in enumerate(ballots[i], start=1):
            places[ranking.index(source), column] = place
    sources, clients = [vote["sources"][i] for i in ranking], [run.client_name(line["clients"][i]) for i in order]
    return labels(sources), labels(clients), places


def ballot_figure(run: Run) -> go.Figure:
    """Draw the place of each source model (rows, the winner first) on the ballot of each client (columns)."""
    sources, clients, places = _picture(run)
    last = int(np.nanmax(places))
    shades = sample_colorscale("Greens_r", _darkness(last))
    edges = np.linspace(0, 1, last + 1)
    figure = go.Figure(
        go.Heatmap(
            z=places,
            x=[*map(hypertext, clients)],
            y=[*map(hypertext, sources)],
            zmin=0.5,
            zmax=last + 0.5,
            colorscale=[(edge, shade) for i, shade in enumerate(shades) for edge in edges[i : i + 2]],
            colorbar={
                "tickvals": [*range(1, last + 1)],
                "ticktext": [_ordinal(place) for place in range(1, last + 1)],
                "title": "place",
                "thickness": 14,
            },
            hovertemplate="client %{x}: %{y} in place %{z}<extra></extra>",
            hoverongaps=False,
            xgap=1,
            ygap=1,
        )
    )
    figure.update_xaxes(title_text="client", type="category", showgrid=False, showticklabels=len(clients) <= LABELLED)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, automargin=True)
    return styled(figure, height=max(300, 160 + 24 * len(sources)), plot_bgcolor="#f4f4f4")


def save_ballots(run: Run, path: Path) -> None:
    """Write the picture of the ballots to a PNG."""
    sources, clients, _ = _picture(run)
    with picture(path, 4 + min(0.16 * len(clients), 20), 1.6 + 0.24 * len(sources)) as figure:
        _draw(run, figure)


def _draw(run: Run, figure: Figure) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    sources, clients, places = _picture(run)
    last = int(np.nanmax(places))
    shades = ListedColormap(sample_colorscale("Greens_r", _darkness(last), colortype="tuple"))
    axes = figure.subplots()
    axes.set_facecolor("#f4f4f4")
    mesh = axes.pcolormesh(
        places, cmap=shades, norm=BoundaryNorm(np.arange(0.5, last + 1), last), edgecolors="white", linewidth=0.5
    )
    axes.invert_yaxis()
    axes.set_title(plain(_outcome(run)), fontsize=9, loc="left", wrap=True)
    axes.set_yticks(np.arange(len(sources)) + 0.5, sources)
    shown = clients if len(clients) <= LABELLED else []
    axes.set_xticks(np.arange(len(shown)) + 0.5, shown, rotation=90, fontsize=6)
    axes.set_xlabel("client")
    axes.tick_params(length=0)
    bar = figure.colorbar(mesh, ax=axes, label="place on the ballot", ticks=range(1, last + 1))
    bar.ax.invert_yaxis()
    bar.ax.set_yticklabels([_ordinal(place) for place in range(1, last + 1)])


def _darkness(places: int) -> list[float]:
    """Return the position of each place on a colour scale, from dark to light; the last differs from the background."""
    return [float(x) for x in np.linspace(0.05, 0.75, places)]


def _ordinal(place: int) -> str:
    ending = "th" if 10 < place % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"
