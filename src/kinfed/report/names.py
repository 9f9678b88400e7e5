"""Names of clients, classes, sources and layers in figures. They come from data, and may contain anything."""

from __future__ import annotations

import html
from collections.abc import Iterable

from kinfed.errors import plain

__all__ = ["hypertext", "labels"]

LONGEST = 24  # longest name in a figure, in characters


def labels(names: Iterable[object], longest: int = LONGEST) -> list[str]:
    """Make printable, short and distinct labels of names; an axis would draw equal labels at the same place.

    Args:
        names: Names, in any order.
        longest: Largest length of a label in characters, not counting the number that tells equal ones apart.

    Returns:
        A label for each name, in the same order.

    >>> labels(["cat", "cat", "convolution"], 6)
    ['cat', 'cat (2)', 'convo…']
    """
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
    """Escape a text for a plotly figure, which interprets texts as HTML.

    >>> hypertext("a < b")
    'a &lt; b'
    """
    return html.escape(plain(text), quote=False)
