from __future__ import annotations

import importlib.machinery
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import kinfed
from kinfed.engine import Callback, NoCallback
from kinfed.errors import InputError
from kinfed.experiment.config import Config
from kinfed.experiment.run import run
from kinfed.experiment.trackers import TRACKERS
from tests.experiment.test_run import files
from tests.experiment.test_vote import write_pool

SMALL: dict[str, Any] = {"clients": 10, "rounds": 5, "checkpoint_every": 2}
BOTH = "tensorboard,mlflow"
pytestmark = [
    pytest.mark.usefixtures("global_generators", "store"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning"),  # MLflow with SQLAlchemy 2.1
]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"  # one for all tests: it takes seconds to make


@pytest.fixture
def store(database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's environment: an experiment a test."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)


Series = list[tuple[int, float]]


def in_metrics(folder: Path, name: str) -> Series:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["round"], pytest.approx(line[name])) for line in lines]


def in_tensorboard(folder: Path, name: str) -> Series:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return [(event.step, event.value) for event in read.Scalars(name)]


def in_mlflow(run: Any, name: str) -> Series:
    import mlflow

    return [(m.step, m.value) for m in mlflow.MlflowClient().get_metric_history(run.info.run_id, name)]


def mlflow_runs() -> dict[str, Any]:
    import mlflow

    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


class Interrupted(NoCallback):
    def round(self, line: dict[str, Any]) -> None:
        if line["round"] == 4:
            raise KeyboardInterrupt


def interrupted(method: str, seed: int, rounds: int) -> Callback:
    return Interrupted()


@pytest.mark.slow
def test_every_round_of_a_comparison_is_in_tensorboard_and_mlflow(out: Path) -> None:
    kinfed.compare(["fedbabu"], out=out, log=BOTH, quiet=True, **SMALL)
    runs = mlflow_runs()
    assert runs.keys() == {"fedbabu-seed0", "local-seed0"}
    for name, tracked in runs.items():
        assert tracked.info.status == "FINISHED"
        for metric in ("personal_acc_weighted", "personal_acc_worst_tenth", "train_loss", "lr", "up_bytes"):
            wanted = in_metrics(out / name, metric)
            assert in_tensorboard(out / name, metric) == wanted
            assert in_mlflow(tracked, metric) == wanted
        assert in_tensorboard(out / name, "clients")[-1] == (5, 10)
        assert in_tensorboard(out / name, "refused")[-1] == (5, 0)
    babu = runs["fedbabu-seed0"].data
    assert babu.params.items() >= {"method": "fedbabu", "lr": "0.1", "ft_epochs": "5"}.items()
    assert babu.metrics.keys() >= {"global_acc", "fine_tuned_acc_mean"}
    assert babu.tags.items() >= {"seed": "0", "folder": str(out.resolve() / "fedbabu-seed0")}.items()
    assert "global_acc" not in runs["local-seed0"].data.metrics


