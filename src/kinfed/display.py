"""What is seen while runs go on: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kinfed.errors import plain

__all__ = ["Display"]

PLAIN_LINES = 5  # a run, where there is no terminal


class Display:
    """A bar for each run; a context manager that writes to standard error."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, emoji=False)
        self.bars = Progress(
            TextColumn("{task.description:<18}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> Display:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def run(self, method: str, seed: int, rounds: int) -> RunDisplay:
        """The display of one run."""
        return RunDisplay(self, f"{method} (seed {seed})", rounds)

    def source(self, name: str, seed: int, epochs: int) -> RunDisplay:
        """The display of the training of one source model, whose rounds are epochs."""
        return RunDisplay(self, f"{name} (seed {seed})", epochs, "epoch")


class RunDisplay:
    """A bar over rounds with accuracy, seconds a round, time left, and how far the present round is."""

    def __init__(self, display: Display, name: str, rounds: int, unit: str = "round") -> None:
        self._unit = unit
        self._console, self._bars = display.console, display.bars
        self._name, self._rounds = plain(name), rounds
        self._bar = self._bars.add_task(self._name, total=rounds, told="")
        self._told = ""
        self._last = time.perf_counter()
        self._pace: float | None = None

    def started(self, done: int) -> None:
        """The bar starts where the run goes on."""
        self._last = time.perf_counter()
        self._bars.update(self._bar, completed=done)
        if done:
            self._say(f"goes on after {self._unit} {done} of {self._rounds}")

    def working(self, what: str, done: int, total: int) -> None:
        """How far the present round is, for rounds that take long."""
        self._bars.update(self._bar, told=f"{self._told}  {what} {done}/{total}")

    def round(self, line: dict[str, Any]) -> None:
        """One step of the bar."""
        now = time.perf_counter()
        took, self._last = now - self._last, now
        self._pace = took if self._pace is None else 0.7 * self._pace + 0.3 * took
        accuracy = line.get("personal_acc_weighted")
        neighbours = line.get("knn_acc_mean")  # of methods that read no labels, all there is before the last round
        if accuracy is not None:
            shown = f"own test {accuracy:.3f}  "
        else:
            shown = "" if neighbours is None else f"knn {neighbours:.3f}  "
        self._told = f"{shown}{self._pace:.2f} s/{self._unit}"
        self._bars.update(self._bar, completed=line["round"], told=self._told)
        every = max(1, self._rounds // PLAIN_LINES)
        if line["round"] % every == 0 or line["round"] == self._rounds:
            self._say(f"{self._unit} {line['round']:>4}/{self._rounds}  {self._told}")
        for client, reason in line["refused"].items():
            self._print(f"{self._name}: round {line['round']}, client {client} refused: {plain(reason)}")

    def stopping(self, round: int) -> None:
        """What the first Ctrl-C does."""
        self._print(f"{self._name}: stops after round {round}; Ctrl-C again stops at once")

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            self._print(f"{self._name:<18} {text}", soft_wrap=True)

    def _print(self, text: str, *, soft_wrap: bool = False) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap)
