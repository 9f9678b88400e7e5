from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfed
from kinfed.methods import Picture
from kinfed.report.folders import Run, read_runs
from kinfed.report.kinship import kin_order, kinship, save_kinship

CLIENTS: dict[str, Any] = {"classes": ["cat", "dog", "owl"], "train": [[5, 5, 0], [0, 0, 9], [9, 1, 0], [0, 1, 9]]}


def pictured(**rounds: list[list[float]]) -> Run:
    def of(matrix: list[list[float]]) -> Picture:
        return Picture(torch.tensor(matrix, dtype=torch.float64), "CRSM", "clients", "clients", similarity=True)

    matrices = {int(name.removeprefix("r")): {"crsm": of(matrix)} for name, matrix in rounds.items()}
    return Run(Path("o"), {}, {}, [{"round": max(matrices)}], {**CLIENTS}, matrices)


EARLY = [[1.0, 0.5, 0.4, 0.3], [0.5, 1.0, 0.2, 0.1], [0.4, 0.2, 1.0, 0.6], [0.3, 0.1, 0.6, 1.0]]
LATE = [[1.0, 0.1, 0.9, 0.2], [0.1, 1.0, 0.05, 0.8], [0.9, 0.05, 1.0, 0.15], [0.2, 0.8, 0.15, 1.0]]


def test_clients_that_share_classes_stand_together() -> None:
    order = kin_order(np.array(LATE))
    assert abs(order.index(0) - order.index(2)) == abs(order.index(1) - order.index(3)) == 1


def test_many_clients_are_sorted_without_ordering_the_leaves_which_would_take_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scipy.cluster.hierarchy.optimal_leaf_ordering", None)
    group = np.arange(201) % 3
    order = kin_order((group[:, None] == group).astype(float))
    assert np.count_nonzero(np.diff(group[order])) == 2


def test_the_figure_shows_the_last_round_and_a_slider_the_others() -> None:
    left, right = (panel.figure for panel in kinship(pictured(r1=EARLY, r5=LATE), "crsm"))
    early, late = right.data
    assert (left.data[0].visible, early.visible, late.visible) == (True, False, True)
    order = [int(name) for name in late.x]
    assert np.array_equal(late.z, np.array(LATE)[np.ix_(order, order)])
    assert (late.zmin, late.zmax) == (0.05, 0.9)  # the diagonal is 1 by definition
    (slider,) = right.layout.sliders
    assert [step.label for step in slider.steps] == ["1", "5"]
    assert slider.steps[0].args[0]["visible"] == [True, False]
    assert slider.steps[0].args[1]["title.text"].startswith("CRSM after round 1<br>")
    # overlap of 02, 13 > 23 > 03 > 01 = 12; CRSM 02 > 13 > 03 > 23 > 01 > 12
    assert right.layout.title.text == "CRSM after round 5<br>rank correlation 0.93"
    assert "classes cat/dog and classes owl" in {text for row in late.text for text in row}


def test_one_round_needs_no_slider_and_unknown_pairs_are_left_blank() -> None:
    unknown = np.array(LATE)
    unknown[0, 1] = unknown[1, 0] = np.nan
    (shown,) = (right := kinship(pictured(r3=unknown.tolist()), "crsm")[1].figure).data
    assert not right.layout.sliders
    assert np.isnan(shown.z).sum() == 2
    assert sum(told == "n/a" for row in shown.customdata for told in row) == 2


@pytest.mark.slow
def test_a_report_has_a_picture_of_it(tmp_path: Path) -> None:
    result = kinfed.run("fedshibu", out=tmp_path / "o", clients=10, rounds=4, checkpoint_every=1, quiet=True)
    page = result.report()
    assert "Similarity of the clients: fedshibu" in page.read_text()
    assert (page.parent / "report-kinship-o.png").is_file()
    (run,) = read_runs([tmp_path / "o"])
    assert [*run.pictured] == [1, 2, 3, 4]
    assert all(-1 <= line["crsm_overlap_correlation"] <= 1 for line in run.lines)
    save_kinship(run, "crsm", tmp_path / "again.png")
    assert (tmp_path / "again.png").is_file()


def test_clients_are_ordered_by_their_planted_groups_and_the_groups_found_are_shown() -> None:
    run = pictured(r1=EARLY, r5=LATE)
    run.federation["groups"] = [0, 1, 0, 1]
    run.lines[-1].update(groups=[3, 4, 3, 3], adjusted_rand_index=0.25)
    left, right = (panel.figure for panel in kinship(run, "crsm"))
    (groups,), (_, late) = left.data, right.data
    assert [*late.x] == ["0", "2", "3", "1"]
    assert groups.z.tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    titles = [left.layout.title.text, right.layout.title.text]
    assert titles == ["Groups found (adjusted Rand index 0.25)", "CRSM after round 5<br>AUC of pairs 1.00"]
    assert "group 4, planted group 1" in late.text[3][3]
    run.lines[-1].pop("groups")
    assert kinship(run, "crsm")[0].figure.layout.title.text == "Planted groups"
