"""Tuning of several methods, and the comparison of the best setting of each on fresh seeds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kinfed.engine import Callback, Executor, NoCallback
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.assemble import runtime_of, settled, sources_of
from kinfed.experiment.config import EXECUTION, Config
from kinfed.experiment.cost import Cost, UnseenRuns, cost_of
from kinfed.experiment.folders import COMPARISON, TUNING, check_room
from kinfed.experiment.run import MakeCallback, doing, resume
from kinfed.experiment.uses import refuse_unlabelled
from kinfed.files import claimed, read_json_object, write_whole
from kinfed.settings import own_settings
from kinfed.tuning.halving import planned_rounds
from kinfed.tuning.race import Race, Watcher
from kinfed.tuning.space import parse_over, spaces_of
from kinfed.tuning.study import check_installed, quiet, recorded

__all__ = ["Finalists", "Plan", "Spectator", "Unseen", "check_tunable", "go_on_tuning", "is_tuning", "tune"]

CONFIG, ASKED, TRIALS, JOURNAL = "config.toml", "asked.json", "trials.json", "optuna.log"


@dataclass(frozen=True)
class Plan:
    """What a race of one method costs.

    Attributes:
        label: Label of the method.
        settings: Number of settings that race.
        of: Number of settings without a limit on the time.
        rungs: Rounds after which a part of the settings goes on.
        rounds: Number of rounds of the race.
        seconds: Estimated seconds of the race.
    """

    label: str
    settings: int
    of: int
    rungs: tuple[int, ...]
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Finalists:
    """Methods that are compared on fresh seeds after a tuning.

    Attributes:
        best: Number of methods with the best validation accuracy.
        always: Further methods, whatever their accuracy.
    """

    best: int
    always: Sequence[str] = ()

    @property
    def told(self) -> dict[str, Any]:
        """The fields, as they are written to a file."""
        return {"best": self.best, "always": [*self.always]}


@dataclass(frozen=True)
class Winner:
    """The best setting of a method.

    Attributes:
        values: Values of the fields that were tuned.
        score: Validation accuracy, or the measure that was asked for, after the last round, in [0, 1].
    """

    values: Mapping[str, Any]
    score: float | None


class Spectator(Protocol):
    """Observer of a tuning, and of the comparison after it."""

    def plan(self, plans: Sequence[Plan], final: float) -> None:
        """Report what the tuning costs, before it begins, and the seconds of the comparison on fresh seeds."""

    def race(self, label: str, rounds: int) -> Watcher:
        """Return the observer of one method's race, which takes so many rounds."""

    def runs(self, cost: Cost) -> None:
        """Report which runs of the comparison follow, before the first of them."""


class Unseen(UnseenRuns):
    """Observer of a tuning, of its races, of their trials and of the runs after them that does nothing."""

    def plan(self, plans: Sequence[Plan], final: float) -> None:
        """Do nothing."""

    def race(self, label: str, rounds: int) -> Unseen:
        """Return itself."""
        del label, rounds
        return self

    def trial(self, name: str) -> Callback:
        """Return an observer that does nothing."""
        del name
        return NoCallback()

    def advance(self, rounds: int, told: str) -> None:
        """Do nothing."""

    def rung(self, round: int, stay: int, of: int, best: str) -> None:
        """Do nothing."""


@own_settings()
def tune(
    config: Config,
    over: Sequence[str],
    out: Path,
    spectator: Spectator,
    make_callback: MakeCallback,
    budget: float | None = None,
    finalists: Finalists | None = None,
    executor: Executor | str | None = None,
) -> None:
    """Tune methods on validation samples of one seed, and compare the best setting of each on fresh seeds.

    The settings of a method race by successive halving: all run for a few rounds, and the best third goes on from its
    checkpoints. The comparison has the seeds after that of the tuning. A second call continues what was stopped.

    Args:
        config: Config of the comparison, with its validation share and the number of fresh seeds.
        over: Fields to tune with their values, as for `parse_over`; empty for each method's own (`Method.space`).
        out: Folder of the comparison; the tuning is in its folder ``tuning``.
        spectator: Observer of the tuning.
        make_callback: Function that makes the observer of each run of the comparison.
        budget: Seconds for tuning and comparison together; fewer settings race if all would take longer.
        finalists: Methods that are compared on fresh seeds; None for all. A method whose settings all failed is left
            out, with a warning.
        executor: Executor of the clients' tasks, or ``ray[:ADDRESS]``; None for that of the config.

    Raises:
        InputError: If a field is wrong, Optuna is not installed, or the folder holds another tuning.
        RunFailed: If all settings of all methods failed, or a run of the comparison did.
    """
    check_tunable(config)
    spaces_of(config, [parse_over(text) for text in over])
    folder = out / TUNING
    asked = {"over": [*over], "budget": budget, **({"finalists": finalists.told} if finalists else {})}
    if not is_tuning(out):
        check_room(out, overwrite=False)
        first = runtime_of(config.of(config.methods[0], config.seed))
        config = settled(config, first)
        for label in config.methods:
            refuse_unlabelled(label, config.method(label), first.federation.dataset)
            sources_of(config, label, first.federation)
    with claimed(out):
        if is_tuning(out):
            config = _same(config, asked, folder)
        else:
            folder.mkdir(exist_ok=True)
            write_whole(folder / ASKED, json.dumps(asked) + "\n")
            write_whole(folder / CONFIG, config.toml())
        if not (out / COMPARISON).is_file():
            best = _race(config, over, folder, spectator, budget, finalists, executor)
            write_whole(out / COMPARISON, best.toml())
    spectator.runs(cost_of({out: Config.read(out / COMPARISON, config.objects)}))
    resume(out, make_callback, objects=config.objects, executor=executor)


