"""What is seen while runs go on: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

__all__ = ["Display"]

PLAIN_LINES = 5  # a run, where there is no terminal


class Display:
    """Watches runs: per method a bar over rounds with accuracy, seconds a round and time left.

    Use it as a context manager; it writes to standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]:>14}"),
            TextColumn("{task.fields[pace]:>12}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bar = TaskID(0)
        self._name = ""
        self._rounds = 0
        self._last = 0.0
        self._pace: float | None = None

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def started(self, method: str, seed: int, rounds: int, done: int) -> None:
        """A new bar."""
        self._name, self._rounds, self._last, self._pace = f"{method} (seed {seed})", rounds, time.perf_counter(), None
        self._bar = self._progress.add_task(self._name, total=rounds, completed=done, accuracy="", pace="")
        if not self._console.is_terminal and done:
            self._say(f"goes on after round {done} of {rounds}")

    def round(self, line: dict[str, Any]) -> None:
        """One step of the bar."""
        now = time.perf_counter()
        took, self._last = now - self._last, now
        self._pace = took if self._pace is None else 0.7 * self._pace + 0.3 * took
        accuracy = line.get("personal_acc_weighted")
        shown = "" if accuracy is None else f"accuracy {accuracy:.3f}"
        pace = f"{self._pace:.2f} s/round"
        self._progress.update(self._bar, completed=line["round"], accuracy=shown, pace=pace)
        every = max(1, self._rounds // PLAIN_LINES)
        if not self._console.is_terminal and (line["round"] % every == 0 or line["round"] == self._rounds):
            self._say(f"round {line['round']:>4}/{self._rounds}  {shown}  {pace}")
        for client, reason in line["refused"].items():
            self._console.print(f"{self._name}: round {line['round']}, client {client} refused: {reason}", markup=False)

    def finished(self, summary: dict[str, Any]) -> None:
        """The bar stays as it is."""

    def _say(self, text: str) -> None:
        self._console.print(f"{self._name:<18} {text}", markup=False, highlight=False, soft_wrap=True)
