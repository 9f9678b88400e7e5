"""Whatever goes wrong under a run: it says what in one line, and nothing that was saved is damaged."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import kinfed
from kinfed.engine import NoCallback, NotSaved
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.config import Config
from kinfed.experiment.run import run
from kinfed.methods import METHODS, Client, ClientState, Message
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedper import FedPer
from kinfed.models import Model
from tests.experiment.test_run import files

SMALL: dict[str, Any] = {"clients": 10, "rounds": 6, "checkpoint_every": 2, "participation": 0.5, "quiet": True}
COMMAND = ["run", "fedper", "--clients", "10", "--rounds", "12", "--participation", "0.5"]


def command(*arguments: str, largest: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command line, with a limit on how large a file may become: what a full disk does to a process."""
    limit = None if largest is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    return subprocess.run(
        [sys.executable, "-m", "kinfed", *arguments], capture_output=True, text=True, check=False, preexec_fn=limit
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("largest", "every", "named"), [(4_000, 12, "metrics.jsonl"), (40_000, 2, "checkpoints/round-000002.safetensors")]
)
def test_a_disk_that_is_full_stops_the_run_in_one_line_and_harms_nothing(
    largest: int, every: int, named: str, tmp_path: Path
) -> None:
    out, straight = tmp_path / "out", tmp_path / "straight"
    told = command(*COMMAND, "--checkpoint-every", str(every), "--out", str(out), largest=largest)
    assert told.returncode == 1
    assert "Traceback" not in told.stderr
    last = told.stderr.splitlines()[-1]
    assert last.startswith(f"kinfed: {out / named} cannot be written: ")
    assert "File too large" in last
    assert last.endswith(f"; what was saved stays, go on with: kinfed resume {out}")
    kinfed.resume(out, quiet=True)
    kinfed.run("fedper", out=straight, **{**SMALL, "rounds": 12, "checkpoint_every": every})
    assert files(out) == files(straight)


class Removing(NoCallback):
    """Somebody deletes the run folder after round 3."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def round(self, line: dict[str, Any]) -> None:
        if line["round"] == 3:
            shutil.rmtree(self.path)


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_a_run_whose_folder_is_deleted_ends_and_does_not_make_it_again(method: str, out: Path) -> None:
    fields = {name: value for name, value in SMALL.items() if name != "quiet"}
    config = Config.checked({"methods": (method,), **fields})
    with pytest.raises(NotSaved, match=r"(metrics\.jsonl|errors\.log) cannot be written: No such file or directory"):
        run(config, out, lambda *_: Removing(out))
    assert not out.exists()


@dataclass(frozen=True, kw_only=True)
class Diverging(FedAvg):
    """Its loss is no number."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        return Message(upload.tensors, {**upload.numbers, "loss": float("nan")}), kept


@pytest.mark.slow
def test_a_method_that_fails_does_not_keep_the_others_of_a_comparison_from_running(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS._own, "fedbabu", Diverging)
    with pytest.raises(
        RunFailed,
        match=r"^fedbabu \(seed 0\): no client sent a usable update .*: loss is nan; try a smaller lr \(0\.1\)$",
    ):
        kinfed.compare(["fedbabu", "fedavg"], out=out, **SMALL)
    assert [summary["method"] for summary in kinfed.open_result(out).summaries] == ["fedavg"]
    assert "fedavg" in kinfed.open_result(out).report().read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--lr", "1e20"], "no client sent a usable update in any round; the first reason: "),
        (["--batch-size", "1", "--model", f"{__name__}:normed"], "no client made a training step, since every"),
    ],
)
def test_a_run_that_came_to_nothing_ends_with_exit_code_1_and_no_result(  # cases 308, 346
    options: list[str], told: str, out: Path
) -> None:
    done = command("run", "fedavg", "--clients", "10", "--rounds", "2", "--out", str(out), *options)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"kinfed: {told}")
    assert "Traceback" not in done.stderr
    assert not done.stdout
    assert not (out / "summary.json").exists()


def normed(shape: tuple[int, ...], classes: int) -> Model:
    return Model({"flatten": nn.Flatten(), "norm": nn.BatchNorm1d(64)}, nn.Linear(64, classes), [])


