"""Progress display: bars in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from kinfed.display.bars import Bar, Bars
from kinfed.display.time_left import TimeLeft
from kinfed.engine.callbacks import NoCallback
from kinfed.engine.stopping import validation_score
from kinfed.errors import plain
from kinfed.experiment.cost import Cost
from kinfed.report.names import labels

if TYPE_CHECKING:
    from kinfed.tuning import Plan

__all__ = ["Display"]

PLAIN_LINES = 5  # progress lines per run where the output is no terminal


class Display:
    """Progress of several runs, one after the other or side by side; a context manager that writes to standard error.

    Each present run has a bar, and all runs together another one. A finished run leaves a line.

    Args:
        console: Console to write to; standard error if not given.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, emoji=False)
        self.bars = Bars(self.console)
        self.all: AllDisplay | None = None
        self._untimed: Cost | None = None  # cost whose time is told when the first round has shown the pace
        self._present: list[RunDisplay | RaceDisplay] = []

    def __enter__(self) -> Display:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        for present in self._present:
            present.stays = False
        self.close()
        self.bars.stop()

    def run(self, method: str, seed: int, rounds: int) -> RunDisplay:
        """Return the display of one run."""
        self.close()
        run = RunDisplay(self, f"{method} (seed {seed})", rounds, method=method)
        self._present.append(run)
        return run

    def source(self, name: str, seed: int, epochs: int) -> RunDisplay:
        """Return the display of the training of one source model, whose rounds are epochs."""
        self.close()
        run = RunDisplay(self, f"{name} (seed {seed})", epochs, "epoch")
        self._present.append(run)
        return run

    def race(self, label: str, rounds: int) -> RaceDisplay:
        """Return the display of the race of one method's settings."""
        self.close()
        race = RaceDisplay(self, label, rounds)
        self._present.append(race)
        return race

    def runs(self, cost: Cost) -> None:
        """Show the progress of all runs together from now on, if several are left."""
        self._together(cost, "runs")

    def _together(self, cost: Cost, what: str) -> None:
        """Show the progress of several runs or races together, instead of those before."""
        self.close()
        if self.all is not None:
            self.bars.drop(self.all.bar)
        self.all = AllDisplay(self, cost, what) if cost.left_runs > 1 else None

    def close(self) -> None:
        """Close the displays of the runs or races before, but for runs that go on."""
        for present in self._present:
            if not present.stays:
                present.close()
        self._present = [present for present in self._present if present.stays]

    def plan(self, plans: Sequence[Plan], final: float) -> None:
        """Print what a tuning costs, and the comparison on fresh seeds after it."""
        table = Table(box=None, pad_edge=False)
        for heading in ("method", "settings", "a third goes on after", "rounds", "about"):
            table.add_column(heading, justify="left" if heading == "method" else "right", overflow="fold")
        for plan in plans:
            rungs = ", ".join(map(str, plan.rungs[:-1])) or "–"
            settings = str(plan.settings) if plan.settings == plan.of else f"{plan.settings} of {plan.of}"
            table.add_row(plain(plan.label), settings, rungs, str(plan.rounds), _duration(plan.seconds))
        total = _duration(final + sum(plan.seconds for plan in plans))
        self.console.print(table)
        self.console.print(f"then the best of each on fresh seeds, about {_duration(final)}; in all about {total}")
        left = {plan.label: plan.rounds for plan in plans}
        self._together(Cost(len(plans), sum(left.values()), len(plans), left, seconds=None), "races")

    def cost(self, cost: Cost) -> None:
        """Print what the runs cost, and about how long they take; if no round was done yet, after the first one."""
        if not cost.left_runs:
            return
        whole = f"{_count(cost.left_runs, 'run')}, {_count(cost.left_rounds, 'round')}"
        left = f" left of {_count(cost.runs, 'run')}, {_count(cost.rounds, 'round')}"
        self.runs(cost)
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
        """Print a line, whatever is in it."""
        self.print(plain(line))

    def print(self, line: str) -> None:
        """Print a printable line, literally: brackets are no markup. Only beside bars it is wrapped, between words."""
        self.console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=not self.bars.shown)


