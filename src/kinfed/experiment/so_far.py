"""The summary of an unfinished run, for reports while it is running."""

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
EVERY = 5.0  # seconds between two summaries, since the cost of one grows with the number of rounds

Lines = Sequence[dict[str, Any]]


@dataclass
class SoFar:
    """A tracker (`Tracker`) that writes ``so_far.json``: the summary up to the last evaluated round.

    The file is deleted when the run is finished, and kept if the run is stopped or fails.

    Attributes:
        folder: Folder of the run.
        planned: Total number of rounds of the run.
        summary: Function that makes a summary of the lines of ``metrics.jsonl`` and ``seconds.jsonl``.
        due: Time of the next summary, on the clock ``time.monotonic``.
    """

    folder: RunFolder
    planned: int
    summary: Callable[[Lines, Lines], Mapping[str, Any]]
    due: float = -math.inf

    def start(self, parameters: Mapping[str, Any], folder: Path) -> None:
        """Do nothing: there is no summary before the first round."""

    def log(self, round: int, scalars: Mapping[str, float]) -> None:
        """Write the summary, unless the last one is less than `EVERY` seconds old."""
        del round, scalars
        if time.monotonic() >= self.due:
            self._write()
            self.due = time.monotonic() + EVERY

    def end(self, status: str) -> None:
        """Delete the summary of a finished run, which has ``summary.json``; else bring it up to date."""
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
