"""The style that all figures share: colours, fonts and margins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

__all__ = ["REFERENCES", "SIMILARITY", "colours", "steps", "styled", "translucent"]

# The colours of Okabe and Ito, which colour-blind people can tell apart, and more. Baselines are grey.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#44AA99", "#AA4499", "#999933")
SIMILARITY = "Viridis"  # colour scale of all similarities
REFERENCES = {"local": "#777777", "central": "#999999", "local_ssl": "#888888", "central_byol": "#AAAAAA"}


def colours(methods: Sequence[str]) -> dict[str, str]:
    """Assign a colour to each method, the same in every figure."""
    federated = [method for method in methods if method not in REFERENCES]
    return REFERENCES | {method: PALETTE[i % len(PALETTE)] for i, method in enumerate(federated)}


def translucent(colour: str, opacity: float) -> str:
    """Return a colour with an opacity in [0, 1].

    >>> translucent("#0072B2", 0.15)
    'rgba(0,114,178,0.15)'
    """
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def steps(count: int) -> list[tuple[float, str]]:
    """Return a colour scale of plotly with one colour for each of the numbers 0..count-1; after ten, they repeat.

    >>> steps(2)
    [(0.0, '#0072B2'), (0.5, '#0072B2'), (0.5, '#D55E00'), (1.0, '#D55E00')]
    """
    return [(at / count, PALETTE[i % len(PALETTE)]) for i in range(count) for at in (i, i + 1)]


def styled(figure: go.Figure, **layout: Any) -> go.Figure:
    """Apply the report's margins and legend to a figure, and return the figure.

    Fonts and the colours of text and axes are the page's (``assets/page.js``), which has a light and a dark look.

    Args:
        figure: Figure to change.
        **layout: Further fields of plotly's layout.
    """
    figure.update_layout(
        template="none",
        margin={"l": 45, "r": 10, "t": 30, "b": 40},
        legend={"orientation": "h", "y": -0.2, "x": 0, "yanchor": "top"},
        **layout,
    )
    return figure
