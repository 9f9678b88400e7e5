"""Validation samples: set aside from training, tested beside the test samples, and never mixed with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfed
from kinfed.data import Federation, with_validation
from kinfed.data.samples import labels_of
from kinfed.data.validation import _stratified
from kinfed.engine import ProcessExecutor
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.run import folder_of
from kinfed.experiment.summary import chosen
from kinfed.learning import correct
from kinfed.methods.fedbyol import FedBYOL
from kinfed.models import build
from kinfed.streams import numpy_stream
from tests.builders import build_runtime, dataset, federation, run, same


def shared(share: float = 0.25, **given: Any) -> Federation:
    return with_validation(federation(**given), share, seed=0)


def accuracy(tensors: dict[str, torch.Tensor], fed: Federation, samples: Any) -> float:
    model = build("tiny_cnn", fed.dataset.shape, len(fed.dataset.classes), 0)
    model.load(tensors)
    return correct(model, samples).double().mean().item()


def test_a_share_of_every_class_of_each_client_is_set_aside() -> None:
    before, after = federation(clients=2), shared(clients=2)
    labels = labels_of(before.splits[0])
    for own, left, drawn in zip(before.partition.train, after.partition.train, after.validation, strict=True):
        assert sorted([*left, *drawn]) == sorted(own)
        assert len(drawn) == round(0.25 * len(own))
        held, of_drawn = (np.bincount(labels[rows], minlength=10) for rows in (own, drawn))
        assert np.abs(of_drawn - 0.25 * held).max() <= 1
    assert all(map(np.array_equal, after.partition.test, before.partition.test))


def test_every_sample_is_set_aside_with_the_same_probability() -> None:
    """Sainte-Laguë's method never drew a class with one or two samples: a model of large classes alone looked good."""
    labels, times = np.array([0] * 9 + [1] * 5 + [2] * 3 + [3, 4, 5]), 4000
    stream = numpy_stream(0, "test")
    drawn = sum(_stratified(labels, 0.2, stream).astype(int) for _ in range(times))
    assert drawn.sum() == 4 * times
    assert np.abs(drawn / times - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / times)


def test_a_client_with_one_sample_keeps_it_and_one_with_two_has_one_of_each() -> None:
    fed = federation(clients=3)
    few = [rows[:n] for rows, n in zip(fed.partition.train, (1, 2, 9), strict=True)]
    cut = with_validation(replace(fed, partition=replace(fed.partition, train=few)), 0.9, seed=0)
    assert [len(rows) for rows in cut.partition.train] == [1, 1, 1]
    assert [len(rows) for rows in cut.validation] == [0, 1, 8]
    with pytest.raises(InputError, match="every client has one sample or group"):
        with_validation(replace(fed, partition=replace(fed.partition, train=[r[:1] for r in few])), 0.5, seed=0)


def test_validation_samples_are_set_aside_once() -> None:
    with pytest.raises(InputError, match="the federation already has validation samples"):
        with_validation(shared(), 0.25, seed=1)


def test_a_group_is_not_divided() -> None:
    data = dataset()
    patients = np.arange(len(data.train)) // 6
    fed = federation(data=replace(data, columns={"group": (patients, np.zeros(len(data.test)))}))
    cut = with_validation(fed, 0.25, seed=0)
    for left, drawn in zip(cut.partition.train, cut.validation, strict=True):
        assert len(drawn)
        assert not {*patients[left]} & {*patients[drawn]}


def test_clients_are_tested_on_their_own_validation_samples(tmp_path: Path) -> None:
    fed = shared()
    outcome = run(build_runtime("fedper", fed, rounds=2), tmp_path / "out")
    last = outcome.lines[-1]
    for id in range(4):
        model = {**outcome.state.tensors, **outcome.client_states[id].tensors}
        assert last["client_acc"]["validation_personal"][id] == pytest.approx(accuracy(model, fed, fed.validate(id)))
        assert last["client_acc"]["personal"][id] == pytest.approx(accuracy(model, fed, fed.test(id)))
    sizes = [len(rows) for rows in fed.validation]
    mean = np.average(last["client_acc"]["validation_personal"], weights=sizes)
    assert last["validation_personal_acc_weighted"] == pytest.approx(mean)


