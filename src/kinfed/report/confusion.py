"""Confusion matrices: what the clients' primary models answer to the test samples of each class.

Letters: ``K`` classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from kinfed.report.folders import Run
from kinfed.report.names import hypertext, labels
from kinfed.report.rows import in_rows
from kinfed.report.style import styled

__all__ = ["CONFUSION", "confusion_figure", "confusion_frame"]

CONFUSION = (
    "Answers of the clients' models to their own test samples, of all clients and seeds together. Colours are shares "
    "of a true class. confusion.json in the folder of a run has the matrix of every client."
)
COUNTED = 12  # largest number of classes for which the numbers are written into the cells


def pooled(group: Sequence[Run]) -> NDArray[np.int64]:
    """Return the confusion matrix of all clients and seeds of a row, K×K: true classes by answers."""
    classes = len(group[0].federation["classes"])
    matrix = np.zeros((classes, classes), dtype=np.int64)
    for run in group:
        for truth, answer, samples in (cell for cells in run.confusion for cell in cells):
            matrix[truth, answer] += samples
    return matrix


def confusion_figure(runs: Sequence[Run]) -> go.Figure | None:
    """Draw the confusion matrix of each row, one at a time; a menu selects the row.

    Returns:
        The figure; None if no run has a confusion matrix.
    """
    rows = {row: group for row, group in in_rows(runs).items() if any(run.confusion for run in group)}
    if not rows:
        return None
    figure = go.Figure()
    names = [*map(hypertext, labels(runs[0].federation["classes"]))]
    for at, group in enumerate(rows.values()):
        counts = pooled(group)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        figure.add_heatmap(
            z=shares,
            x=names,
            y=names,
            text=counts,
            texttemplate="%{text}" if len(names) <= COUNTED else None,
            zmin=0,
            zmax=1,
            colorscale="Blues",
            colorbar={"thickness": 12},
            hovertemplate="class %{y}, answer %{x}: %{text} samples, %{z:.1%}<extra></extra>",
            visible=at == 0,
        )
    buttons = [
        {"label": hypertext(row), "method": "restyle", "args": [{"visible": [other == row for other in rows]}]}
        for row in rows
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    figure.update_xaxes(title_text="answer", type="category")
    figure.update_yaxes(title_text="true class", type="category", autorange="reversed")
    return styled(figure, height=min(900, 260 + 28 * len(names)), updatemenus=[menu])


def confusion_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the confusion matrix of every client, one row for each cell that is not zero (see `kinfed.Result`)."""
    columns = ["method", "seed", "client", "name", "truth", "answer", "samples"]
    rows = [
        (run.method, run.summary["seed"], id, run.client_name(id), classes[truth], classes[answer], samples)
        for run in runs
        for classes in [run.federation["classes"]]
        for id, cells in enumerate(run.confusion)
        for truth, answer, samples in cells
    ]
    return pd.DataFrame(rows, columns=columns)
