from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from kinfed.display import Display
from kinfed.display.bars import Bars
from kinfed.experiment.cost import Cost
from kinfed.tuning import Plan


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


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in ("kinfed.display", "kinfed.display.bars"):
            monkeypatch.setattr(f"{module}.time", SimpleNamespace(perf_counter=lambda: self.now))


def drawn(bars: Bars, width: int) -> list[str]:
    """Return the lines of the bars in a terminal of a width."""
    console = Console(file=io.StringIO(), width=width)
    console.print(bars, end="")
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def test_an_epoch_of_a_source_model_is_no_first_round() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    display, lines = Display(console), console.file.getvalue  # type: ignore[attr-defined]
    display.cost(Cost(runs=1, rounds=8, left_runs=1, left={"fedavg": 8}, seconds=None))
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
    clock = Clock(monkeypatch)
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    display = Display(console)
    display.cost(Cost(runs=2, rounds=40, left_runs=2, left={"fedavg": 40}, seconds=None))
    run = display.run("fedavg", 0, 20)
    run.started(0)
    for round, seconds in ((1, 90), (2, 5)):
        clock.now += seconds
        run.round({"round": round, "refused": {}})
    display.cost(Cost(runs=2, rounds=40, left_runs=1, left={"fedavg": 1}, seconds=30.0))
    display.cost(Cost(runs=2, rounds=40, left_runs=0, left={"fedavg": 0}, seconds=0.0))  # nothing to be said
    at_pace = "at the pace so far about"
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "2 runs, 40 rounds; about how long is told after the first round",
        f"40 rounds: {at_pace} 60 min, without the tests after the last rounds",
        f"1 run, 1 round left of 2 runs, 40 rounds: {at_pace} 30 s, without the tests after the last rounds",
    ]


def test_the_races_of_a_tuning_have_a_bar_together_that_the_runs_after_them_replace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    display = Display(Console(file=io.StringIO(), force_terminal=True, width=100))
    display.race("fedavg: first round", 1).trial("lr=0.1").round({"round": 1})
    display.plan([Plan(label, 3, 3, (1, 4), 6, 6.0) for label in ("fedavg", "fedper")], final=9.0)
    race = display.race("fedavg", 6)
    race.advance(1, "lr=0.1")  # the round before
    trial = race.trial("lr=0.1")
    clock.now += 3
    trial.round({"round": 2, "validation_personal_acc_weighted": 0.5})
    one, together = drawn(display.bars, 100)
    assert "2/6" in one
    assert "validation 0.500" in one
    assert one.split()[-1] == "0:00:12"
    assert together.startswith("all races")
    assert "2/12 0 of 2 races" in together
    assert together.split()[-1] == "0:00:30"
    display.runs(TWO_AND_TWO)
    (line,) = drawn(display.bars, 100)
    assert line.startswith("all runs")


def test_a_run_that_ends_early_says_so() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    Display(console).run("fedavg", 0, 9).ended(4)
    told = "fedavg (seed 0): ended after round 4 of 9, as the config asks\n"
    assert console.file.getvalue() == told  # type: ignore[attr-defined]


TWO_AND_TWO = Cost(runs=4, rounds=40, left_runs=4, left={"fast": 20, "slow": 20}, seconds=None)


def trained(display: Display, clock: Clock, method: str, seed: int, seconds: float, *, rounds: int = 10) -> None:
    run = display.run(method, seed, 10)
    run.started(0)
    for round in range(1, rounds + 1):
        clock.now += seconds
        run.round({"round": round, "personal_acc_weighted": round / 20, "refused": {}})
    if rounds == 10:
        run.ended(10)


