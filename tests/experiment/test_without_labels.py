"""Runs on images without labels: what is measured, what is written and shown, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import kinfed
from kinfed.data import load
from kinfed.errors import InputError
from kinfed.experiment.assemble import federation_of
from kinfed.experiment.config import Config
from kinfed.learning import own_view_nearer
from kinfed.models import read_tensors
from kinfed.report.folders import read_runs
from kinfed.report.notes import notes
from kinfed.report.partition import Holdings, client_table, summary_table
from kinfed.report.table import table
from kinfed.report.terminal import show
from tests.test_cli import kinfed as command  # noqa: F401 - the fixture

NARROW = {"hidden": 16, "out": 8}
SMALL: dict[str, Any] = {"rounds": 2, "lr": 0.05, "public": 8, "knn_every": 1, "quiet": True}


def of_digits(folder: Path, images: int = 48) -> Path:
    """Write images of digits into the folders of three clients."""
    digits = load("digits").train.inputs
    for i in range(images):
        file = folder / ("north", "south", "west")[i % 3] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits[i, 0].numpy()).save(file)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_digits(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def compared(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedSimSiam, and training alone, which joins by itself."""
    out = tmp_path_factory.mktemp("runs") / "out"
    settings = {"fedsimsiam": NARROW}
    return kinfed.compare("fedsimsiam", data=f"unlabelled:{photos}", out=out, settings=settings, **SMALL).path