@dataclass(frozen=True, kw_only=True)
class Unreliable(FedPer):
    """Client 3 is refused whenever it takes part, and client 4 cannot be tested."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        count = -1 if client.id == 3 else upload.numbers["samples"]
        return Message(upload.tensors, {**upload.numbers, "samples": count}), kept

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Any]:
        if client.id == 4:
            raise MemoryError("no room for the model")
        return super().evaluated(client, message, state)


@pytest.mark.slow
def test_refusals_and_their_reasons_are_in_metrics_summary_and_report(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS._own, "fedper", Unreliable)
    result = kinfed.run("fedper", out=out, **{**SMALL, "participation": 1.0})
    reason = "the sample count is -1; it must be a whole number from 1 to 1272"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["refused"] for line in lines] == [{"3": reason}] * 6
    (summary,) = result.summaries
    assert summary["refused"] == 6
    assert summary["refusals"] == [{"reason": reason, "times": 6, "first": {"round": 1, "client": "3"}}]
    assert summary["untested"] == 6
    page = result.report().read_text()
    assert f"6 uploads were refused; 6× {reason} (first: round 1, client 3)." in page
    assert "6 tests of a model failed; 6× MemoryError: no room for the model (first: round 1, client 4)." in page


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(out: Path, tmp_path: Path) -> None:
    kinfed.run("fedper", out=tmp_path / "straight", **SMALL)
    kinfed.run("fedper", out=out, **SMALL)
    (out / "summary.json").unlink()
    last = out / "checkpoints" / "round-000006.safetensors"
    last.write_bytes(last.read_bytes()[:-1] + b"\xff")
    with pytest.warns(UserWarning, match=r"round-000006\.safetensors cannot be used: it is damaged"):
        kinfed.resume(out, quiet=True)
    assert files(out) == files(tmp_path / "straight")


def changed(path: Path, **fields: Any) -> None:
    text = path.read_text()
    for name, value in fields.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name} = "))
        text = text.replace(line, f"{name} = {value}")
    path.write_text(text)


@pytest.mark.slow
def test_a_run_whose_config_was_changed_is_not_resumed_but_how_it_is_carried_out_may_change(out: Path) -> None:
    kinfed.run("fedper", out=out, **SMALL)
    (out / "summary.json").unlink()
    before = files(out)
    changed(out / "config.toml", rounds=12)
    with (
        pytest.warns(UserWarning, match="another config"),
        pytest.raises(InputError, match=r"belongs to another config, with rounds = 6 instead of 12; .* to start the"),
    ):
        kinfed.resume(out, quiet=True)
    changed(out / "config.toml", rounds=6, checkpoint_every=5)
    kinfed.resume(out, quiet=True)
    changed(out / "config.toml", checkpoint_every=2)
    assert files(out) == before


@pytest.mark.slow
def test_a_run_begun_on_a_device_that_is_gone_goes_on_on_another(out: Path) -> None:  # case 102
    kinfed.run("fedper", out=out, **SMALL, device="cpu:0")
    changed(out / "config.toml", device='"cuda:99"')
    (out / "summary.json").unlink()
    for path in (out / "checkpoints" / "round-000006.safetensors", out / "models"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    with pytest.raises(InputError, match="device: 'cuda:99' is not available here; cpu always is"):
        kinfed.resume(out, quiet=True)
    changed(out / "config.toml", device='"cpu"')
    kinfed.resume(out, quiet=True)
    kinfed.run("fedper", out=out.with_name("straight"), **SMALL)
    assert files(out) == files(out.with_name("straight"))


@pytest.mark.slow
def test_a_run_whose_data_changed_is_not_resumed(out: Path) -> None:
    kinfed.run("fedper", out=out, **SMALL)
    (out / "summary.json").unlink()
    told = json.loads((out / "federation.json").read_text())
    told["train"][0][0] += 1
    (out / "federation.json").write_text(json.dumps(told) + "\n")
    with pytest.raises(InputError, match=r"the clients have changed since the run in .* was started"):
        kinfed.resume(out, quiet=True)


@pytest.mark.slow
def test_a_run_killed_before_its_federation_was_written_can_be_resumed_and_overwritten(out: Path) -> None:
    kinfed.run("fedavg", out=out, **SMALL)
    before = files(out)
    for path in out.iterdir():
        if path.name != "config.toml":
            path.unlink() if path.is_file() else shutil.rmtree(path)
    kinfed.resume(out, quiet=True)
    assert files(out) == before
    kinfed.run("fedavg", out=out, overwrite=True, **SMALL)


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "every", "tested"), [(20, 5, [5, 10, 15, 20]), (6, 4, [4, 6]), (6, 7, [6])])
def test_rounds_without_an_evaluation_change_nothing_else(
    rounds: int, every: int, tested: list[int], tmp_path: Path
) -> None:  # case 116
    fields = {**SMALL, "rounds": rounds}
    kinfed.run("fedper", out=tmp_path / "each", **fields)
    kinfed.run("fedper", out=tmp_path / "some", evaluate_every=every, **fields)

    def lines(name: str) -> list[Mapping[str, Any]]:
        return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    for each, some in zip(lines("each"), lines("some"), strict=True):
        assert some["train_loss"] == each["train_loss"]
        assert some["client_acc"] == (each["client_acc"] if some["round"] in tested else {})
    (run_folder,) = kinfed.report.folders.read_runs([tmp_path / "some"])
    for quantity in ("weighted", "mean", "std", "worst_tenth"):
        assert run_folder.series(f"personal_acc_{quantity}")[0] == tested
    assert kinfed.open_result(tmp_path / "some").report().is_file()