class AllDisplay:
    """The progress of several runs or races together: a bar over all their rounds, with the time that is left.

    Args:
        display: Display that the bar is part of.
        cost: The runs and their rounds.
        what: Word for them: ``runs`` or ``races``.
    """

    def __init__(self, display: Display, cost: Cost, what: str) -> None:
        self._left, self._what = TimeLeft(cost.left), what
        self._runs, self._ended = cost.runs, cost.runs - cost.left_runs
        self.bar = Bar(f"all {what}", cost.rounds)
        self._show()
        display.bars.add(self.bar)

    def __str__(self) -> str:
        seconds = self._left.seconds
        left = f", about {_duration(seconds)} left" if seconds else ""
        return f"all {self._what}: {self.bar.done}/{self.bar.total} rounds{left}"

    def round(self, method: str, seconds: float) -> None:
        """Advance the bar by a round of a method, which took some seconds."""
        self._left.round(method, seconds)
        self._show()

    def found(self, method: str, rounds: int) -> None:
        """Advance the bar by rounds that were done before."""
        self._left.drop(method, rounds)
        self._show()

    def ended(self, method: str, undone: int) -> None:
        """Count a run as ended, and leave out the rounds that it did not do."""
        self._left.drop(method, undone)
        self._ended += 1
        self.bar.total -= undone
        self._show()

    def _show(self) -> None:
        self.bar.done = self.bar.total - self._left.rounds
        self.bar.score = f"{self._ended} of {self._runs} {self._what}"
        seconds = self._left.seconds
        self.bar.end = None if seconds is None else time.perf_counter() + seconds


class RaceDisplay:
    """The progress of one method's race: a bar over its rounds, and a line after each rung.

    Args:
        display: Display that the bar is part of.
        name: Label of the method.
        rounds: Number of rounds of the race.
    """

    def __init__(self, display: Display, name: str, rounds: int) -> None:
        self._display, self._all, self._method, self._name = display, display.all, name, plain(name)
        self._clock = _Clock()
        self._bar = Bar(self._name, rounds)
        self.stays = False
        display.bars.add(self._bar)

    def close(self) -> None:
        """Remove the bar; the lines of the rungs stay."""
        if self._all is not None:
            self._all.ended(self._method, self._bar.total - self._bar.done)
        self._display.bars.drop(self._bar)

    def trial(self, name: str) -> TrialDisplay:
        """Return the display of a trial, which advances the bar of the race."""
        self._clock.start()
        return TrialDisplay(self, name)

    def trained(self, name: str, score: float | None) -> None:
        """Advance the bar by a round of a trial, with the trial's settings and its score."""
        took = self._clock.round()
        if self._all is not None:
            self._all.round(self._method, took)
        self._bar.score = "" if score is None else f"validation {score:.3f}"
        self._show(1, name)

    def advance(self, rounds: int, told: str) -> None:
        """Advance the bar by rounds that were done before."""
        if self._all is not None:
            self._all.found(self._method, rounds)
        self._show(rounds, told)

    def _show(self, rounds: int, name: str) -> None:
        self._bar.done += rounds
        self._bar.work, self._bar.pace = name, self._clock.pace("round")
        self._bar.end = self._clock.end(self._bar.total - self._bar.done)
        self._display.bars.refresh()

    def rung(self, round: int, stay: int, of: int, best: str) -> None:
        """Say which setting leads after a rung, and how many go on."""
        left = f"{stay} of {of} settings go on" if stay > 1 else f"one of {of} settings is left"
        self._display.print(f"{self._name}: after round {round}, {left}; best: {plain(best)}")


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
        self._race.trained(self._name, validation_score(line))


