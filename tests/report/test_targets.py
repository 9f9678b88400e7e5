from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed.experiment.targets import Reach, SpeedUp, as_text, reference, speed_up, targets
from kinfed.report.folders import Run
from kinfed.report.notes import notes
from kinfed.report.reached import target_table
from kinfed.report.table import table
from tests.report.test_table import made, printed


def asked(method: str, *rounds: int | None, target: float = 0.9, limit: int = 30, **more: Any) -> list[Run]:
    """A run a seed that reached a target in these rounds."""
    vote = more.pop("vote", None)
    return [
        made(
            method,
            0.5,
            seed,
            global_acc=more.get("global_acc", 0.5),
            summary={"rounds": limit, "rounds_to_target": {"target": target, "round": round}, "vote": vote},
            config=more.get("config", {}),
        )
        for seed, round in enumerate(rounds)
    ]


def row(runs: list[Run], method: str, target: float = 0.9) -> dict[str, tuple[str, str, bool]]:
    """By heading: text, spread and whether it is the best."""
    content = target_table(runs, target)
    (cells,) = (cells for cells in content.rows if cells[0].text == method)
    return {h: (c.text, c.spread, c.best) for h, c in zip(content.headings[1:], cells[1:], strict=True)}


@pytest.mark.parametrize(
    ("own", "without", "times", "negative"),
    [
        (Reach((66,), 1000), Reach((332,), 1000), "5.03×", False),  # SFTL, Table 2, SVHN
        (Reach((571,), 1000), Reach((332,), 1000), "0.58×", True),  # and KMNIST
        (Reach((7,), 30), Reach((7,), 30), "1.00×", False),
        (Reach((19,), 30), Reach((None,), 30), ">1.58×", False),
        (Reach((30,), 30), Reach((None,), 30), ">1.00×", False),
        (Reach((None,), 30), Reach((24,), 30), "<0.80×", True),
        (Reach((None,), 30), Reach((30,), 30), "<1.00×", True),  # below the bound
        (Reach((10, 20), 30), Reach((40, 20), 50), "2.00×", False),  # of means: the mean of the ratios is 2.5
        (Reach((5, None), 30), Reach((20, 22), 30), "<1.20×", False),  # 17.5 and more
        (Reach((10, 20), 30), Reach((15, None), 30), ">1.50×", False),
    ],
)
def test_a_speed_up_is_a_bound_where_one_did_not_reach_the_target(
    own: Reach, without: Reach, times: str, negative: bool
) -> None:
    up = speed_up(own, without)
    assert up is not None
    assert (str(up), up.negative) == (times, negative)


def test_there_is_no_speed_up_where_neither_mean_is_known() -> None:
    assert speed_up(Reach((None,), 30), Reach((None,), 30)) is None
    assert speed_up(Reach((5, None), 30), Reach((None, 5), 30)) is None
    assert not SpeedUp(0.5, ">").negative  # it may be anything above


def test_only_methods_with_a_transfer_have_a_reference() -> None:
    assert {m: reference(m) for m in ("fedvote", "fedvote+fedprox", "fedavg", "fedvoter", "fedavg+fedvote")} == {
        "fedvote": "fedavg", "fedvote+fedprox": "fedprox", "fedavg": None, "fedvoter": None, "fedavg+fedvote": None,
    }  # fmt: skip


def test_the_fewest_rounds_are_marked_and_what_did_not_get_there_says_so() -> None:
    runs = [*asked("fedavg", 12), *asked("fedprox", 9), *asked("scaffold", 9), *asked("moon", None)]
    runs += asked("fedper", None, global_acc=None)
    assert row(runs, "fedavg") == {"reached": ("yes", "", False), "rounds to 0.90": ("12", "", False)}
    assert row(runs, "fedprox")["rounds to 0.90"] == row(runs, "scaffold")["rounds to 0.90"] == ("9", "", True)
    assert row(runs, "moon") == {"reached": ("no", "", False), "rounds to 0.90": (">30", "", False)}
    assert row(runs, "fedper") == {"reached": ("no global model", "", False), "rounds to 0.90": ("–", "", False)}


def test_over_seeds_a_mean_is_told_only_if_all_reached_the_target() -> None:
    runs = [*asked("fedavg", 12, 13, 15), *asked("fedprox", 2, None, 3), *asked("moon", None, None, None)]
    assert row(runs, "fedavg") == {"reached": ("3 of 3 seeds", "", False), "rounds to 0.90": ("13.3", "±1.5", True)}
    assert row(runs, "fedprox") == {"reached": ("2 of 3 seeds", "", False), "rounds to 0.90": (">11.7", "", False)}
    assert row(runs, "moon") == {"reached": ("0 of 3 seeds", "", False), "rounds to 0.90": (">30", "", False)}