def test_a_global_model_is_tested_on_both_without_mixing_them(tmp_path: Path) -> None:
    fed = shared()
    outcome = run(build_runtime("fedavg", fed, rounds=2), tmp_path / "out")
    last, model = outcome.lines[-1], outcome.state.tensors
    assert last["global_acc"] == pytest.approx(accuracy(model, fed, fed.dataset.test))
    for id in range(4):
        own = last["client_acc"]["validation_personal"][id]
        assert own == pytest.approx(accuracy(model, fed, fed.validate(id)))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "central"])
def test_without_validation_nothing_changes_and_with_it_nobody_trains_on_it(method: str, tmp_path: Path) -> None:
    fed = shared()
    smaller = replace(fed, validation=[])  # the same clients, who never had these samples
    one, other = (run(build_runtime(method, f, rounds=2), tmp_path / n) for f, n in ((fed, "a"), (smaller, "b")))
    assert same(one.state, other.state)
    for line, without in zip(one.lines, other.lines, strict=True):
        alike = without.keys() - {"client_acc", "client_measures"}
        assert {name: line[name] for name in alike} == {name: without[name] for name in alike}
        own, others = line["client_measures"], without["client_measures"]
        assert {name: own[name] for name in others} == others
        assert not any(name.startswith("validation") for name in without)


def test_representations_without_labels_are_tested_on_both(tmp_path: Path) -> None:
    fed = shared()
    method = FedBYOL(hidden=8, out=4)
    last = run(build_runtime(method, fed, rounds=2, knn_every=1), tmp_path / "a").lines[-1]
    without = run(build_runtime(method, replace(fed, validation=[]), rounds=2, knn_every=1), tmp_path / "b").lines[-1]
    for name in ("knn_acc_mean", "linear_global_acc_mean", "linear_local_acc_mean", "personal_acc_weighted"):
        assert last[name] == without[name]
        assert 0 < last[f"validation_{name}"] <= 1


@pytest.mark.slow
def test_worker_processes_give_the_same_accuracies(tmp_path: Path) -> None:
    fed = shared()
    serial = run(build_runtime("fedper", fed, rounds=2), tmp_path / "a")
    workers = run(build_runtime("fedper", fed, rounds=2), tmp_path / "b", ProcessExecutor(2))
    assert serial.lines == workers.lines


def test_the_first_of_the_best_rounds_is_chosen() -> None:
    name, of = "validation_personal_acc_weighted", {1: 0.5, 2: 0.75, 3: 0.75, 4: 0.6}
    assert chosen([{"round": r, name: v, "personal_acc_weighted": r / 10} for r, v in of.items()]) == {
        "round": 2, "validation_personal_acc_weighted": 0.75, "personal_acc_weighted": 0.2, "personal_acc_mean": None,
        "global_acc": None,
    }  # fmt: skip
    assert chosen([{"round": 1, "personal_acc_weighted": 0.3}]) is None


def test_a_run_tells_what_was_set_aside(tmp_path: Path) -> None:
    fields: Any = {"clients": 4, "partition": "iid", "train_images": 200, "ft_epochs": 0, "rounds": 2, "quiet": True}
    path = kinfed.run("fedavg", **fields, validation=0.25, out=tmp_path / "out").path
    about = json.loads((path / "federation.json").read_text())
    assert about["validation"] == [11, 11, 11, 11]
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["data"]["train"], summary["data"]["validation"]) == (136, 44)
    assert summary["chosen"]["round"] in (1, 2)
    with pytest.raises(InputError, match="validation: 1 is not allowed"):
        kinfed.run("fedavg", **fields, validation=1, out=tmp_path / "no")


def test_runs_from_before_there_was_validation_go_on(tmp_path: Path) -> None:
    plain, own = (Config.checked({"methods": ("fedavg",), "validation": share}) for share in (0.0, 0.2))
    assert "validation" not in folder_of(plain, tmp_path).identity
    assert folder_of(own, tmp_path).identity["validation"] == 0.2
