from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinfed
from kinfed.report.figures import mean_series, save_report_picture
from kinfed.report.folders import Run, read_runs


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
