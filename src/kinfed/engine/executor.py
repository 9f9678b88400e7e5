"""Executors, which run clients' tasks: in this process, in worker processes, or elsewhere.

All executors give the same bits. They work with kinfed's own settings (`kinfed.settings`), not those of the program.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from kinfed.engine.checks import bounded, not_finite, unsound
from kinfed.engine.client_store import ClientStates, ClientStore
from kinfed.engine.evaluator import Evaluator, GlobalTest, TestResult
from kinfed.engine.runtime import ClientRuntime
from kinfed.learning import NotFinite
from kinfed.methods import ClientId, Message
from kinfed.models import Tensors
from kinfed.streams import seeded_globals, torch_stream, without_draws

__all__ = ["Done", "Executor", "Failure", "SerialExecutor", "Task", "Test", "Tested"]

Test = Literal["own models", "primary model", "first training", "new client", "global representation"]


@dataclass(frozen=True)
class Task:
    """Task of one client in one round: local training or a test.

    Attributes:
        id: Number of the client.
        round: Number of the round.
        message: Message to the client; in all tests except ``own models`` and ``first training``, the tensors of a
            whole model.
        stored: Round in which the client's state was written; None if it has none.
        test: Kind of test, if the task is one. ``own models`` tests those that the client makes of a message, after the
            last round the primary one also in further ways; ``primary model`` tests a given one only in further ways.
        final: True for the tests after the last round of a run.
    """

    id: ClientId
    round: int
    message: Message
    stored: int | None = None
    test: Test = "own models"
    final: bool = False


@dataclass(frozen=True)
class Done:
    """Result of local training.

    Attributes:
        upload: Upload of the client.
        keeps: True if the client wrote a state in this round.
    """

    upload: Message
    keeps: bool


@dataclass(frozen=True)
class Failure:
    """Task that ended in an error.

    Attributes:
        reason: Reason in one line.
        details: Traceback, for authors of methods; empty if there is none.
    """

    reason: str
    details: str = field(default="", compare=False)

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Make a failure from an exception."""
        if isinstance(error, NotFinite):  # no bug, so no traceback
            return cls(str(error))
        return cls(bounded(f"{type(error).__name__}: {error}"), "".join(traceback.format_exception(error)))


@dataclass(frozen=True)
class Tested:
    """Results of the tests at a client.

    Attributes:
        results: Results of the tests that could be done.
        failures: Errors of further tests after the last round, by name of the test.
    """

    __test__ = False  # pytest collects classes named Test…

    results: Sequence[TestResult]
    failures: Mapping[str, Failure] = field(default_factory=dict)


