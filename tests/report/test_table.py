from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import kinfed
from kinfed.errors import InputError
from kinfed.report.folders import Run, read_runs
from kinfed.report.notes import notes
from kinfed.report.rows import in_rows, setting
from kinfed.report.table import Table, table
from kinfed.report.terminal import show


def made(method: str, own: float | None, seed: int = 0, **more: Any) -> Run:
    metrics = {
        "personal_acc_weighted": own, "personal_acc_mean": own, "personal_acc_std": 0.1,
        "personal_acc_worst_tenth": own,
        "fine_tuned_acc_weighted": None, "global_acc": more.pop("global_acc", None),
    } | more.pop("metrics", {})  # fmt: skip
    summary = {
        "method": method, "seed": seed, "tested": "global", "model": "mlp", "rounds": 3, "train_loss": 0.5,
        "data": {"name": "digits", "clients": 2, "partition": "dirichlet", "alpha": 0.5, "train": 1200, "test": 9000,
                 "probe": 0},
        "metrics": metrics, "communication": {"down_bytes": 1_000_000, "up_bytes": 500_000},
        "seconds": {"total": 1.26, "train": 1.0, "evaluate": 0.1}, "refused": 0, "skipped_samples": 0,
        "zero_step_clients": 0,
    } | more.pop("summary", {})  # fmt: skip
    config = {"methods": [method], "seed": seed, "lr": 0.1} | more.pop("config", {})
    lines = more.pop("lines", [{"round": 3, "client_acc": {}}])
    return Run(Path(more.pop("folder", f"{method}-seed{seed}")), config, summary, lines, {"classes": ["a", "b"]}, {})


def column(runs: list[Run], heading: str) -> list[tuple[str, str, bool]]:
    shown = table(runs)
    at = shown.headings.index(heading)
    return [(row[at].text, row[at].spread, row[at].best) for row in shown.rows]


def printed(shown: Table, width: int) -> str:
    """Return a table as a terminal shows it."""
    console = Console(width=width, file=io.StringIO())
    console.print(*shown.fitted(width))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_validation_and_the_round_that_it_chose_have_columns_of_their_own() -> None:
    chosen = {"chosen": {"round": 2, "personal_acc_weighted": 0.625}}
    run = made("fedavg", 0.5, metrics={"validation_personal_acc_weighted": 0.75}, summary=chosen)
    assert column([run], "at chosen round") == [("0.625", "", True)]
    assert column([run], "validation") == [("0.750", "", False)]
    assert not {"validation", "at chosen round"} & {*table([made("fedavg", 0.5)]).headings}


def test_columns_compare_heads_and_bodies_alike_and_a_terminal_leaves_out_others_for_them() -> None:
    told = {"own_classes_acc_weighted": 0.8, "refit_acc_weighted": 0.9, "refreshed_acc_weighted": 0.7}
    runs = [made("fedbabu", 0.4, metrics=told), made("fedper", 0.6)]  # of a version without these tests
    assert column(runs, "own classes") == [("0.800", "", True), ("–", "", False)]
    assert column(runs, "re-fitted") == [("0.900", "", True), ("–", "", False)]
    assert table(runs).headings[2:5] == ("own test", "own classes", "re-fitted")
    assert not {"own classes", "re-fitted"} & {*table(runs[1:]).headings}
    said = printed(table(runs), 80)
    assert all(number in said for number in ("0.400", "0.800*", "0.900*"))
    assert "0.700" not in said


def test_the_best_of_each_column_is_marked_and_ties_are_shared() -> None:
    runs = [made("fedavg", 0.91234), made("fedper", 0.9119), made("local", 0.95), made("central", 0.95001)]
    assert column(runs, "own test") == [
        ("0.912", "", False),
        ("0.912", "", False),
        ("0.950", "", True),
        ("0.950", "", False),  # pooled data serve nobody
    ]
    assert setting(runs).endswith("and all that do not differ from it significantly, ceilings apart.")
    assert column(runs[:3], "own test")[:2] == [("0.912", "", False)] * 2
    assert column([runs[0], runs[1]], "own test") == [("0.912", "", True)] * 2


def test_over_seeds_the_sample_standard_deviation_stands_beside_the_mean() -> None:  # CASES: sample for seeds
    runs = [made("fedavg", a, seed) for seed, a in enumerate((0.9, 0.5, 0.7))]
    assert column(runs, "own test") == [("0.700", "±0.200", True)]
    assert "seeds 0, 1, 2" in setting(runs)
    assert "sample standard deviation over the seeds" in setting(runs)


