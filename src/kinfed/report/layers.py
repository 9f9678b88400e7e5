"""The similarity of the layers of two models: a table for the terminal, a picture, and the numbers as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from kinfed.errors import plain
from kinfed.report.names import labels
from kinfed.report.picture import picture
from kinfed.similarity import LayerSimilarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["layer_table", "provenance", "save_layers"]

ORDER = {
    "ids": "matched by id",
    "trusted": "matched by row, since they have no ids: row r of A and row r of B must be the same example",
}


def provenance(result: LayerSimilarity) -> str:
    """Describe how the numbers were computed: measure, examples and their matching, kernel, bandwidth, centring."""
    if result.kernel is None:
        how = f"{result.measure} of n = {result.n} examples, {ORDER[result.order]}"
        return f"{how}; feature maps are flattened to {result.flattening}. Larger values mean more similar layers."
    width = "" if result.bandwidth is None else f", bandwidth {result.bandwidth} of the median distance"
    return (
        f"CKA of n = {result.n} examples, {ORDER[result.order]}; kernel {result.kernel}{width}; centring: "
        f"{result.centring}; feature maps are flattened to {result.flattening}. Biased CKA of unrelated layers is far "
        "above 0 if there are more features than examples."
    )


def layer_table(result: LayerSimilarity, heading: str) -> Table:
    """Make the table of similarities: layers of A in rows, layers of B in columns.

    Args:
        result: Result of `kinfed.similarity.compare_layers`.
        heading: Name of one of its ``matrices``.

    Returns:
        The table; its column ``d`` is the number of features of a layer of A.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column(heading, no_wrap=True)
    table.add_column("d", justify="right")
    for name in result.features_b:
        table.add_column(Text(plain(name)), justify="right", overflow="fold")
    matrix = result.matrices[heading]
    for (name, features), row in zip(result.features_a.items(), matrix, strict=True):
        table.add_row(
            Text(plain(name)), f"{features:,}", *("–" if np.isnan(value) else f"{value:.3f}" for value in row)
        )
    return table


def save_layers(result: LayerSimilarity, folder: Path) -> tuple[Path, Path]:
    """Write ``similarity.json`` and ``similarity.png`` into a folder, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers, picture = folder / "similarity.json", folder / "similarity.png"
    numbers.write_text(json.dumps(result.to_dict(), indent=1) + "\n")
    _save_layer_picture(result, picture)
    return numbers, picture


def _save_layer_picture(result: LayerSimilarity, path: Path) -> None:
    size = 1.6 + 0.55 * max(len(result.features_a), len(result.features_b), 3)
    with picture(path, len(result.matrices) * size + 1, size + 0.6) as figure:
        _draw(result, figure)


def _draw(result: LayerSimilarity, figure: Figure) -> None:
    rows, columns = labels(result.features_a), labels(result.features_b)
    # CKA is between 0 and 1; the range of another measure is not known.
    scale = {"vmin": 0, "vmax": 1} if result.kernel else {}
    axes = figure.subplots(1, len(result.matrices), squeeze=False)[0]
    for axis, (heading, matrix) in zip(axes, result.matrices.items(), strict=True):
        image = axis.imshow(matrix, cmap="viridis", interpolation="nearest", **scale)
        axis.set(
            title=f"{heading} ({'1 = identical' if result.kernel else 'larger = more similar'})", xlabel="B", ylabel="A"
        )
        axis.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
        axis.set_yticks(range(len(rows)), rows)
        for label in [*axis.get_xticklabels(), *axis.get_yticklabels()]:
            label.set_parse_math(False)  # a layer may have a name with dollar signs
        for i, j in np.ndindex(*matrix.shape):
            light = "black" if image.norm(matrix[i, j]) > 0.6 else "white"
            axis.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", color=light, fontsize=8)
    figure.colorbar(image, ax=figure.axes, shrink=0.8)
    bandwidth = "" if result.bandwidth is None else f", bandwidth {result.bandwidth}"
    order = "matched by ids" if result.order == "ids" else "matched by row"
    kernel = f", {result.kernel} kernel{bandwidth}" if result.kernel else ""
    figure.suptitle(f"n = {result.n} examples, {order}{kernel}", fontsize=10)
