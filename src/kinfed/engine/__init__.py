"""The round loop, and where clients run."""

from kinfed.engine.folder import RunFolder, save_model
from kinfed.engine.loop import federate
from kinfed.engine.places import Inline, Place
from kinfed.engine.watch import Unwatched, Watch
from kinfed.engine.workers import Workers, WorkersFailed
from kinfed.engine.workshop import Plan, Workshop
from kinfed.files import NotSaved

__all__ = [
    "Inline",
    "NotSaved",
    "Place",
    "Plan",
    "RunFolder",
    "Unwatched",
    "Watch",
    "Workers",
    "WorkersFailed",
    "Workshop",
    "federate",
    "save_model",
]
