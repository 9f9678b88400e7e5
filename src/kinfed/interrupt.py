"""Handling of the signals that end a run: the first one after the present round, the second one at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupt", "Stopped", "held_back", "kept_handlers", "out_of_reach"]

# Sent by Ctrl-C, by `kill`, and by a terminal that closes.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(KeyboardInterrupt):
    """Run ended by a signal; its saved files stay.

    >>> Stopped(signal.SIGINT).exit_code
    130

    Attributes:
        exit_code: Exit code of the command, 128 plus the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class Interrupt:
    """Context manager in whose block the first signal is only recorded; the second one raises `Stopped`.

    It has no effect outside the main thread, or on a signal that the program ignores or handles itself.

    Attributes:
        asked: Number of the first signal; None before it.
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
def kept_handlers() -> Iterator[None]:
    """Context manager that restores the handlers of these signals, which some libraries replace by their own."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Context manager in whose block these signals wait, for what cannot be interrupted; they arrive at its end.

    One that would then end the process at once raises `Stopped` instead, so that files are cleared away. In a program
    with several threads they may still arrive at another one.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number in signal.sigpending() & {*SIGNALS} - before:
                if signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, _stop_once)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop_once(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    raise Stopped(number)


@contextlib.contextmanager
def out_of_reach() -> Iterator[None]:
    """Context manager for starting processes that block these signals, so that only this process handles them.

    Such processes must end with this one.
    """
    with held_back():  # a new process inherits it
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # multiprocessing unblocks signals when it starts it
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        yield