def is_tuning(out: Path) -> bool:
    """Return True if a folder holds a tuning."""
    return (out / TUNING / CONFIG).is_file()


def go_on_tuning(
    out: Path,
    spectator: Spectator,
    make_callback: MakeCallback,
    objects: Any = None,
    executor: Executor | str | None = None,
) -> None:
    """Continue a tuning in its folder, with an executor as for `tune`.

    Raises:
        InputError: If its files are damaged.
        RunFailed: If all settings of a method failed.
    """
    folder = out / TUNING
    asked = read_json_object(folder / ASKED)
    config = Config.read(folder / CONFIG, objects)
    finalists = Finalists(**asked["finalists"]) if "finalists" in asked else None
    tune(config, asked.get("over", ()), out, spectator, make_callback, asked.get("budget"), finalists, executor)


def check_tunable(config: Config) -> None:
    """Refuse a config without the numbers on which a choice rests.

    Raises:
        InputError: If there is no such number, a field would do nothing, or Optuna is not installed.
    """
    check_installed()
    if not config.validation and not config.data.startswith("<"):
        raise InputError("validation: 0 is not allowed; settings are chosen on validation samples")
    if config.log is not None:
        raise InputError(f"log: {config.log} would do nothing; it is of run and compare")
    for label in config.methods:
        if not config.method(label).supervised and config.measure != "accuracy":
            raise InputError(
                f"measure: {config.measure!r} is not allowed; settings of {label}, without labels, are chosen by "
                "the accuracy of nearest neighbours"
            )
        if not config.method(label).supervised and not config.knn_every:
            raise InputError(f"knn_every: 0 is not allowed; settings of {label} are chosen by nearest neighbours")


def _same(config: Config, asked: dict[str, Any], folder: Path) -> Config:
    """Return the config with which a tuning was begun, with the present execution.

    Raises:
        InputError: If it was begun with another config, other fields or another budget.
    """
    execution = {name: getattr(config, name) for name in EXECUTION - {"seeds", "measure"}}
    begun = Config.read(folder / CONFIG, config.objects, **execution)
    config = config.model_copy(update={"public": begun.public}) if config.public is None else config
    if begun != config or read_json_object(folder / ASKED) != asked:
        raise InputError(f"out: {str(folder.parent)!r} was started with another tuning; choose another folder")
    return begun


def _race(
    config: Config,
    over: Sequence[str],
    folder: Path,
    spectator: Spectator,
    budget: float | None,
    finalists: Finalists | None,
    executor: Executor | str | None,
) -> Config:
    """Run the races of all methods; return the config of the comparison.

    Raises:
        RunFailed: If all settings of all methods failed.
    """
    spaces = spaces_of(config, [parse_over(text) for text in over])
    with quiet(), doing(config, executor) as do:
        races = [
            Race(label, config, spaces[label], recorded(folder / JOURNAL, label), folder) for label in config.methods
        ]
        seconds = {}
        for race in races:
            seconds[race.label] = race.seconds_of_a_round(do, spectator.race(f"{race.label}: first round", 1))
        final = _final_seconds(config, seconds, finalists)
        if budget is not None:
            _limit(races, seconds, budget - final)
        spectator.plan([_plan(race, seconds[race.label]) for race in races], final)
        for race in races:
            race.run(do, spectator.race(race.label, race.rounds))
            told = {race.label: race.told() for race in races}
            write_whole(
                folder / TRIALS,
                json.dumps({"seed": config.seed, "measure": config.measure, "methods": told}, indent=1) + "\n",
            )
        chosen = _winners(races)
        best = sorted(chosen, key=lambda label: -(chosen[label].score or 0.0))
    kept = {*best} if finalists is None else {*best[: finalists.best], *finalists.always}
    methods = tuple(label for label in config.methods if label in chosen and label in kept)
    settings = {label: {**config.settings[label], **chosen[label].values} for label in methods}
    fields = config.model_dump() | {"methods": methods, "settings": settings, "seed": config.seed + 1}
    return Config.checked(fields, config.objects)


def _winners(races: Sequence[Race]) -> dict[str, Winner]:
    """Return the best setting of each method, with a warning for a method whose settings all failed.

    Raises:
        RunFailed: If there is no setting of any method.
    """
    chosen, reason = {}, ""
    for race in races:
        if (winner := race.winner) is not None:
            chosen[race.label] = Winner(race.settings[winner], race.score(winner))
        else:
            reason = f"every setting of {race.label} failed; {race.record.reason(0)}"
            warnings.warn(f"{reason}; it is left out", stacklevel=2)
    if not chosen:
        raise RunFailed(reason)
    return chosen


def _plan(race: Race, seconds: float) -> Plan:
    return Plan(race.label, race.count, race.largest, race.rungs, race.rounds, race.rounds * seconds)


def _final_seconds(config: Config, seconds: Mapping[str, float], finalists: Finalists | None) -> float:
    """Estimate the seconds of the comparison, at most; which methods take part is not known before the races."""
    always = {} if finalists is None else {label: seconds[label] for label in finalists.always}
    others = sorted((of for label, of in seconds.items() if label not in always), reverse=True)
    taking_part = others if finalists is None else others[: finalists.best]
    return config.rounds * config.seeds * (sum(taking_part) + sum(always.values()))


def _limit(races: Sequence[Race], seconds: Mapping[str, float], budget: float) -> None:
    """Reduce the settings of each race until all races fit into the budget, at least to one each.

    Each method gets an equal share of the time that the races before leave.
    """
    for at, race in enumerate(races):
        spent = sum(other.rounds * seconds[other.label] for other in races[:at])
        share = (budget - spent) / (len(races) - at)
        while race.count > 1 and planned_rounds(race.count, race.rungs) * seconds[race.label] > share:
            race.count -= 1