class RunDisplay:
    """The progress of one run: a bar over its rounds with accuracy, seconds per round and remaining time.

    Args:
        display: Display that the bar is part of.
        name: Name of the run, shown before the bar.
        rounds: Total number of rounds.
        unit: Word for a round: ``round`` or ``epoch``.
        method: Label of the method, if the run is one of those that are shown together.

    Attributes:
        stays: True if the bar stays when another run begins.
    """

    def __init__(self, display: Display, name: str, rounds: int, unit: str = "round", method: str = "") -> None:
        self._display, self._bars, self._unit, self._method = display, display.bars, unit, method
        self._all = display.all if method else None
        self._name, self._rounds = plain(name), rounds
        self._bar = Bar(self._name, rounds)
        self._clock = _Clock()
        self.stays = False
        self._bars.add(self._bar)

    def stay(self) -> None:
        """Keep the bar until the run is over, whatever runs begin meanwhile."""
        self.stays = True

    def over(self) -> None:
        """Close the bar of a run that stayed."""
        self.stays = False
        self._display.close()

    def close(self) -> None:
        """Leave a line instead of the bar."""
        if self._all is not None:
            self._all.ended(self._method, self._rounds - self._bar.done)
        self._bars.keep(self._bar)

    def started(self, done: int) -> None:
        """Start the bar after the rounds that are done."""
        self._clock.start()
        self._bar.done = done
        if done:
            self._say(f"continues after {self._unit} {done} of {self._rounds}")

    def working(self, what: str, done: int, total: int) -> None:
        """Show the progress within the current round, for rounds that take long."""
        self._bar.work = f"{what} {done}/{total}"
        self._bars.refresh()

    def round(self, line: dict[str, Any]) -> None:
        """Advance the bar to a finished round, and print the clients whose updates were refused."""
        took = self._clock.round()
        if self._unit == "round":
            self._display.first_round(took)
        if self._all is not None:
            self._all.round(self._method, took)
        accuracy = line.get("personal_acc_weighted")
        # The only numbers before the last round for methods without labels, and for data without labels.
        neighbours, views = line.get("knn_acc_mean"), line.get("views_acc_mean")
        told = {"own test": accuracy, "knn": neighbours, "own view nearer": views}
        self._bar.score = next((f"{name} {value:.3f}" for name, value in told.items() if value is not None), "")
        self._bar.pace, self._bar.work = self._clock.pace(self._unit), ""
        self._bar.done, self._bar.end = line["round"], self._clock.end(self._rounds - line["round"])
        self._bars.refresh()
        every = max(1, self._rounds // PLAIN_LINES)
        if line["round"] % every == 0 or line["round"] == self._rounds:
            of_all = "" if self._all is None else f"  ({self._all})"
            score = f"{self._bar.score}  " if self._bar.score else ""
            self._say(f"{self._unit} {line['round']:>4}/{self._rounds}  {score}{self._bar.pace}{of_all}")
        for client, reason in line["refused"].items():
            (who,) = labels([line.get("refused_names", {}).get(client, client)])
            self._display.print(f"{self._name}: round {line['round']}, upload of client {who} refused: {plain(reason)}")

    def stopping(self, round: int) -> None:
        """Say that the run stops after the current round, as the first Ctrl-C asked."""
        self._display.print(f"{self._name}: stops after round {round}; press Ctrl-C again to stop at once")

    def ended(self, round: int) -> None:
        """Say so if the run ended before its planned last round."""
        if round < self._rounds:
            self._bar.total = round
            self._display.print(f"{self._name}: ended after round {round} of {self._rounds}, as the config asks")

    def _say(self, text: str) -> None:
        if not self._bars.shown:
            self._display.print(f"{self._name:<18} {text}")


class _Clock:
    """Clock for rounds: what they took, smoothed, and when the last one is expected to end."""

    def __init__(self) -> None:
        self._pace: float | None = None
        self.start()

    def start(self) -> None:
        """Start the next round now."""
        self._last = time.perf_counter()

    def round(self) -> float:
        """End a round, and return what it took in seconds."""
        now = time.perf_counter()
        took, self._last = now - self._last, now
        self._pace = took if self._pace is None else 0.7 * self._pace + 0.3 * took
        return took

    def pace(self, unit: str) -> str:
        """Return the seconds of a round in words; empty before the first one."""
        return "" if self._pace is None else f"{self._pace:.2f} s/{unit}"

    def end(self, rounds: int) -> float | None:
        """Return the time at which so many more rounds are done, on the clock of `time.perf_counter`."""
        return None if self._pace is None else self._last + rounds * self._pace


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
