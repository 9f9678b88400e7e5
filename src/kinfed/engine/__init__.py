"""The round loop, and the executors that do clients' work."""

from kinfed.engine.executor import Executor, SerialExecutor, TaskRunner
from kinfed.engine.folder import RunFolder, save_model
from kinfed.engine.loop import federate
from kinfed.engine.processes import ProcessExecutor, WorkersFailed
from kinfed.engine.runtime import ClientRuntime
from kinfed.engine.settings import RoundSettings
from kinfed.engine.watch import Unwatched, Watch
from kinfed.files import NotSaved

__all__ = [
    "ClientRuntime",
    "Executor",
    "NotSaved",
    "ProcessExecutor",
    "RoundSettings",
    "RunFolder",
    "SerialExecutor",
    "TaskRunner",
    "Unwatched",
    "Watch",
    "WorkersFailed",
    "federate",
    "save_model",
]
