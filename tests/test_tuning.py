"""Tuning: search spaces, successive halving, races that go on from their checkpoints, and their record."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinfed
from kinfed.engine import NoCallback, RunFolder
from kinfed.engine.stopping import validation_score
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.config import Config
from kinfed.experiment.run import nobody
from kinfed.fields import parse_duration
from kinfed.methods import METHODS
from kinfed.report.folders import read_runs
from kinfed.report.page import write_report
from kinfed.report.tuning import read_tuning, tuning_figure, tuning_notes, tuning_table
from kinfed.streams import numpy_stream
from kinfed.tuning import Finalists, Unseen, parse_over, spaces_of, tune
from kinfed.tuning.halving import planned_rounds, promoted, rungs
from kinfed.tuning.space import Range, Space
from kinfed.tuning.study import quiet, recorded
from kinfed.tuning.tune import Plan

SMALL: dict[str, Any] = {
    "data": "digits", "train_images": 200, "clients": 4, "partition": "iid", "rounds": 6, "ft_epochs": 0, "public": 0,
    "validation": 0.25, "seeds": 1,
}  # fmt: skip
RATES = ["lr=0.01,0.1,0.3"]


def config(*methods: str, **fields: Any) -> Config:
    return Config.checked({**SMALL, "methods": methods, **fields})


def trials(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "tuning" / "trials.json").read_text())["methods"]
    return told


def files(folder: Path) -> dict[str, bytes]:
    there = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("seconds.jsonl", ".lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in there}


# -- search spaces ----------------------------------------------------------------------------------------------------


def test_values_have_the_types_of_their_fields() -> None:
    asked = [parse_over(text) for text in ("lr=0.01,0.1", "fedprox.mu=log:0.001:1", "fedrep.head_epochs=uniform:1:5")]
    spaces = spaces_of(config("fedprox", "fedrep"), asked)
    assert spaces["fedprox"].fields == {"lr": (0.01, 0.1), "mu": Range(0.001, 1.0, log=True)}
    assert spaces["fedrep"].fields == {"lr": (0.01, 0.1), "head_epochs": Range(1, 5, log=False)}
    assert type(spaces["fedrep"].fields["head_epochs"].low) is int


def test_only_named_fields_are_tuned_and_without_any_those_of_the_method() -> None:
    assert {*spaces_of(config("fedprox"), [parse_over("lr=0.1,0.3")])["fedprox"].fields} == {"lr"}
    assert {*spaces_of(config("fedprox"), [])["fedprox"].fields} == {"lr", "mu"}
    assert {*spaces_of(config("fedprox:mu=1"), [])["fedprox:mu=1"].fields} == {"lr"}


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS.origin(name) == "kinfed"])
def test_every_method_has_a_space_that_its_own_fields_allow(name: str) -> None:
    needs = METHODS[name]().requires
    given = {"sources": "."} if needs.source_models else {"shift": "rotate:2"} if needs.true_groups else {}
    space = spaces_of(config(name, **given, public=64), [])[name]
    assert "lr" in space.fields
    assert space.size is None or 2 <= space.size <= 20


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lr", "over: 'lr' must have the form"),
        ("lr=", "over: 'lr=' must have the form"),
        ("fedavg.mu=1,2", "set: fedavg: 'mu'"),
        ("moon.mu=1,2", "over: 'moon' is not allowed; must be one of fedavg, fedprox:mu=1"),
        ("lr=0.1,-1", r"fedavg\.lr: '-1' is not allowed; must be greater than 0"),
        ("lr=log:0:1", r"fedavg\.lr: '0' is not allowed"),
        ("lr=log:1:0.1", r"over: lr=log:1:0\.1 is not allowed; must be log:LOW:HIGH of numbers with 0 < LOW < HIGH"),
        ("lr=log:1", "over: lr=log:1 is not allowed; must be log:LOW:HIGH"),
        ("fedprox.mu=0.1,1", "over: mu of fedprox:mu=1 is not tuned, since the label has a value for it"),
    ],
)
def test_a_wrong_space_is_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(InputError, match=f"^{line}") as refused:
        spaces_of(config("fedavg", "fedprox:mu=1"), [parse_over(text)])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("value", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("0.5h", 1800), (45, 45)])
def test_durations(value: Any, seconds: float) -> None:
    assert parse_duration("budget", value) == seconds


@pytest.mark.parametrize("value", ["", "m", "-1", "0", "1d", True, math.nan, "1 m"])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"^budget: .* is not allowed; must be a time above 0"):
        parse_duration("budget", value)


# -- successive halving -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [1, 2, 3, 4, 9, 16, 20, 27])
@pytest.mark.parametrize("rounds", [1, 2, 10, 30])
@pytest.mark.parametrize("every", [1, 4, 10])
def test_rungs_are_evaluated_rounds_and_the_last_one_is_the_end(settings: int, rounds: int, every: int) -> None:
    found = rungs(settings, rounds, every)
    assert found[-1] == rounds
    assert [*found] == sorted({*found})
    assert all(rung % every == 0 for rung in found[:-1])


def test_a_third_goes_on_the_best_first_and_ties_by_number() -> None:
    assert promoted({0: 0.1, 1: 0.9, 2: 0.9, 3: 0.2, 4: 0.3, 5: 0.0, 7: 0.95}) == [7, 1, 2]
    assert promoted({5: 0.0}) == [5]
    assert promoted({}) == []


def test_planned_rounds_are_those_that_are_run(tmp_path: Path) -> None:
    tune(config("fedavg"), RATES, tmp_path / "out", Unseen(), nobody)
    ran = [max(map(int, trial["validation"])) for trial in trials(tmp_path / "out")["fedavg"]["trials"]]
    assert sum(ran) == planned_rounds(3, rungs(3, 6)) == 3 * 2 + 4


# -- races ------------------------------------------------------------------------------------------------------------


def test_the_best_on_validation_wins_and_is_compared_on_fresh_seeds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune(config("fedavg", "fedprox", seeds=2), [*RATES, "fedprox.mu=0.01,1"], out, Unseen(), nobody)
    for label, size in (("fedavg", 3), ("fedprox", 6)):
        race = trials(out)[label]
        assert len(race["trials"]) == size
        first, last = (str(rung) for rung in race["rungs"])
        kept = [t for t in race["trials"] if t["state"] == "complete"]
        left = [t for t in race["trials"] if t["state"] == "pruned"]
        assert min(t["validation"][first] for t in kept) >= max(t["validation"][first] for t in left)
        assert len(kept) == math.ceil(size / 3)
        won = race["trials"][race["chosen"]]
        assert won["validation"][last] == max(t["validation"][last] for t in kept)
        own = Config.read(out / "comparison.toml").settings[label]
        assert {name: own[name] for name in won["values"]} == won["values"]
    runs = read_runs([out])
    told = [(run.method, run.summary["seed"]) for run in runs]
    assert told == [("fedavg", 1), ("fedavg", 2), ("fedprox", 1), ("fedprox", 2)]


def test_a_trial_that_paused_has_the_bits_of_a_straight_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune(config("fedper", lr_schedule="cosine"), RATES, out, Unseen(), nobody)
    race = trials(out)["fedper"]
    won = out / "tuning" / "fedper" / f"trial-{race['chosen']:03d}"
    assert len(race["rungs"]) > 1
    given = {**SMALL, "lr_schedule": "cosine", "settings": {"fedper": race["trials"][race["chosen"]]["values"]}}
    kinfed.run("fedper", **given, out=tmp_path / "straight", quiet=True)
    kept = [files(of) for of in (won, tmp_path / "straight")]
    for of in kept:
        of.pop("summary.json")
    assert kept[0] == kept[1]


class Stops(Unseen):
    """Presses Ctrl-C in the n-th round of the tuning."""

    def __init__(self, when: int) -> None:
        self.left = when

    def race(self, label: str, rounds: int) -> Stops:
        return self

    def trial(self, name: str) -> Any:
        outer = self

        class Counting(NoCallback):
            def round(self, line: dict[str, Any]) -> None:
                outer.left -= 1
                if not outer.left:
                    os.kill(os.getpid(), signal.SIGINT)

        return Counting()


@pytest.mark.slow
@pytest.mark.parametrize("when", [1, 3, 7, 9])
def test_a_stopped_tuning_ends_like_one_that_was_not_stopped(when: int, tmp_path: Path) -> None:
    tune(config("fedavg"), RATES, tmp_path / "straight", Unseen(), nobody)
    with pytest.raises(KeyboardInterrupt):
        tune(config("fedavg"), RATES, tmp_path / "out", Stops(when), nobody)
    journal = tmp_path / "out" / "tuning" / "optuna.log"
    with journal.open("a") as file:
        file.write('{"op_code": 6, "cut')  # as a kill leaves it
    kinfed.resume(tmp_path / "out", quiet=True)
    ends = [files(tmp_path / of) for of in ("straight", "out")]
    for end in ends:  # they tell the time, or name the process
        for name in [name for name in end if name.endswith(("summary.json", "comparison.json", "optuna.log"))]:
            end.pop(name)
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_the_same_call_continues_and_another_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(config("fedavg"), RATES, tmp_path / "out", Stops(2), nobody)
    for other in ({"lr_schedule": "constant"}, {"seeds": 2}):
        with pytest.raises(InputError, match="was started with another tuning; choose another folder"):
            tune(config("fedavg", **other), RATES, tmp_path / "out", Unseen(), nobody)
    with pytest.raises(InputError, match="was started with another tuning"):
        tune(config("fedavg"), ["lr=0.1"], tmp_path / "out", Unseen(), nobody)
    tune(config("fedavg"), RATES, tmp_path / "out", Unseen(), nobody)
    before = files(tmp_path / "out")
    tune(config("fedavg"), RATES, tmp_path / "out", Unseen(), nobody)
    assert files(tmp_path / "out") == before


def test_a_setting_whose_run_fails_is_left_out_with_its_reason(tmp_path: Path) -> None:
    tune(config("fedavg"), ["lr=0.1,1e30"], tmp_path / "out", Unseen(), nobody)
    race = trials(tmp_path / "out")["fedavg"]
    (failed,) = (trial for trial in race["trials"] if trial["state"] == "fail")
    assert failed["values"] == {"lr": 1e30}
    assert "loss is nan; try a smaller lr" in failed["reason"]
    assert race["trials"][race["chosen"]]["values"] == {"lr": 0.1}


@pytest.mark.slow
def test_a_method_whose_settings_all_fail_is_left_out_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"^every setting of fedper failed; .*; it is left out$"):
        tune(config("fedavg", "fedper"), ["fedper.lr=1e30,1e31"], tmp_path / "out", Unseen(), nobody)
    assert [run.method for run in read_runs([tmp_path / "out"])] == ["fedavg"]
    told = r"^every setting of fedavg failed; "
    with pytest.warns(UserWarning, match="left out"), pytest.raises(RunFailed, match=told):
        tune(config("fedavg"), ["lr=1e30,1e31"], tmp_path / "none", Unseen(), nobody)


@pytest.mark.slow
def test_only_the_finalists_and_those_that_always_are_go_to_fresh_seeds(tmp_path: Path) -> None:
    seen = Planned()
    labels = ("fedavg", "fedper", "fedrep", "local")
    tune(config(*labels), ["lr=0.1,0.3"], tmp_path, seen, nobody, None, Finalists(1, ["local"]))
    told = trials(tmp_path)
    scores = {label: told[label]["trials"][told[label]["chosen"]]["validation"]["6"] for label in labels}
    best = max(labels, key=lambda label: scores[label])
    assert {run.method for run in read_runs([tmp_path])} == {best, "local"}
    before = files(tmp_path)
    kinfed.resume(tmp_path, quiet=True)
    assert files(tmp_path) == before
    assert seen.final > 0


@pytest.mark.slow
def test_settings_of_methods_without_labels_are_chosen_by_nearest_neighbours(tmp_path: Path) -> None:
    given = {"knn_every": 2, "settings": {"fedbyol": {"hidden": 16, "out": 8}}}
    tune(config("fedbyol", **given), RATES, tmp_path / "out", Unseen(), nobody)
    race = trials(tmp_path / "out")["fedbyol"]
    assert race["rungs"] == [2, 6]
    second = RunFolder(tmp_path / "out" / "tuning" / "fedbyol" / "trial-000").lines("metrics.jsonl")[1]
    assert race["trials"][0]["validation"]["2"] == second["validation_knn_acc_weighted"] == validation_score(second)


@pytest.mark.slow
def test_choices_do_not_depend_on_the_labels_of_the_test_set(tmp_path: Path) -> None:
    stream = numpy_stream(0, "test")
    y = np.arange(300) % 3
    x = (stream.random((300, 1, 8, 8)) * 120 + 40 * y[:, None, None, None]).astype(np.uint8)
    shuffled = np.roll(y[200:], 1)
    for name, y_test in (("own", y[200:]), ("other", shuffled)):
        given = {**SMALL, "data": (x[:200], y[:200], x[200:], y_test), "train_images": None, "patience": 2, "lr": 0.3}
        kinfed.tune(["fedavg", "fedper"], over=RATES, **given, out=tmp_path / name, quiet=True)
    assert trials(tmp_path / "own") == trials(tmp_path / "other")
    for run in ("fedavg-seed1", "fedper-seed1", "local-seed1"):
        models, lines = [], []
        for name in ("own", "other"):
            folder = tmp_path / name / run
            models.append({path.name: path.read_bytes() for path in (folder / "models").glob("*.safetensors")})
            lines.append(RunFolder(folder).lines("metrics.jsonl"))
        assert models[0] == models[1] != {}
        assert [validation_score(line) for line in lines[0]] == [validation_score(line) for line in lines[1]]
        assert lines[0][-1]["personal_acc_weighted"] != lines[1][-1]["personal_acc_weighted"]


class Planned(Unseen):
    """Keeps the plans."""

    def plan(self, plans: Any, final: float) -> None:
        self.plans: list[Plan] = plans
        self.final = final


@pytest.mark.slow
def test_a_budget_reduces_the_settings_to_one_at_least(tmp_path: Path) -> None:
    rich, poor = Planned(), Planned()
    tune(config("fedavg"), RATES, tmp_path / "rich", rich, nobody, budget=1e6)
    tune(config("fedavg"), RATES, tmp_path / "poor", poor, nobody, budget=1e-3)
    assert [(of.settings, of.of) for of in (rich.plans[0], poor.plans[0])] == [(3, 3), (1, 3)]
    assert poor.plans[0].seconds > 0
    (only,) = trials(tmp_path / "poor")["fedavg"]["trials"]
    assert only["values"] == {"lr": 0.1}  # the one without tuning


def test_a_range_is_drawn_from_a_stream_of_its_own_whatever_was_drawn_before(tmp_path: Path) -> None:
    space = Space({"lr": Range(0.001, 1.0, log=True)})
    with quiet():
        once = recorded(tmp_path / "once", "fedavg").settings(space, 20, seed=0)
        for count in (1, 7, 20):
            more = recorded(tmp_path / "more", "fedavg").settings(space, count, seed=0)
        other = recorded(tmp_path / "once", "fedprox").settings(space, 20, seed=0)
    rates = [values["lr"] for values in once]
    assert more == once != other
    assert len({*rates}) == 20
    assert all(0.001 <= rate <= 1 for rate in rates)
    assert 4 <= sum(rate < 0.03 for rate in rates) <= 16  # about half, on a logarithmic scale


def test_the_grid_is_tried_as_a_whole_in_a_random_order_after_the_usual_setting(tmp_path: Path) -> None:
    space = Space({"lr": (0.1, 0.3), "mu": (0.01, 0.1, 1.0)})
    with quiet():
        found = recorded(tmp_path / "log", "fedprox").settings(space, 6, seed=0, usual={"lr": 0.3, "mu": 0.1})
    assert found != space.grid()
    assert found[0] == {"lr": 0.3, "mu": 0.1}
    assert sorted(map(str, found)) == sorted(map(str, space.grid()))


# -- page --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_shows_every_setting_and_what_was_chosen(tmp_path: Path) -> None:
    tune(config("fedavg", "fedprox"), [*RATES, "fedprox.mu=0.01,1"], tmp_path, Unseen(), nobody)
    tuned = read_tuning(tmp_path)
    assert tuned is not None
    points = [trace for trace in tuning_figure(tuned).data if trace.mode == "markers"]
    assert [len(trace.x) for trace in points] == [3, 6]
    assert [sum(symbol == "circle" for symbol in trace.marker.symbol) for trace in points] == [1, 2]
    assert [row[0].text for row in tuning_table(tuned).rows] == ["fedavg", "fedprox"]
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "<h2>Tuning</h2>" in page
    assert any(note.startswith("fedavg was tuned to lr=") for note in tuning_notes(tuned))


def test_a_damaged_record_for_the_page_is_told(tmp_path: Path) -> None:
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "trials.json").write_text('{"seed": 0, "methods": {"fedavg": {}}}')
    with pytest.raises(InputError, match=r"trials\.json: "):
        read_tuning(tmp_path)
