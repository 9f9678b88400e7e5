"""The round loop, and where clients run."""

from kinfed.engine.folder import RunFolder
from kinfed.engine.loop import RoundsFailed, federate
from kinfed.engine.places import Inline, Workers, one_thread
from kinfed.engine.watch import Unwatched, Watch
from kinfed.engine.workshop import Plan, Workshop

__all__ = [
    "Inline",
    "Plan",
    "RoundsFailed",
    "RunFolder",
    "Unwatched",
    "Watch",
    "Workers",
    "Workshop",
    "federate",
    "one_thread",
]
