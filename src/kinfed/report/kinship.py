"""Pictures of kinship: the similarity of clients as a method measures it, beside their groups or common classes.

Letters: ``N`` clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from kinfed.errors import plain
from kinfed.learning import class_overlap, pair_auc, rank_correlation
from kinfed.report.document import Panel
from kinfed.report.folders import Run
from kinfed.report.names import hypertext, labels
from kinfed.report.picture import picture
from kinfed.report.style import SIMILARITY, styled

__all__ = ["client_order", "kin_order", "kinship", "save_kinship", "values_told"]

Matrix = NDArray[np.float64]
SHOWN = 4  # largest number of rounds in the PNG
ORDERED = 200  # largest number of clients whose leaves are ordered: this takes N³ steps, minutes for 2,000 clients


def kin_order(similarity: Matrix) -> list[int]:
    """Sort clients so that similar ones are adjacent, by average linkage; up to 200 in the optimal leaf order.

    Args:
        similarity: Similarities of the clients, N×N.

    Returns:
        Indices of the N clients.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    if len(similarity) < 3:
        return [*range(len(similarity))]
    distance = 1 - np.nan_to_num((similarity + similarity.T) / 2)
    np.fill_diagonal(distance, 0)
    condensed = squareform(distance.clip(min=0), checks=False)
    tree = linkage(condensed, "average")
    return [int(i) for i in leaves_list(optimal_leaf_ordering(tree, condensed) if len(distance) <= ORDERED else tree)]


def client_order(run: Run) -> list[int]:
    """Return the order of the clients in all matrices: clients of one group, or with common classes, are adjacent.

    It is that of the planted groups, then of the groups found; without groups, of the overlap of the clients' classes.
    Without labels and groups, it is the order of their numbers.
    """
    found, truth = run.lines[-1].get("groups"), run.federation.get("groups", ())
    if found is not None or truth:
        shown = truth if found is None else found
        return sorted(range(len(shown)), key=lambda i: (truth[i] if truth else 0, shown[i], i))
    if run.unlabelled:
        return [*range(len(run.samples))]
    return kin_order(class_overlap(np.array(run.federation["train"])))


def values_told(matrix: Matrix) -> list[list[str]]:
    """Return the values of a matrix as texts; what is not known is ``n/a``."""
    return [["n/a" if np.isnan(value) else f"{value:.4f}" for value in row] for row in matrix]


def kinship(run: Run, name: str) -> list[Panel]:
    """Draw the groups of the clients, and their similarity after a round that a slider selects.

    Without groups, found or planted, the overlap of the clients' classes is drawn instead. Clients of one group, or
    with common classes, are adjacent. Hovering shows groups and classes.

    Args:
        run: The run.
        name: Name of the picture with the similarity.
    """
    (title, beside), rounds, order = _beside(run), _rounds(run, name), client_order(run)
    called, truth = hypertext(run.pictures[name].title), run.federation.get("groups", ())
    names = [hypertext(run.client_labels[i]) for i in order]
    held = [_held(run, i) for i in order]

    def drawn(matrix: Matrix, visible: bool) -> go.Heatmap:
        low, high = _spread(matrix)
        shown = matrix[np.ix_(order, order)]
        return go.Heatmap(
            z=shown,
            x=names,
            y=names,
            customdata=values_told(shown),
            text=[[f"{a} and {b}" for b in held] for a in held],
            zmin=low,
            zmax=high,
            hovertemplate="clients %{y} and %{x}: %{customdata}<br>%{text}<extra></extra>",
            visible=visible,
            colorscale=SIMILARITY,
            colorbar={"thickness": 12},
        )

    last = [*rounds][-1]
    left = go.Figure(drawn(beside, visible=True))
    right = go.Figure([drawn(matrix, visible=round == last) for round, matrix in rounds.items()])
    titles = {round: _titled(called, round, matrix, beside, truth, "<br>") for round, matrix in rounds.items()}
    steps = [
        {
            "label": f"{round}",
            "method": "update",
            "args": [{"visible": [round == other for other in rounds]}, {"title.text": titled}],
        }
        for round, titled in titles.items()
    ]
    slider = {"active": len(steps) - 1, "steps": steps, "pad": {"t": 60}, "currentvalue": {"prefix": "after round "}}
    for figure, told in ((left, hypertext(title)), (right, titles[last])):
        figure.update_xaxes(title_text="client", type="category", constrain="domain")
        figure.update_yaxes(title_text="client", type="category", autorange="reversed", constrain="domain")
        figure.update_yaxes(scaleanchor="x")
        figure.update_layout(title={"text": told, "font": {"size": 14}, "x": 0, "xanchor": "left"})
        styled(figure, height=520, sliders=[slider] if figure is right and len(steps) > 1 else [])
        figure.update_layout(margin={"t": 60})
    return [Panel(left), Panel(right)]


