"""The summary of a run that is still going, for reports that are made meanwhile."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinfed.engine.folder import METRICS, RUN_FILES, SECONDS, RunFolder
from kinfed.files import delete, write_whole

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SO_FAR", "Lines", "SoFar"]

SO_FAR = "so_far.json"
EVERY = 5.0  # seconds between two of them: one costs more the more rounds there are

Lines = Sequence[dict[str, Any]]


@dataclass
class SoFar:
    """A tracker that keeps ``so_far.json``: the summary up to the last round in which models were tested.

    It is deleted when the run is finished, and stays where the run stopped or failed.

    Attributes:
        folder: The run's.
        planned: Rounds of the whole run.
        summary: Makes a summary of the lines of ``metrics.jsonl`` and ``seconds.jsonl``.
    """

    folder: RunFolder
    planned: int
    summary: Callable[[Lines, Lines], Mapping[str, Any]]
    due: float = -math.inf

    def start(self, parameters: Mapping[str, Any], folder: Path) -> None:
        """Nothing is told before a round is."""

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """Write the summary, unless that was done just now."""
        del round, scalars
        if time.monotonic() >= self.due:
            self._write()
            self.due = time.monotonic() + EVERY

    def end(self, status: str) -> None:
        """Tell all rounds of a run that stopped; that of a finished run is ``summary.json``."""
        if status == "FINISHED":
            delete([self.folder.path / SO_FAR], self.folder.path, RUN_FILES)
        else:
            self._write()

    def _write(self) -> None:
        lines, seconds = self.folder.lines(METRICS), self.folder.lines(SECONDS)
        tested = max((number for number, line in enumerate(lines, start=1) if line["client_acc"]), default=0)
        if tested:
            told = {**self.summary(lines[:tested], seconds[:tested]), "planned": self.planned}
            write_whole(self.folder.path / SO_FAR, json.dumps(told, indent=1) + "\n")
