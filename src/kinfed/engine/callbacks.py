"""How a run is looked at while it goes on."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Callback", "NoCallback"]


class Callback(Protocol):
    """Is told how one run goes on."""

    def started(self, done: int) -> None:
        """It starts, or goes on after ``done`` rounds."""

    def working(self, what: str, done: int, total: int) -> None:
        """In the present round, ``done`` of ``total`` clients are through with ``what``."""

    def round(self, line: dict[str, Any]) -> None:
        """A round is over: its line of metrics.jsonl."""

    def stopping(self, round: int) -> None:
        """It will stop after the present round, as somebody asked for."""


class NoCallback:
    """Nobody looks."""

    def started(self, done: int) -> None:
        """Nothing."""

    def working(self, what: str, done: int, total: int) -> None:
        """Nothing."""

    def round(self, line: dict[str, Any]) -> None:
        """Nothing."""

    def stopping(self, round: int) -> None:
        """Nothing."""