@pytest.fixture(scope="module")
def probed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same beside labelled data."""
    out = tmp_path_factory.mktemp("runs") / "out"
    settings = {"fedsimsiam": NARROW}
    fields = {**SMALL, "labelled": "digits", "linear_probe_images": 100}
    return kinfed.compare("fedsimsiam", data=f"unlabelled:{photos}", out=out, settings=settings, **fields).path


def test_how_often_the_own_view_is_nearer_is_the_fraction_of_others_it_beats() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 40, 5, generator=generator).unbind()
    cosines = torch.nn.functional.cosine_similarity(first[:, None], second[None], dim=2)
    beaten = [(cosines[i, i] > cosines[i]).sum().item() / 39 for i in range(40)]
    assert own_view_nearer(first, second).tolist() == pytest.approx(beaten)
    assert own_view_nearer(first, 3 * first).tolist() == [1.0] * 40
    assert own_view_nearer(torch.ones(300, 2), torch.ones(300, 2)).tolist() == [0.5] * 300  # more than one chunk


def test_the_table_shows_what_was_measured_and_no_accuracy(compared: Path) -> None:
    runs = read_runs([compared])
    assert [run.method for run in runs] == ["fedsimsiam", "local_ssl"]
    assert table(runs).headings == ("method", "model tested", "own view nearer", "spread", "loss", "MB", "s")
    assert table(read_runs([compared], "auroc")).headings == table(runs).headings
    assert not any("was not measured" in note for note in notes(read_runs([compared], "auroc")))
    assert [row[1].text for row in table(runs).rows] == ["global encoder", "own encoder"]
    assert not any(cell.best for row in table(runs).rows for cell in row)
    for run, row in zip(runs, table(runs).rows, strict=True):
        told = run.summary["metrics"]["views_acc_mean"], run.summary["spread"], run.summary["train_loss"]
        assert [cell.text for cell in row[2:5]] == [f"{told[0]:.3f}", f"{told[1]:.2f}", f"{told[2]:.3f}"]
        assert all(value is None for name, value in run.summary["metrics"].items() if not name.startswith("views_"))
        assert [line["views_acc_mean"] is not None for line in run.lines] == [True, True]
    assert any(note.startswith("No labels: none of these numbers says") for note in notes(runs))


def test_terminal_and_page_say_that_there_are_no_labels(compared: Path) -> None:
    console = Console(file=io.StringIO(), width=400)
    show([compared], console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "40 images without labels over 3 clients (folders)" in shown
    assert "No labels: no accuracy is known" in shown
    assert "best" not in shown
    page = kinfed.open_result(compared).report().read_text()
    assert "Every client" not in page
    assert "Accuracy by round" not in page
    assert "Training images of each client; they have no labels." in page
    assert (compared / "report.png").is_file()


def test_the_files_have_sizes_and_no_classes(compared: Path) -> None:
    told = json.loads((compared / "fedsimsiam-seed0" / "federation.json").read_text())
    assert (told["classes"], told["train"], told["test"], told["labelled"]) == ([], [[], [], []], [0, 0, 0], None)
    assert sum(told["samples"]) == 40
    frame = kinfed.open_result(compared).frame()
    assert frame.query("method == 'local_ssl' and round == 2")["train"].tolist() == told["samples"]
    assert frame["accuracy"].isna().all()


def test_a_saved_model_represents_and_does_not_predict(compared: Path, photos: Path) -> None:
    images = load(f"unlabelled:{photos}").train.inputs
    for path, client in (("fedsimsiam-seed0", None), ("local_ssl-seed0", 1)):
        model = kinfed.load(compared / path, client=client)
        assert model.classes == ()
        torch.testing.assert_close(model.represent(images), model.model.body(images.float() / 255).detach())
        with pytest.raises(InputError, match="the model was trained without labels and has no classes; use represent"):
            model.predict(images)
    tensors, _ = read_tensors(compared / "fedsimsiam-seed0" / "models" / "global.safetensors")
    assert all(name.startswith("body.") for name in tensors)


def test_labelled_data_test_the_representations(probed: Path) -> None:
    runs = read_runs([probed])
    assert table(runs).headings[:3] == ("method", "model tested", "linear probe")
    assert "own test" not in table(runs).headings
    run = runs[0]
    assert run.federation["labelled"] == {
        "name": "digits", "classes": [*"0123456789"], "train": 1400, "test": 397
    }  # fmt: skip
    assert run.summary["data"]["test"] == 397
    model, test = kinfed.load(probed / "fedsimsiam-seed0"), load("digits").test
    assert model.classes == tuple("0123456789")
    right = model(test.inputs).argmax(dim=1) == test.labels
    assert right.double().mean().item() == pytest.approx(run.summary["metrics"]["linear_global_acc_mean"])
    assert run.summary["metrics"]["personal_acc_weighted"] is None
    assert not any("No labels" in note or "clients were tested" in note for note in notes(runs))


def test_an_interrupted_run_goes_on_with_the_same_result(photos: Path, tmp_path: Path) -> None:
    fields = {**SMALL, "data": f"unlabelled:{photos}", "settings": {"fedbyol": NARROW}, "lr_schedule": "constant"}
    kinfed.run("fedbyol", out=tmp_path / "whole", **fields)
    kinfed.run("fedbyol", out=tmp_path / "part", **{**fields, "rounds": 1})
    kinfed.resume(tmp_path / "part", rounds=2, quiet=True)
    whole, part = ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "part"))
    assert json.loads(whole[1]) == json.loads(part[1])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedu", "fedema", "hetero_ssfl", "central_byol"])
def test_every_method_without_labels_runs(photos: Path, tmp_path: Path, method: str) -> None:
    fields = {**SMALL, "rounds": 1, "data": f"unlabelled:{photos}", "settings": {method: NARROW}}
    result = kinfed.run(method, out=tmp_path / "out", **fields)
    assert 0.3 < result.summaries[0]["metrics"]["views_acc_mean"] <= 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"methods": "fedavg"}, "methods: fedavg reads labels, and .* has none .*local_ssl, central_byol read none"),
        ({"methods": ["fedsimsiam", "fedper"]}, "methods: fedper reads labels"),
        ({"partition": "shards"}, "partition: Shards reads labels"),
        (
            {"validation": 0.2},
            "validation: 0.2 is not allowed; it needs labels, and .* has none; labelled=… names other",
        ),
        ({"new_clients": 1}, "new_clients: 1 is not allowed; it needs labels"),
        ({"hold_out": "north"}, r"hold_out: \('north',\) is not allowed; it needs labels"),
        ({"classes": "0"}, r"classes: \('0',\) is not allowed; it needs labels"),
        ({"target_acc": 0.5}, "target_acc: 0.5 is not allowed; it needs labels"),
        ({"measure": "auroc"}, "measure: .auroc. is not allowed; it needs labels"),
        ({"linear_probe": True}, "linear_probe: True is not allowed; it needs labels"),
        ({"linear_probe_images": 9}, "linear_probe_images: 9 is not allowed; it needs labels"),
        ({"shift": "permute_labels:2"}, "shift: 'permute_labels:2' is not allowed; it needs labels"),
        ({"labelled": "PHOTOS"}, "labelled: 'unlabelled:.*' has no labels"),
        ({"labelled": "nowhere"}, "data: 'nowhere' is neither a name"),
        ({"labelled": "digits", "data": "digits"}, "labelled: 'digits' would do nothing; digits has labels of its own"),
    ],
)
def test_what_is_refused_before_training(photos: Path, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    data = f"unlabelled:{photos}"
    given = {"methods": "fedsimsiam", "data": data, **fields}
    given = {name: data if value == "PHOTOS" else value for name, value in given.items()}
    with pytest.raises(InputError, match=message) as told:
        kinfed.compare(**given, out=tmp_path / "out", quiet=True)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


def test_labelled_data_of_another_shape_are_refused(photos: Path, tmp_path: Path) -> None:
    images, labels = np.zeros((4, 5, 5), dtype=np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "other.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    fields = {"data": f"unlabelled:{photos}", "labelled": tmp_path / "other.npz"}
    with pytest.raises(
        InputError, match=r"has inputs of shape 1×5×5, but the clients' have the shape 1×8×8; set image"
    ):
        kinfed.run("fedsimsiam", **fields, out=tmp_path / "out", quiet=True)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Class folders of digits 0 and 1 without a split, 20 images each."""
    digits = load("digits").train
    for label in (0, 1):
        (tmp_path / "folders" / f"{label}").mkdir(parents=True)
        for i, image in enumerate(digits.inputs[digits.labels == label][:20]):
            Image.fromarray(image[0].numpy()).save(tmp_path / "folders" / f"{label}" / f"{i}.png")
    return tmp_path / "folders"


