"""Measures beside the accuracy: equal to scikit-learn's, in the files of a run, its tables, its verdict and tuning."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from sklearn import metrics

import kinfed
from kinfed.data import with_validation
from kinfed.engine import ProcessExecutor
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.config import Config, Measure
from kinfed.experiment.run import nobody
from kinfed.learning import MEASURES, Answers, Grade, confusion, grades, measures, scores, unnormalised
from kinfed.models import build
from kinfed.report.folders import Run, read_runs
from kinfed.report.measures import WORDS
from kinfed.report.notes import notes
from kinfed.report.page import write_report
from kinfed.report.table import table
from kinfed.report.verdict import verdict
from kinfed.tuning import Unseen, tune
from tests.builders import build_runtime, federation, run
from tests.report.test_table import made

SMALL: dict[str, Any] = {
    "data": "digits", "train_images": 200, "clients": 5, "rounds": 2, "ft_epochs": 0, "public": 0, "quiet": True,
}  # fmt: skip


def of_sklearn(labels: np.ndarray, logits: np.ndarray) -> dict[str, float | None]:
    answers = logits.argmax(axis=1)
    certainty = torch.from_numpy(logits).double().log_softmax(dim=1).numpy()  # rounded alike, ties stay ties
    there = np.unique(labels)
    areas = [metrics.roc_auc_score(labels == k, certainty[:, k]) for k in there] if len(there) > 1 else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # answers of a class that no sample has
        return {
            "balanced_accuracy": metrics.balanced_accuracy_score(labels, answers),
            "macro_f1": metrics.f1_score(labels, answers, average="macro"),
            "auroc": float(np.mean(areas)) if areas else None,
        }


@pytest.mark.parametrize(("samples", "classes", "held"), [(300, 5, 5), (200, 10, 3), (60, 2, 2), (12, 4, 1)])
@pytest.mark.parametrize("decimals", [0, 6])  # with ties, and without
def test_they_are_those_of_scikit_learn(samples: int, classes: int, held: int, decimals: int) -> None:
    draw = np.random.default_rng(samples + decimals)
    owners = draw.integers(4, size=samples)
    labels = (owners + draw.integers(held, size=samples)) % classes  # a client lacks classes
    logits = draw.normal(size=(samples, classes)).round(decimals).astype(np.float32)
    logits[np.arange(samples), labels] += 1
    found = measures(Answers(*map(torch.from_numpy, (owners, labels, logits))), clients=5)
    for client in range(4):
        own = owners == client
        expected = of_sklearn(labels[own], logits[own])
        assert {name: values[client] for name, values in found.items()} == pytest.approx(expected)
    assert [values[4] for values in found.values()] == [None] * 3


def test_auroc_over_all_classes_is_scikit_learns_one_vs_rest() -> None:
    draw = np.random.default_rng(0)
    labels, logits = np.arange(90) % 3, draw.normal(size=(90, 3)).astype(np.float32)
    given = Answers.of_one(0, torch.from_numpy(labels), torch.from_numpy(logits))
    shares = torch.from_numpy(logits).double().softmax(dim=1).numpy()
    assert measures(given, 1)["auroc"] == [pytest.approx(metrics.roc_auc_score(labels, shares, multi_class="ovr"))]


def test_confident_answers_are_no_ties() -> None:
    logits = torch.tensor([[20.0, 0.0], [25.0, 0.0], [30.0, 0.0]])  # as probabilities in float32, all are 1
    given = Answers.of_one(0, torch.tensor([1, 0, 0]), logits)
    assert measures(given, 1)["auroc"] == [1.0]


def test_the_cells_of_a_confusion_matrix_are_scikit_learns() -> None:
    draw = np.random.default_rng(1)
    owners, labels, logits = draw.integers(3, size=80), draw.integers(4, size=80), draw.normal(size=(80, 4))
    cells = confusion(Answers(*map(torch.from_numpy, (owners, labels, logits))), clients=4)
    assert cells[3] == []
    for client in range(3):
        own, matrix = owners == client, np.zeros((4, 4), dtype=int)
        for truth, answer, count in cells[client]:
            matrix[truth, answer] = count
        assert (matrix == metrics.confusion_matrix(labels[own], logits[own].argmax(1), labels=range(4))).all()


def test_grades_of_clients_add_up_to_that_of_all_their_samples() -> None:
    draw = np.random.default_rng(2)
    owners, labels = torch.from_numpy(draw.integers(3, size=90)), torch.from_numpy(draw.integers(4, size=90))
    logits = torch.from_numpy(draw.normal(size=(90, 4)))
    parts = grades(Answers(owners, labels, logits), clients=4)
    (whole,) = grades(Answers.of_one(0, labels, logits), clients=1, auroc=False)
    pooled = Grade.pooled(parts)
    assert (pooled.accuracy, pooled.samples, pooled.measures.pop("auroc")) == (whole.accuracy, 90, None)
    assert pooled.measures == whole.measures
    assert parts[3].accuracy is None


def test_a_grade_alone_is_the_one_among_many() -> None:
    draw = np.random.default_rng(3)
    owners, labels = torch.from_numpy(draw.integers(3, size=90)), torch.from_numpy(draw.integers(4, size=90))
    logits = torch.from_numpy(draw.normal(size=(90, 4)).astype(np.float32))
    together = grades(Answers(owners, labels, logits), clients=3, cells=True)
    alone = [
        grades(Answers.of_one(0, labels[owners == id], logits[owners == id]), clients=1, cells=True)[0]
        for id in range(3)
    ]
    assert together == alone  # all measures, bit for bit
    accuracies = grades(Answers(owners, labels, logits), clients=3, measured=False)
    assert [grade.accuracy for grade in accuracies] == [grade.accuracy for grade in together]


# -- in a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fedper", "local", "central"])
def test_a_run_measures_the_models_that_serve_its_clients(name: str, tmp_path: Path) -> None:
    fed = with_validation(federation(), 0.25, seed=0)
    runtime = build_runtime(name, fed, rounds=2)
    outcome = run(runtime, tmp_path / "out")
    before, last = outcome.lines
    told = json.loads((tmp_path / "out" / "confusion.json").read_text())["clients"]
    for id in range(4):
        path = tmp_path / "out" / "models"
        saved = path / (
            "global.safetensors" if name in ("fedavg", "central") else f"client-{id:05d}-personal.safetensors"
        )
        model = build("tiny_cnn", fed.dataset.shape, 10, 0)
        model.load(kinfed.models.read_tensors(saved)[0])
        for prefix, samples in (("", fed.test(id)), ("validation_", fed.validate(id))):
            logits, labels = scores(model, samples).numpy(), samples.labels
            assert labels is not None
            found = {m: last["client_measures"][f"{prefix}personal_{m}"][id] for m in kinfed.learning.MEASURES}
            assert found == pytest.approx(of_sklearn(labels.numpy(), logits))
        assert sum(count for _, _, count in told[id]) == len(fed.test(id))
        right = sum(count for truth, answer, count in told[id] if truth == answer)
        assert right / len(fed.test(id)) == pytest.approx(last["client_acc"]["personal"][id])
    sizes = [*map(len, fed.partition.test)]
    mean = np.average(last["client_measures"]["personal_macro_f1"], weights=sizes)
    assert last["personal_macro_f1_weighted"] == pytest.approx(mean)
    assert "personal_macro_f1_weighted" in before
    assert not any("auroc" in key for key in [*before, *before["client_measures"]])  # it takes time
    assert ("global_auroc" in last) == (name in ("fedavg", "central"))


def test_the_auroc_is_measured_in_every_evaluation_if_it_is_asked_for(tmp_path: Path) -> None:
    first, *_ = run(build_runtime("fedavg", rounds=2, measure="auroc"), tmp_path / "out").lines
    assert {"personal_auroc_weighted", "global_auroc"} <= first.keys()


def test_without_labels_the_linear_probe_is_measured(tmp_path: Path) -> None:
    for name in ("fedbyol", "local_ssl"):
        runtime = build_runtime(name, rounds=1)
        fed, last = runtime.federation, run(runtime, tmp_path / name).lines[-1]
        whole = unnormalised(fed.dataset.test)
        model = build("tiny_cnn", fed.dataset.shape, 10, 0)
        saved = "global" if name == "fedbyol" else "client-00001-personal"
        model.load(kinfed.models.read_tensors(tmp_path / name / "models" / f"{saved}.safetensors")[0])
        expected = of_sklearn(whole.labels.numpy(), scores(model, whole).numpy())  # type: ignore[union-attr]
        for measure, value in expected.items():
            assert last["client_measures"][f"linear_global_{measure}"][1] == pytest.approx(value, rel=1e-5)
        own = of_sklearn(fed.test(1).labels.numpy(), scores(model, unnormalised(fed.test(1))).numpy())  # type: ignore[union-attr]
        assert last["client_measures"]["personal_macro_f1"][1] == pytest.approx(own["macro_f1"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedbyol"])
def test_worker_processes_give_the_same_measures(name: str, tmp_path: Path) -> None:
    fed = with_validation(federation(), 0.25, seed=0)
    serial = run(build_runtime(name, fed, rounds=2), tmp_path / "a")
    assert run(build_runtime(name, fed, rounds=2), tmp_path / "b", ProcessExecutor(2)).lines == serial.lines
    assert len({(tmp_path / of / "confusion.json").read_bytes() for of in "ab"}) == 1


# -- in reports -------------------------------------------------------------------------------------------------------


def judged(method: str, accuracy: float, **of_measures: float) -> Run:
    told = {f"personal_{name}_{how}": value for name, value in of_measures.items() for how in ("weighted", "mean")}
    return replace(made(method, accuracy, metrics=told), measure="macro_f1")


def test_the_measure_decides_the_table_and_the_verdict() -> None:
    runs = [judged("fedavg", 0.9, macro_f1=0.3), judged("fedper", 0.6, macro_f1=0.5)]
    assert verdict(runs).startswith("fedper serves these clients best: 0.500 macro F1 on their own test samples.")
    shown = table(runs)
    assert shown.headings == ("method", "model tested", "own test", "mean over clients", "accuracy", "MB", "s")
    assert [row[2].text for row in shown.rows] == ["0.300", "0.500"]
    assert [row[4].text for row in shown.rows] == ["0.900", "0.600"]
    by_accuracy = [replace(of, measure="accuracy") for of in runs]
    assert verdict(by_accuracy).startswith("fedavg serves these clients best: 0.900 on their own test samples.")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> kinfed.Result:
    out = tmp_path_factory.mktemp("measures") / "out"
    return kinfed.compare(["fedavg", "fedper"], out=out, measure="balanced_accuracy", **SMALL)


def test_a_report_uses_the_measure_of_the_run_or_another_one(compared: kinfed.Result) -> None:
    runs = read_runs([compared.path])
    assert "by balanced accuracy" in compared._repr_html_()
    for measure in ("balanced_accuracy", "macro_f1", "auroc"):
        (mean,) = {run.summary["metrics"][f"personal_{measure}_weighted"] for run in runs if run.method == "fedper"}
        shown = table(read_runs([compared.path], measure))
        assert shown.rows[1][shown.headings.index("own test")].text == f"{mean:.3f}"
        local = next(of.summary["metrics"][f"personal_{measure}_weighted"] for of in runs if of.method == "local")
        found = compared.differences("local", measure=measure).set_index("method")["difference"]["fedper"]
        assert found == pytest.approx(mean - local)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^measure: 'f1' is not known; allowed: accuracy, balanced_accuracy"):
        read_runs([compared.path], "f1")


def test_frames_have_the_measures_and_the_cells(compared: kinfed.Result) -> None:
    frame = compared.frame().query("method == 'fedavg' and round == 2")
    run = next(of for of in read_runs([compared.path]) if of.method == "fedavg")
    assert frame["macro_f1"].to_list() == run.lines[-1]["client_measures"]["personal_macro_f1"]
    assert frame["global_auroc"].unique().tolist() == [run.lines[-1]["global_auroc"]]
    cells = compared.confusion().query("method == 'fedavg'")
    assert cells["samples"].sum() == sum(run.federation["test"])
    right = cells.query("truth == answer").groupby("client")["samples"].sum().reindex(range(5), fill_value=0)
    assert (right / run.federation["test"]).to_list() == pytest.approx(frame["accuracy"].to_list())


def test_a_run_of_an_older_version_has_dashes_and_a_note(compared: kinfed.Result, tmp_path: Path) -> None:
    for path in compared.path.rglob("*"):  # what that version would have written
        if path.is_file() and path.name != "confusion.json":
            to = tmp_path / "old" / path.relative_to(compared.path)
            to.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_bytes()
            if path.name == "summary.json" and "fedper" in str(path):
                told = json.loads(text)
                told["metrics"] = {n: v for n, v in told["metrics"].items() if "_acc" in n}
                text = json.dumps(told).encode()
            if path.name == "metrics.jsonl" and "fedper" in str(path):
                lines = [json.loads(line) for line in text.splitlines()]
                kept = ({n: v for n, v in line.items() if n != "client_measures"} for line in lines)
                text = "".join(json.dumps(line) + "\n" for line in kept).encode()
            to.write_bytes(text)
    page = write_report([tmp_path / "old"], tmp_path / "page.html", "auroc").read_text()
    assert "AUROC was not measured in the runs of fedper: an older version of kinfed made them." in page
    assert "<h2>Confusion matrix</h2>" not in page
    shown = table(read_runs([tmp_path / "old"], "auroc"))
    assert [row[shown.headings.index("own test")].text == "–" for row in shown.rows] == [False, True, False]


def test_clients_of_one_class_have_no_auroc_and_a_note_says_so(tmp_path: Path) -> None:
    fields = {**SMALL, "clients": 10, "shards": 1, "measure": "auroc"}
    result = kinfed.run("fedavg", out=tmp_path / "o", **fields)
    assert result.frame()["auroc"].isna().all()
    assert "AUROC is not defined where the test samples are of one class, for 10 of 10 clients" in result._repr_html_()


# -- as an option -----------------------------------------------------------------------------------------------------


def test_settings_are_chosen_by_the_measure(tmp_path: Path) -> None:
    fields = {**SMALL, "methods": ("fedavg",), "validation": 0.25, "measure": "auroc", "rounds": 3, "seeds": 1}
    fields.pop("quiet")
    tune(Config.checked(fields), ["lr=0.01,0.1,0.3"], tmp_path / "o", Unseen(), nobody)
    told = json.loads((tmp_path / "o" / "tuning" / "trials.json").read_text())
    trials = told["methods"]["fedavg"]["trials"]
    for number, trial in enumerate(trials):
        file = tmp_path / "o" / "tuning" / "fedavg" / f"trial-{number:03d}" / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert trial["validation"] == {str(of["round"]): of["validation_personal_auroc_weighted"] for of in lines}
    complete = [(t["validation"]["3"], -number) for number, t in enumerate(trials) if t["state"] == "complete"]
    assert told["measure"] == "auroc"
    assert told["methods"]["fedavg"]["chosen"] == -max(complete)[1]
    page = write_report([tmp_path / "o"], tmp_path / "page.html").read_text()
    assert "on validation samples by AUROC (seed 0)" in page or "validation: AUROC" in page
    other = Config.checked({**fields, "measure": "macro_f1"})
    with pytest.raises(InputError, match="was started with another tuning"):
        tune(other, ["lr=0.01,0.1,0.3"], tmp_path / "o", Unseen(), nobody)


def test_where_nothing_would_read_it_the_measure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^measure: 'f1' is not allowed; must be 'accuracy'"):
        kinfed.run("fedavg", measure="f1", out=tmp_path / "o", **SMALL)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^measure: 'auroc' is not allowed; settings of fedbyol, without labels"):
        kinfed.tune("fedbyol", measure="auroc", out=tmp_path / "o", **SMALL)
    with pytest.raises(InputError, match=r"^measure: 'auroc' would do nothing; it is of run, compare, tune"):
        kinfed.reproduce("fedcka-table2", measure="auroc", out=tmp_path / "o")  # type: ignore[call-arg]
    assert not [*tmp_path.iterdir()]


def test_a_measure_that_nothing_could_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^measure: 'auroc' would do nothing; it is of methods that read labels"):
        kinfed.run("fedbyol", measure="auroc", linear_probe=False, out=tmp_path / "o", **SMALL)


def test_without_an_accuracy_nobody_blames_an_older_version() -> None:
    known, unknown = judged("fedavg", 0.5, macro_f1=0.4), judged("fedbyol", 0.5)
    assert any("macro F1 was not measured in the runs of fedbyol" in note for note in notes([known, unknown]))
    untested = replace(unknown, summary={**unknown.summary, "metrics": {"personal_acc_weighted": None}})
    assert not any("was not measured" in note for note in notes([known, untested]))


def test_tuning_by_a_measure_that_no_client_has_says_so(tmp_path: Path) -> None:
    fields = {**SMALL, "methods": ("fedavg",), "clients": 10, "shards": 1, "validation": 0.25, "measure": "auroc"}
    fields.pop("quiet")
    why = "every setting of fedavg failed; auroc has no value on the validation samples of any client"
    with pytest.warns(UserWarning, match=why), pytest.raises(RunFailed, match=f"^{why}$"):
        tune(Config.checked(fields), ["lr=0.01,0.1"], tmp_path / "o", Unseen(), nobody)


def test_config_and_report_name_the_measures_that_are_computed() -> None:
    assert get_args(Measure) == ("accuracy", *MEASURES)
    assert {*WORDS} == {"accuracy", *MEASURES}
