"""The signals that ask a run to end: the first one ends it after its present round, the second at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupt", "Stopped", "out_of_reach"]

# Ctrl-C, the usual request to end, and what a terminal sends when it closes.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(KeyboardInterrupt):
    """A signal ended a run; what it has saved stays.

    Attributes:
        exit_code: That a command ends with, as is customary.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Interrupt:
    """A context in which such a signal is noted instead of obeyed, once.

    It does nothing elsewhere than in the main thread, nor with a signal that the program ignores or handles itself.

    Attributes:
        asked: The signal that came; None before.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if (before := signal.getsignal(number)) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.asked is not None:
            raise Stopped(number)
        self.asked = number


@contextlib.contextmanager
def out_of_reach() -> Iterator[None]:
    """Start processes that these signals do not reach, so that this one alone answers them; they must end with it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a new process inherits it
    try:
        resource_tracker.ensure_running()  # where multiprocessing starts its own first, it lifts the block
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