def test_all_runs_have_a_bar_whose_time_is_by_the_pace_of_each_method(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    display = Display(Console(file=io.StringIO(), force_terminal=True, width=100))
    display.runs(TWO_AND_TWO)
    assert drawn(display.bars, 100)[-1].split()[-1] == "-:--:--"
    trained(display, clock, "fast", 0, seconds=1)
    assert drawn(display.bars, 100)[-1].split()[-1] == "0:00:30"  # 10 of its own, 20 at the only known pace
    trained(display, clock, "slow", 0, seconds=9, rounds=5)
    line = drawn(display.bars, 100)[-1]
    assert line.startswith("all runs")
    assert "15/40" in line
    assert "1 of 4 runs" in line
    assert line.split()[-1] == "0:02:25"  # 10 × 1 s and 15 × 9 s
    clock.now += 5
    assert drawn(display.bars, 100)[-1].split()[-1] == "0:02:20"  # it goes on between the rounds


def test_rounds_that_a_failed_run_did_not_do_are_no_longer_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    display = Display(Console(file=io.StringIO(), force_terminal=True, width=100))
    display.runs(TWO_AND_TWO)
    trained(display, clock, "fast", 0, seconds=1, rounds=3)
    display.run("slow", 0, 10)
    line = drawn(display.bars, 100)[-1]
    assert "3/33" in line
    assert line.split()[-1] == "0:00:30"


def test_a_finished_run_leaves_a_line_and_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    display = Display(console)
    display.runs(TWO_AND_TWO)
    for seed in (0, 1):
        trained(display, clock, "fast", seed, seconds=1)
    assert len(drawn(display.bars, 100)) == 2
    assert console.file.getvalue() == "fast (seed 0) 10/10 own test 0.500 1.00 s/round\n"  # type: ignore[attr-defined]


def test_plain_lines_tell_the_progress_of_all_runs_without_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    console = Console(file=io.StringIO(), force_terminal=False, width=60)
    with Display(console) as display:
        display.runs(TWO_AND_TWO)
        trained(display, clock, "fast", 0, seconds=1)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 5
    assert lines[0].endswith("own test 0.100  1.00 s/round  (all runs: 2/40 rounds, about 38 s left)")


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_each_bar_is_one_whole_line(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    clock = Clock(monkeypatch)
    display = Display(Console(file=io.StringIO(), force_terminal=True, width=width))
    display.runs(Cost(runs=40, rounds=4000, left_runs=40, left={"fedkin+fedper:lr=0.01,tau=0.99": 4000}, seconds=None))
    run = display.run("fedkin+fedper:lr=0.01,tau=0.99", 0, 100)
    run.started(0)
    clock.now += 400
    run.round({"round": 1, "personal_acc_weighted": 0.658, "refused": {}})
    run.working("primary model", 13, 20)
    lines = drawn(display.bars, width)
    assert len(lines) == 2
    assert max(map(len, lines)) <= width
    assert [line.split()[-1] for line in lines] == ["11:00:00", "444:20:00"]
    assert "own test 0.658" in lines[0]
    assert "(seed 0)" in lines[0]
    assert ("lr=0.01,tau=0.99" in lines[0]) == (width >= 80)
    assert ("primary model 13/20" in lines[0]) == (width >= 140)


def test_without_unicode_a_bar_is_drawn_in_ascii() -> None:
    shown = io.BytesIO()
    console = Console(file=io.TextIOWrapper(shown, "ascii"), force_terminal=True, width=100)
    with Display(console) as display:
        display.run("fedavg", 0, 4).started(1)
        console.print("a line")
    assert b"#####\x1b[0m" in shown.getvalue()
    assert b"-" * 15 in shown.getvalue()


def test_lines_that_a_narrower_terminal_wrapped_are_removed() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Display(console) as display:
        run = display.run("fedkin+fedper:lr=0.01,tau=0.99", 0, 10)
        run.started(0)
        display.bars.refresh()
        console.print("a line")
        cells = len(drawn(display.bars, 100)[0])
        console.width, before = 30, len(console.file.getvalue())  # type: ignore[attr-defined]
        console.print("another line")
        told = console.file.getvalue()[before:]  # type: ignore[attr-defined]
    assert told.index("another line") > told.index("\x1b[1A")
    assert told.count("\x1b[1A") == (cells - 1) // 30
