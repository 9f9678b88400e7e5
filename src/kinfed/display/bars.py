"""Bars that are drawn in place, one line each: in a terminal, or in the output of a notebook's cell."""

from __future__ import annotations

import html
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from kinfed.report.width import NOTEBOOK_WIDTH

__all__ = ["Bar", "Bars"]

COLUMNS = ("name", "bar", "count", "score", "pace", "work", "left")
ALWAYS = ("name", "count", "left")
OPTIONAL = ("score", "pace", "work", "bar")  # shown where there is room; the first ones are kept longest
OF_PRESENT = ("bar", "work", "left")  # nothing to tell of finished work
BAR = 20  # characters
SHORT_NAME = 24  # characters to which names are shortened to make room for the score
SEED = len("… (seed 0)")  # characters of the end of a shortened name
NOTEBOOK_SECONDS = 0.2  # shortest time between two pictures in a notebook


@dataclass
class Bar:
    """A line of the display: how much of some work is done, and what there is to tell of it.

    Attributes:
        name: Name of the work.
        total: Number of steps, such as rounds.
        done: Number of steps that are done.
        score: Latest score, in words.
        pace: Seconds of a step, in words.
        work: Progress within a step, in words.
        end: Expected end, on the clock of `time.perf_counter`; None if nothing is known of it.
    """

    name: str
    total: int
    done: int = 0
    score: str = ""
    pace: str = ""
    work: str = ""
    end: float | None = None

    def cells(self) -> dict[str, str]:
        """Return the text of each column but for the bar itself."""
        left = "-:--:--" if self.end is None else _clock(self.end - time.perf_counter())
        told = {"score": self.score, "pace": self.pace, "work": self.work}
        return {"name": self.name, "count": f"{self.done:>{len(str(self.total))}}/{self.total}", **told, "left": left}


