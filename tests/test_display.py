from __future__ import annotations

import io

from rich.console import Console

from kinfed.display import Display


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