@pytest.mark.slow
def test_tags_are_text_as_a_server_wants_them(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    told: dict[str, Any] = {}
    start = mlflow.start_run
    monkeypatch.setattr(mlflow, "start_run", lambda **given: told.update(given) or start(**given))
    kinfed.run("fedavg", out=out, log="mlflow", quiet=True, **SMALL | {"rounds": 1})
    assert all(type(value) is str for value in told["tags"].values())


@pytest.mark.slow
def test_a_run_that_goes_on_is_one_run_with_each_round_once(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Config.checked({"methods": ("fedper",), "log": BOTH, **SMALL}), out, interrupted)
    assert mlflow_runs()["fedper-seed0"].info.status == "KILLED"
    assert [round for round, _ in in_tensorboard(out, "train_loss")] == [1, 2, 3]
    kinfed.resume(out, quiet=True)
    (tracked,) = mlflow_runs().values()
    assert tracked.info.status == "FINISHED"
    wanted = in_metrics(out, "train_loss")
    assert len(wanted) == 5
    assert in_tensorboard(out, "train_loss") == wanted
    assert in_mlflow(tracked, "train_loss") == wanted


@pytest.mark.slow
def test_a_run_is_the_same_with_and_without_trackers(tmp_path: Path) -> None:
    for name, fields in (("plain", {}), ("tracked", {"log": BOTH})):
        kinfed.run("fedshibu", out=tmp_path / name, quiet=True, **SMALL, **fields)
    plain, tracked = files(tmp_path / "plain"), files(tmp_path / "tracked")
    assert tracked.pop("config.toml") != plain.pop("config.toml")
    own = {name for name in tracked if name.startswith("tensorboard/") or name == "mlflow_run_id"}
    assert len(own) == 2
    assert {name: content for name, content in tracked.items() if name not in own} == plain


@pytest.mark.slow
def test_a_method_with_a_vote_is_followed_under_names_that_mlflow_takes(out: Path, tmp_path: Path) -> None:
    sources = str(write_pool(tmp_path / "pool", "ab"))
    vote = {"fedvote+fedprox": {"round": 1, "mu": 0.5}}
    kinfed.run("fedvote+fedprox", out=out, log="mlflow", sources=sources, settings=vote, quiet=True, **SMALL)
    (tracked,) = mlflow_runs().values()
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params.items() >= {"method": "fedvote+fedprox", "fedvote/fedprox.mu": "0.5"}.items()


@pytest.mark.slow
def test_inside_a_run_of_ones_own_mlflow_shows_them_as_its_children(out: Path) -> None:
    import mlflow

    with mlflow.start_run(run_name="mine") as mine:
        kinfed.run("fedavg", out=out, log="mlflow", quiet=True, **SMALL | {"rounds": 1})
        assert mlflow.active_run().info.run_id == mine.info.run_id
    assert mlflow_runs()["fedavg-seed0"].data.tags["mlflow.parentRunId"] == mine.info.run_id


class Recorded:
    """A stand-in for Weights & Biases: the runs that were started, by their ids, with what they were told."""

    Settings = dict
    __spec__ = importlib.machinery.ModuleSpec("wandb", None)

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.series: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.codes: list[int] = []

    def init(self, **given: Any) -> Any:
        self.started.append(given)
        id = given["id"] or f"id{len(self.started)}"
        series, ours = self.series.setdefault(id, []), self

        class Run:
            resumed = bool(series)
            starting_step = series[-1][0] + 1 if series else 0

            def log(self, numbers: dict[str, float], step: int) -> None:
                series.append((step, numbers))

            def finish(self, exit_code: int) -> None:
                ours.codes.append(exit_code)

        Run.id = id  # type: ignore[attr-defined]
        return Run()


def test_wandb_gets_each_round_of_a_run_once_also_when_it_goes_on(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Recorded()
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        run(Config.checked({"methods": ("fedper",), "log": "wandb", **SMALL}), out, interrupted)
    kinfed.resume(out, quiet=True)
    assert [given["id"] for given in wandb.started] == [None, "id1"]
    assert wandb.started[0]["name"] == "fedper-seed0"
    assert wandb.started[0]["config"].items() >= {"method": "fedper", "lr": 0.1, "clients": 10}.items()
    assert wandb.codes == [1, 0]
    assert [(step, numbers["train_loss"]) for step, numbers in wandb.series["id1"]] == in_metrics(out, "train_loss")
    assert (out / "wandb_run_id").read_text() == "id1"


def test_wandb_works_offline(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    kinfed.run("fedavg", out=out, log="wandb", quiet=True, **SMALL | {"rounds": 1})
    (log,) = (tmp_path / "wandb").glob(f"offline-run-*/run-{(out / 'wandb_run_id').read_text()}.wandb")
    told = log.read_bytes()
    assert all(name in told for name in (b"personal_acc_weighted", b"fedavg-seed0", b"checkpoint_every"))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["start", "log", "end"])
def test_a_tracker_that_fails_is_told_in_one_line_and_the_run_goes_on(
    when: str, out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    class Failing:
        def __getattr__(self, name: str) -> Any:
            def act(*given: Any) -> None:
                told.append(name)
                if name == when:
                    raise OSError("No space left\non device")

            return act

    monkeypatch.setitem(TRACKERS, "mlflow", Failing)
    kinfed.run("fedavg", out=out, log=BOTH, quiet=True, **SMALL)
    assert told.count(when) == 1
    assert caplog.messages == [
        f"kinfed: mlflow no longer records {out}; metrics.jsonl still does (OSError: No space left on device)"
    ]
    assert len(in_metrics(out, "lr")) == len(in_tensorboard(out, "lr")) == 5
    assert (out / "summary.json").is_file()


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_told_with_how_to_install_it(
    name: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"^log: {name} is not installed: pip install 'kinfed\[{name}\]'$"):
        kinfed.run("fedavg", out=out, log=name, quiet=True)
    assert not out.exists()
