"""A run that is still going has a page and a table of the rounds that are done."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed.engine import Callback, NoCallback
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.run import run
from kinfed.report.folders import read_runs
from kinfed.report.page import write_report
from tests.experiment.test_vote import write_pool

ROUNDS = 6


def stopped(out: Path, after: int, look: Any = None, **fields: Any) -> None:
    """A run that is stopped after a round, looked at before that."""

    class Looks(NoCallback):
        def round(self, line: dict[str, Any]) -> None:
            if line["round"] == after:
                if look is not None:
                    look()
                raise KeyboardInterrupt

    def callback(method: str, seed: int, rounds: int) -> Callback:
        return Looks()

    config = {"methods": ("fedavg",), "clients": 5, "rounds": ROUNDS, **fields}
    with pytest.raises(KeyboardInterrupt):
        run(Config.checked(config), out, callback)


def test_a_page_of_a_run_that_is_going_shows_the_rounds_that_are_done_and_says_so(tmp_path: Path) -> None:
    out, pages = tmp_path / "run", []
    stopped(out, 3, lambda: pages.append(write_report([out], tmp_path / "page.html").read_text()))
    assert "fedavg, seed 0: the run is not finished; these are" in pages[0]
    assert f"of its {ROUNDS} rounds" in pages[0]


@pytest.mark.slow
def test_what_is_told_of_a_run_that_stopped_is_what_a_run_of_those_rounds_would_tell(tmp_path: Path) -> None:
    stopped(tmp_path / "stopped", 3, lr_schedule="constant", ft_epochs=0)
    kinfed.run("fedavg", clients=5, rounds=3, lr_schedule="constant", ft_epochs=0, out=tmp_path / "three", quiet=True)
    (so_far,), (whole,) = read_runs([tmp_path / "stopped"]), read_runs([tmp_path / "three"])
    assert (so_far.summary.pop("planned"), so_far.summary["rounds"]) == (ROUNDS, 3)
    assert so_far.summary.pop("seconds").keys() == whole.summary.pop("seconds").keys()
    assert so_far.summary.pop("made").keys() == whole.summary.pop("made").keys()
    of_end = re.compile("refit|own_classes|.*auroc")  # what is measured after the last round only
    last = whole.lines[-1]
    for told in (whole.summary["metrics"], last, last["client_acc"], last["client_measures"]):
        for name in [name for name in told if of_end.match(name)]:
            del told[name]
    assert so_far.summary == whole.summary
    assert so_far.lines == whole.lines


@pytest.mark.slow
def test_a_line_that_is_being_written_is_left_out_only_while_the_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped(out, 3)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "cli')
    assert len(read_runs([out])[0].lines) == 3
    kinfed.resume(out, quiet=True)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"round": 7, "cli')
    with pytest.raises(InputError, match=r"metrics\.jsonl: is cut short in line 7"):
        read_runs([out])


def test_it_ends_with_a_round_in_which_models_were_tested(tmp_path: Path) -> None:
    stopped(tmp_path / "run", 5, evaluate_every=2)
    (read,) = read_runs([tmp_path / "run"])
    assert (read.summary["rounds"], len(read.lines)) == (4, 4)


def test_before_any_round_was_tested_there_is_nothing_to_show(tmp_path: Path) -> None:
    stopped(tmp_path / "run", 1, evaluate_every=2)
    with pytest.raises(InputError, match="has no results yet; continue it with: kinfed resume"):
        read_runs([tmp_path / "run"])


@pytest.mark.slow
def test_a_finished_run_has_one_summary(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped(out, 3)
    assert (out / "so_far.json").is_file()
    kinfed.resume(out, quiet=True)
    assert not (out / "so_far.json").exists()
    assert json.loads((out / "summary.json").read_text())["rounds"] == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedvote", "hetero_ssfl"])
def test_a_run_before_its_vote_or_its_last_test_has_a_page(method: str, tmp_path: Path) -> None:
    fields = {"sources": str(write_pool(tmp_path / "pool", "ab"))} if method == "fedvote" else {"knn_every": 1}
    stopped(tmp_path / "run", 2, methods=(method,), **fields)
    assert "is not finished" in write_report([tmp_path / "run"], tmp_path / "page.html").read_text()
