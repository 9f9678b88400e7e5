"""Round loop, and the executors that run the clients' tasks."""

from kinfed.engine.callbacks import Callback, NoCallback
from kinfed.engine.executor import Executor, SerialExecutor, TaskRunner
from kinfed.engine.folder import RunFolder, save_model
from kinfed.engine.loop import run_rounds
from kinfed.engine.processes import ProcessExecutor
from kinfed.engine.runtime import ClientRuntime
from kinfed.engine.settings import RoundSettings
from kinfed.errors import WorkersFailed
from kinfed.files import NotSaved

__all__ = [
    "Callback",
    "ClientRuntime",
    "Executor",
    "NoCallback",
    "NotSaved",
    "ProcessExecutor",
    "RoundSettings",
    "RunFolder",
    "SerialExecutor",
    "TaskRunner",
    "WorkersFailed",
    "run_rounds",
    "save_model",
]
