"""Tables, notes and figures of methods that read no labels."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import kinfed
from kinfed.data import load, subsample
from kinfed.errors import InputError
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import read_toml
from kinfed.learning import correct, unnormalised
from kinfed.report.figures import curves
from kinfed.report.folders import Run, read_runs
from kinfed.report.notes import notes
from kinfed.report.table import table
from kinfed.report.terminal import show
from kinfed.report.verdict import verdict

NARROW = {"hidden": 32, "out": 16}
SMALL: dict[str, Any] = {
    "data": "digits", "clients": 5, "partition": "disjoint", "rounds": 2, "lr": 0.05, "knn_every": 1, "public": 50,
    "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two architectures; `local_ssl` joins by itself."""
    out = tmp_path_factory.mktemp("unlabelled") / "out"
    settings = {"hetero_ssfl": NARROW | {"ssl": "simsiam"}}
    return kinfed.compare(["hetero_ssfl"], out=out, models="tiny_cnn:0.4,mlp:0.6", settings=settings, **SMALL).path


@pytest.fixture
def runs(path: Path) -> list[Run]:
    return read_runs([path])


@pytest.mark.slow
def test_training_alone_without_labels_joins_with_the_same_settings(runs: list[Run]) -> None:
    assert [run.method for run in runs] == ["hetero_ssfl", "local_ssl"]
    assert runs[1].config["local_ssl"] == NARROW | {"ssl": "simsiam"}


@pytest.mark.slow
def test_the_table_tells_both_probes_and_what_was_tested(path: Path, runs: list[Run]) -> None:
    shown = table(runs)
    assert {"own test", "linear probe", "local probe"} <= {*shown.headings}
    assert not {"fine-tuned", "pooled test"} & {*shown.headings}
    at = shown.headings.index("linear probe")
    for run, row in zip(runs, shown.rows, strict=True):
        assert row[1].text == "linear probe, own encoder"
        assert row[at].text == f"{run.summary['metrics']['linear_global_acc_mean']:.3f}"
    out = io.StringIO()
    show([path], Console(file=out, width=80, force_terminal=True, color_system=None))
    assert max(map(len, out.getvalue().splitlines())) <= 80


def made(run: Run, method: str, *, supervised: bool, own: float, probed: float | None) -> Run:
    metrics = run.summary["metrics"] | {"personal_acc_weighted": own, "linear_global_acc_mean": probed}
    return replace(run, summary=run.summary | {"method": method, "supervised": supervised, "metrics": metrics})


@pytest.mark.slow
def test_what_owes_to_everybody_s_labels_is_not_ranked_against_what_does_not(runs: list[Run]) -> None:
    fedbyol = made(runs[0], "fedbyol", supervised=False, own=0.9, probed=0.6)
    alone = made(runs[0], "local_ssl", supervised=False, own=0.8, probed=0.5)
    fedavg = made(runs[0], "fedavg", supervised=True, own=0.4, probed=0.7)
    ours = "{} has the best representations: {} with a linear probe. Against training alone (0.500), "
    assert verdict([fedbyol, alone, fedavg]).startswith(ours.format("fedavg", "0.700"))
    unprobed = made(runs[0], "fedavg", supervised=True, own=0.95, probed=None)
    assert verdict([fedbyol, alone, unprobed]).startswith(ours.format("fedbyol", "0.600"))
    assert any("--linear-probe" in line for line in notes([fedbyol, unprobed]))
    assert not any("--linear-probe" in line for line in notes([fedbyol, alone]))
    worse = made(runs[0], "fedbyol", supervised=False, own=0.9, probed=0.4)
    assert verdict([worse, alone]).startswith("Training alone has the best representations (0.500 with a linear probe)")


@pytest.mark.slow
def test_means_by_architecture_stand_in_the_summary(runs: list[Run]) -> None:  # the question of the paper's table 4
    for run in runs:
        metrics, told = run.summary["metrics"], run.lines[-1]["client_acc"]
        for kind in ("linear_global", "linear_local", "personal", "knn"):
            assert metrics[f"{kind}_acc_mean_of_tiny_cnn"] == pytest.approx(np.mean(told[kind][:2]))
            assert metrics[f"{kind}_acc_mean_of_mlp"] == pytest.approx(np.mean(told[kind][2:]))


@pytest.mark.slow
def test_neighbours_are_the_curve_where_there_is_no_accuracy_between_rounds(runs: list[Run]) -> None:
    panel = curves(runs)[0]
    for run, trace in zip(runs, panel.figure.data, strict=True):
        assert [*trace.y] == [line["knn_acc_mean"] for line in run.lines]
    assert "nearest neighbours" in panel.heading