def test_a_transfer_is_compared_with_the_same_method_without_it() -> None:
    runs = [*asked("fedavg", 20), *asked("fedprox", 6), *asked("moon", 3)]
    runs += [*asked("fedvote", 10), *asked("fedvote+fedprox", 12), *asked("fedvote+scaffold", 1)]
    assert row(runs, "fedvote")["speed-up"] == ("2.00×", "", False)
    assert row(runs, "fedvote+fedprox")["speed-up"] == ("0.50×", "negative transfer", False)
    for method in ("fedavg", "moon", "fedvote+scaffold"):  # scaffold is not there
        assert row(runs, method)["speed-up"] == ("–", "", False)
    assert notes(runs) == [
        "fedvote+fedprox: negative transfer: it needs 12 rounds to reach 0.90, fedprox needs 6 (0.50×)."
    ]  # fmt: skip
    assert "speed-up" not in target_table(asked("fedvote", 10), 0.9).headings
    assert "speed-up" not in target_table([*asked("fedavg", 10), *asked("moon", 3)], 0.9).headings


def test_variants_of_a_transfer_are_rows_that_share_a_reference() -> None:
    svhn, kmnist = ({"fedvote": {"source": name}} for name in ("svhn", "kmnist"))
    runs = [
        *asked("fedavg", 332, limit=1000),
        *asked("fedvote", 66, limit=1000, config=svhn),
        *asked("fedvote", None, limit=1000, config=kmnist),
    ]
    assert row(runs, "fedvote source=svhn")["speed-up"][0] == "5.03×"
    assert row(runs, "fedvote source=kmnist")["speed-up"] == ("<0.33×", "negative transfer", False)
    assert notes(runs) == [
        "fedvote source=kmnist: negative transfer: it needs >1000 rounds to reach 0.90, fedavg needs 332 (<0.33×)."
    ]


def test_of_several_references_the_one_with_the_same_settings_counts() -> None:
    slow, fast = {"lr": 0.01}, {"lr": 0.5}
    runs = [*asked("fedavg", 20, config=slow), *asked("fedavg", 8, config=fast), *asked("fedvote", 4, config=fast)]
    assert row(runs, "fedvote")["speed-up"][0] == "2.00×"
    other = [*runs[:2], *asked("fedvote", 4, config={"lr": 0.1})]
    assert "speed-up" not in target_table(other, 0.9).headings


def test_the_rounds_after_the_transfer_are_told() -> None:
    runs = [*asked("fedavg", 30), *asked("fedvote", 19, vote={"round": 5})]
    assert row(runs, "fedvote")["after transfer"] == ("14", "after round 5", False)
    assert row(runs, "fedavg")["after transfer"] == ("–", "", False)
    assert row(asked("fedvote", 19, 20, vote={"round": 5}), "fedvote")["after transfer"][0] == "14.5"
    assert row(asked("fedvote", 3, vote={"round": 5}), "fedvote")["after transfer"] == ("–", "before round 5", False)
    for none in (asked("fedvote", None, vote={"round": 5}), asked("fedvote", 19)):
        assert "after transfer" not in target_table(none, 0.9).headings


def test_each_target_has_a_table_of_the_rows_that_were_asked_for_it() -> None:
    runs = [*asked("fedavg", 9), *asked("fedprox", 7, target=0.875), made("moon", 0.5)]
    assert targets([run.summary for run in runs]) == [0.875, 0.9]
    assert [[r[0].text for r in target_table(runs, target).rows] for target in (0.875, 0.9)] == [
        ["fedprox"], ["fedavg"],
    ]  # fmt: skip
    assert target_table(runs, 0.875).headings[2] == "rounds to 0.875"
    assert as_text(1.0) == "1.00"
    assert targets([made("moon", 0.5).summary]) == []


def test_another_target_makes_no_row_of_its_own() -> None:
    runs = [made("fedavg", 0.5, 0, config={"target_acc": 0.9}), made("fedavg", 0.7, 1)]
    assert [cells[0].text for cells in table(runs).rows] == ["fedavg"]


def test_the_longest_rows_fit_eighty_columns() -> None:
    long: dict[str, Any] = {"target": 0.905, "limit": 1000}
    runs = [*asked("fedprox", 6, 7, **long), *asked("fedvote+fedprox", 1000, 999, vote={"round": 200}, **long)]
    runs += asked("fedper", None, None, global_acc=None, **long)
    text = printed(target_table(runs, 0.905), 80)
    for part in ("0.905", "no global model", "fedvote+fedprox 2 of 2 seeds", "negative transfer", "after round 200"):
        assert part in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


@pytest.mark.slow
def test_the_target_is_in_the_terminal_and_a_line_in_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kinfed.report.terminal import show

    fields: dict[str, Any] = {"clients": 10, "rounds": 2, "quiet": True}
    result = kinfed.compare(["fedavg"], out=tmp_path / "o", target_acc=0.001, **fields)
    page = result.report().read_text()
    assert "<h2>Rounds to 0.001</h2>" in page
    assert "target on the pooled test set: 0.001" in page
    show([result.path])
    assert "0.001" in capsys.readouterr().out
    plain = kinfed.compare(["fedavg"], out=tmp_path / "p", **fields).report().read_text()
    assert "Rounds to" not in plain
    assert "target on the pooled test" not in plain
