"""Pictures of the papers' figures as they were reproduced: an HTML page and a PNG, made from ``figure.json`` alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from kinfed.errors import InputError, plain
from kinfed.experiment.papers.figure import Curve, Matrix, Measured, numbers
from kinfed.fields import one_line
from kinfed.files import read_json, write_whole
from kinfed.report.document import Panel, document, escaped, section
from kinfed.report.kinship import kin_order
from kinfed.report.names import hypertext, labels
from kinfed.report.picture import picture
from kinfed.report.style import SIMILARITY, colours, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["write_pictures"]

ACROSS = 3  # largest number of panels side by side in the PNG
TICKS = 10  # largest number of values on an x-axis that are all marked
WRITTEN = 12  # largest number of columns of a matrix whose values are written into it


def write_pictures(folder: Path) -> Path:
    """Write ``figure.html`` and ``figure.png`` from the ``figure.json`` in a folder; return the path of the page.

    Raises:
        InputError: If the file is missing or damaged.
    """
    file = folder / "figure.json"
    try:
        measured = TypeAdapter(Measured).validate_python(read_json(file))
    except ValidationError as error:
        raise InputError(f"{file}: is damaged: {one_line(error)}") from error
    write_whole(folder / "figure.html", _page(measured))
    _save_png(measured, folder / "figure.png")
    return folder / "figure.html"


def _page(measured: Measured) -> str:
    colour = _colours(measured)
    order = _order(measured)
    panels = [Panel(_curves(measured, curves, colour), heading) for heading, curves in measured.curves.items()]
    panels += [Panel(_matrix(matrix, order), heading, matrix.told) for heading, matrix in measured.matrices.items()]
    other = ", ".join(f"{name}={plain(value)}" for name, value in measured.other_setting.items())
    said = [
        f"<p><b>The paper</b>: {escaped(measured.shows)}</p>",
        f"<p><b>Here</b>: {escaped(measured.run)}</p>",
        f"<p>{escaped(measured.note)}</p>" if measured.note else "",
        f'<div class="notes"><p>The setting differs from this figure\'s: {escaped(other)}.</p></div>' if other else "",
    ]
    tables = "".join(_table(heading, rows) for heading, rows in numbers(measured))
    return document(
        measured.title,
        f"{''.join(said)}{section('', _sentence(measured.y), panels)}<h2>Numbers</h2>{tables}",
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _table(heading: str, rows: Sequence[Sequence[str]]) -> str:
    told = f"<p><b>{escaped(heading)}</b></p>" if heading else ""
    if not rows:
        return f"{told}<p>The numbers are in figure.json.</p>"
    head, *body = rows
    cells = "".join(f"<th>{escaped(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f'{told}<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>'


def _colours(measured: Measured) -> dict[str, str]:
    return colours([*dict.fromkeys(name for curves in measured.curves.values() for name in curves)])


def _order(measured: Measured) -> list[int] | None:
    """Return the order of the clients in matrices of all pairs of clients, by the first one; None for other figures."""
    first = next((matrix for matrix in measured.matrices.values() if matrix.similarity), None)
    return None if first is None else kin_order(_array(first.values))


def _array(values: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def _arranged(matrix: Matrix, order: Sequence[int] | None) -> tuple[NDArray[np.float64], list[str], list[str]]:
    """Return the values of a matrix and the names of its rows and columns as they are drawn."""
    values, rows, columns = _array(matrix.values), labels(matrix.rows), labels(matrix.columns)
    if matrix.similarity and order is not None:
        values = values[np.ix_(order, order)].copy()
        np.fill_diagonal(values, np.nan)  # it is always 1
        rows, columns = ([names[i] for i in order] for names in (rows, columns))
    return values, rows, columns


def _curves(measured: Measured, curves: Mapping[str, Curve], colour: Mapping[str, str]) -> go.Figure:
    """Draw the curves of a panel, with the standard deviations over seeds, and the paper's numbers as dotted lines."""
    figure = go.Figure()
    for name, curve in curves.items():
        x, means = [*map(_shown, curve.x)], curve.means
        figure.add_scatter(
            x=x,
            y=means,
            error_y={"array": curve.spreads, "visible": any(curve.spreads), "thickness": 1},
            name=hypertext(name),
            mode="markers" if _names_only(curve) else "lines+markers",
            line={"color": colour[name], "width": 2},
            marker={"color": colour[name], "size": 10 if _names_only(curve) else 6},
            hovertemplate="%{y:.2f}",
        )
        if any(number is not None for number in curve.paper):
            figure.add_scatter(
                x=x,
                y=[*curve.paper],
                name=hypertext(f"{name}, paper"),
                mode="lines+markers",
                line={"color": colour[name], "width": 1, "dash": "dot"},
                marker={"color": colour[name], "size": 5, "symbol": "circle-open"},
                hovertemplate="%{y:.2f}",
            )
    figure.update_xaxes(title_text=hypertext(measured.x), automargin=True, tickvals=_ticks(curves))
    figure.update_yaxes(automargin=True)
    return styled(figure, height=400 + 22 * len(figure.data), hovermode="x unified")