def config_of(**given: Any) -> Config:
    return Config.checked({"methods": "fedsimsiam", "public": 0, **given})


def test_a_test_set_is_held_out_of_labelled_data_without_one(photos: Path, folders: Path) -> None:
    asked = {"data": f"unlabelled:{photos}", "labelled": str(folders)}
    federation = federation_of(config_of(**asked, test_fraction=0.25))
    assert federation.labelled is not None
    assert (len(federation.labelled.train), len(federation.labelled.test)) == (30, 10)
    assert len(federation.dataset.train) == 48
    with pytest.raises(InputError, match="has no test set; hold out a share of the samples as one"):
        federation_of(config_of(**asked))
    with pytest.raises(InputError, match=r"test_fraction: 0\.25 would do nothing; 'digits' has a test set"):
        federation_of(config_of(**{**asked, "labelled": "digits"}, test_fraction=0.25))
    with pytest.raises(InputError, match="labelled: 'digits' would do nothing"):
        federation_of(config_of(data=str(folders), labelled="digits", test_fraction=0.25))


def test_validation_samples_are_labelled_ones_on_which_nothing_is_fitted(photos: Path, tmp_path: Path) -> None:
    """The probe's accuracy on them is that of the saved model, and test labels change none of it."""
    fields = {**SMALL, "data": f"unlabelled:{photos}", "settings": {"fedsimsiam": NARROW}, "validation": 0.25}
    digits = load("digits")
    images, labels = digits.train.inputs[:200, 0].numpy(), digits.train.labels[:200].numpy()
    lines = []
    for name, of_test in (("own", labels[:40]), ("other", np.roll(labels[:40], 1))):
        file = tmp_path / f"{name}.npz"
        np.savez(file, x_train=images, y_train=labels, x_test=images[:40], y_test=of_test)
        result = kinfed.run("fedsimsiam", out=tmp_path / name, labelled=file, **fields)
        lines.append(read_runs([result.path])[0].lines)
    told = [{key: value for key, value in line.items() if key.startswith("validation_")} for line in lines[0]]
    assert told == [{key: line[key] for key in of} for line, of in zip(lines[1], told, strict=True)]
    assert lines[0][-1]["knn_acc_mean"] != lines[1][-1]["knn_acc_mean"]
    federation = federation_of(config_of(data=fields["data"], labelled=str(file), validation=0.25))
    rows = federation.labelled_validation
    model = kinfed.load(tmp_path / "own")
    right = model(torch.from_numpy(images[rows])[:, None]).argmax(dim=1).numpy() == labels[rows]
    assert len(rows) == 50
    assert told[-1]["validation_linear_global_acc_mean"] == pytest.approx(right.mean())
    assert 0 < told[0]["validation_knn_acc_weighted"] <= 1
    about = read_runs([tmp_path / "own"])[0].federation["labelled"]
    assert (about["train"], about["validation"], about["test"]) == (150, 50, 40)