@pytest.mark.slow
def test_what_the_last_batch_leaves_out_is_not_laid_to_batchnorm(runs: list[Run]) -> None:
    told = [line for line in notes(runs) if "left out" in line]
    assert len(told) == 2
    assert all("was incomplete" in line and "BatchNorm" not in line for line in told)
    assert not any("guessing" in line for line in notes(runs))  # log 10 is no bound on their losses


@pytest.mark.slow
def test_a_collapsed_network_is_named_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # case 80
    def constant(self: Any, x: torch.Tensor) -> torch.Tensor:
        return 0 * self.projector(self.body(x)) + 1

    settings = {"fedsimsiam": NARROW}
    monkeypatch.setattr("kinfed.models.siamese.Siamese.project", constant)
    run = kinfed.run("fedsimsiam", out=tmp_path / "out", settings=settings, model="tiny_cnn", **SMALL).path
    summary = json.loads((run / "summary.json").read_text())
    assert summary["collapsed"] == [0, 1, 2, 3, 4]
    out = io.StringIO()
    show([run], Console(file=out))
    said = " ".join(out.getvalue().split())
    assert "fedsimsiam, seed 0: the networks of clients 0, 1, 2, 3, 4 collapsed" in said


@pytest.mark.slow
def test_nobody_is_said_to_have_collapsed_who_has_not(runs: list[Run]) -> None:
    assert all(run.summary["collapsed"] == [] for run in runs)
    assert not any("collapsed" in line for line in notes(runs))


@pytest.mark.slow
def test_a_client_s_encoder_predicts_as_it_was_tested(path: Path) -> None:
    run = path / "hetero_ssfl-seed0"
    fed = federation_of(Config.checked(read_toml(run / "config.toml")))
    told = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["client_acc"]["personal"]
    for id in (0, 4):
        predictor, test = kinfed.load(run, client=id), fed.test(id)
        assert test.labels is not None
        named = predictor.predict(test.inputs)
        right = [name == fed.dataset.classes[k] for name, k in zip(named, test.labels.tolist(), strict=True)]
        assert np.mean(right) == pytest.approx(told[id])
        assert correct(predictor.model, unnormalised(test)).double().mean().item() == pytest.approx(told[id])


@pytest.mark.slow
def test_a_body_alone_is_refused_by_load(tmp_path: Path) -> None:
    run = kinfed.run(
        "fedbyol", out=tmp_path / "out", settings={"fedbyol": NARROW}, model="tiny_cnn", linear_probe=False, **SMALL
    ).path
    with pytest.raises(InputError, match="is a body without a head, not a complete model"):
        kinfed.load(run)


def test_fewer_training_images_are_balanced_and_decided_by_the_seed() -> None:
    whole = load("digits")
    some = [subsample(whole, 105, seed) for seed in (0, 0, 1)]
    counts = np.bincount(some[0].train.labels.numpy())  # type: ignore[union-attr]
    assert counts.sum() == 105
    assert {*counts} == {10, 11}
    assert torch.equal(some[0].train.inputs, some[1].train.inputs)
    assert not torch.equal(some[0].train.inputs, some[2].train.inputs)
    assert some[0].train.normalise == whole.train.normalise
    assert some[0].test is whole.test
    assert sum(len(own) for own in federation_of(config(train_images=150, public=50)).partition.train) == 100
    with pytest.raises(InputError, match=r"train_images: 9999 is not allowed; must be from 1 to 1400"):
        federation_of(config(train_images=9999))


def config(**fields: Any) -> Config:
    return Config.checked({"methods": ("fedavg",), "clients": 5, "partition": "iid", **fields})


def test_a_probe_needs_an_image_of_each_class(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="linear_probe_images: 9 is not allowed; must be at least 10, the number of classes"
    ):
        kinfed.run("fedbyol", out=tmp_path / "out", linear_probe_images=9, model="tiny_cnn", **SMALL)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("methods", "joined"),
    [
        (("fedavg",), ()),
        (("fedbyol",), ("local_ssl",)),
        (("hetero_ssfl", "fedavg"), ("local_ssl",)),
        (("hetero_ssfl", "fedper"), ("local", "local_ssl")),
        (("local_ssl", "hetero_ssfl"), ()),
    ],
)
def test_who_learns_alone_learns_as_the_others_do(methods: tuple[str, ...], joined: tuple[str, ...]) -> None:
    assert config(methods=methods).with_local().methods == methods + joined