def save_kinship(run: Run, name: str, path: Path) -> None:
    """Write the groups or common classes, and the similarity after some of the rounds and the last one, to a PNG."""
    (heading, beside), rounds, order = _beside(run), _rounds(run, name), client_order(run)
    title, truth = plain(run.pictures[name].title), run.federation.get("groups", ())
    chosen = [[*rounds][i] for i in np.unique(np.linspace(0, len(rounds) - 1, SHOWN).round().astype(int))]
    panels = [(heading, beside)]
    panels += [(_titled(title, round, rounds[round], beside, truth, "\n"), rounds[round]) for round in chosen]
    with picture(path, 3.6 * len(panels), 3.9) as figure:
        for axes, (title, matrix) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            low, high = _spread(matrix)
            shown = matrix[np.ix_(order, order)].copy()
            np.fill_diagonal(shown, np.nan)  # it is always 1
            image = axes.imshow(shown, cmap=SIMILARITY.lower(), vmin=low, vmax=high, interpolation="nearest")
            axes.set_title(title, fontsize=10)
            axes.set_xticks([])
            axes.set_yticks([])
            figure.colorbar(image, ax=axes, shrink=0.75)


def _beside(run: Run) -> tuple[str, Matrix]:
    """Return title and matrix of what a similarity is compared with, N×N.

    It is 1 for clients of one group and 0 for others: of the groups found, else of the planted ones. Without groups, it
    is the overlap of the clients' classes.
    """
    found, truth = run.lines[-1].get("groups"), run.federation.get("groups", ())
    if found is None and not truth:
        return "Shared classes", class_overlap(np.array(run.federation["train"]))
    shown = np.array(truth if found is None else found)
    title = "Planted groups" if found is None else "Groups found"
    agreement = run.lines[-1].get("adjusted_rand_index")
    told = "" if found is None or agreement is None else f" (adjusted Rand index {agreement:.2f})"
    return title + told, (shown[:, None] == shown).astype(np.float64)


def _rounds(run: Run, name: str) -> dict[int, Matrix]:
    return {round: pictures[name].matrix.numpy() for round, pictures in run.pictured.items() if name in pictures}


def _titled(title: str, round: int, similarity: Matrix, beside: Matrix, truth: Sequence[int], between: str) -> str:
    """Return the title of a similarity after a round, with its agreement with planted groups or common classes."""
    if truth:
        told, value = "AUC of pairs", pair_auc(similarity, truth)
    else:
        told, value = "rank correlation", rank_correlation(similarity, beside)
    return f"{title} after round {round}" + ("" if value is None else f"{between}{told} {value:.2f}")


def _spread(matrix: Matrix) -> tuple[float, float]:
    """Return the lowest and the highest value of the colour scale; the diagonal, which is always 1, is left out."""
    others = matrix[~np.eye(len(matrix), dtype=bool)]
    known = others[np.isfinite(others)]
    return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)


def _held(run: Run, client: int) -> str:
    """Return the groups of a client, if there are any, and the names of the classes of its training samples."""
    counts = run.federation["train"][client]
    named = labels(run.federation["classes"])
    classes = hypertext("/".join(name for name, count in zip(named, counts, strict=True) if count))
    groups = {"group": run.lines[-1].get("groups"), "planted group": run.federation.get("groups")}
    told = [f"{which} {of[client]}" for which, of in groups.items() if of]
    return ", ".join([*told, f"classes {classes}"])
