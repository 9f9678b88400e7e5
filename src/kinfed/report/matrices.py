"""Heat maps of the matrices that methods show of their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from kinfed.errors import plain
from kinfed.methods import Picture
from kinfed.report.folders import Run
from kinfed.report.kinship import client_order, values_told
from kinfed.report.names import hypertext, labels
from kinfed.report.style import SIMILARITY, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LABELLED", "draw_matrix", "last_round", "matrix_figure", "shows_kinship"]

UPRIGHT = 3  # longest name of a column in a PNG that is not turned, in characters
LABELLED = 30  # largest number of rows or columns whose names are shown in a PNG


def shows_kinship(run: Run, picture: Picture) -> bool:
    """Return True if a picture is a similarity of all pairs of clients, and they have groups or classes."""
    clients = len(run.federation["train"])
    grouped = "groups" in run.lines[-1] or "groups" in run.federation or not run.unlabelled
    return grouped and picture.similarity and tuple(picture.matrix.shape) == (clients, clients)


def last_round(run: Run, name: str) -> int:
    """Return the last round that has a picture of this name."""
    return max(round for round, pictures in run.pictured.items() if name in pictures)


def matrix_figure(run: Run, name: str) -> go.Figure:
    """Draw a picture after the last round that has any pictures; clients are in the order of all matrices."""
    picture = run.pictures[name]
    values, rows, columns = _arranged(run, picture)
    low, high = _range(picture)
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=[*map(hypertext, columns)],
            y=[*map(hypertext, rows)],
            text=values_told(values),
            zmin=low,
            zmax=high,
            colorscale=SIMILARITY,
            colorbar={"thickness": 12},
            hovertemplate="%{y} and %{x}: %{text}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=_title(picture.columns), type="category")
    figure.update_yaxes(title_text=_title(picture.rows), type="category", autorange="reversed")
    return styled(figure, height=min(900, 220 + 18 * len(rows)))


def draw_matrix(run: Run, name: str, row: str, figure: Figure, axes: Axes) -> None:
    """Draw a picture on axes of matplotlib, with the clients in the order of all matrices.

    Args:
        run: The run.
        name: Name of the picture.
        row: Name of the row, for the title.
        figure: Figure that gets a colour bar.
        axes: Axes that get the matrix.
    """
    picture = run.pictures[name]
    matrix, rows, columns = _arranged(run, picture)
    title = f"{row}: {plain(picture.title)}"
    if shows_kinship(run, picture):
        np.fill_diagonal(matrix, np.nan)
        title = f"{title}\n(kin adjacent, diagonal left out)"
    image = axes.imshow(
        matrix, aspect="auto", cmap=SIMILARITY.lower(), vmin=picture.low, vmax=picture.high, interpolation="nearest"
    )
    axes.set(title=title, xlabel=_title(picture.columns), ylabel=_title(picture.rows))
    _label(axes.set_xticks, columns, rotation=90 if max(map(len, columns)) > UPRIGHT else 0)
    _label(axes.set_yticks, rows)
    figure.colorbar(image, ax=axes)


def _arranged(run: Run, picture: Picture) -> tuple[NDArray[np.float64], list[str], list[str]]:
    """Return a copy of a picture's values, and the names of its rows and columns, in the order that is drawn."""
    values = picture.matrix.numpy().astype(np.float64)
    rows, columns = (_names(run, picture, axis) for axis in (0, 1))
    order = client_order(run)
    if picture.rows == "clients" and len(values) == len(order):
        values, rows = values[order], [rows[i] for i in order]
    if picture.columns == "clients" and len(values.T) == len(order):
        values, columns = values[:, order], [columns[i] for i in order]
    return values, rows, columns


def _range(picture: Picture) -> tuple[float, float]:
    """Return the lowest and the highest value of the colour scale."""
    known = picture.matrix[picture.matrix.isfinite()]
    least, greatest = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return least if picture.low is None else picture.low, greatest if picture.high is None else picture.high


def _label(ticks: Any, names: Sequence[str], rotation: int = 0) -> None:
    if len(names) <= LABELLED:
        ticks(range(len(names)), names, fontsize=7, rotation=rotation)


def _names(run: Run, picture: Picture, axis: int) -> list[str]:
    """Return the names of the rows (``axis`` 0) or of the columns (1)."""
    size, meaning = picture.matrix.shape[axis], (picture.rows, picture.columns)[axis]
    names = [str(i) for i in range(size)]
    if meaning == "clients":
        names = run.client_labels
    elif meaning == "classes":
        names = labels(run.federation["classes"])
    elif not isinstance(meaning, str):
        names = labels(meaning)
    return names if len(names) == size else [str(i) for i in range(size)]


def _title(meaning: str | Sequence[str]) -> str:
    return {"clients": "client", "classes": "class"}.get(meaning, "") if isinstance(meaning, str) else ""
