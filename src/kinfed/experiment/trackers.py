"""Rounds in TensorBoard and MLflow as well; ``metrics.jsonl`` stays the truth, and no run ends because of a tracker."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from kinfed.errors import InputError, plain
from kinfed.files import delete, written

if TYPE_CHECKING:
    from kinfed.engine import RunFolder, Watch

__all__ = ["TRACKERS", "Tracked", "Tracker", "check_installed"]

Line = Mapping[str, Any]  # of metrics.jsonl
EVENTS = re.compile(r"tensorboard/events\.out\.tfevents\.[^/]+")


class Tracker(Protocol):
    """Where the rounds of one run go."""

    def start(self, parameters: Mapping[str, Any], folder: Path) -> None:
        """The run starts or goes on; all rounds follow, also those that were told before.

        Args:
            parameters: Fields of the run's config, ``method`` and ``seed`` among them; see `Config.parameters`.
            folder: The run's.
        """

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """The numbers of one round."""

    def end(self, status: str) -> None:
        """The run is over, ``FINISHED``, ``FAILED`` or ``KILLED``."""


class TensorBoard:
    """Event files in ``tensorboard/``, written anew when a run goes on, so that no step is there twice."""

    def start(self, parameters: Mapping[str, Any], folder: Path) -> None:
        """Forget what was written; the hyper-parameters come first."""
        # Not the SummaryWriter: it puts hyper-parameters into a folder of their own, away from the curves.
        from torch.utils.tensorboard import FileWriter
        from torch.utils.tensorboard.summary import hparams

        delete(written(folder, EVENTS), folder, EVENTS)
        self._writer = FileWriter(str(folder / "tensorboard"))
        for summary in hparams(dict(parameters), {}):
            self._writer.add_summary(summary)

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """On the disk at once, so that it can be looked at while the run goes on."""
        from torch.utils.tensorboard.summary import scalar

        for name, value in scalars.items():
            self._writer.add_summary(scalar(name, value), round)
        self._writer.flush()

    def end(self, status: str) -> None:
        """Close the file, which knows no status."""
        self._writer.close()


class MLflow:
    """One MLflow run, whose id is kept in ``mlflow_run_id`` for when the run goes on."""

    def start(self, parameters: Mapping[str, Any], folder: Path) -> None:
        """Open the run, by MLflow's own rules for the server, the experiment and the parent run."""
        # MLflow reports usage to its makers unless told otherwise; who wants that sets the variable.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow

        from kinfed.files import write_whole

        kept = folder / "mlflow_run_id"
        method, seed = parameters["method"], parameters["seed"]
        with mlflow.start_run(
            run_id=kept.read_text() if kept.is_file() else None,
            run_name=f"{method}-seed{seed}",
            nested=True,
            tags={"method": method, "seed": str(seed), "folder": str(folder.resolve())},
        ) as run:
            self._id = run.info.run_id
            write_whole(kept, self._id)
            mlflow.log_params(dict(parameters))
        # From here on by its id: were it MLflow's active run, what else the process logs would end up in it.
        self._client = mlflow.MlflowClient()
        self._client.update_run(self._id, status="RUNNING")
        self._logged = {metric.step for metric in self._client.get_metric_history(self._id, "lr")}

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """Rounds that are done again give the same numbers; MLflow would show them twice."""
        import mlflow

        if round not in self._logged:
            mlflow.log_metrics(dict(scalars), step=round, run_id=self._id)

    def end(self, status: str) -> None:
        """Tell how it ended."""
        self._client.set_terminated(self._id, status)


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def check_installed(name: str) -> None:
    """Refuse a tracker whose package, which is named as it is, is not there.

    Raises:
        InputError: If it is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise InputError(f"log: {name} is not installed: pip install 'kinfed[{name}]'")


class Tracked:
    """A `Watch` with trackers beside it, by name; one that fails is left out, with a warning."""

    def __init__(
        self, parameters: Mapping[str, Any], folder: RunFolder, watch: Watch, trackers: Mapping[str, Tracker]
    ) -> None:
        self._parameters, self._folder, self._watch = parameters, folder, watch
        self._trackers = {**trackers}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        status = "FINISHED" if kind is None else "KILLED" if stopped else "FAILED"
        self._each(lambda tracker: tracker.end(status))

    def started(self, done: int) -> None:
        """The rounds that are done come from metrics.jsonl: what a tracker had when the run was killed is unknown."""
        self._each(lambda tracker: tracker.start(self._parameters, self._folder.path))
        for line in self._folder.lines("metrics.jsonl"):
            self._log(line)
        self._watch.started(done)  # last: a display counts the seconds of the first round from here

    def working(self, what: str, done: int, total: int) -> None:
        """Of no interest to trackers."""
        self._watch.working(what, done, total)

    def round(self, line: dict[str, Any]) -> None:
        """To everybody."""
        self._watch.round(line)
        self._log(line)

    def stopping(self, round: int) -> None:
        """Of no interest to trackers."""
        self._watch.stopping(round)

    def _log(self, line: Line) -> None:
        self._each(lambda tracker: tracker.log(line["round"], _scalars(line)))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in [*self._trackers.items()]:
            try:
                tell(tracker)
            except Exception as error:  # of any kind: the server is gone, the disk is full
                del self._trackers[name]
                reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
                # Not warnings.warn, which adds a line of code, and ends the run where warnings are errors.
                logging.getLogger(__name__).warning(
                    "kinfed: %s no longer follows %s; metrics.jsonl does (%s)",
                    name,
                    plain(self._folder.path),
                    plain(reason),
                )


def _scalars(line: Line) -> dict[str, float]:
    """What a round has of numbers, and how many clients took part and were refused."""
    numbers = {name: value for name, value in line.items() if isinstance(value, int | float) and name != "round"}
    return {**numbers, "clients": len(line["clients"]), "refused": len(line["refused"])}
