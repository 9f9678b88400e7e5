"""Where clients run: in this process, or in worker processes. The results are the same, bit for bit.

Both work with kinfed's own settings (`kinfed.settings`), whatever those of the program are.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from kinfed.engine.checks import bounded, not_finite, unsound
from kinfed.engine.memories import Memories
from kinfed.engine.runtime import TestResult, ClientRuntime
from kinfed.learning import NotFinite
from kinfed.methods import ClientId, Message
from kinfed.models import Tensors
from kinfed.streams import seeded_globals, torch_stream

__all__ = ["Done", "Failure", "SerialExecutor", "Executor", "Task", "Test"]

Test = Literal["own models", "fine-tuning", "new client", "global representation"]


@dataclass(frozen=True)
class Task:
    """One client's work in one round.

    Attributes:
        id: Whose.
        round: Of the run.
        message: What it received; in the tests but the first a whole model.
        kept: The round of which its memory is; None if it has none.
        test: What is tested, where the work is a test.
    """

    id: ClientId
    round: int
    message: Message
    kept: int | None = None
    test: Test = "own models"


@dataclass(frozen=True)
class Done:
    """A client's work ended well.

    Attributes:
        upload: What it sends.
        keeps: Whether it wrote a memory of this round.
    """

    upload: Message
    keeps: bool


@dataclass(frozen=True)
class Failure:
    """A client's work ended in an error.

    Attributes:
        reason: One line.
        details: The traceback, for people who write methods; empty if there is none.
    """

    reason: str
    details: str = field(default="", compare=False)

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What an exception says."""
        if isinstance(error, NotFinite):  # is no error of the code
            return cls(str(error))
        return cls(bounded(f"{type(error).__name__}: {error}"), "".join(traceback.format_exception(error)))


class Executor(Protocol):
    """Does clients' work. Answers come in whichever order they are ready; tasks are drawn as they are needed."""

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Local work of several clients; what they keep is written to their memories."""

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, dict[str, TestResult] | Failure]]:
        """Tests of models at several clients."""

    def test(self, tensors: Tensors) -> Tensor | Failure:
        """Which samples of the pooled test set the one global model gets right, bool."""


@dataclass(frozen=True)
class SerialExecutor:
    """In this process, one client after the other; a worker process does its tasks likewise.

    Attributes:
        runtime: Method, data and models.
        memories: Where what clients keep is kept.
    """

    runtime: ClientRuntime
    memories: Memories

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Local work of several clients."""
        return ((task.id, self.update_one(task)) for task in tasks)

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, dict[str, TestResult] | Failure]]:
        """Tests of models at several clients."""
        return ((task.id, self.evaluate_one(task)) for task in tasks)

    def test(self, tensors: Tensors) -> Tensor | Failure:
        """The global model on the pooled test set."""
        return self.test_rows(tensors, 0, len(self.runtime.federation.tested[0]))

    def _drawing(self, *address: str | int) -> contextlib.AbstractContextManager[None]:
        """What a user's module draws from global generators, it draws from a stream of its own."""
        return seeded_globals(torch_stream(self.runtime.settings.seed, *address), self.runtime.device)

    # One client's fault must not end the others' run, whatever it is.

    def update_one(self, task: Task) -> Done | Failure:
        """Local work of one client."""
        try:
            memory = self.memories.read(task.id, task.kept)
            with self._drawing("update", task.id, task.round):
                upload, kept = self.runtime.update(task.id, task.round, task.message, memory)
            if reason := unsound(upload):
                return Failure(reason)
            if reason := unsound(kept) or not_finite(kept.tensors):
                return Failure(f"what it keeps: {reason}")
            return Done(upload, self.memories.write(task.id, task.round, kept))
        except Exception as error:
            return Failure.of(error)

    def evaluate_one(self, task: Task) -> dict[str, TestResult] | Failure:
        """Tests of models at one client."""
        try:
            with self._drawing(task.test, task.id, task.round):
                if task.test == "fine-tuning":
                    return self.runtime.fine_tune(task.id, task.round, task.message.tensors)
                if task.test == "new client":
                    return self.runtime.evaluate_new_client(task.id, task.round, task.message.tensors)
                if task.test == "global representation":
                    return self.runtime.evaluate_representation(task.round, task.message.tensors)
                memory = self.memories.read(task.id, task.kept)
                return self.runtime.evaluate(task.id, task.round, task.message, memory)
        except Exception as error:
            return Failure.of(error)

    def test_rows(self, tensors: Tensors, start: int, stop: int) -> Tensor | Failure:
        """The global model on some rows of the pooled test set."""
        try:
            with self._drawing("test", start):
                return self.runtime.test(tensors, start, stop)
        except Exception as error:
            return Failure.of(error)
