"""Ctrl-C: the first one ends a run after its present round, the second at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["Interrupt"]


class Interrupt:
    """A context in which Ctrl-C is noted instead of raised, once. Elsewhere than in the main thread it does nothing."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Interrupt:
        self._here = threading.current_thread() is threading.main_thread()
        if self._here:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._here:
            signal.signal(signal.SIGINT, self._before or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
