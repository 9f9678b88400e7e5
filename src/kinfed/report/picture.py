"""Pictures by matplotlib, in which every text is shown literally."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["picture"]


@contextlib.contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Context manager that gives a figure to draw into, and writes it to a PNG at the end.

    ``$`` is no start of a formula. Warnings about missing glyphs or too little room are silenced, since names come from
    data.

    Args:
        path: Path of the PNG.
        width: Width in inches.
        height: Height in inches.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path, dpi=110)