def test_what_a_method_does_not_have_is_a_dash_and_a_column_nobody_fills_is_left_out() -> None:
    runs = [made("fedavg", 0.5, global_acc=0.4), made("fedper", None)]
    assert column(runs, "pooled test") == [("0.400", "", True), ("–", "", False)]
    assert column(runs, "own test") == [("0.500", "", True), ("–", "", False)]
    assert not {"fine-tuned", "refreshed"} & {*table(runs).headings}
    assert table(runs, new_clients=True).rows == ()
    told = [made("fedper", 0.5, metrics={"refreshed_acc_weighted": 0.7, "fine_tuned_acc_weighted": 0.8}), runs[0]]
    assert column(told, "refreshed") == [("0.700", "", True), ("–", "", False)]
    assert column(told, "fine-tuned") == [("0.800", "", True), ("–", "", False)]


def test_new_clients_have_a_table_of_their_own_that_says_what_they_are_given() -> None:
    new = {"new_global_acc_weighted": 0.3, "new_head_acc_weighted": 0.6, "new_fine_tuned_acc_weighted": 0.5}
    none = dict.fromkeys(new)
    runs = [
        made("fedavg", 0.5, global_acc=0.4, metrics=new),
        made("fedper", 0.6, metrics=new),
        made("local", 0.7, metrics=none),
    ]
    shown = table(runs, new_clients=True)
    assert shown.headings == ("method", "model given", "as it is", "own head", "fine-tuned")
    assert [[cell.text for cell in row] for row in shown.rows] == [
        ["fedavg", "global", "0.300", "0.600", "0.500"],
        ["fedper", "mean", "0.300", "0.600", "0.500"],
        ["local", "mean", "–", "–", "–"],
    ]
    assert not {*shown.headings[2:]} & {*table(runs).headings}


def test_costs_are_shown_and_not_ranked() -> None:
    runs = [made("fedavg", 0.5), made("fedper", 0.6)]
    assert column(runs, "MB") == [("1.5", "", False)] * 2
    assert column(runs, "s") == [("1.3", "", False)] * 2


def test_runs_of_one_method_that_differ_in_more_than_the_seed_are_rows_of_their_own() -> None:
    literal = {"fedshibu": {"norm": "sum", "kernel": "linear"}}
    wide = {"fedshibu": {"norm": "minmax", "kernel": "rbf"}}
    # Folders of two comparisons have the same names; a run that is given twice counts once.
    runs = [
        *(made("fedshibu", a, seed, config=literal) for seed, a in ((0, 0.4), (1, 0.6))),
        *(made("fedshibu", a, seed, config=wide) for seed, a in ((0, 0.8), (1, 0.8))),
        *(made("local", a, seed) for a, seed in ((0.9, 0), (0.7, 1), (0.9, 0))),
    ]
    assert [row[0].text for row in table(runs).rows] == [
        "fedshibu kernel=linear norm=sum", "fedshibu kernel=rbf norm=minmax", "local",
    ]  # fmt: skip
    assert column(runs, "own test") == [
        ("0.500", "±0.141", True), ("0.800", "±0.000", True), ("0.800", "±0.141", True),  # two seeds tell little
    ]  # fmt: skip


def test_rows_over_different_seeds_say_so() -> None:  # case 334
    runs = [*(made("fedavg", 0.5, seed) for seed in (0, 1, 2)), made("fedper", 0.9)]
    assert table(runs).headings[:3] == ("method", "model tested", "seeds")
    assert column(runs, "seeds") == [("3", "", False), ("1", "", False)]
    assert notes(runs) == [
        "The rows have different seeds (fedavg: 0, 1, 2; fedper: 0): compare rows with the same seeds only."
    ]
    assert "The rows have different seeds (fedavg: 0; fedper: 1)" in notes([runs[0], made("fedper", 0.9, 1)])[0]
    alike = [made(method, 0.5, seed) for method in ("fedavg", "fedper") for seed in (1, 0)]
    assert "seeds" not in table(alike).headings
    assert notes(alike) == []


@pytest.mark.parametrize(
    ("summary", "own"),
    [
        ({"train_cross_entropy": 0.7}, 0.97),  # the accuracy says otherwise
        ({"train_cross_entropy": 538.0}, 0.97),
        ({"train_loss": 5.0}, 0.5),  # it may hold the term of a method
        ({"train_loss": 5.0, "train_cross_entropy": None}, 0.5),
        ({"train_loss": 5.0, "train_cross_entropy": 0.3}, 0.5),
        ({"train_cross_entropy": 5.0, "supervised": False}, 0.5),
    ],
)
def test_nobody_is_said_not_to_have_learned_against_the_numbers(summary: dict[str, Any], own: float) -> None:
    assert notes([made("fedcka", own, summary=summary)]) == []  # cases 332, 346


