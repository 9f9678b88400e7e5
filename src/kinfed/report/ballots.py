"""The vote of a fedvote run: what came of it, and who named which source (specification E.2)."""

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

LABELLED = 120  # clients whose names still have room side by side
CLASSIFIER = {"keep": "the classifier stayed", "reinit": "the classifier started anew", "source": "and the classifier"}


def votes(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The rows of methods that have transferred a source, a run a seed."""
    return {row: group for row, group in in_rows(runs).items() if all(run.summary.get("vote") for run in group)}


def voted(run: Run) -> bool:
    """Whether there are ballots to look at; not where the source was asked for."""
    return bool((run.summary.get("vote") or {}).get("ballots"))


def outcomes(group: Sequence[Run]) -> list[str]:
    """What came of each seed's vote, a line a seed."""
    lines = [_outcome(run) for run in group]
    if len(group) == 1:
        return lines
    return [f"Seed {run.summary['seed']}: {line}" for run, line in zip(group, lines, strict=True)]


def _outcome(run: Run) -> str:
    vote = run.summary.get("vote")
    if vote is None:
        return "No source was transferred: in the round of the vote no client's work could be used."
    name, (copied, layers) = vote["transferred"], vote["layers"]
    took = f"{copied} of {layers} layers, {CLASSIFIER[run.config[run.method]['classifier']]}"
    if not vote["voted"]:
        return f"{name} was transferred in round {vote['round']} as asked for, without a vote ({took})."
    cast = f"{vote['ballots']} of {len(run.vote_line['clients'])} clients cast a ballot"
    return f"In round {vote['round']}, {cast}; {name} was transferred ({took})."


def vote_table(run: Run) -> Table:
    """Sources, the winner first and marked: on how many ballots each is, and its Borda points."""
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
    meanings = ("", "", "ballots that name it; the most win", f"Borda: {most} for a first place, one less for the next")
    return Table(("source", "", "votes", "points"), meanings, tuple(rows))


def _ranking(vote: Mapping[str, Any]) -> list[int]:
    """Indices of the sources, the winner first."""
    return sorted(range(len(vote["sources"])), key=lambda i: (-vote["votes"][i], -vote["points"][i], i))


def by_ballot(ballots: Sequence[Sequence[int]], ranking: Sequence[int]) -> list[int]:
    """An order of clients in which those with like ballots stand together, those of the winner first, empty ones last.

    Args:
        ballots: Indices of sources, a client's best choice first.
        ranking: All sources, the winner first.
    """
    place = {source: i for i, source in enumerate(ranking)}
    return sorted(range(len(ballots)), key=lambda i: [place[source] for source in ballots[i]] or [len(ranking)])


def _picture(run: Run) -> tuple[list[str], list[str], NDArray[np.float64]]:
    """Sources, clients, and at which place each source stands on each ballot; NaN where it is not named."""
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
    """Sources (rows, the winner first) and clients (columns, like ballots together): the places on the ballots."""
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
            hovertemplate="client %{x}: %{y} at place %{z}<extra></extra>",
            hoverongaps=False,
            xgap=1,
            ygap=1,
        )
    )
    figure.update_xaxes(title_text="client", type="category", showgrid=False, showticklabels=len(clients) <= LABELLED)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False, automargin=True)
    return styled(figure, height=max(300, 160 + 24 * len(sources)), plot_bgcolor="#f4f4f4")


def save_ballots(run: Run, path: Path) -> None:
    """The same as one PNG."""
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
    """Of each place on a colour scale; the first is the darkest, and the last can be told from none."""
    return [float(x) for x in np.linspace(0.05, 0.75, places)]


def _ordinal(place: int) -> str:
    ending = "th" if 10 < place % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"
