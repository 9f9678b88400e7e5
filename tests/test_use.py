"""The commands that use trained models: predict, evaluate and export."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import f1_score, recall_score, roc_auc_score
from torch import nn

import kinfed as package
from kinfed.cli.predict import answers
from kinfed.data.example import write_example
from kinfed.engine.folder import RUN_FILES
from kinfed.errors import InputError
from kinfed.experiment import export as exporting
from tests.test_cli import kinfed  # noqa: F401 - the fixture

Command = Any
WARDS = {"label": "diagnosis", "client": "ward", "group": "patient", "test_fraction": 0.2}


def net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, classes))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's data, and runs: sites (one model), wards (a model of each), own (of an own architecture)."""
    folder = tmp_path_factory.mktemp("use") / "demo"
    write_example(folder)
    package.run("fedavg", data=folder / "sites", rounds=8, out=folder / "run-sites", quiet=True)
    package.run(
        "fedper", data=folder / "wards.csv", **WARDS, rounds=2, ft_epochs=0, out=folder / "run-wards", quiet=True
    )
    package.run("fedavg", model=net, clients=5, rounds=1, ft_epochs=0, out=folder / "run-own", quiet=True)
    return folder


def assert_refused(kinfed: Command, *arguments: str, message: str) -> None:  # noqa: F811
    code, out, err = kinfed(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


# -- predict ----------------------------------------------------------------------------------------------------------


def test_images_get_their_classes_in_a_table_in_json_and_in_a_file(kinfed: Command, demo: Path, tmp_path: Path) -> None:  # noqa: F811
    images = sorted((demo / "unlabelled" / "ash").iterdir())
    model = package.load(demo / "run-sites")
    probabilities = model.predict_proba(images)
    code, out, err = kinfed("predict", str(demo / "run-sites"), *map(str, images))
    assert (code, err) == (0, "")
    about, empty, head, *lines = out.splitlines()
    accuracy = json.loads((demo / "run-sites" / "summary.json").read_text())["metrics"]["global_acc"]
    told = f"tiny_cnn, 10 classes, accuracy {accuracy:.3f} in the test of the run"
    assert (about, empty) == (f"global model of {demo / 'run-sites'}: {told}", "")
    assert head.split() == ["file", "class", "probability"]
    wanted = [
        [str(path), name, f"{p:.3f}"]
        for path, name, p in zip(images, model.predict(images), probabilities.max(axis=1), strict=True)
    ]
    assert [line.split() for line in lines] == wanted
    _, out, _ = kinfed("predict", str(demo / "run-sites"), str(demo / "unlabelled" / "ash"), "--json", "--out", "a.csv")
    found = json.loads(out)
    assert found["model"] == about
    assert [[row["file"], row["class"], f"{row['probability']:.3f}"] for row in found["answers"]] == wanted
    written = pd.read_csv(tmp_path / "a.csv", dtype={"class": str}).to_numpy().tolist()
    assert [[file, name, f"{p:.3f}"] for file, name, p in written] == wanted


def test_the_rows_of_a_table_are_classified_by_the_model_of_a_client(kinfed: Command, demo: Path) -> None:  # noqa: F811
    code, out, err = kinfed("predict", str(demo / "run-wards"), str(demo / "wards.csv"))
    assert (code, out) == (2, "")
    assert err.endswith("has no global model; the clients with a model of their own are A1, A2, B1, B2\n")
    _, out, _ = kinfed("predict", str(demo / "run-wards"), "--client", "B1", str(demo / "wards.csv"), "--json")
    found = json.loads(out)
    assert found["model"].startswith("model of client B1 of ")
    frame = pd.read_csv(demo / "wards.csv")
    model = package.load(demo / "run-wards", client="B1")
    assert [row["class"] for row in found["answers"]] == model.predict(frame)
    assert [row["row"] for row in found["answers"]] == [*range(1, len(frame) + 1)]
    frame.to_parquet(demo / "wards.parquet")
    same = answers(model, [demo / "wards.parquet"])
    assert same["probability"].to_numpy() == pytest.approx([row["probability"] for row in found["answers"]])


def test_what_is_no_image_in_a_folder_is_told(demo: Path) -> None:
    model = package.load(demo / "run-sites")
    with pytest.warns(UserWarning, match=r"scans: left out, since no images: metadata\.csv$"):
        assert len(answers(model, [demo / "scans", demo / "unlabelled" / "ash"])) == 161 + 60


def test_categories_that_look_like_numbers_stay_as_they_are_written(tmp_path: Path) -> None:
    rows = pd.DataFrame({"code": ["01", "02", "x"] * 20, "size": range(60), "label": ["a", "b", "a"] * 20})
    rows.to_csv(tmp_path / "all.csv", index=False)
    fields: dict[str, Any] = {"test_fraction": 0.2, "clients": 2, "partition": "iid", "public": 0, "ft_epochs": 0}
    package.run("fedavg", data=tmp_path / "all.csv", rounds=1, out=tmp_path / "run", quiet=True, **fields)
    model = package.load(tmp_path / "run")
    some = rows[rows["code"] == "01"]
    some.to_csv(tmp_path / "some.csv", index=False)
    told = answers(model, [tmp_path / "some.csv"])["probability"]
    assert told.to_numpy() == pytest.approx(model.predict_proba(some).max(axis=1))
    assert told.to_numpy() != pytest.approx(model.predict_proba(some.assign(code=1)).max(axis=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run-sites", "nowhere.png"], "files: 'nowhere.png' does not exist"),
        (["run-sites", "README.md"], "files: 'README.md' is not allowed; must be images, folders of images, or one"),
        (["run-sites", "run-own"], "files: 'run-own' has no images"),
        (["run-sites", "wards.csv"], "files: 'wards.csv' is a table, but the model takes inputs of shape 1×8×8"),
        (["run-wards", "--client", "A1", "wards.csv", "x.png"], "'x.png' is not allowed; a table must be the only"),
        (["run-wards", "--client", "A1", "unlabelled/ash"], "the model takes inputs of shape 32, not images"),
        (["run-wards", "--client", "C", "wards.csv"], "client: 'C' is not known; allowed: A1, A2, B1, B2"),
        (["run-sites", "--client", "north", "scans"], "client: 'north' is not allowed; 'run-sites' has no"),
        (["run-sites", "scans", "--out", "wards.csv"], "out: 'wards.csv' exists; choose another file"),
        (["run-sites", "scans", "--out", "answers.txt"], "out: 'answers.txt' is not allowed; must be a new file .csv"),
        (["run-own", "scans"], "importing its architecture 'tests.test_use:net' would run code"),
        (["nowhere", "scans"], "load: 'nowhere' is neither a run folder nor an existing safetensors file"),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_is_told_in_one_line(
    kinfed: Command,  # noqa: F811
    demo: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(demo)
    assert_refused(kinfed, "predict", *arguments, message=message)


# -- evaluate ---------------------------------------------------------------------------------------------------------


def test_on_the_runs_own_test_set_it_has_the_measures_of_the_run(demo: Path) -> None:
    found = package.evaluate(demo / "run-sites", demo / "sites")
    told = json.loads((demo / "run-sites" / "summary.json").read_text())["metrics"]
    names = {"accuracy": "global_acc", "balanced_accuracy": "global_balanced_accuracy"}
    names |= {"macro_f1": "global_macro_f1", "auroc": "global_auroc"}
    assert found.models == {"global model": {name: pytest.approx(told[own]) for name, own in names.items()}}
    assert (found.samples, found.unknown, found.missing) == (80, {}, ())


def test_classes_are_matched_by_name_and_the_others_are_told(kinfed: Command, demo: Path, tmp_path: Path) -> None:  # noqa: F811
    for name, site in (("4", "north"), ("1", "east"), ("cat", "west"), ("0", "south")):
        of = "2" if name == "cat" else name
        for number, path in enumerate(sorted(demo.glob(f"sites/*/*/{of}/*.png"))[:9]):
            (tmp_path / "other" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "other" / name / f"{site}{number}.png").write_bytes(path.read_bytes())
    code, out, _ = kinfed("evaluate", str(demo / "run-sites"), "--data", "other")
    assert code == 0
    which, unknown, missing, _, head, line = out.splitlines()
    assert which == "all samples of other: 27 samples"
    assert unknown == "left out, since the model does not know their classes: cat (9)"
    assert missing == "classes of the model without a sample: 2, 3, 5, 6, 7, 8, 9"
    assert re.split(r"  +", head) == ["model", "accuracy", "balanced accuracy", "macro F1", "AUROC"]
    model = package.load(demo / "run-sites")
    paths = [path for name in ("0", "1", "4") for path in sorted((tmp_path / "other" / name).iterdir())]
    truth, told, p = [path.parent.name for path in paths], model.predict(paths), model.predict_proba(paths)
    wanted = [
        np.mean(np.array(truth) == told),
        recall_score(truth, told, labels=["0", "1", "4"], average="macro"),
        f1_score(truth, told, average="macro"),
        np.mean([roc_auc_score(np.array(truth) == name, p[:, int(name)]) for name in ("0", "1", "4")]),
    ]
    assert line.split() == ["global", "model", *(f"{value:.3f}" for value in wanted)]


def test_the_models_of_all_clients_are_side_by_side(kinfed: Command, demo: Path) -> None:  # noqa: F811
    asked = ["evaluate", str(demo / "run-wards"), "--data", str(demo / "wards.csv"), "--label", "diagnosis"]
    _, out, _ = kinfed(*asked, "--measure", "macro_f1", "--json")
    found = json.loads(out)
    frame = pd.read_csv(demo / "wards.csv")
    for ward in ("A1", "A2", "B1", "B2"):
        told = package.load(demo / "run-wards", client=ward).predict(frame)
        assert found["models"].pop(f"client {ward}") == {
            "macro_f1": pytest.approx(f1_score(frame["diagnosis"], told, average="macro"))
        }
    assert not found["models"]
    _, out, _ = kinfed(*asked, "--client", "A2")
    assert [re.split(r"  +", line)[0] for line in out.splitlines()[2:]] == ["model", "client A2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run-sites", "--data", "nowhere"], "data: 'nowhere' is neither a name"),
        (
            ["run-sites", "--data", "unlabelled/ash"],
            "label: must name the column of unlabelled/ash that has the labels",
        ),
        (["run-sites", "--data", "wards.csv", "--label", "mean_radius"], "the label 17.99 is not allowed"),
        (
            ["run-wards", "--data", "wards.csv", "--label", "device"],
            "has none of the model's classes, but beta, alpha; ",
        ),
        (["run-wards", "--data", "sites"], "the model has benign, malignant"),
        (["run-own", "--data", "digits"], "importing its architecture 'tests.test_use:net' would run code"),
    ],
)
def test_what_cannot_be_evaluated_is_told_in_one_line(
    kinfed: Command,  # noqa: F811
    demo: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(demo)
    assert_refused(kinfed, "evaluate", *arguments, message=message)


# -- export -----------------------------------------------------------------------------------------------------------


def example_of(file: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the example in an exported model's description computes."""
    about = json.loads(file.with_name(f"{file.name}.json").read_text())
    monkeypatch.chdir(file.parent)
    told: dict[str, Any] = {}
    with torch.no_grad():
        exec("\n".join(about["example"]), told)
    return np.asarray(told[about["output"]["name"] if about["form"] != "state_dict" else "probabilities"])


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")  # when the example loads it
@pytest.mark.parametrize("to", ["torchscript", "state_dict", "onnx"])
@pytest.mark.parametrize("run", ["run-sites", "run-own"])
def test_an_exported_model_is_used_as_its_example_says(
    kinfed: Command,  # noqa: F811
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: str,
    to: str,
) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    code, out, _ = kinfed("export", str(demo / run), "--to", to, "--out", "here", "--allow-code")
    assert code == 0
    first, file, about = out.splitlines()
    assert float(first.split()[5].rstrip(",")) < 1e-5
    assert about == f"{file}.json"
    image = demo / "scans" / "ash-000.png"
    grey = Image.open(image)
    grey.resize((24, 24)).convert("RGB").save(tmp_path / "here" / "image.png")
    wanted = package.load(demo / run, allow_code=True).predict_proba(tmp_path / "here" / "image.png")
    assert example_of(tmp_path / file, monkeypatch) == pytest.approx(wanted, abs=1e-5)


def test_the_description_of_a_table_has_its_features_in_their_order(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = package.export(demo / "run-wards", "state_dict", client="A2")
    assert made.path == demo / "run-wards" / "exported" / "client-00001-personal.safetensors"
    assert made.difference == 0
    about = json.loads(made.about.read_text())
    assert (about["features"][0], about["features"][-2:]) == ("mean_radius", ["device=alpha", "device=beta"])
    assert about["table"]["usual"] == {"device": "alpha"} or about["table"]["usual"] == {"device": "beta"}
    model = package.load(demo / "run-wards", client="A2")
    wanted = model.predict_proba(np.zeros((1, 32), dtype=np.float32))
    assert example_of(made.path, monkeypatch) == pytest.approx(wanted, abs=1e-5)


def test_an_export_replaces_a_former_one_of_the_run_and_nothing_else(demo: Path, tmp_path: Path) -> None:
    for _ in range(2):
        made = package.export(demo / "run-sites", "state_dict")
    assert {path.name for path in made.path.parent.iterdir()} == {made.path.name, made.about.name}
    assert all(RUN_FILES.fullmatch(str(path.relative_to(demo / "run-sites"))) for path in (made.path, made.about))
    (tmp_path / "global.safetensors.json").write_text("mine")
    with pytest.raises(InputError, match=r"^out: '.*global\.safetensors\.json' exists; choose another folder$"):
        package.export(demo / "run-sites", "state_dict", out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["global.safetensors.json"]


def test_a_file_that_does_not_do_what_the_model_does_is_not_written(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = exporting.FORMS["state_dict"]
    monkeypatch.setitem(exporting.FORMS, "state_dict", lambda *given: (*real(*given)[:2], real(*given)[2] + 0.01))
    with pytest.raises(InputError, match=r"^to: state_dict does not reproduce this model; an output differs by 0\.01$"):
        package.export(demo / "run-sites", "state_dict", out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_missing_packages_are_told_with_how_to_install_them(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        InputError, match=r"^to: onnx needs packages that are not installed: pip install 'kinfed\[onnx\]'$"
    ):
        package.export(demo / "run-sites")


# -- similarity -------------------------------------------------------------------------------------------------------


def test_models_of_ones_own_architecture_are_compared_if_their_import_is_allowed(kinfed: Command, demo: Path) -> None:  # noqa: F811
    model = str(demo / "run-own" / "models" / "global.safetensors")
    asked = ["similarity", model, model, "--data", "digits", "--samples", "64", "--out", "o"]
    code, out, err = kinfed(*asked)
    assert (code, out) == (2, "")
    assert "its own, 'tests.test_use:net', would run code; allow that with --allow-code" in err
    assert kinfed(*asked, "--allow-code")[0] == 0
    told = json.loads(Path("o", "similarity.json").read_text())
    assert told["features_a"] == {"body": 12, "head": 10}
    assert np.diagonal(told["biased"]) == pytest.approx(1)
    assert told["biased"][0][1] < 0.99
