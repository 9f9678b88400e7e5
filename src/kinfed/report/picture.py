"""Pictures by matplotlib, in which every text is shown as it is."""

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
    """A figure to draw into, which is written to a PNG at the end.

    ``$`` begins no formula in it, and a character without a glyph, or too little room for a long name, is no reason to
    say anything.

    Args:
        path: Of the PNG.
        width: In inches.
        height: In inches.
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
