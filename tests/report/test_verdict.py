from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinfed
from kinfed.errors import InputError
from kinfed.report.differences import difference_frame, difference_table, differences
from kinfed.report.folders import Run
from kinfed.report.table import table
from kinfed.report.verdict import verdict
from tests.report.test_table import column, made


def at_clients(method: str, *by_seed: Any, sizes: Any = 50, **federation: Any) -> list[Run]:
    """Runs of a method whose clients had these accuracies, one for each seed."""
    runs = []
    for seed, accuracies in enumerate(by_seed):
        own = np.array(accuracies, dtype=np.float64)
        tested = np.broadcast_to(sizes, own.shape)
        weights = np.where(np.isnan(own), 0, tested)
        told = [None if np.isnan(of) else float(of) for of in own]
        mean = float((np.nan_to_num(own) * weights).sum() / weights.sum())
        run = made(method, mean, seed, lines=[{"round": 3, "client_acc": {"personal": told}}])
        run.federation.update(test=tested.tolist(), **federation)
        runs.append(run)
    return runs


def rows(**of_methods: tuple[float, ...]) -> list[Run]:
    """Runs of which only the means are known."""
    return [made(method, a, seed) for method, told in of_methods.items() for seed, a in enumerate(told)]


def test_training_alone_may_serve_best() -> None:
    losing = [made("fedavg", 0.5), made("fedper", 0.6), made("local", 0.7)]
    assert verdict(losing) == (
        "Training alone serves these clients best (0.700 on their own test samples); "
        "the best federated method is fedper (0.600). Against training alone (0.700), fedper is at -0.100 "
        "(95 % interval -0.114 to -0.086). One seed says nothing about other seeds."
    )
    winning = [made("fedavg", 0.5), made("local", 0.4)]
    assert verdict(winning) == (
        "fedavg serves these clients best: 0.500 on their own test samples. Against training alone (0.400), fedavg is "
        "at +0.100 (95 % interval +0.086 to +0.114). One seed says nothing about other seeds."
    )
    assert verdict([made("fedavg", 0.5)]) == ""


def test_rows_that_cannot_be_told_apart_are_a_tie() -> None:  # case 331
    few = {"data": made("fedavg", 0.5).summary["data"] | {"test": 169}}
    close = [made("fedper", 0.970, summary=few), made("fedavg", 0.959, summary=few), made("moon", 0.7, summary=few)]
    assert verdict(close) == (
        "fedper (0.970) and fedavg (0.959) cannot be told apart by 169 test samples of one seed. "
        "One seed says nothing about other seeds."
    )
    assert [best for _, _, best in column(close, "own test")] == [True, True, False]
    equal = [made("fedper", 0.9701), made("local", 0.9698), made("fedavg", 0.5)]
    assert verdict(equal).startswith(
        "fedper and local are a tie: 0.970 on their own test samples. Training alone is among them: these results do "
        "not show that federation helps. Against training alone (0.970), fedper is at +0.000"
    )
    assert verdict([made("fedper", 0.970), made("fedavg", 0.959)]).startswith("fedper serves these clients best")


def test_over_seeds_the_differences_of_the_same_seeds_count() -> None:  # case 331
    # the spread over the seeds is large, but one is always ahead by as much: 0.0203 ± 0.0006
    steady = rows(fedper=(0.52, 0.72, 0.921), fedavg=(0.5, 0.7, 0.9))
    assert verdict(steady) == "fedper serves these clients best: 0.720 on their own test samples."
    assert [best for _, _, best in column(steady, "own test")] == [True, False]
    mixed = rows(fedper=(0.74, 0.71, 0.69), fedavg=(0.70, 0.70, 0.71))
    assert verdict(mixed) == (
        "fedper (0.713) and fedavg (0.703) cannot be told apart by 3 seeds and 9,000 test samples (about 73 seeds "
        "would)."
    )
    # three seeds are few: 0.02 ± 0.01 / √3 is less than 4.3 standard errors
    differences = rows(fedper=(0.51, 0.52, 0.53), fedavg=(0.5, 0.5, 0.5))
    assert [best for _, _, best in column(differences, "own test")] == [True, True]
    wide = rows(fedper=(0.5, 0.6), fedavg=(0.55, 0.548))
    assert "(even 100 seeds would not)" in verdict(wide)


def test_one_seed_says_what_clients_and_samples_allow_to_say() -> None:
    stream = np.random.default_rng(0)
    accuracies = 0.5 + 0.2 * stream.random(10)
    close = [*at_clients("fedper", accuracies), *at_clients("fedavg", accuracies + 0.1 * stream.standard_normal(10))]
    said = verdict(close)
    assert "cannot be told apart by 10 clients and 500 test samples of one seed." in said
    assert said.endswith("One seed says nothing about other seeds.")
    assert "would" not in said
    few = [*at_clients("fedper", [0.9, 0.8]), *at_clients("fedavg", [0.5, 0.5])]
    assert verdict(few).endswith("other seeds. So few clients say nothing about other clients.")


