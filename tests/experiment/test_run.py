from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import kinfed
from kinfed.errors import InputError
from kinfed.experiment.participation import never_trained, of_trained
from kinfed.experiment.targets import rounds_to
from kinfed.report.folders import Run, read_runs
from tests.builders import same

pytestmark = pytest.mark.usefixtures("global_generators")

SMALL: dict[str, Any] = {"clients": 10, "rounds": 3, "quiet": True}


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a run folder that must be the same whenever the run is done again."""
    told_time = ("seconds.jsonl", "summary.json", "comparison.json")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in told_time
    }


def test_a_run_folder_holds_what_it_should(out: Path) -> None:
    kinfed.run("fedshibu", out=out, checkpoint_every=2, **SMALL)
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock", "checkpoints", "config.toml", "confusion.json", "federation.json", "metrics.jsonl", "models",
        "pictures", "seconds.jsonl", "summary.json",
    ]  # fmt: skip
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == [
        "round-000002.safetensors", "round-000003.safetensors",
    ]  # fmt: skip
    assert not [*out.rglob("*.unfinished")]
    summary = json.loads((out / "summary.json").read_text())
    assert summary.keys() >= {
        "version", "method", "seed", "rounds", "data", "metrics", "communication", "seconds", "refused",
        "skipped_samples", "zero_step_clients",
    }  # fmt: skip
    assert summary["version"] == 1
    assert summary["data"] == {
        "name": "digits", "clients": 10, "new_clients": 0, "partition": "shards", "shards": 2,
        "train": 1272, "test": 397, "probe": 128,
    }  # fmt: skip
    assert summary["metrics"]["global_acc"] is None
    assert 0 < summary["metrics"]["personal_acc_weighted"] < 1
    assert summary["seconds"].keys() == {"total", "train", "aggregate", "evaluate", "save", "last_evaluation"}
    assert [line["round"] for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())] == [1, 2, 3]


@pytest.mark.slow
def test_the_summary_tells_the_last_round_and_the_best_beside_it(out: Path) -> None:
    (run,) = read_runs([kinfed.run("fedavg", out=out, **{**SMALL, "rounds": 12}).path])
    series = run.series("global_acc")[1]
    metrics = run.summary["metrics"]
    assert metrics["global_acc"] == series[-1]
    assert metrics["global_acc_mean_of_last_10_rounds"] == pytest.approx(sum(series[-10:]) / 10)
    assert metrics["global_acc_best_on_test"] == max(series)
    assert metrics["initial_acc_weighted"] == metrics["personal_acc_weighted"] != metrics["fine_tuned_acc_weighted"]


@pytest.mark.slow
def test_the_summary_tells_who_was_never_drawn_and_the_means_without_them(tmp_path: Path) -> None:  # case 336
    fields = {"clients": 10, "rounds": 2, "participation": 0.1, "ft_epochs": 0, "quiet": True}
    (run,) = read_runs([kinfed.run("fedper", out=tmp_path / "fedper", **fields).path])
    drawn = {id for line in run.lines for id in line["clients"]}
    assert run.summary["never_trained"] == 10 - len(drawn) >= 8
    accuracies, sizes = run.client_accuracies()[[*drawn]], np.array(run.federation["test"])[[*drawn]]
    metrics = run.summary["metrics"]
    assert metrics["personal_acc_mean_of_trained"] == pytest.approx(accuracies.mean())
    assert metrics["personal_acc_weighted_of_trained"] == pytest.approx(np.average(accuracies, weights=sizes))
    assert metrics["personal_acc_mean_of_trained"] != metrics["personal_acc_mean"]
    everybody = kinfed.run("central", out=tmp_path / "central", **{n: v for n, v in fields.items() if n in SMALL})
    assert everybody.summaries[0]["never_trained"] == 0
    assert "personal_acc_mean_of_trained" not in everybody.summaries[0]["metrics"]


def test_whose_work_was_always_refused_has_not_trained() -> None:
    lines = [{"clients": [0, 1, 2], "refused": {"1": "late"}}, {"clients": [1, 3], "refused": {"1": "late"}}]
    assert never_trained(lines, 5) == [1, 4]
    assert of_trained([0.5, 0.0, None, 1.0, 0.0], [10, 9, 0, 30, 9], [1, 4]) == {
        "personal_acc_weighted_of_trained": 0.875, "personal_acc_mean_of_trained": 0.75,
    }  # fmt: skip
    assert of_trained([0.5], [1], []) == {}
    assert of_trained((), [1], [0]) == {}


@pytest.mark.parametrize(
    ("curve", "round"),
    [
        ([0.1, 0.5, 0.7], None),
        ([], None),
        ([0.9, 0.1], 1),
        ([0.1, 0.9, 0.95], 2),  # reached exactly
        ([0.1, 0.92, 0.3, 0.95], 2),  # dips after it
        ([0.95 - 0.1, 0.89999], None),
        ([None, None, 0.4, None, 0.91], 5),  # not evaluated
        ([None, None], None),
    ],
)
def test_the_rounds_to_a_target_count_from_the_first_one(curve: list[float | None], round: int | None) -> None:  # J.12
    assert rounds_to(curve, 0.9) == round


@pytest.mark.slow
def test_the_summary_tells_the_first_round_of_the_target(tmp_path: Path) -> None:
    def told(method: str, name: str, **fields: Any) -> Run:
        (run,) = read_runs([kinfed.run(method, out=tmp_path / name, **SMALL, **fields).path])
        return run

    plain = told("fedavg", "plain")
    assert plain.summary["rounds_to_target"] is None
    curve = plain.series("global_acc")[1]
    best, worst = max(curve), min(curve)
    assert curve.index(best) > 0
    assert curve.index(worst) < 2
    asked = told("fedavg", "asked", target_acc=best)
    assert asked.summary["rounds_to_target"] == {"target": best, "round": curve.index(best) + 1}
    assert asked.lines == plain.lines
    assert told("fedavg", "far", target_acc=1.0).summary["rounds_to_target"] == {"target": 1.0, "round": None}
    seldom = told("fedavg", "seldom", target_acc=worst, evaluate_every=3)
    assert seldom.summary["rounds_to_target"]["round"] == 3
    both = kinfed.compare(["fedavg", "fedper"], out=tmp_path / "both", target_acc=0.01, **SMALL).summaries
    assert both[1]["rounds_to_target"] == {"target": 0.01, "round": None}  # it has no global model


@pytest.mark.slow
def test_a_finished_run_is_told_of_another_target_and_not_trained_again(out: Path) -> None:
    kinfed.compare(["fedavg"], out=out, target_acc=1.0, **SMALL)
    lines, seconds = ((out / "fedavg-seed0" / f"{name}.jsonl").read_bytes() for name in ("metrics", "seconds"))
    comparison = out / "comparison.toml"
    comparison.write_text(comparison.read_text().replace("target_acc = 1.0", "target_acc = 0.001"))
    result = kinfed.resume(out, quiet=True)
    assert [summary["rounds_to_target"] for summary in result.summaries] == [{"target": 0.001, "round": 1}]
    assert "target_acc = 0.001" in (out / "fedavg-seed0" / "config.toml").read_text()
    assert [(out / "fedavg-seed0" / f"{name}.jsonl").read_bytes() for name in ("metrics", "seconds")] == [
        lines, seconds,
    ]  # fmt: skip


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_with_another_target(out: Path) -> None:
    kinfed.run("fedavg", out=out, **SMALL)
    (out / "summary.json").unlink()
    config = out / "config.toml"
    config.write_text(config.read_text().replace("rounds = 3", "rounds = 3\ntarget_acc = 0.001"))
    assert kinfed.resume(out, quiet=True).summaries[0]["rounds_to_target"] == {"target": 0.001, "round": 1}


@pytest.mark.slow
def test_the_summary_has_every_accuracy_of_the_last_round_and_two_in_any_case(tmp_path: Path) -> None:
    for name, epochs in (("with", 1), ("without", 0)):
        (run,) = read_runs([kinfed.run("fedper", out=tmp_path / name, ft_epochs=epochs, **SMALL).path])
        told, last = run.summary["metrics"], run.lines[-1]
        in_line = {key for key in last if "_acc_" in key}
        assert in_line <= told.keys()
        assert {key: told[key] for key in in_line} == {key: last[key] for key in in_line}
        assert {f"{kind}_acc_mean" for kind in ("personal", "stale", "fine_tuned")} <= told.keys()
        assert (told["fine_tuned_acc_mean"] is None) == (epochs == 0)
        assert ("initial_acc_mean" in told) == (epochs > 0)


@pytest.mark.slow
def test_two_runs_of_one_config_are_bit_identical(tmp_path: Path) -> None:  # case 92
    for name in "ab":
        kinfed.compare(["fedavg", "fedshibu"], out=tmp_path / name, participation=0.5, **SMALL)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.slow
def test_a_comparison_is_a_folder_a_method_and_seed_on_the_same_clients(out: Path) -> None:
    result = kinfed.compare(["fedavg", "fedper"], out=out, seeds=2, partition="dirichlet", alpha=0.5, **SMALL)
    assert [(s["method"], s["seed"]) for s in result.summaries] == [
        ("fedavg", 0), ("fedavg", 1), ("fedper", 0), ("fedper", 1), ("local", 0), ("local", 1),
    ]  # fmt: skip
    assert json.loads((out / "comparison.json").read_text()) == result.summaries
    told = {(folder.name[-1], (folder / "federation.json").read_text()) for folder in out.iterdir() if folder.is_dir()}
    assert len(told) == 2  # one federation a seed, whatever the method


@pytest.mark.slow
def test_clients_are_the_same_whether_or_not_a_method_uses_the_probe(tmp_path: Path) -> None:  # specification F.0
    for method in ("fedavg", "fedshibu"):
        kinfed.run(method, out=tmp_path / method, **SMALL)
    assert (tmp_path / "fedavg" / "federation.json").read_bytes() == (
        tmp_path / "fedshibu" / "federation.json"
    ).read_bytes()


@pytest.mark.slow
def test_a_folder_that_exists_is_left_alone_unless_told_otherwise(out: Path) -> None:  # case 112
    kinfed.run("fedavg", out=out, **SMALL)
    before = files(out)
    with pytest.raises(InputError, match="exists; overwrite it with --overwrite, or continue it with: kinfed resume"):
        kinfed.run("fedavg", out=out, **{**SMALL, "rounds": 1})
    assert files(out) == before
    kinfed.run("fedavg", out=out, overwrite=True, **{**SMALL, "rounds": 1})
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_overwriting_with_what_does_not_fit_the_data_leaves_the_old_run(out: Path) -> None:
    kinfed.run("fedavg", out=out, **SMALL)
    before = files(out)
    for method in (kinfed.run, lambda m, **f: kinfed.compare([m], **f)):
        with pytest.raises(InputError, match="5000 is more than"):
            method("fedavg", out=out, overwrite=True, **{**SMALL, "clients": 5000})
        assert files(out) == before


@pytest.mark.slow
def test_overwriting_with_what_does_not_fit_the_model_leaves_the_old_run(out: Path) -> None:
    kinfed.run("fedavg", out=out, **SMALL)
    before = files(out)
    few = {**SMALL, "settings": {"fedcka": {"layers": 7}}}
    for method in (
        lambda: kinfed.run("fedcka", out=out, overwrite=True, **few),
        lambda: kinfed.compare(["fedavg", "fedcka"], out=out, overwrite=True, **few),
    ):
        with pytest.raises(InputError, match=r"fedcka\.layers: 7 is not allowed; the model has 4: conv1, conv2"):
            method()
        assert files(out) == before


def test_a_folder_with_other_things_in_it_is_never_overwritten(out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    (out / "config.toml").write_text("of another program")
    with pytest.raises(InputError, match="is not a run folder, so it is not overwritten"):
        kinfed.run("fedavg", out=out, overwrite=True, **SMALL)
    assert (out / "thesis.txt").read_text() == "years of work"


def test_data_that_do_not_fit_are_refused_before_a_folder_is_made(out: Path) -> None:
    for method in (kinfed.run, lambda m, **f: kinfed.compare([m], **f)):
        with pytest.raises(InputError, match="5000 is more than the 1272 training samples"):
            method("fedavg", out=out, **{**SMALL, "clients": 5000})
        assert not out.exists()


def test_finished_runs_do_not_shorten_the_progress_of_those_that_are_left(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinfed.compare(["fedavg", "fedprox", "local"], out=out, **{**SMALL, "rounds": 1, "ft_epochs": 0})
    shutil.rmtree(out / "fedprox-seed0")
    shutil.rmtree(out / "local-seed0")
    kinfed.resume(out)
    assert re.findall(r"all runs: (\d+/\d+) rounds", capsys.readouterr().err) == ["2/3", "3/3"]


def test_resuming_what_is_finished_changes_nothing(out: Path) -> None:
    kinfed.compare(["fedavg"], out=out, **SMALL)
    before = files(out)
    kinfed.resume(out, quiet=True)
    assert files(out) == before


def test_what_is_no_run_cannot_be_resumed_and_keeps_its_files(tmp_path: Path) -> None:
    mine = [tmp_path / "sub" / ".tmp-mine", tmp_path / "draft.unfinished", tmp_path / "config.toml"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with pytest.raises(InputError, match="is not a run folder"):
        kinfed.resume(tmp_path, quiet=True)
    assert all(path.is_file() for path in mine)


def test_clients_with_different_architectures_each_train_their_own(out: Path) -> None:
    from kinfed.models import open_saved

    kinfed.run("local", out=out, models="tiny_cnn:0.35,mlp:0.65", **SMALL)
    saved = [open_saved(path)[0] for path in sorted((out / "models").glob("client-*-personal.safetensors"))]
    assert [model.recipe["architecture"] for model in saved] == ["tiny_cnn"] * 3 + ["mlp"] * 7


@pytest.mark.slow
def test_a_run_starts_from_given_weights(tmp_path: Path) -> None:  # case 96
    kinfed.run("fedavg", out=tmp_path / "first", **{**SMALL, "rounds": 12})
    weights = str(tmp_path / "first" / "models" / "global.safetensors")
    fields = {**SMALL, "rounds": 1, "lr": 1e-60}  # nought in the weights' own precision
    kinfed.run("fedavg", out=tmp_path / "on", weights=weights, **fields)
    kinfed.run("fedavg", out=tmp_path / "anew", **fields)
    first, on, anew = (load_file(tmp_path / name / "models" / "global.safetensors") for name in ("first", "on", "anew"))
    assert same(on, first)
    assert not same(anew, first)


@pytest.mark.slow
def test_the_models_that_clients_sent_last_are_saved_if_asked_for(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    kinfed.run("fedavg", out=tmp_path / "a", save_local=True, **SMALL)
    models = tmp_path / "a" / "models"
    sent = [load_file(path) for path in sorted(models.glob("client-*-local.safetensors"))]
    shares = np.array(json.loads((tmp_path / "a" / "federation.json").read_text())["train"]).sum(axis=1)
    mean = sum(float(n) * model["head.weight"].double() for n, model in zip(shares, sent, strict=True)) / shares.sum()
    assert torch.allclose(mean.float(), load_file(models / "global.safetensors")["head.weight"], atol=1e-6)
    with pytest.raises(InputError, match="save_local: True would do nothing; it is of methods whose clients send"):
        kinfed.run("fedper", out=tmp_path / "b", save_local=True, **SMALL)  # sends bodies, no models


def test_arrays_are_data_and_the_run_can_be_resumed(out: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.array(["no", "yes"])[rng.integers(0, 2, 300)]
    features = rng.normal(size=(300, 5)) + 2 * (labels == "yes")[:, None]
    arrays = (features[:200], labels[:200], torch.tensor(features[200:]), labels[200:].tolist())
    fields = {**SMALL, "data": arrays, "partition": "iid", "public": 0}
    (run,) = read_runs([kinfed.run("fedavg", out=out, **fields).path])
    assert run.federation["classes"] == ["no", "yes"]
    assert run.summary["model"] == "mlp"
    assert run.summary["metrics"]["global_acc"] > 0.9
    before = files(out)
    (out / "summary.json").unlink()
    kinfed.resume(out, quiet=True)
    assert files(out) == before


@pytest.mark.slow
def test_augmented_runs_are_repeatable_and_differ_from_plain_ones(tmp_path: Path) -> None:
    for name, augment in (("a", "crop_flip"), ("b", "crop_flip"), ("c", "none")):
        kinfed.run("fedbabu", out=tmp_path / name, augment=augment, **SMALL)
    told = {name: (tmp_path / name / "metrics.jsonl").read_text() for name in "abc"}
    assert told["a"] == told["b"] != told["c"]


KILLED = ["compare", "fedper", "fedshibu", "--clients", "10", "--rounds", "8", "--participation", "0.5"]


def start(out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kinfed", *KILLED, "--checkpoint-every", "3", "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(path: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and (not path.is_file() or path.read_bytes().count(b"\n") < lines):
        time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "round"), [("fedper", 5), ("local", 8)])
def test_a_comparison_killed_and_resumed_ends_as_if_it_had_never_stopped(
    method: str, round: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    straight = tmp_path_factory.getbasetemp() / "never-killed"
    if not straight.is_dir():
        assert start(straight).wait() == 0
    killed = tmp_path / "killed"
    process = start(killed)
    wait_for(killed / f"{method}-seed0" / "metrics.jsonl", round, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (killed / f"{method}-seed0" / "config.toml.unfinished").write_text("as if killed while writing")
    (killed / f"{method}-seed0" / "models").mkdir(exist_ok=True)
    (killed / f"{method}-seed0" / "models" / ".tmpAbC123").write_text("as safetensors leaves it")
    kinfed.resume(killed, quiet=True).report()
    assert files(killed).keys() == files(straight).keys()
    assert {n for n, b in files(killed).items() if b != files(straight)[n] and not n.startswith("report")} == set()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_ctrl_c_stops_after_the_round_says_how_to_go_on_and_ends_with_130(workers: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "kinfed", "run", "fedper", "--clients", "10", "--rounds", "400"]
    command += ["--checkpoint-every", "400", "--evaluate-every", "7", "--workers", str(workers)]
    process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(out / "metrics.jsonl", 2, process)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    done = len((out / "metrics.jsonl").read_text().splitlines())
    assert 2 <= done < 400
    assert f"kinfed: stopped; what was saved stays, go on with: kinfed resume {out}" in told.decode()
    assert "Traceback" not in told.decode()
    assert [path.stem for path in (out / "checkpoints").iterdir()] == [f"round-{done:06d}"]


def test_a_second_ctrl_c_stops_at_once() -> None:
    from kinfed.interrupt import Interrupt

    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_skipped_images_are_in_the_run_and_its_options_reach_the_data(tmp_path: Path) -> None:  # case 48
    rng = np.random.default_rng(0)
    for split, label, i in itertools.product(("train", "test"), "ab", range(20)):
        file = tmp_path / "data" / split / label / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(file)
    broken = tmp_path / "data" / "train" / "b" / "7.png"
    broken.write_bytes(broken.read_bytes()[:60])
    small = {"clients": 2, "partition": "iid", "public": 0, "rounds": 1, "quiet": True}
    with pytest.raises(InputError, match=r"train/b/7\.png: the image cannot be decoded"):
        kinfed.run("fedavg", out=tmp_path / "o", data=str(tmp_path / "data"), **small)
    assert not (tmp_path / "o").exists()
    result = kinfed.run(
        "fedavg", out=tmp_path / "o", data=str(tmp_path / "data"), on_error="skip", channels=3, image_size=16, **small
    )
    told = json.loads((result.path / "federation.json").read_text())
    assert (told["skipped"], told["skipped_names"]) == (1, [str(broken)])
    assert told["classes"] == ["a", "b"]
    assert np.sum(told["train"]) == 39
    assert "1 images could not be decoded" in result.report().read_text()


def test_features_are_learned_from_as_images_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = rng.normal(size=(200, 5)) + 3 * y[:, None]
    np.savez(tmp_path / "table.npz", x_train=x[:160], y_train=y[:160], x_test=x[160:], y_test=y[160:])
    result = kinfed.run(
        "fedavg", out=tmp_path / "o", data=str(tmp_path / "table.npz"), model="mlp", clients=4, partition="iid",
        public=0, rounds=3, quiet=True,
    )  # fmt: skip
    assert read_runs([result.path])[0].summary["metrics"]["global_acc"] > 0.9


def test_a_run_that_was_killed_before_it_wrote_its_seconds_has_a_summary(out: Path) -> None:
    kinfed.run("fedavg", out=out, **{**SMALL, "rounds": 1})
    for name in ("seconds.jsonl", "summary.json"):
        (out / name).unlink()
    kinfed.resume(out)
    assert json.loads((out / "summary.json").read_text())["seconds"]["last_evaluation"] == 0
