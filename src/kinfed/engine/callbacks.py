"""Callbacks: observers of the progress of a run."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Callback", "NoCallback"]


class Callback(Protocol):
    """Observer of one run: the round loop calls its methods at the start, in each round, and before a stop.

    They are called in the main process, even if clients train in worker processes.

    >>> class PrintLoss(NoCallback):
    ...     def round(self, line):
    ...         print(line["round"], line["train_loss"])
    >>> PrintLoss().round({"round": 1, "train_loss": 0.5})
    1 0.5
    """

    def started(self, done: int) -> None:
        """Report that the run starts, or resumes after ``done`` rounds."""

    def working(self, what: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` clients have finished a step of the round.

        Args:
            what: Name of the step: ``training``, ``evaluation``, ``primary model`` or ``new client``.
            done: Number of clients that have finished.
            total: Number of clients that take part in the step.
        """

    def round(self, line: dict[str, Any]) -> None:
        """Report that a round is over, with its line of ``metrics.jsonl``."""

    def stopping(self, round: int) -> None:
        """Report that a signal ends the run after the given round."""

    def ended(self, round: int) -> None:
        """Report that the given round was the last one: the planned one, or, with a patience, an earlier one."""


class NoCallback:
    """Callback that does nothing; a base for callbacks that override only some functions.

    >>> NoCallback().started(done=0)
    """

    def started(self, done: int) -> None:
        """Do nothing."""

    def working(self, what: str, done: int, total: int) -> None:
        """Do nothing."""

    def round(self, line: dict[str, Any]) -> None:
        """Do nothing."""

    def stopping(self, round: int) -> None:
        """Do nothing."""

    def ended(self, round: int) -> None:
        """Do nothing."""