def test_gains_and_losses_against_training_alone_are_counted() -> None:
    alone, names = [[0.6] * 6] * 3, [f"site {i}" for i in range(6)]
    ours = [[0.9, 0.8, 0.7, 0.6, 0.5, 0.9], [0.9, 0.8, 0.7, 0.6, 0.4, 0.9], [0.9, 0.8, 0.5, 0.6, 0.5, 0.9]]
    runs = [*at_clients("fedper", *ours, names=names), *at_clients("local", *alone, names=names)]
    assert "Of 6 clients, 4 gain and 1 loses; the worst loss is 0.133 (client site 4)." in verdict(runs)
    runs[1].federation["test"] = [40] * 6  # other clients in another seed
    assert "Of 18 clients, 11 gain and 4 lose; the worst loss is 0.200 (client site 4 of seed 1)." in verdict(runs)
    runs[1].federation["test"] = runs[0].federation["test"]
    assert "Of 6 clients" in verdict(runs)
    runs[1].federation["groups"] = [0, 1] * 3  # planted in this seed only
    assert "Of 18 clients" in verdict(runs)
    better = [*at_clients("fedper", [0.9] * 6), *at_clients("local", [0.5] * 6)]
    assert "Of 6 clients, 6 gain and none loses. " in verdict(better)


def test_clients_that_were_not_tested_are_left_out() -> None:
    runs = [*at_clients("fedper", [0.9] * 6), *at_clients("local", [0.5] * 5 + [np.nan])]
    assert "Of 5 clients, 5 gain" in verdict(runs)
    (of,) = differences(runs)
    assert of.told is not None
    assert (of.told.clients, of.told.samples) == (5, 250)


def test_pooled_data_never_serve() -> None:
    runs = rows(central=(0.95, 0.96, 0.95), fedper=(0.80, 0.81, 0.80), local=(0.6, 0.61, 0.601))
    said = verdict(runs)
    assert said.startswith("fedper serves these clients best: 0.803")
    assert said.endswith("With all data at one place, central has 0.953.")
    assert [best for _, _, best in column(runs, "own test")] == [False, True, False]
    assert [of.row for of in differences(runs)] == ["local"]
    assert verdict([run for run in runs if run.method != "local"]) == ""


def test_a_users_own_method_with_pooled_data_never_serves() -> None:
    pooled = [made("mine:All", 0.95 + 0.01 * seed, seed, summary={"pooled": True}) for seed in range(3)]
    said = verdict([*pooled, *rows(fedper=(0.80, 0.81, 0.80), local=(0.6, 0.61, 0.601))])
    assert said.startswith("fedper serves these clients best")
    assert said.endswith("With all data at one place, mine:All has 0.960.")


def test_training_alone_with_fields_of_its_own_is_training_alone() -> None:
    named = {"local:lr=0.03": (0.6, 0.61, 0.601), "fedper:lr=0.1": (0.80, 0.81, 0.80)}
    assert "Against training alone (0.604), fedper:lr=0.1 is at +0.200" in verdict(rows(**named))


def test_the_order_of_the_methods_does_not_matter() -> None:
    runs = rows(fedper=(0.8, 0.7), local=(0.8, 0.7), fedavg=(0.75, 0.74))
    assert verdict(runs) == verdict(runs[::-1])


def test_rows_without_a_common_seed_cannot_be_told_apart() -> None:
    runs = [made("fedavg", 0.9, 0), made("fedper", 0.1, 1), made("local", 0.2, 1)]
    assert verdict(runs).startswith("fedavg (0.900), local (0.200) and fedper (0.100) cannot be told apart: they do")
    (row, *_) = difference_table(runs).rows
    assert [cell.text for cell in row[:3]] == ["local", "no common seed", "–"]
    assert difference_frame(runs)["difference"].isna().all()


def test_marks_table_and_verdict_agree() -> None:
    stream = np.random.default_rng(0)
    runs = [
        run
        for method, mean in (("fedper", 0.8), ("fedavg", 0.79), ("moon", 0.6), ("local", 0.5))
        for run in at_clients(method, *(mean + 0.1 * stream.random((3, 20))))
    ]
    marked = [row[0].text for row in table(runs).rows if row[2].best]
    apart = {row[0].text: row[1].text for row in difference_table(runs).rows}
    assert marked == ["fedper", "fedavg"]
    assert apart == {"fedavg": "no", "moon": "yes", "local": "yes"}
    assert verdict(runs).startswith("fedper (0.8")


@pytest.mark.slow
def test_differences_are_a_frame(tmp_path: Path) -> None:
    result = kinfed.compare(["fedavg", "local"], out=tmp_path / "o", clients=10, rounds=1, seeds=2, quiet=True)
    frame, turned = result.differences("local"), result.differences("fedavg")
    assert frame["method"].tolist() == ["fedavg"]
    assert frame["difference"].tolist() == pytest.approx((-turned["difference"]).tolist())
    assert frame[["seeds", "clients"]].to_numpy().tolist() == [[2, 10]]
    accuracies = (
        result.frame()
        .groupby(["method", "seed"])[["accuracy", "test"]]
        .apply(lambda of: np.average(of["accuracy"], weights=of["test"]))
    )
    assert frame["difference"][0] == pytest.approx((accuracies["fedavg"] - accuracies["local"]).mean())
    with pytest.raises(InputError, match="against: 'moon' is not allowed; rows with an accuracy: fedavg, local"):
        result.differences("moon")
    assert "<h2>Differences</h2>" in result.report().read_text()