def _ticks(curves: Mapping[str, Curve]) -> list[float] | None:
    """Return the numbers on the x-axis where something was measured; None if they are too many, or names."""
    xs = sorted({x for curve in curves.values() for x in curve.x if not isinstance(x, str)})
    return xs if 0 < len(xs) <= TICKS else None


def _shown(x: float | str) -> float | str:
    return hypertext(x) if isinstance(x, str) else x


def _names_only(curve: Curve) -> bool:
    """Return True if the x-axis has names, between which no line makes sense."""
    return any(isinstance(x, str) for x in curve.x)


def _matrix(matrix: Matrix, order: Sequence[int] | None) -> go.Figure:
    values, rows, columns = _arranged(matrix, order)
    written = len(columns) <= WRITTEN and not matrix.similarity
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=[*map(hypertext, columns)],
            y=[*map(hypertext, rows)],
            colorscale=SIMILARITY,
            colorbar={"thickness": 10},
            showscale=not written,
            texttemplate=f"%{{z:.{matrix.decimals}f}}" if written else None,
            textfont={"size": 9},
            hovertemplate="%{y} and %{x}: %{z:.4f}<extra></extra>",
            hoverongaps=False,
        )
    )
    figure.update_xaxes(type="category", automargin=True, tickangle=-90 if max(map(len, columns)) > 4 else 0)
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    return styled(figure, height=150 + 26 * len(rows))


def _save_png(measured: Measured, path: Path) -> None:
    """Write all panels to one PNG."""
    colour, order = _colours(measured), _order(measured)
    count = len(measured.curves) + len(measured.matrices)
    across = min(count, ACROSS)
    down = math.ceil(count / across)
    with picture(path, 5.2 * across, 4.4 * down) as figure:
        panels: list[Axes] = [*figure.subplots(down, across, squeeze=False).flat]
        for axes, (heading, curves) in zip(panels, measured.curves.items(), strict=False):
            _draw_curves(measured, heading, curves, colour, axes)
        for axes, (heading, matrix) in zip(panels[len(measured.curves) :], measured.matrices.items(), strict=False):
            _draw_matrix(heading, matrix, order, figure, axes)
        for axes in panels[count:]:
            axes.axis("off")


def _draw_curves(
    measured: Measured, heading: str, curves: Mapping[str, Curve], colour: Mapping[str, str], axes: Axes
) -> None:
    for name, curve in curves.items():
        means = [np.nan if mean is None else mean for mean in curve.means]
        style = "o" if _names_only(curve) else "o-"
        x = labels(curve.x) if _names_only(curve) else [*curve.x]
        axes.errorbar(
            x, means, curve.spreads if any(curve.spreads) else None, fmt=style, color=colour[name], label=plain(name),
            markersize=4, capsize=2,
        )  # fmt: skip
        if any(number is not None for number in curve.paper):
            paper = [np.nan if number is None else number for number in curve.paper]
            axes.plot(x, paper, ":", color=colour[name], label=plain(f"{name}, paper"))
        if _names_only(curve):
            axes.tick_params(axis="x", rotation=60)
    if (ticks := _ticks(curves)) is not None:
        axes.set_xticks(ticks)
    axes.set(title=plain(heading), xlabel=plain(measured.x))
    axes.set_ylabel(plain(measured.y), fontsize=8)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _draw_matrix(heading: str, matrix: Matrix, order: Sequence[int] | None, figure: Figure, axes: Axes) -> None:
    values, rows, columns = _arranged(matrix, order)
    image = axes.imshow(values, aspect="auto", cmap="viridis", interpolation="nearest")
    axes.set_title(f"{plain(heading)}\n{plain(matrix.told)}", fontsize=10)
    axes.set_xticks(range(len(columns)), columns, rotation=90 if max(map(len, columns)) > 4 else 0, fontsize=7)
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    if len(columns) <= WRITTEN and not matrix.similarity:
        for i, j in zip(*np.isfinite(values).nonzero(), strict=True):
            value = float(values[i, j])
            ink = "black" if float(image.norm(value)) > 0.6 else "white"  # type: ignore[arg-type]
            axes.text(j, i, f"{value:.{matrix.decimals}f}", ha="center", va="center", color=ink, fontsize=6)
    figure.colorbar(image, ax=axes)
