"""The tuning of a comparison: each method's validation scores over its learning rates, and what was chosen."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import plotly.graph_objects as go
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from kinfed.errors import InputError
from kinfed.experiment.config import Measure
from kinfed.experiment.folders import TUNING
from kinfed.fields import one_line
from kinfed.files import read_json
from kinfed.report.measures import WORDS
from kinfed.report.names import hypertext
from kinfed.report.style import colours, styled
from kinfed.report.table import Cell, Table
from kinfed.tuning.race import as_text

__all__ = ["TUNED", "Tuned", "read_tuning", "tuning_figure", "tuning_notes", "tuning_table"]

TUNED = (
    "Settings were chosen on validation samples, with a seed that is not among those of the comparison. "
    "Hollow points are settings that were left behind before the last round, with the value that they had then."
)


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Trial(_Told):
    """A setting that raced; ``validation`` has its scores by round."""

    values: dict[str, bool | int | float | str | None]
    state: Literal["running", "complete", "pruned", "fail", "waiting"]
    validation: dict[int, float]
    reason: str = ""

    @property
    def rate(self) -> float:
        """The learning rate."""
        rate = self.values["lr"]
        assert isinstance(rate, int | float)
        return float(rate)

    @property
    def last(self) -> tuple[int, float] | None:
        """The last round with a score, and the score."""
        return max(self.validation.items(), default=None)


class Race(_Told):
    """The race of one method's settings; ``chosen`` is the number of the trial that won."""

    rungs: tuple[int, ...]
    fields: list[str]
    trials: list[_Trial]
    chosen: int | None


class _Tuning(_Told):
    seed: int
    measure: Measure = "accuracy"
    methods: dict[str, Race]


@dataclass(frozen=True)
class Tuned:
    """The tuning of one comparison.

    Attributes:
        seed: Seed of the tuning.
        measure: Measure on validation samples by which settings were chosen, in words.
        methods: Races by label of the method.
    """

    seed: int
    measure: str
    methods: Mapping[str, Race]


def read_tuning(path: Path) -> Tuned | None:
    """Read the tuning of a comparison; None if it has none.

    Raises:
        InputError: If its file is damaged.
    """
    file = path / TUNING / "trials.json"
    if not file.is_file():
        return None
    try:
        told = TypeAdapter(_Tuning).validate_python(read_json(file))
    except ValidationError as error:
        raise InputError(f"{file}: {one_line(error)}") from error
    return Tuned(told.seed, WORDS[told.measure], told.methods)


def tuning_figure(tuned: Tuned) -> go.Figure:
    """Draw the validation scores of all settings over their learning rates; a line joins the best of each rate.

    Methods whose learning rate was not tuned are left out.
    """
    shown = {label: race for label, race in tuned.methods.items() if "lr" in race.fields}
    colour = colours([*shown])
    figure = go.Figure()
    for label, race in shown.items():
        points = [(trial, trial.last) for trial in race.trials if trial.last is not None]
        points.sort(key=lambda point: (point[0].rate, -point[1][1]))
        best = {trial.rate: (trial, last) for trial, last in reversed(points)}
        line = sorted(best.items())
        figure.add_scatter(
            x=[rate for rate, _ in line],
            y=[last[1] for _, (_, last) in line],
            name=hypertext(label),
            mode="lines",
            legendgroup=label,
            line={"color": colour[label], "width": 2},
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=[trial.rate for trial, _ in points],
            y=[last[1] for _, last in points],
            name=hypertext(label),
            mode="markers",
            legendgroup=label,
            showlegend=False,
            marker={
                "color": colour[label],
                "size": 9,
                "symbol": ["circle" if trial.state == "complete" else "circle-open" for trial, _ in points],
            },
            text=[hypertext(f"{as_text(trial.values)}, after round {last[0]}") for trial, last in points],
            hovertemplate="%{text}: %{y:.3f}",
        )
    rates = sorted({trial.rate for race in shown.values() for trial in race.trials})
    ticks = {"tickvals": rates, "ticktext": [f"{rate:g}" for rate in rates]} if len(rates) <= 8 else {}
    figure.update_xaxes(title_text="learning rate", type="log", **ticks)
    figure.update_yaxes(title_text=f"validation: {tuned.measure}", rangemode="tozero")
    return styled(figure, height=380, hovermode="closest")


def tuning_table(tuned: Tuned) -> Table:
    """Return the table of the chosen settings, and of what the choice gained."""
    columns = {
        "method": "the method",
        "chosen": f"the setting with the best {tuned.measure} on validation samples after the last round",
        "validation": f"its {tuned.measure} on validation samples after the last round",
        "settings": "number of settings that raced",
        "failed": "number of settings whose run failed",
        "best less median": f"best {tuned.measure} on validation samples less that of the median setting, both after "
        "the first rung",
    }
    rows = (tuple(Cell(text) for text in _row(label, race)) for label, race in tuned.methods.items())
    return Table((*columns,), (*columns.values(),), (*rows,))


def _row(label: str, race: Race) -> list[str]:
    chosen = None if race.chosen is None else race.trials[race.chosen]
    score = None if chosen is None else chosen.last
    first = [trial.validation[race.rungs[0]] for trial in race.trials if race.rungs[0] in trial.validation]
    gap = f"{max(first) - statistics.median(first):.3f}" if first else "–"
    failed = sum(trial.state == "fail" for trial in race.trials)
    return [
        label,
        "–" if chosen is None else as_text(chosen.values) or "nothing to choose",
        "–" if score is None else f"{score[1]:.3f}",
        str(len(race.trials)),
        str(failed),
        gap,
    ]


def tuning_notes(tuned: Tuned) -> list[str]:
    """Say what was chosen for each method, and warn of a choice at the edge of its values."""
    said = []
    for label, race in tuned.methods.items():
        if race.chosen is None:
            continue
        values = race.trials[race.chosen].values
        by = "" if tuned.measure == WORDS["accuracy"] else f" by {tuned.measure}"
        told = f"{label} was tuned to {as_text(values)} on validation samples{by} (seed {tuned.seed})"
        edges = [field for field in values if _at_edge(race, field)]
        said.append(f"{told}; {_and(edges)} at the edge of the values that were tried." if edges else f"{told}.")
    return said


def _at_edge(race: Race, field: str) -> bool:
    """Return True if the chosen value of a field is the smallest or largest number of three or more that were tried."""
    assert race.chosen is not None
    numbers = {value for trial in race.trials if isinstance(value := trial.values[field], int | float)}
    return len(numbers) > 2 and race.trials[race.chosen].values[field] in (min(numbers), max(numbers))


def _and(names: Sequence[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"
