"""The executor that does clients' work: in this process, in worker processes, or wherever one is written for.

The results are the same, bit for bit. All work with kinfed's own settings (`kinfed.settings`), whatever those of the
program are.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

from kinfed.engine.checks import bounded, not_finite, unsound
from kinfed.engine.client_store import ClientStore
from kinfed.engine.evaluator import Evaluator, TestResult
from kinfed.engine.runtime import ClientRuntime
from kinfed.learning import NotFinite
from kinfed.methods import ClientId, Message
from kinfed.models import Tensors
from kinfed.streams import seeded_globals, torch_stream, without_draws

__all__ = ["Done", "Executor", "Failure", "SerialExecutor", "Task", "Test"]

Test = Literal["own models", "fine-tuning", "new client", "global representation"]


@dataclass(frozen=True)
class Task:
    """One client's work in one round.

    Attributes:
        id: The client.
        round: Round of the run.
        message: Message that the client received; in the tests but the first a whole model.
        kept: Round in which the client's memory was written; None if it has none.
        test: Kind of test, where the work is one.
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
        upload: Message that the client sends.
        keeps: The client wrote a memory of this round.
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
        """The failure that an exception tells of."""
        if isinstance(error, NotFinite):  # is no error of the code
            return cls(str(error))
        return cls(bounded(f"{type(error).__name__}: {error}"), "".join(traceback.format_exception(error)))


class TaskRunner:
    """Does single tasks, whichever thread of whichever process it is called in; an error in one is its answer.

    Args:
        runtime: Method, data and models.
        memories: Files of what clients keep.
    """

    def __init__(self, runtime: ClientRuntime, memories: ClientStore) -> None:
        self.runtime, self.memories = runtime, memories
        self.evaluator = Evaluator(runtime)

    def update(self, task: Task) -> Done | Failure:
        """Do a client's local work; what it keeps is written to its memory."""
        try:
            memory = self.memories.read(task.id, task.kept)
            with self._drawing("update", task.id, task.round):
                upload, kept = self.runtime.update(task.id, task.round, task.message, memory)
            if reason := unsound(upload):
                return Failure(reason)
            if reason := unsound(kept) or not_finite(kept.tensors):
                return Failure(f"what it keeps: {reason}")
            return Done(upload, self.memories.write(task.id, task.round, kept))
        except Exception as error:  # one client's fault must not end the others' run, whatever it is
            return Failure.of(error)

    def evaluate(self, task: Task) -> list[TestResult] | Failure:
        """Test models at a client."""
        evaluator, tensors = self.evaluator, task.message.tensors
        try:
            with self._drawing(task.test, task.id, task.round):
                if task.test == "fine-tuning":
                    return evaluator.fine_tune(task.id, task.round, tensors)
                if task.test == "new client":
                    return evaluator.evaluate_new_client(task.id, task.round, tensors)
                if task.test == "global representation":
                    return evaluator.evaluate_representation(task.round, tensors)
                memory = self.memories.read(task.id, task.kept)
                return evaluator.evaluate(task.id, task.round, task.message, memory)
        except Exception as error:
            return Failure.of(error)

    def test(self, tensors: Tensors, rows: range | None = None) -> Tensor | Failure:
        """Which samples of the pooled test set, or of some rows of it, the one global model gets right, bool."""
        rows = range(len(self.runtime.federation.tested[0])) if rows is None else rows
        try:
            with self._drawing("test", rows.start):
                return self.evaluator.test(tensors, rows.start, rows.stop)
        except Exception as error:
            return Failure.of(error)

    def _drawing(self, *address: str | int) -> contextlib.AbstractContextManager[None]:
        """A block in which a user's method or module that draws from global generators draws from its own stream."""
        if not self.runtime.draws:
            return without_draws()
        return seeded_globals(torch_stream(self.runtime.settings.seed, *address), self.runtime.device)


class Executor(Protocol):
    """Does clients' work. Answers come in whichever order they are ready; tasks are drawn as they are needed.

    Tasks may be done by any number of threads and processes, which need a `TaskRunner` each, or one a process: of a
    runtime that they build. What clients keep (`Task.kept`) lies in files that all of them must reach.
    """

    def start(self, build: Callable[[], ClientRuntime], here: TaskRunner) -> None:
        """Work on this run from now on; an executor serves one run after the other.

        Args:
            build: Importable function (or a `functools.partial` of one) that builds the run's runtime elsewhere.
            here: Runner of the run's tasks in this process.
        """

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Local work of several clients; what they keep is written to their memories."""

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, list[TestResult] | Failure]]:
        """Tests of models at several clients."""

    def test(self, tensors: Tensors) -> Tensor | Failure:
        """Which samples of the pooled test set the one global model gets right, bool."""

    def close(self) -> None:
        """Let go of whatever does the work, whatever it is at."""


class SerialExecutor:
    """Does clients' work in this process, one client after the other."""

    def start(self, build: Callable[[], ClientRuntime], here: TaskRunner) -> None:
        """Work on this run from now on."""
        del build
        self._here = here

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Local work of several clients."""
        return ((task.id, self._here.update(task)) for task in tasks)

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, list[TestResult] | Failure]]:
        """Tests of models at several clients."""
        return ((task.id, self._here.evaluate(task)) for task in tasks)

    def test(self, tensors: Tensors) -> Tensor | Failure:
        """The global model on the pooled test set."""
        return self._here.test(tensors)

    def close(self) -> None:
        """Nothing is held."""
