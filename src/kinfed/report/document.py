"""Self-contained HTML documents with figures, panels and tables that readers can sort; they need no network.

plotly's code for figures with axes is packed into every document, so that one has about 0.7 MB. The looks of figures,
light or dark as the reader prefers, are in ``assets/page.js``.
"""

from __future__ import annotations

import base64
import functools
import html
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import plotly.graph_objects as go

from kinfed.errors import plain
from kinfed.report.table import Cell, Table

__all__ = ["Panel", "document", "escaped", "section", "shown"]

ASSETS = files("kinfed.report") / "assets"


@dataclass(frozen=True)
class Panel:
    """Figure with a heading; the panels of a section stand side by side where there is room.

    Attributes:
        figure: The figure.
        heading: Heading, plain text; empty for none.
        told: Text behind the heading, plain.
    """

    figure: go.Figure
    heading: str = ""
    told: str = ""


@functools.cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@functools.cache
def _plotly() -> str:
    """Return plotly's packed code as text."""
    return base64.b64encode((ASSETS / "plotly-cartesian.min.js.gz").read_bytes()).decode()


def document(title: str, body: str) -> str:
    """Return a self-contained HTML page in the report's style, with plotly.

    Args:
        title: Title and heading, plain text.
        body: HTML under the heading.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
<h1>{escaped(title)}</h1>{body}
<noscript><p class="notes">The figures are drawn by scripts, which this browser does not run.</p></noscript>
<script type="text/plain" id="plotly">{_plotly()}</script>
<script>
{_asset("page.js")}</script>
</body>
</html>
"""


def escaped(text: str) -> str:
    """Escape text for HTML, including control characters."""
    return html.escape(plain(text))


def section(heading: str, caption: str, panels: Sequence[Panel]) -> str:
    """Return a section with a heading, a caption and panels, side by side if there are several."""
    drawn = "".join(map(_panel, panels))
    several = " several" if len(panels) > 1 else ""
    head = f"<h2>{escaped(heading)}</h2>" if heading else ""
    return f'{head}<p class="caption">{escaped(caption)}</p><div class="panels{several}">{drawn}</div>'


def _panel(panel: Panel) -> str:
    told = f" <small>{escaped(panel.told)}</small>" if panel.told else ""
    head = f"<h3>{escaped(panel.heading)}{told}</h3>" if panel.heading else ""
    numbers = panel.figure.to_json().replace("<", "\\u003c")
    return f'<div>{head}<div class="figure"><script type="application/json">{numbers}</script></div></div>'


def shown(content: Table, *, sortable: bool = False) -> str:
    """Return the HTML of a table, followed by what its columns mean.

    Args:
        content: The table.
        sortable: True if readers can sort the rows by any column; long tables then scroll.
    """
    head = "".join(f"<th>{_heading(name, sortable)}</th>" for name in content.headings)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in content.rows)
    box = "scroll tall" if sortable else "scroll"
    return f'<div class="{box}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>' + _meanings(
        content
    )


def _heading(name: str, sortable: bool) -> str:
    return f"<button>{escaped(name)}</button>" if sortable else escaped(name)


def _cell(cell: Cell) -> str:
    spread = f" <small>{escaped(cell.spread)}</small>" if cell.spread else ""
    return f"<td{' class=best' if cell.best else ''}>{escaped(cell.text)}{spread}</td>"


def _meanings(content: Table) -> str:
    """Return what the columns mean, to unfold; nothing if no column has a meaning of its own."""
    told = [(name, of) for name, of in zip(content.headings, content.meanings, strict=True) if of and of != name]
    if not told:
        return ""
    meant = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(of)}</dd>" for name, of in told)
    return f'<details class="meanings"><summary>What the columns mean</summary><dl>{meant}</dl></details>'
