"""The round loop, and where clients run."""

from kinfed.engine.folder import RunFolder, save_model
from kinfed.engine.loop import federate
from kinfed.engine.executor import SerialExecutor, Executor
from kinfed.engine.watch import Unwatched, Watch
from kinfed.engine.processes import ProcessExecutor, WorkersFailed
from kinfed.engine.runtime import RoundSettings, ClientRuntime
from kinfed.files import NotSaved

__all__ = [
    "SerialExecutor",
    "NotSaved",
    "Executor",
    "RoundSettings",
    "RunFolder",
    "Unwatched",
    "Watch",
    "ProcessExecutor",
    "WorkersFailed",
    "ClientRuntime",
    "federate",
    "save_model",
]
