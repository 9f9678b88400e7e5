"""Early stopping on validation, and runs that pause: what they end with, and that a pause leaves no trace."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed.data import Federation, with_validation
from kinfed.engine import NoCallback, RunFolder, run_rounds
from kinfed.engine.runtime import ClientRuntime
from kinfed.engine.stopping import out_of_patience, validation_score
from kinfed.errors import InputError
from kinfed.settings import own_settings
from tests.builders import build_runtime, federation, run, same, serial

METHODS = ["fedavg", "fedper", "fedbyol"]


def fed(**given: Any) -> Federation:
    return with_validation(federation(**given), 0.25, seed=0)


def runtime(name: str = "fedper", **given: Any) -> ClientRuntime:
    return build_runtime(name, given.pop("fed", fed()), knn_every=1, **given)


def files(folder: Path) -> dict[str, bytes]:
    there = (path for path in folder.rglob("*") if path.is_file() and path.name != "seconds.jsonl")
    return {str(path.relative_to(folder)): path.read_bytes() for path in there}


def lines_of(*accuracies: float | None) -> list[dict[str, Any]]:
    return [{"round": n, "validation_personal_acc_weighted": acc} for n, acc in enumerate(accuracies, start=1)]


def test_rounds_without_a_better_accuracy_are_counted_from_the_first_best_one() -> None:
    assert not out_of_patience(lines_of(0.5, 0.4, 0.5), 3)
    assert out_of_patience(lines_of(0.5, 0.4, 0.5, 0.5), 3)
    assert not out_of_patience(lines_of(0.5, 0.4, 0.5, 0.6), 3)
    assert not out_of_patience(lines_of(0.5, 0.4), None)


def test_rounds_without_an_evaluation_have_no_accuracy_but_count() -> None:
    assert out_of_patience(lines_of(None, 0.5, None, 0.4), 2)
    assert not out_of_patience(lines_of(None, None, None), 1)


def test_choices_of_methods_without_labels_rest_on_nearest_neighbours_in_every_round() -> None:
    assert validation_score({"validation_knn_acc_weighted": 0.4, "validation_personal_acc_weighted": 0.7}) == 0.4
    assert validation_score({"personal_acc_weighted": 0.7}) is None


@pytest.mark.parametrize("name", METHODS)
def test_a_run_ends_when_validation_has_not_improved_and_is_evaluated_as_in_a_last_round(
    name: str, tmp_path: Path
) -> None:
    whole = run(runtime(name, rounds=8), tmp_path / "whole").lines
    ends = next(line["round"] for line in whole if out_of_patience(whole[: line["round"]], 1))
    assert ends < 8, "nothing would be tested"
    outcome = run(runtime(name, rounds=8, patience=1), tmp_path / "early")
    assert outcome.lines[:-1] == whole[: ends - 1]
    last, inside = outcome.lines[-1], whole[ends - 1]
    assert last["round"] == ends
    by_client = ("client_acc", "client_measures")
    told = {key: value for key, value in inside.items() if value is not None and key not in by_client}
    assert {key: last[key] for key in told} == told
    of_end = {"fedavg": "fine_tuned", "fedper": "refreshed", "fedbyol": "linear_global"}[name]
    assert of_end in last["client_acc"]
    assert of_end in whole[-1]["client_acc"]
    saved = {path.name for path in (tmp_path / "early" / "models").iterdir()}
    assert saved == {path.name for path in (tmp_path / "whole" / "models").iterdir()}
    card = json.loads((tmp_path / "early" / "models" / sorted(saved)[0]).read_text())
    assert card["rounds"] == ends


def test_the_learning_rate_is_that_of_the_planned_rounds(tmp_path: Path) -> None:
    early = run(runtime(rounds=8, patience=1, lr_schedule="cosine"), tmp_path / "early").lines
    whole = runtime(rounds=8, lr_schedule="cosine").settings
    assert [line["lr"] for line in early] == [whole.training_in(line["round"]).lr for line in early]


def test_a_run_that_ended_early_is_not_continued(tmp_path: Path) -> None:
    run(runtime(rounds=8, patience=1), tmp_path)
    before = files(tmp_path)
    run(runtime(rounds=8, patience=1), tmp_path)
    assert files(tmp_path) == before


def test_a_run_ends_in_the_first_round_whose_global_model_is_as_good_as_asked(tmp_path: Path) -> None:
    given = {"rounds": 6, "fed": federation()}
    whole = run(runtime("fedavg", **given), tmp_path / "whole").lines
    accuracies = [line["global_acc"] for line in whole]
    target = max(accuracies[:3])
    ends = 1 + next(i for i, accuracy in enumerate(accuracies) if accuracy >= target)
    assert ends < 6, "nothing would be tested"
    early = run(runtime("fedavg", stop_acc=target, **given), tmp_path / "early").lines
    assert early[:-1] == whole[: ends - 1]
    assert early[-1]["global_acc"] == accuracies[ends - 1]
    assert "fine_tuned" in early[-1]["client_acc"]  # evaluated like a last round
    before = files(tmp_path / "early")
    run(runtime("fedavg", stop_acc=target, **given), tmp_path / "early")
    assert files(tmp_path / "early") == before
    assert len(run(runtime("fedavg", stop_acc=1.0, **given), tmp_path / "never").lines) == 6


class Presses(NoCallback):
    """Presses Ctrl-C after a round."""

    def __init__(self, when: int) -> None:
        self.when = when

    def round(self, line: dict[str, Any]) -> None:
        if line["round"] == self.when:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("every", [1, 10])
def test_a_stopped_run_ends_early_with_the_files_of_one_that_was_not_stopped(every: int, tmp_path: Path) -> None:
    given = {"rounds": 8, "patience": 1, "checkpoint_every": every, "save_local": True}
    straight = run(runtime("fedavg", **given), tmp_path / "straight")
    for when in range(1, straight.lines[-1]["round"]):
        out = tmp_path / f"out-{when}"
        out.mkdir()
        of = runtime("fedavg", **given)
        with pytest.raises(KeyboardInterrupt):
            run_rounds(of, serial(of, RunFolder(out)), RunFolder(out), Presses(when))
        run(runtime("fedavg", **given), out)
        assert files(out) == files(tmp_path / "straight")


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_pauses_ends_with_the_files_of_one_that_does_not(name: str, tmp_path: Path) -> None:
    given = {"rounds": 5, "lr_schedule": "cosine", "checkpoint_every": 2}
    run(runtime(name, **given), tmp_path / "straight")
    folder = RunFolder(tmp_path / "out")
    folder.path.mkdir()
    for until in (1, 1, 3, 3, 5):
        of = runtime(name, **given)
        with own_settings():
            assert run_rounds(of, serial(of, folder), folder, NoCallback(), until) == (until == 5)
        assert len(folder.lines("metrics.jsonl")) == until
    assert files(tmp_path / "out") == files(tmp_path / "straight")


@pytest.mark.slow
def test_an_early_end_is_the_same_in_worker_processes(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "data": "digits", "clients": 5, "rounds": 6, "lr": 1.5, "validation": 0.2, "patience": 1, "quiet": True,
    }  # fmt: skip
    one = kinfed.run("fedavg", **fields, out=tmp_path / "one")
    two = kinfed.run("fedavg", **fields, out=tmp_path / "two", workers=2)
    assert one.summaries[0]["rounds"] < 6, "nothing would be tested"
    assert (one.path / "metrics.jsonl").read_bytes() == (two.path / "metrics.jsonl").read_bytes()


def test_an_early_end_does_not_depend_on_the_labels_of_the_test_set(tmp_path: Path) -> None:
    own = fed()
    data = own.dataset
    assert data.test.labels is not None
    other = replace(data, test=replace(data.test, labels=(data.test.labels + 1) % len(data.classes)))
    ends = []
    for name, of in (("own", own), ("other", replace(own, dataset=other))):
        outcome = run(runtime("fedavg", fed=of, rounds=8, patience=1), tmp_path / name)
        ends.append((len(outcome.lines), outcome.state))
    assert ends[0][0] == ends[1][0] < 8
    assert same(ends[0][1], ends[1][1])


def test_patience_needs_validation() -> None:
    with pytest.raises(InputError, match=r"^patience: 3 needs validation samples; .*validation=0\.2$"):
        kinfed.run("fedavg", patience=3)


@pytest.mark.slow
def test_a_comparison_of_runs_that_ended_early_can_be_extended(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "data": "digits", "clients": 5, "lr": 1.5, "validation": 0.2, "patience": 1, "lr_schedule": "constant",
        "quiet": True,
    }  # fmt: skip
    result = kinfed.run("fedavg", **fields, rounds=6, out=tmp_path / "out")
    (run_of,) = result.summaries
    assert run_of["rounds"] < 6
    kinfed.resume(tmp_path / "out", rounds=9, quiet=True)
    kinfed.run("fedavg", **fields, rounds=9, out=tmp_path / "straight")
    kept = [files(tmp_path / of) for of in ("out", "straight")]
    for of in kept:
        of.pop("summary.json", None)
    assert kept[0] == kept[1]
