"""The style that all figures share: colours, fonts and margins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

__all__ = ["REFERENCES", "colours", "steps", "styled"]

# The colours of Okabe and Ito, which colour-blind people can tell apart, and more. Baselines are grey.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#44AA99", "#AA4499", "#999933")
REFERENCES = {"local": "#555555", "central": "#999999", "local_ssl": "#777777", "central_byol": "#BBBBBB"}
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def colours(methods: Sequence[str]) -> dict[str, str]:
    """Assign a colour to each method, the same in every figure."""
    federated = [method for method in methods if method not in REFERENCES]
    return REFERENCES | {method: PALETTE[i % len(PALETTE)] for i, method in enumerate(federated)}


def steps(count: int) -> list[tuple[float, str]]:
    """Return a colour scale of plotly with one colour for each of the numbers 0..count-1; after ten, they repeat.

    >>> steps(2)
    [(0.0, '#0072B2'), (0.5, '#0072B2'), (0.5, '#D55E00'), (1.0, '#D55E00')]
    """
    return [(at / count, PALETTE[i % len(PALETTE)]) for i in range(count) for at in (i, i + 1)]


def styled(figure: go.Figure, **layout: Any) -> go.Figure:
    """Apply the report's style to a figure, and return the figure.

    Args:
        figure: Figure to change.
        **layout: Further fields of plotly's layout.
    """
    figure.update_layout(
        template="plotly_white",
        font={"family": FONT, "size": 13, "color": "#222"},
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        legend={"orientation": "h", "y": 1.12, "x": 0, "yanchor": "bottom"},
        **layout,
    )
    return figure