class Bars:
    """Bars at the end of what a terminal shows, or in one output of a notebook; nothing elsewhere.

    Args:
        console: Console to draw on.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: list[Bar] = []
        self._widths = Counter(bar=BAR)  # of the widest cell of each column so far, so that columns stay in place
        self._drawn: list[int] = []  # cells of each line on the screen
        self._live = _Live(self, console) if console.is_interactive else None
        self._cell = _NotebookCell() if console.is_jupyter else None

    @property
    def shown(self) -> bool:
        """True if bars are drawn, False if the progress must be told otherwise."""
        return self._live is not None or self._cell is not None

    def start(self) -> None:
        """Begin to draw."""
        if self._live is not None:
            self._live.start()

    def stop(self) -> None:
        """Remove the bars, and draw no more; printed lines stay."""
        self._bars.clear()
        self.refresh(at_once=True)
        if self._live is not None:
            self._live.stop()

    def add(self, bar: Bar) -> None:
        """Draw one more bar: above the others, so that a bar over everything stays the last one."""
        self._bars.insert(0, bar)
        self.refresh()

    def drop(self, bar: Bar) -> None:
        """Draw a bar no more."""
        self._bars = [other for other in self._bars if other is not bar]

    def keep(self, bar: Bar) -> None:
        """Drop a bar, and leave a line with its last state above the others."""
        self.drop(bar)
        if self._live is not None:
            self._console.print(*self._lines([bar], self._console.width, finished=True))
        elif self._cell is not None:
            self._cell.kept += [line.plain for line in self._lines([bar], NOTEBOOK_WIDTH, finished=True)]
            self.refresh(at_once=True)

    def refresh(self, *, at_once: bool = False) -> None:
        """Draw the bars in a notebook, unless that was just done; in a terminal they are drawn ten times a second."""
        if self._cell is not None:
            self._cell.draw([line.plain for line in self._lines([*self._bars], NOTEBOOK_WIDTH)], at_once=at_once)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the bars for a terminal; nothing is drawn after the last one, not even spaces."""
        lines = self._lines([*self._bars], options.max_width, ascii_only=options.ascii_only)
        self._drawn = [line.cell_len for line in lines]
        yield Text("\n", no_wrap=True, end="").join(lines)

    def wrapped(self, width: int) -> int:
        """Return how many lines a terminal has made more of the drawn ones, which it wraps when it gets narrower."""
        return sum(max(cells - 1, 0) // width for cells in self._drawn)

    def _lines(
        self, bars: Sequence[Bar], width: int, *, finished: bool = False, ascii_only: bool = False
    ) -> list[Text]:
        """Return a line for each bar, all with the columns for which there is room.

        Args:
            bars: The bars.
            width: Largest number of cells of a line.
            finished: True for finished work, of which there is no progress to show and no time left.
            ascii_only: True if the bar must be drawn in ASCII.
        """
        rows = [bar.cells() for bar in bars]
        for row in rows:
            self._widths |= Counter({column: cell_len(text) for column, text in row.items()})
        room = width - sum(self._widths[column] + 1 for column in ALWAYS) + 1
        widths = {column: self._widths[column] for column in ALWAYS}
        for column in OPTIONAL:
            spare = max(widths["name"] - SHORT_NAME, 0) if column == "score" else 0
            if 0 < self._widths[column] < room + spare:
                widths[column] = self._widths[column]
                room -= widths[column] + 1
        widths["name"] = max(widths["name"] + min(room, 0), 1)
        columns = [column for column in COLUMNS if column in widths and not (finished and column in OF_PRESENT)]
        lines = []
        for bar, row in zip(bars, rows, strict=True):
            cells = [
                _track(bar, ascii_only) if column == "bar" else Text(_fitted(row[column], widths[column], column))
                for column in columns
            ]
            line = Text(" ", no_wrap=True).join(cells)
            line.rstrip()
            line.truncate(width)
            lines.append(line)
        return lines


class _Live(Live):
    """Live area that is also removed whole if the terminal got narrower, and wrapped its lines.

    Args:
        bars: What is drawn.
        console: The terminal.
    """

    def __init__(self, bars: Bars, console: Console) -> None:
        self._bars = bars
        super().__init__(console=console, get_renderable=lambda: bars, transient=True, refresh_per_second=10)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Go up over the lines that the terminal has made by wrapping, since rich only knows those that it drew."""
        up = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * self._bars.wrapped(self.console.width)
        return [Control(*up), *super().process_renderables(renderables)]


class _NotebookCell:
    """Output of a notebook's cell that is replaced by each picture, so that there is only one.

    Attributes:
        kept: Lines above the bars, which stay.
    """

    def __init__(self) -> None:
        self.kept: list[str] = []
        self._handle: Any = None
        self._last = 0.0

    def draw(self, lines: Sequence[str], *, at_once: bool) -> None:
        """Show the kept lines and others, unless the last picture is too young."""
        from IPython.display import display

        if not at_once and time.perf_counter() - self._last < NOTEBOOK_SECONDS:
            return
        self._last = time.perf_counter()
        text = "\n".join([*self.kept, *lines])
        shown = {"text/plain": text, "text/html": f'<pre style="font-family: monospace">{html.escape(text)}</pre>'}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def _track(bar: Bar, ascii_only: bool) -> Text:
    """Return the bar itself.

    >>> _track(Bar("fedavg", total=4, done=1), ascii_only=True).plain
    '#####---------------'
    """
    filled = BAR * min(bar.done, bar.total) // max(bar.total, 1)
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    return Text.assemble((full * filled, "bar.complete"), (empty * (BAR - filled), "bar.back"))


def _fitted(text: str, width: int, column: str) -> str:
    """Return a cell in the width of its column: numbers to the right, a longer name with its end and an ellipsis.

    >>> _fitted("fedkin+fedper:lr=0.01 (seed 0)", 24, "name")
    'fedkin+fedper:… (seed 0)'
    """
    if column in ("count", "left"):
        return text.rjust(width)
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    end = text[1 - SEED :] if width > 2 * SEED else ""
    return set_cell_size(text, width - 1 - cell_len(end)) + "…" + end


def _clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds.

    >>> _clock(3723.4), _clock(-1)
    ('1:02:03', '0:00:00')
    """
    minutes, rest = divmod(max(round(seconds), 0), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
