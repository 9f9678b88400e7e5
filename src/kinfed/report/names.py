"""Names of clients, classes, sources and layers as figures show them: they come from data, and may be anything."""

from __future__ import annotations

import html
from collections.abc import Iterable

from kinfed.errors import plain

__all__ = ["hypertext", "labels"]

LONGEST = 24  # characters of a name in a figure


def labels(names: Iterable[object], longest: int = LONGEST) -> list[str]:
    """A printable line each, not long, and each another one, since axes take equal names for one place."""
    told: dict[str, None] = {}
    for name in names:
        line = plain(name) or "''"
        short = line if len(line) <= longest else f"{line[: longest - 1]}…"
        label, number = short, 1
        while label in told:
            number += 1
            label = f"{short} ({number})"
        told[label] = None
    return [*told]


def hypertext(text: str) -> str:
    """A text for a plotly figure, which takes what it shows for a kind of HTML."""
    return html.escape(plain(text), quote=False)
