"""Logging of rounds to TensorBoard, MLflow and Weights & Biases, beside ``metrics.jsonl``.

A tracker that fails does not end a run.
"""

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
    from kinfed.engine import Callback, RunFolder

__all__ = ["TRACKERS", "TrackedCallback", "Tracker", "check_installed"]

Line = Mapping[str, Any]  # a line of metrics.jsonl
EVENTS = re.compile(r"tensorboard/events\.out\.tfevents\.[^/]+")


class Tracker(Protocol):
    """A tracker: something that logs the rounds of one run."""

    def start(self, parameters: Mapping[str, Any], folder: Path) -> None:
        """Begin to log a run that starts or continues; all its rounds follow, including those logged before.

        Args:
            parameters: Fields of the run's config, with ``method`` and ``seed``; see `Config.parameters`.
            folder: Folder of the run.
        """

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """Log the numbers of one round.

        Args:
            round: Number of the round, from 1 on.
            scalars: The numbers by name.
        """

    def end(self, status: str) -> None:
        """End the log of a run.

        Args:
            status: ``FINISHED``, ``FAILED``, or ``KILLED`` if somebody stopped the run.
        """


class TensorBoard:
    """A tracker that writes event files to ``tensorboard/``, and rewrites them when a run continues."""

    def start(self, parameters: Mapping[str, Any], folder: Path) -> None:
        """Delete former event files, so that no step is there twice, and write the hyper-parameters."""
        # SummaryWriter would put the hyper-parameters into a folder of their own, apart from the curves.
        from torch.utils.tensorboard import FileWriter
        from torch.utils.tensorboard.summary import hparams

        delete(written(folder, EVENTS), folder, EVENTS)
        self._writer = FileWriter(str(folder / "tensorboard"))
        for summary in hparams(dict(parameters), {}):
            self._writer.add_summary(summary)

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """Write the numbers of a round to the disk at once, so that TensorBoard shows them during the run."""
        from torch.utils.tensorboard.summary import scalar

        for name, value in scalars.items():
            self._writer.add_summary(scalar(name, value), round)
        self._writer.flush()

    def end(self, status: str) -> None:
        """Close the event file; it has no place for a status."""
        self._writer.close()


class MLflow:
    """A tracker that logs to one MLflow run; its id is in ``mlflow_run_id``, for when the run continues."""

    def start(self, parameters: Mapping[str, Any], folder: Path) -> None:
        """Start or reopen the MLflow run; MLflow's own settings choose server, experiment and parent run."""
        # MLflow sends usage data by default; users who want that set the variable.
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
        # The run is used by its id. As MLflow's active run, it would get whatever else the process logs.
        self._client = mlflow.MlflowClient()
        self._client.update_run(self._id, status="RUNNING")
        self._logged = {metric.step for metric in self._client.get_metric_history(self._id, "lr")}

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """Log the numbers of a round, unless they were logged before: MLflow would show them twice."""
        import mlflow

        if round not in self._logged:
            mlflow.log_metrics(dict(scalars), step=round, run_id=self._id)

    def end(self, status: str) -> None:
        """Close the MLflow run with a status."""
        self._client.set_terminated(self._id, status)


class WandB:
    """A tracker that logs to one run of Weights & Biases; its id is in ``wandb_run_id``, for when the run continues."""

    def start(self, parameters: Mapping[str, Any], folder: Path) -> None:
        """Start or reopen the run; wandb's own settings choose project, entity, folder, and whether it is offline."""
        import wandb

        from kinfed.files import write_whole

        kept = folder / "wandb_run_id"
        method, seed = parameters["method"], parameters["seed"]
        self._run = wandb.init(
            id=kept.read_text() if kept.is_file() else None,
            resume="allow",
            name=f"{method}-seed{seed}",
            config={**parameters, "folder": str(folder.resolve())},
            reinit="create_new",  # a run of the user's own in this process stays as it is
            settings=wandb.Settings(silent=True, console="off"),
        )
        write_whole(kept, self._run.id)
        self._logged = self._run.starting_step if self._run.resumed else 0

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """Log the numbers of a round, unless the server has them already."""
        if round >= self._logged:
            self._run.log(dict(scalars), step=round)

    def end(self, status: str) -> None:
        """Close the run; one that did not finish counts as failed."""
        self._run.finish(exit_code=0 if status == "FINISHED" else 1)


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_installed(name: str) -> None:
    """Refuse a tracker whose package is not installed.

    Args:
        name: Name of the tracker, which is also that of its package.

    Raises:
        InputError: If the package is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise InputError(f"log: {name} is not installed: pip install 'kinfed[{name}]'")


class TrackedCallback:
    """A `Callback` that passes everything on to another one, and the rounds to trackers.

    A tracker that fails is left out from then on, with a warning.

    Args:
        parameters: Fields of the run's config for the trackers.
        folder: Folder of the run.
        callback: Observer that everything is passed on to.
        trackers: Trackers by name.
    """

    def __init__(
        self, parameters: Mapping[str, Any], folder: RunFolder, callback: Callback, trackers: Mapping[str, Tracker]
    ) -> None:
        self._parameters, self._folder, self._callback = parameters, folder, callback
        self._trackers = {**trackers}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        status = "FINISHED" if kind is None else "KILLED" if stopped else "FAILED"
        self._each(lambda tracker: tracker.end(status))

    def started(self, done: int) -> None:
        """Start the trackers, and log the finished rounds again: a kill may have kept a tracker from logging them."""
        self._each(lambda tracker: tracker.start(self._parameters, self._folder.path))
        for line in self._folder.lines("metrics.jsonl"):
            self._log(line)
        self._callback.started(done)  # last, since a display measures the time of the first round from here

    def working(self, what: str, done: int, total: int) -> None:
        """Tell the other observer the progress within a round."""
        self._callback.working(what, done, total)

    def round(self, line: dict[str, Any]) -> None:
        """Tell the other observer and the trackers that a round is finished."""
        self._callback.round(line)
        self._log(line)

    def stopping(self, round: int) -> None:
        """Tell the other observer that the run will stop."""
        self._callback.stopping(round)

    def ended(self, round: int) -> None:
        """Tell the other observer that the run has ended."""
        self._callback.ended(round)

    def _log(self, line: Line) -> None:
        self._each(lambda tracker: tracker.log(line["round"], _scalars(line)))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in [*self._trackers.items()]:
            try:
                tell(tracker)
            except Exception as error:  # trackers raise errors of all kinds, such as for a lost server or a full disk
                del self._trackers[name]
                reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
                # warnings.warn would print a line of code, and would end the run where warnings are errors.
                logging.getLogger(__name__).warning(
                    "kinfed: %s no longer records %s; metrics.jsonl still does (%s)",
                    name,
                    plain(self._folder.path),
                    plain(reason),
                )


def _scalars(line: Line) -> dict[str, float]:
    """Return the numbers of a round, with the numbers of clients that took part and that were refused."""
    numbers = {name: value for name, value in line.items() if isinstance(value, int | float) and name != "round"}
    return {**numbers, "clients": len(line["clients"]), "refused": len(line["refused"])}