class TaskRunner:
    """Runner of single tasks, in any thread of a process; an error in a task is returned as a `Failure`.

    Args:
        runtime: Runtime with method, data and models.
        client_states: Client states.
    """

    def __init__(self, runtime: ClientRuntime, client_states: ClientStates) -> None:
        self.runtime, self.client_states = runtime, client_states
        self.evaluator = Evaluator(runtime)

    def update(self, task: Task) -> Done | Failure:
        """Run local training at a client, and write the client's new state."""
        try:
            state = self.client_states.read(task.id, task.stored)
            with self._drawing("update", task.id, task.round):
                upload, kept = self.runtime.update(task.id, task.round, task.message, state)
            if reason := unsound(upload):
                return Failure(reason)
            if reason := unsound(kept) or not_finite(kept.tensors):
                return Failure(f"its new state: {reason}")
            return Done(upload, self.client_states.write(task.id, task.round, kept))
        except Exception as error:  # no error of one client may end the run of the others
            return Failure.of(error)

    def evaluate(self, task: Task) -> Tested | Failure:
        """Run the test of a task."""
        evaluator, tensors = self.evaluator, task.message.tensors
        if task.test == "primary model":
            return self._further(task, tensors)
        try:
            with self._drawing(task.test, task.id, task.round):
                if task.test == "new client":
                    return Tested(evaluator.evaluate_new_client(task.id, task.round, tensors))
                if task.test == "first training":
                    return Tested(evaluator.train_new_client(task.id, task.round, task.message))
                if task.test == "global representation":
                    return Tested(evaluator.evaluate_representation(task.round, tensors, final=task.final))
                state = self.client_states.read(task.id, task.stored)
                results = evaluator.evaluate(task.id, task.round, task.message, state, final=task.final)
        except Exception as error:
            return Failure.of(error)
        primary = next((found.tensors for found in results if found.name == self.runtime.method.primary), {})
        further = self._further(task, primary) if primary else Tested([])
        return Tested([*results, *further.results], further.failures)

    def _further(self, task: Task, primary: Tensors) -> Tested:
        """Test a client's primary model after the last round in further ways; an error in one stops no other.

        Args:
            task: Task of the client.
            primary: Tensors of the model.
        """
        evaluator, runtime = self.evaluator, self.runtime
        if task.id not in runtime.tested_further:
            return Tested([])
        due = {
            "own classes": (evaluator.test_own_classes, runtime.method.supervised),
            "re-fitting": (evaluator.refit, runtime.adapts),
            "fine-tuning": (evaluator.fine_tune, runtime.adapts and runtime.settings.fine_tuning is not None),
        }
        results: list[TestResult] = []
        failures: dict[str, Failure] = {}
        for name, (test, wanted) in due.items():
            if wanted:
                try:
                    with self._drawing(name, task.id, task.round):
                        results += test(task.id, task.round, primary)
                except Exception as error:
                    failures[name] = Failure.of(error)
        return Tested(results, failures)

    def test(self, tensors: Tensors, *, final: bool) -> GlobalTest | Failure:
        """Test the global model on the pooled test set, and on the clients' samples.

        Args:
            tensors: Tensors of the global model.
            final: True after the last round.
        """
        logits = self.logits(tensors)
        return logits if isinstance(logits, Failure) else self.evaluator.graded(logits, final=final)

    def logits(self, tensors: Tensors, rows: range | None = None) -> Tensor | Failure:
        """Compute the logits of the global model for n samples of `Federation.tested`, n×K.

        Args:
            tensors: Tensors of the global model.
            rows: Rows of the samples; None for all.
        """
        rows = range(len(self.runtime.federation.tested.samples)) if rows is None else rows
        try:
            with self._drawing("test", rows.start):
                return self.evaluator.logits(tensors, rows.start, rows.stop)
        except Exception as error:
            return Failure.of(error)

    def _drawing(self, *address: str | int) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that seeds the global generators from an address (see `kinfed.streams`).

        Only a user's own method or module may draw from them; for others it declares that nothing is drawn.
        """
        if not self.runtime.draws:
            return without_draws()
        return seeded_globals(torch_stream(self.runtime.settings.seed, *address), self.runtime.device)


class Executor(Protocol):
    """Executor of clients' tasks; results come in order of completion, and tasks are taken when they are needed.

    Any number of threads and processes may run the tasks. Each process has a `TaskRunner` on a runtime that it builds.
    Client states (`Task.stored`) are where the clients are, by default in files that all processes can read and write.
    """

    def client_states(self, run: Path) -> ClientStates:
        """Return the client states of a run in a folder: by default in files of this folder."""
        return ClientStore(run / "memories")

    def start(self, build: Callable[[], ClientRuntime], here: TaskRunner) -> None:
        """Prepare for a run; an executor can serve several runs, one after the other.

        Args:
            build: Importable function (or a `functools.partial` of one) that builds the run's runtime in another
                process.
            here: Runner of the run's tasks in this process.
        """

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Run local training at several clients, write their states, and yield the results."""

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Tested | Failure]]:
        """Run tests at several clients, and yield the results."""

    def test(self, tensors: Tensors, *, final: bool) -> GlobalTest | Failure:
        """Test the global model on the pooled test set, and on the clients' samples.

        Args:
            tensors: Tensors of the global model.
            final: True after the last round, when all measures are due.
        """

    def close(self) -> None:
        """Release all resources, even if tasks are still running."""


class SerialExecutor(Executor):
    """Executor that runs clients' tasks in this process, one after the other."""

    def start(self, build: Callable[[], ClientRuntime], here: TaskRunner) -> None:
        """Prepare for a run."""
        del build
        self._here = here

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Run local training at several clients, and yield the results."""
        return ((task.id, self._here.update(task)) for task in tasks)

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Tested | Failure]]:
        """Run tests at several clients, and yield the results."""
        return ((task.id, self._here.evaluate(task)) for task in tasks)

    def test(self, tensors: Tensors, *, final: bool) -> GlobalTest | Failure:
        """Test the global model on the pooled test set, and on the clients' samples."""
        return self._here.test(tensors, final=final)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""
