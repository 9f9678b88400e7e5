"""The race of one method's settings: trials that run from rung to rung, and the setting that wins."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from kinfed.engine import Callback, RunFolder
from kinfed.engine.folder import METRICS, SECONDS
from kinfed.engine.lines import Line
from kinfed.engine.stopping import validation_score
from kinfed.errors import RunFailed
from kinfed.experiment.config import Config
from kinfed.experiment.side_by_side import Doing, Job
from kinfed.labels import slug
from kinfed.tuning.halving import planned_rounds, promoted, rungs
from kinfed.tuning.space import Space, with_values
from kinfed.tuning.study import Record

__all__ = ["DRAWN", "Race", "Watcher", "as_text"]

DRAWN = 20  # settings of a space that has a range

Values = Mapping[str, Any]


class Watcher(Protocol):
    """Observer of one method's race."""

    def trial(self, name: str) -> Callback:
        """Return the observer of a trial, whose settings are given in words."""

    def advance(self, rounds: int, told: str) -> None:
        """Report that some rounds were done before, by a process that was stopped."""

    def rung(self, round: int, stay: int, of: int, best: str) -> None:
        """Report that a rung is finished.

        Args:
            round: Round of the rung.
            stay: Number of settings that go on.
            of: Number of settings that ran to this rung.
            best: Best setting and its accuracy, in words.
        """


@dataclass
class Race:
    """The race of one method.

    Attributes:
        label: Label of the method.
        config: Config of the comparison.
        space: Search space of the method.
        record: Record of the trials.
        folder: Folder of the trials.
        count: Number of settings that race.
        seen: Trials whose former rounds were reported to the observer.
    """

    label: str
    config: Config
    space: Space
    record: Record
    folder: Path
    count: int = 0
    seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.count = self.largest

    @property
    def largest(self) -> int:
        """Number of settings without a limit on the time: the whole grid, or `DRAWN`."""
        return DRAWN if self.space.size is None else self.space.size

    @cached_property
    def every(self) -> int:
        """Rounds between two evaluations of this method."""
        supervised = self.config.method(self.label).supervised
        return self.config.evaluate_every if supervised else self.config.knn_every

    @property
    def rungs(self) -> tuple[int, ...]:
        """Rounds after which a part of the settings goes on."""
        return rungs(self.count, self.config.rounds, self.every)

    @property
    def rounds(self) -> int:
        """Number of rounds of the whole race."""
        return planned_rounds(self.count, self.rungs)

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The settings that race, by number."""
        return self._first(self.count)

    def _first(self, count: int) -> list[dict[str, Any]]:
        """Return the first settings; the one that a run has without tuning is the very first, if it is among them."""
        own = self.config.settings[self.label]
        usual = {name: own[name] if name in own else getattr(self.config, name) for name in self.space.fields}
        return self.record.settings(self.space, count, self.config.seed, usual)

    def path(self, number: int) -> Path:
        """Folder of a trial."""
        return self.folder / slug(self.label) / f"trial-{number:03d}"

    def seconds_of_a_round(self, do: Doing, watcher: Watcher) -> float:
        """Return the seconds of a round, measured in the first round of the first trial, which goes on later."""
        if not (lines := RunFolder(self.path(0)).lines(SECONDS)):
            self._first(1)
            self._advance([0], 1, do, watcher)
            self.seen.discard(0)  # the race reports this round as one that was done before
            lines = RunFolder(self.path(0)).lines(SECONDS)
        return float(sum(value for name, value in lines[0].items() if name != "round")) if lines else 0.0

    def run(self, do: Doing, watcher: Watcher) -> None:
        """Run the settings from rung to rung, also those of a race that was stopped.

        Args:
            do: Doer of the trials.
            watcher: Observer of the race.
        """
        racing = [*range(len(self.settings))]
        for rung in self.rungs:
            self._advance(racing, rung, do, watcher)
            scores = {}
            for number in racing:
                if self.record.failed(number):
                    continue
                if (score := self.score(number)) is not None:
                    scores[number] = score
                    self.record.report(number, rung, score)
                else:
                    why = f"{self.config.measure} has no value on the validation samples of any client"
                    self.record.end(number, "FAIL", reason=why)
            last = rung == self.rungs[-1]
            stay = [*scores] if last else promoted(scores)
            for number in scores.keys() - {*stay}:
                self.record.end(number, "PRUNED")
            if scores:
                best = promoted(scores)[0]
                watcher.rung(
                    rung, 1 if last else len(stay), len(racing), f"{as_text(self.settings[best])} ({scores[best]:.3f})"
                )
            racing = stay
        for number in racing:
            self.record.end(number, "COMPLETE", scores[number])

    def score(self, number: int) -> float | None:
        """Validation score of a trial after its last round so far; None before the first evaluation."""
        lines = RunFolder(self.path(number)).lines(METRICS)
        measured = [score for line in lines if (score := self._of(line)) is not None]
        return measured[-1] if measured else None

    def _of(self, line: Line) -> float | None:
        return validation_score(line, self.config.measure)

    def told(self) -> dict[str, Any]:
        """Describe the race for ``trials.json``: its rungs, and the values, scores and state of every trial."""
        trials = []
        for number, (values, trial) in enumerate(zip(self.settings, self.record.study.trials, strict=False)):
            lines = RunFolder(self.path(number)).lines(METRICS)
            scores = {line["round"]: score for line in lines if (score := self._of(line)) is not None}
            told = {"values": values, "state": trial.state.name.lower(), "validation": scores}
            trials.append(told | {"reason": self.record.reason(number)})
        return {"rungs": self.rungs, "fields": [*self.space.fields], "trials": trials, "chosen": self.winner}

    @property
    def winner(self) -> int | None:
        """Number of the complete trial with the best validation score; None if all failed."""
        complete = {t.number: t.value for t in self.record.study.trials if t.state.name == "COMPLETE"}
        return min(complete, key=lambda number: (-(complete[number] or 0.0), number)) if complete else None

    def _advance(self, numbers: Sequence[int], until: int, do: Doing, watcher: Watcher) -> None:
        """Run trials up to a round, and record those that failed."""
        jobs, reasons = [], {}
        for number in numbers:
            if self.record.failed(number):
                continue
            values, out = self._first(number + 1)[number], self.path(number)
            done = len(RunFolder(out).lines(METRICS))
            if number not in self.seen and done:
                watcher.advance(done, as_text(values))
            self.seen.add(number)
            if done < until:
                config = with_values(self.config, self.label, values)
                jobs.append(Job(config, out, functools.partial(watcher.trial, as_text(values)), until))

        def ended(job: Job, error: RunFailed | None) -> None:
            if error is not None:
                reasons[job.out] = str(error)

        do(jobs, ended)
        for number in numbers:
            if (out := self.path(number)) in reasons:
                self.record.end(number, "FAIL", reason=reasons[out])


def as_text(values: Values) -> str:
    """Return the values of a setting in words.

    >>> as_text({"lr": 0.1, "mu": 0.03162277})
    'lr=0.1 mu=0.0316'
    """
    return " ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )
