from __future__ import annotations

import io

import pytest
from rich.console import Console

from kinfed.display import Display
from kinfed.experiment.papers.cost import Cost


def told(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with Display(console) as display:
        run = display.run("fedavg", 0, 10)
        run.started(2)
        for round in range(3, 11):
            run.working("training", 3, 7)
            run.round(
                {
                    "round": round,
                    "personal_acc_weighted": round / 20,
                    "refused": {"4": "[w] is not finite"} if round == 5 else {},
                }
            )
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_an_epoch_of_a_source_model_is_no_first_round() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    display, lines = Display(console), console.file.getvalue  # type: ignore[attr-defined]
    display.cost(Cost(runs=1, rounds=8, left_runs=1, left_rounds=8, seconds=None))
    display.source("mnist", 0, 3).round({"round": 1, "refused": {}})
    assert "at the pace so far" not in lines()
    display.run("fedavg", 0, 8).round({"round": 1, "refused": {}})
    assert "at the pace so far" in lines()


def test_without_a_terminal_a_few_plain_lines_are_printed() -> None:
    lines = told(terminal=False).splitlines()
    assert "continues after round 2 of 10" in lines[0]
    assert [line.split()[4] for line in lines if " own test " in line] == ["4/10", "6/10", "8/10", "10/10"]
    assert "own test 0.500" in lines[-1]  # case 117
    assert "s/round" in lines[-1]
    assert "fedavg (seed 0): round 5, upload of client 4 refused: [w] is not finite" in lines


def test_in_a_terminal_there_is_a_bar_with_accuracy_and_pace() -> None:
    shown = told(terminal=True)
    assert "10/10" in shown
    assert "own test 0.500" in shown
    assert "s/round" in shown
    assert "upload of client 4 refused: [w] is not finite" in shown


def test_the_cost_of_a_table_is_told_with_its_time_once_the_pace_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 0.0, 90.0, 95.0))
    monkeypatch.setattr("kinfed.display.time.perf_counter", lambda: next(clock))
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    display = Display(console)
    display.cost(Cost(runs=2, rounds=40, left_runs=2, left_rounds=40, seconds=None))
    run = display.run("fedavg", 0, 20)
    run.started(0)
    for round in (1, 2):
        run.round({"round": round, "refused": {}})
    display.cost(Cost(runs=2, rounds=40, left_runs=1, left_rounds=1, seconds=30.0))
    display.cost(Cost(runs=2, rounds=40, left_runs=0, left_rounds=0, seconds=0.0))  # nothing to be said
    at_pace = "at the pace so far about"
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "2 runs, 40 rounds; about how long is told after the first round",
        f"40 rounds: {at_pace} 60 min, without the tests after the last rounds",
        f"1 run, 1 round left of 2 runs, 40 rounds: {at_pace} 30 s, without the tests after the last rounds",
    ]