def test_above_chance_is_above_the_commonest_class() -> None:
    run = made("fedavg", 0.8, summary={"train_cross_entropy": 0.7})
    run.federation["train"] = [[400, 0], [400, 200]]
    assert "made no progress" in notes([run])[0]
    run.federation["train"] = [[300, 0], [400, 300]]
    assert notes([run]) == []


def test_data_whose_answers_are_known_before_are_noted() -> None:  # case 346
    run = made("fedavg", 1.0, summary={"train_cross_entropy": 0.0})
    run.federation["classes"] = ["a"]
    assert notes([run]) == ["The data have only one class: every prediction is right, and accuracies mean nothing."]
    skewed = made("local", 1.0)
    skewed.federation["train"] = [[3, 0], [0, 5]]
    assert notes([skewed]) == [
        "Every client has samples of one class only: a personal model that always predicts this class is always right."
    ]


def test_clients_that_were_never_drawn_are_told_of_with_the_mean_without_them() -> None:  # case 336
    metrics = {"personal_acc_weighted_of_trained": 0.7, "personal_acc_mean_of_trained": 0.8}
    assert notes([made("fedper", 0.2, summary={"never_trained": 1}, metrics=metrics)]) == [
        "fedper, seed 0: 1 of 2 clients never took part in a round: own test accuracy is 0.200 with them and 0.700 "
        "without them; mean over clients 0.200 and 0.800."
    ]


def test_the_setting_names_data_clients_partition_rounds_and_model() -> None:
    said = setting([made("fedavg", 0.5)])
    assert "is marked" not in said
    assert setting([made("fedavg", 0.5), made("fedper", 0.5)]).endswith(
        " The best value of each column is marked, and all that do not differ from it significantly."
    )
    for part in ("digits", "1,200 training", "2 clients", "Dirichlet α=0.5", "mlp", "3 rounds", "seed 0", "last round"):
        assert part in said


@pytest.mark.parametrize(
    ("summary", "note"),
    [
        ({"refused": 2}, "fedavg, seed 0: 2 uploads were refused"),
        ({"skipped_samples": 3}, "3 times a sample was left out"),
        ({"zero_step_clients": 1}, "1 times a client made no training step"),
        (
            {"train_cross_entropy": 0.69},
            "0.69, is that of guessing (0.69): training made no progress. More rounds or a smaller",
        ),
        (
            {"train_cross_entropy": 1.0},
            "1.00, is above that of guessing (0.69): training made no progress. More rounds or a",
        ),
        (
            {"train_cross_entropy": 538.0},
            "538.00, is far above that of guessing (0.69): training diverged. A smaller --lr may",
        ),
        ({"train_cross_entropy": math.inf}, "inf, is far above that of guessing (0.69): training diverged"),
        ({"never_trained": 1}, "1 of 2 clients never took part in a round."),
    ],
)
def test_what_a_reader_must_know_is_said(summary: dict[str, Any], note: str) -> None:
    assert any(note in said for said in notes([made("fedavg", 0.5, summary=summary)]))
    assert notes([made("fedavg", 0.5)]) == []


@pytest.mark.parametrize(
    ("accuracies", "note"),
    [
        ([0.9, 0.5, None], "2 of 3 clients were tested; the means are over these."),  # case 115
        ([0.75, None], "1 of 2 clients were tested; the means are over these."),  # case 113
    ],
)
def test_means_say_over_how_many_clients_they_are(accuracies: list[float | None], note: str) -> None:
    lines = [{"round": 3, "client_acc": {"personal": accuracies}}]
    assert notes([made("fedavg", 0.5, lines=lines)]) == [f"fedavg, seed 0: {note}"]
    assert notes([made("fedavg", 0.5, lines=[{"round": 3, "client_acc": {"personal": [0.9, 0.5]}}])]) == []


def test_every_accuracy_names_the_samples_the_model_and_the_clients_it_is_of() -> None:  # cases 114, 117
    shown = table([made("fedavg", 0.7, global_acc=0.4), made("fedper", 0.7)])
    means = dict(zip(shown.headings, shown.meanings, strict=True))
    said = "accuracy on the clients' own test samples, weighted by their number, before fine-tuning"
    assert means["own test"] == said
    assert means["mean over clients"] == "own test accuracy, unweighted mean over clients"
    assert means["sd over clients"] == "spread of this accuracy over clients (population standard deviation)"
    assert means["pooled test"] == "accuracy of the global model on the pooled test set"
    assert [row[1].text for row in shown.rows] == ["global", "global"]


