"""Progress display: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kinfed.engine.callbacks import NoCallback
from kinfed.engine.stopping import validation_score
from kinfed.errors import plain
from kinfed.report.names import labels

if TYPE_CHECKING:
    from kinfed.experiment.papers.cost import Cost
    from kinfed.tuning import Plan

__all__ = ["Display"]

PLAIN_LINES = 5  # progress lines per run where the output is no terminal


class Display:
    """Progress of several runs, one bar each; a context manager that writes to standard error.

    Args:
        console: Console to write to; standard error if not given.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, emoji=False)
        self._untimed: Cost | None = None  # cost whose time is told when the first round has shown the pace
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
        """Return the display of one run."""
        return RunDisplay(self, f"{method} (seed {seed})", rounds)

    def race(self, label: str, rounds: int) -> RaceDisplay:
        """Return the display of the race of one method's settings."""
        return RaceDisplay(self, label, rounds)

    def plan(self, plans: Sequence[Plan], final: float) -> None:
        """Print what a tuning costs, and the comparison on fresh seeds after it."""
        table = Table(box=None, pad_edge=False)
        for heading in ("method", "settings", "a third goes on after", "rounds", "about"):
            table.add_column(heading, justify="left" if heading == "method" else "right")
        for plan in plans:
            rungs = ", ".join(map(str, plan.rungs[:-1])) or "–"
            settings = str(plan.settings) if plan.settings == plan.of else f"{plan.settings} of {plan.of}"
            table.add_row(plain(plan.label), settings, rungs, str(plan.rounds), _duration(plan.seconds))
        total = _duration(final + sum(plan.seconds for plan in plans))
        self.console.print(table)
        self.console.print(f"then the best of each on fresh seeds, about {_duration(final)}; in all about {total}")

    def cost(self, cost: Cost) -> None:
        """Print what the runs cost, and about how long they take; if no round was done yet, after the first one."""
        if not cost.left_runs:
            return
        whole = f"{_count(cost.left_runs, 'run')}, {_count(cost.left_rounds, 'round')}"
        left = f" left of {_count(cost.runs, 'run')}, {_count(cost.rounds, 'round')}"
        self.say(whole + (left if cost.left_rounds < cost.rounds else "") + self._time(cost.seconds))
        self._untimed = cost if cost.seconds is None else None

    def first_round(self, seconds: float) -> None:
        """Print about how long the runs take, if that could not be told before the first round."""
        if (cost := self._untimed) is not None:
            self._untimed = None
            self.say(f"{_count(cost.left_rounds, 'round')}{self._time(cost.left_rounds * seconds)}")

    def _time(self, seconds: float | None) -> str:
        if seconds is None:
            return "; about how long is told after the first round"
        return f": at the pace so far about {_duration(seconds)}, without the tests after the last rounds"

    def say(self, line: str) -> None:
        """Print a line, literally: brackets are no markup."""
        self.console.print(plain(line), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def source(self, name: str, seed: int, epochs: int) -> RunDisplay:
        """Return the display of the training of one source model, whose rounds are epochs."""
        return RunDisplay(self, f"{name} (seed {seed})", epochs, "epoch")


class RaceDisplay:
    """The progress of one method's race: a bar over its rounds, and a line after each rung.

    Args:
        display: Display that the bar is part of.
        name: Label of the method.
        rounds: Number of rounds of the race.
    """

    def __init__(self, display: Display, name: str, rounds: int) -> None:
        self._display, self._name, self._done = display, plain(name), 0
        self._bar = display.bars.add_task(self._name, total=rounds, told="")

    def trial(self, name: str) -> TrialDisplay:
        """Return the display of a trial, which advances the bar of the race."""
        return TrialDisplay(self, name)

    def advance(self, rounds: int, told: str) -> None:
        """Advance the bar by some rounds."""
        self._done += rounds
        self._display.bars.update(self._bar, completed=self._done, told=told)

    def rung(self, round: int, stay: int, of: int, best: str) -> None:
        """Say which setting leads after a rung, and how many go on."""
        left = f"{stay} of {of} settings go on" if stay > 1 else f"one of {of} settings is left"
        text = f"{self._name}: after round {round}, {left}; best: {plain(best)}"
        self._display.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


class TrialDisplay(NoCallback):
    """The progress of one trial, shown by the bar of its race.

    Args:
        race: Display of the race.
        name: Settings of the trial.
    """

    def __init__(self, race: RaceDisplay, name: str) -> None:
        self._race, self._name = race, plain(name)

    def round(self, line: dict[str, Any]) -> None:
        """Advance the bar of the race."""
        score = validation_score(line)
        self._race.advance(1, self._name if score is None else f"{self._name}  validation accuracy {score:.3f}")


class RunDisplay:
    """The progress of one run: a bar over its rounds with accuracy, seconds per round and remaining time.

    Args:
        display: Display that the bar is part of.
        name: Name of the run, shown before the bar.
        rounds: Total number of rounds.
        unit: Word for a round: ``round`` or ``epoch``.
    """

    def __init__(self, display: Display, name: str, rounds: int, unit: str = "round") -> None:
        self._unit, self._display = unit, display
        self._console, self._bars = display.console, display.bars
        self._name, self._rounds = plain(name), rounds
        self._bar = self._bars.add_task(self._name, total=rounds, told="")
        self._told = ""
        self._last = time.perf_counter()
        self._pace: float | None = None

    def started(self, done: int) -> None:
        """Start the bar after the rounds that are done."""
        self._last = time.perf_counter()
        self._bars.update(self._bar, completed=done)
        if done:
            self._say(f"continues after {self._unit} {done} of {self._rounds}")

    def working(self, what: str, done: int, total: int) -> None:
        """Show the progress within the current round, for rounds that take long."""
        self._bars.update(self._bar, told=f"{self._told}  {what} {done}/{total}")

    def round(self, line: dict[str, Any]) -> None:
        """Advance the bar to a finished round, and print the clients whose updates were refused."""
        now = time.perf_counter()
        took, self._last = now - self._last, now
        if self._unit == "round":
            self._display.first_round(took)
        self._pace = took if self._pace is None else 0.7 * self._pace + 0.3 * took
        accuracy = line.get("personal_acc_weighted")
        # The only numbers before the last round for methods without labels, and for data without labels.
        neighbours, views = line.get("knn_acc_mean"), line.get("views_acc_mean")
        told = {"own test": accuracy, "knn": neighbours, "own view nearer": views}
        shown = next((f"{name} {value:.3f}  " for name, value in told.items() if value is not None), "")
        self._told = f"{shown}{self._pace:.2f} s/{self._unit}"
        self._bars.update(self._bar, completed=line["round"], told=self._told)
        every = max(1, self._rounds // PLAIN_LINES)
        if line["round"] % every == 0 or line["round"] == self._rounds:
            self._say(f"{self._unit} {line['round']:>4}/{self._rounds}  {self._told}")
        for client, reason in line["refused"].items():
            (who,) = labels([line.get("refused_names", {}).get(client, client)])
            self._print(f"{self._name}: round {line['round']}, upload of client {who} refused: {plain(reason)}")

    def stopping(self, round: int) -> None:
        """Say that the run stops after the current round, as the first Ctrl-C asked."""
        self._print(f"{self._name}: stops after round {round}; press Ctrl-C again to stop at once")

    def ended(self, round: int) -> None:
        """Say so if the run ended before its planned last round."""
        if round < self._rounds:
            self._bars.update(self._bar, total=round)
            self._print(f"{self._name}: ended after round {round} of {self._rounds}; validation no longer improved")

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            self._print(f"{self._name:<18} {text}", soft_wrap=True)

    def _print(self, text: str, *, soft_wrap: bool = False) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _duration(seconds: float) -> str:
    """Return a duration in words.

    >>> _duration(0.4), _duration(200), _duration(9000)
    ('1 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{max(round(seconds), 1)} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
