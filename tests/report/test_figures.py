from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinfed
from kinfed.report.figures import cost, mean_series, save_report_picture
from kinfed.report.folders import Run, read_runs
from tests.report.test_table import made


def measured(**series: dict[int, float | None]) -> Run:
    """A run of 20 rounds in which quantities were measured in some rounds."""
    lines: list[dict[str, Any]] = [{"round": round} for round in range(1, 21)]
    for name, values in series.items():
        for round, value in values.items():
            lines[round - 1][name] = value
    return Run(Path("o"), {}, {}, lines, {}, {})


def test_seeds_are_averaged_in_the_rounds_in_which_all_of_them_were_measured() -> None:  # case 116
    often = measured(acc={round: round / 100 for round in range(1, 21)})
    seldom = measured(acc={5: 0.1, 10: 0.2, 15: 0.4, 20: 0.4})
    failed = measured(acc={5: 0.1, 10: None, 15: 0.1, 20: 0.3})
    assert seldom.series("acc") == ([5, 10, 15, 20], [0.1, 0.2, 0.4, 0.4])
    rounds, mean, half = mean_series([often, seldom, failed], "acc")
    assert rounds == [5, 15, 20]
    assert mean == pytest.approx([0.25 / 3, 0.65 / 3, 0.9 / 3])
    assert half == pytest.approx([0.025, 0.15, 0.1])
    assert mean_series([often, measured()], "acc")[0] == []


@pytest.mark.slow
def test_a_run_of_which_no_client_could_be_tested_has_a_picture(tmp_path: Path) -> None:  # case 115
    (run,) = read_runs([kinfed.run("fedper", out=tmp_path / "o", clients=10, rounds=1, quiet=True).path])
    run.lines[-1]["client_acc"] = {"personal": [None] * 10}
    assert np.isnan(run.client_accuracies()).all()
    save_report_picture([run], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").is_file()


def taken(**seconds: float) -> dict[str, float]:
    """The width of each part of the bar of seconds of one run, by name."""
    run = made("fedavg", 0.5)
    run.summary["seconds"] = seconds
    _, parts = cost([run])
    return {bar.name: bar.x[0] for bar in parts.figure.data}


def test_the_seconds_of_a_run_are_drawn_by_part() -> None:
    now = {"train": 8.0, "aggregate": 0.5, "evaluate": 5.0, "save": 1.0, "last_evaluation": 3.0}
    assert taken(total=14.5, **now) == {
        "training": 8.0, "aggregation": 0.5, "tests in the rounds": 2.0, "last evaluation": 3.0, "saving": 1.0
    }  # fmt: skip


def test_of_a_run_of_an_older_version_the_seconds_that_it_told_are_drawn() -> None:
    assert taken(total=10.0, train=8.0, evaluate=1.0) == {"training": 8.0, "tests in the rounds": 1.0, "other": 1.0}
