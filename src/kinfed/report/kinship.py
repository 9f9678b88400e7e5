"""Pictures of kinship: the similarity of clients as a method measures it, beside their groups or common classes.

Letters: ``N`` clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from kinfed.errors import plain
from kinfed.learning import class_overlap, pair_auc, rank_correlation
from kinfed.report.folders import Run
from kinfed.report.names import hypertext, labels
from kinfed.report.picture import picture
from kinfed.report.style import styled

__all__ = ["kin_order", "kinship", "save_kinship"]

Matrix = NDArray[np.float64]
SHOWN = 4  # largest number of rounds in the PNG


@dataclass(frozen=True)
class _Beside:
    """What the similarity is compared with.

    Attributes:
        title: Title of the matrix.
        matrix: 1 for clients of one group and 0 for others, or the overlap of their classes, N×N.
        order: Order in which the clients are drawn.
        truth: Group of each client under a planted shift, N; empty without one.
    """

    title: str
    matrix: Matrix
    order: list[int]
    truth: Sequence[int] = ()


def kin_order(similarity: Matrix) -> list[int]:
    """Sort clients so that similar ones are adjacent, by the optimal leaf order of average linkage.

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
    return [int(i) for i in leaves_list(optimal_leaf_ordering(linkage(condensed, "average"), condensed))]


def kinship(run: Run, name: str) -> go.Figure:
    """Draw the groups of the clients, and their similarity after a round that a slider selects.

    Without groups, found or planted, the overlap of the clients' classes is drawn instead. Clients of one group, or
    with common classes, are adjacent. Hovering shows groups and classes.

    Args:
        run: The run.
        name: Name of the picture with the similarity.
    """
    beside, rounds = _beside(run), _rounds(run, name)
    title, order = run.pictures[name].title, beside.order
    labelled = [*map(hypertext, run.client_labels)]
    names = [labelled[i] for i in order]
    held = [_held(run, i) for i in order]
    text = [[f"{a} and {b}" for b in held] for a in held]
    figure = make_subplots(cols=2, subplot_titles=(hypertext(beside.title), " "), horizontal_spacing=0.14)

    def add(matrix: Matrix, col: int, visible: bool) -> None:
        low, high = _spread(matrix)
        figure.add_heatmap(
            z=matrix[np.ix_(order, order)],
            x=names,
            y=names,
            text=text,
            zmin=low,
            zmax=high,
            hovertemplate="clients %{y} and %{x}: %{z:.4f}<br>%{text}<extra></extra>",
            visible=visible,
            colorscale="Blues" if col == 1 else "Viridis",
            colorbar={"thickness": 12, "x": 0.43 if col == 1 else 1.0},
            row=1,
            col=col,
        )

    add(beside.matrix, 1, visible=True)
    left, right = figure.layout.annotations
    steps = []
    for round, matrix in rounds.items():
        add(matrix, 2, visible=round == [*rounds][-1])
        right.text = _titled(hypertext(title), round, matrix, beside, "<br>")
        shown = [True, *(round == other for other in rounds)]
        titles = [left.to_plotly_json(), right.to_plotly_json()]
        steps.append({"label": f"{round}", "method": "update", "args": [{"visible": shown}, {"annotations": titles}]})
    figure.update_xaxes(title_text="client", type="category", constrain="domain")
    figure.update_yaxes(title_text="client", type="category", autorange="reversed", constrain="domain")
    figure.update_yaxes(scaleanchor="x", col=1)
    figure.update_yaxes(scaleanchor="x2", col=2, title_text="", showticklabels=False)  # as on the left
    slider = {"active": len(steps) - 1, "steps": steps, "x": 0.57, "len": 0.43, "pad": {"t": 60}}
    slider["currentvalue"] = {"prefix": "after round "}
    return styled(figure, height=600, sliders=[slider] if len(steps) > 1 else [])


def save_kinship(run: Run, name: str, path: Path) -> None:
    """Write the groups or common classes, and the similarity after some of the rounds and the last one, to a PNG."""
    beside, rounds = _beside(run), _rounds(run, name)
    title, order = plain(run.pictures[name].title), beside.order
    chosen = [[*rounds][i] for i in np.unique(np.linspace(0, len(rounds) - 1, SHOWN).round().astype(int))]
    panels = [(beside.title, beside.matrix, "Blues")]
    panels += [(_titled(title, round, rounds[round], beside, "\n"), rounds[round], "viridis") for round in chosen]
    with picture(path, 3.6 * len(panels), 3.9) as figure:
        for axes, (title, matrix, colours) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            low, high = _spread(matrix)
            shown = matrix[np.ix_(order, order)].copy()
            np.fill_diagonal(shown, np.nan)  # it is always 1
            image = axes.imshow(shown, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
            axes.set_title(title, fontsize=10)
            axes.set_xticks([])
            axes.set_yticks([])
            figure.colorbar(image, ax=axes, shrink=0.75)


def _beside(run: Run) -> _Beside:
    """Return what the similarity is compared with: the groups found, else the planted ones, else common classes."""
    found, truth = run.lines[-1].get("groups"), run.federation.get("groups", ())
    if found is None and not truth:
        overlap = class_overlap(np.array(run.federation["train"]))
        return _Beside("Shared classes", overlap, kin_order(overlap))
    shown = np.array(truth if found is None else found)
    order = sorted(range(len(shown)), key=lambda i: (truth[i] if truth else 0, shown[i], i))
    title = "Planted groups" if found is None else "Groups found"
    agreement = run.lines[-1].get("adjusted_rand_index")
    told = "" if found is None or agreement is None else f" (adjusted Rand index {agreement:.2f})"
    return _Beside(title + told, (shown[:, None] == shown).astype(np.float64), order, truth)


def _rounds(run: Run, name: str) -> dict[int, Matrix]:
    return {round: pictures[name].matrix.numpy() for round, pictures in run.pictured.items() if name in pictures}


def _titled(title: str, round: int, similarity: Matrix, beside: _Beside, between: str) -> str:
    if beside.truth:
        told, value = "AUC of pairs", pair_auc(similarity, beside.truth)
    else:
        told, value = "rank correlation", rank_correlation(similarity, beside.matrix)
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