@pytest.mark.slow
def test_settings_are_chosen_on_labelled_data(photos: Path, tmp_path: Path) -> None:
    fields = {**SMALL, "data": f"unlabelled:{photos}", "labelled": "digits", "linear_probe_images": 100, "seeds": 2}
    result = kinfed.tune(
        "fedsimsiam", over=["lr=0.001,0.1"], out=tmp_path / "out", settings={"fedsimsiam": NARROW}, **fields
    )
    for race in json.loads((tmp_path / "out" / "tuning" / "trials.json").read_text())["methods"].values():
        scores = [trial["validation"]["2"] for trial in race["trials"]]
        assert race["chosen"] == int(np.argmax(scores))
    assert [summary["seed"] for summary in result.summaries] == [1, 2, 1, 2]


@pytest.mark.slow
def test_advice_is_given_by_labelled_data(photos: Path, tmp_path: Path) -> None:
    fields = {**SMALL, "rounds": 1, "data": f"unlabelled:{photos}", "labelled": "digits", "linear_probe_images": 100}
    advice = kinfed.advise(unlabelled=True, budget=1, out=tmp_path / "out", seeds=2, **fields)
    assert advice.use.startswith(("fed", "hetero_ssfl", "local_ssl"))
    assert "with a linear probe" in advice.paragraph
    with pytest.raises(InputError, match=f"unlabelled: must be true; unlabelled:{photos} has no labels"):
        kinfed.advise(out=tmp_path / "other", data=f"unlabelled:{photos}", labelled="digits", quiet=True)


def test_tuning_refuses_what_needs_labels_before_it_begins(photos: Path, tmp_path: Path) -> None:
    asked = {"data": f"unlabelled:{photos}", "out": tmp_path / "out", "quiet": True}
    with pytest.raises(InputError, match=r"validation: 0\.2 .* has none; labelled=… names other data that have them"):
        kinfed.tune("fedsimsiam", **asked)
    with pytest.raises(InputError, match="methods: fedavg reads labels"):
        kinfed.tune(["fedsimsiam", "fedavg"], labelled="digits", **asked)
    assert not (tmp_path / "out").exists()


def test_a_shift_of_the_images_needs_no_labels(photos: Path, tmp_path: Path) -> None:
    fields = {**SMALL, "rounds": 1, "data": f"unlabelled:{photos}", "settings": {"fedsimsiam": NARROW}}
    result = kinfed.run("fedsimsiam", out=tmp_path / "out", shift="rotate:2", **fields)
    assert sorted({*read_runs([result.path])[0].federation["groups"]}) == [0, 1]


def test_source_models_need_labels(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no labels, which source models learn from"):
        kinfed.train_sources(f"unlabelled:{photos}", out=tmp_path / "pool", quiet=True)


def test_tables_of_a_partition_show_sizes_only(photos: Path) -> None:
    config = Config.checked({"methods": "local", "data": f"unlabelled:{photos}", "public": 0})
    holdings = Holdings.of(federation_of(config), "photos")
    assert [*holdings.measures()] == ["training samples"]
    assert holdings.warnings(batch_size=16) == []
    console = Console(file=io.StringIO(), width=80)
    console.print(summary_table(holdings), client_table(holdings, terminal=False))
    assert "north       16" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_command_line_takes_a_folder(command: Any, tmp_path: Path) -> None:  # noqa: F811
    of_digits(tmp_path / "photos", 24)
    code, out, _ = command("partition", "--data", "unlabelled:photos", "--public", "0", "--out", "p")
    assert code == 0
    assert "24 images without labels over 3 clients" in " ".join(out.split())
    settings = ("--set", "fedsimsiam.hidden=16", "--set", "fedsimsiam.out=8")
    code, out, _ = command("run", "fedsimsiam", "--data", "unlabelled:photos", "--rounds", "1", *settings, "--out", "o")
    assert code == 0
    assert "No labels" in out
    assert (tmp_path / "o" / "report.html").is_file()