def test_images_that_were_left_out_are_counted_and_named() -> None:  # case 48
    run = made("fedavg", 0.5)
    run.federation.update(skipped=2, skipped_names=["a/x.png", "b/y.png"])
    assert notes([run]) == [
        "fedavg, seed 0: 2 images could not be decoded and were left out; the first: a/x.png, b/y.png."
    ]
    run.federation.update(skipped=0, skipped_names=[])
    assert notes([run]) == []
    run.federation.update(left_out=1, left_out_names=["train/a/x.heic"])  # case 338
    said = "fedavg, seed 0: 1 files or folders beside the images were left out; the first: train/a/x.heic."
    assert notes([run]) == [said]


def test_runs_on_other_data_are_no_comparison() -> None:
    other = made("fedper", 0.5, summary={"data": {"name": "mnist"}})
    assert "differ not only in the method but also in data" in notes([made("fedavg", 0.5), other])[0]


def test_another_seed_may_hold_back_clients_of_other_sizes() -> None:
    first = made("fedavg", 0.5)
    sizes = {"data": first.summary["data"] | {"train": 1100}}
    assert notes([first, made("fedavg", 0.5, seed=1, summary=sizes)]) == []
    assert "in data" in notes([first, made("fedper", 0.5, seed=0, summary=sizes)])[0]
    fewer = {"data": sizes["data"] | {"clients": 1}}
    assert "in data" in notes([first, made("fedavg", 0.5, seed=1, summary=fewer)])[0]


EVERY = (
    "refit_acc_weighted", "validation_personal_acc_weighted", "own_classes_acc_weighted", "fine_tuned_acc_weighted",
    "linear_global_acc_mean",
)  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 140])
def test_a_table_too_wide_for_the_terminal_has_several_parts_and_no_number_is_cut(width: int) -> None:
    more: dict[str, Any] = {"summary": {"tested": "global body and own head", "seconds": {"total": 13765.8}}}
    runs = [
        made(label, 0.65 + seed / 7, seed, metrics=dict.fromkeys(EVERY, 0.75 + seed / 7), **more)
        for label in ("fedavg", "fedkin+fedper:lr=0.01,tau=0.99", "local lr=0.5 momentum=0.9 " + "x" * 60)
        for seed in (0, 1)
    ]
    shown = table(runs)
    lines = printed(shown, width).splitlines()
    parts = sum(line.startswith("method") for line in lines)
    assert parts == {40: 4, 60: 2, 80: 2, 100: 1, 120: 1, 140: 1}[width]
    assert sum(line.startswith("fedavg") for line in lines) == parts
    assert max(map(len, lines)) <= width
    told = [(cell.text, of) for row in shown.rows for cell, of in zip(row, shown.headings, strict=True)]
    whole = sorted(text for text, of in told if re.fullmatch(r"[\d.]+", text) and of != "mean over clients")
    assert sorted(re.findall(r"(?<=\s)\d+\.\d*(?=[*\s])", "\n".join([*lines, ""]))) == whole


@pytest.mark.slow
def test_the_tables_fit_eighty_columns(tmp_path: Path) -> None:
    methods = ["fedavg", "fedper", "fedbabu", "fedshibu"]
    result = kinfed.compare(methods, out=tmp_path / "o", clients=10, new_clients=2, rounds=1, seeds=2, quiet=True)
    runs = read_runs([result.path])
    for run in runs:  # of minutes
        run.summary["seconds"]["total"] = 123.4
    assert len(table(runs).headings) == 2 + 11
    for shown, numbers in ((table(runs), 9), (table(runs, new_clients=True), 3)):
        lines = printed(shown, 80).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= 80
        assert not any("…" in line for line in lines)
        rows = [line for line in lines if line.startswith(("fed", "local"))]
        assert len(rows) == 5
        assert len(re.findall(r"(?<= )(?:\d+\.\d+|–)(?=[* ]|$)", rows[0])) == numbers


def test_a_run_without_results_is_named(tmp_path: Path) -> None:
    result = kinfed.run("fedavg", out=tmp_path / "o", clients=10, rounds=1, quiet=True)
    (tmp_path / "o" / "summary.json").unlink()
    with pytest.raises(InputError, match="has no results yet; continue it with: kinfed resume"):
        show([result.path])


def test_a_run_of_a_version_without_a_field_is_a_seed_of_the_same_row() -> None:
    older = made("fedavg", 0.5, seed=0)
    now, other = (made("fedavg", 0.5, seed=i, config={"precision": p}) for i, p in ((1, "float32"), (2, "bfloat16")))
    assert {row: len(runs) for row, runs in in_rows([older, now]).items()} == {"fedavg": 2}
    assert [*in_rows([older, now, other])] == ["fedavg", "fedavg precision=bfloat16"]
