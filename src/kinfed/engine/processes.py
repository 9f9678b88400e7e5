"""Clients in worker processes, each with a pipe of its own, so that one which hangs or is killed stops nobody else.

Through the pipes go names and numbers; tensors lie in safetensors files in shared memory. (A pool whose workers share
a queue and its lock can be broken by one kill, which is why none is used here.) Workers do not run the program's main
module, so that it does not matter whether that is a script without a guard, a notebook or standard input.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import torch
from torch import Tensor

from kinfed.engine.client_store import ClientStore
from kinfed.engine.evaluator import TestResult
from kinfed.engine.exchange import Exchange, Parcel, clear, post, take
from kinfed.engine.executor import Done, Failure, Task, TaskRunner, Test
from kinfed.engine.interrupt import out_of_reach
from kinfed.engine.malloc import keep_freed_memory
from kinfed.engine.runtime import ClientRuntime
from kinfed.learning.frozen import CHUNK
from kinfed.methods import ClientId, Message
from kinfed.models import Tensors
from kinfed.settings import own_settings

__all__ = ["ProcessExecutor", "WorkersFailed"]

CORRECT = "correct"
NO_SETUP = -1  # the number that a worker gives when it has just started


class WorkersFailed(RuntimeError):
    """Worker processes cannot do any client's work."""


@dataclass(frozen=True)
class _Job:
    """What a worker is asked to do, with the message in a parcel; for the rest see `Task`."""

    kind: Literal["update", "evaluate", "test"]
    parcel: Parcel
    id: ClientId = 0
    round: int = 0
    kept: int | None = None
    test: Test = "own models"
    rows: range = range(0)


@dataclass(frozen=True)
class _Setup:
    """Which runtime a worker is to work in from now on, and the pickled function that builds it."""

    number: int
    build: bytes
    memories: ClientStore


@dataclass(frozen=True)
class _Ready:
    """A worker has started, or is set up, or cannot be."""

    number: int
    failure: Failure | None = None


class ProcessExecutor:
    """``count`` worker processes; they take seconds to start, and then serve as many runs as one likes.

    Args:
        count: Processes, ≥ 1.
        timeout: Seconds after which a client's work counts as failed and its process is replaced; None waits for ever.

    Raises:
        WorkersFailed: If processes cannot be started here.
    """

    def __init__(self, count: int, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._exchange = Exchange()
        self._setup: _Setup | None = None
        self._workers: list[_Worker] = []
        try:
            for _ in range(count):
                self._workers.append(self._started())
            for worker in self._workers:
                worker.wait_until_started()
        except BaseException:
            self.close()
            raise

    def start(self, build: Callable[[], ClientRuntime], here: TaskRunner) -> None:
        """Work on this run from now on; each worker process builds its runtime once more."""
        self._here = here
        self._setup = _Setup(self._setup.number + 1 if self._setup else 0, cloudpickle.dumps(build), here.memories)
        for at, worker in enumerate(self._workers):
            if worker.job is None:
                worker.set_up(self._setup)
            else:  # of a run that ended amid a round
                worker.let_go()
                worker.join()
                self._workers[at] = self._started()

    def _started(self) -> _Worker:
        worker = _Worker(self._exchange.folder)
        if self._setup is not None:
            worker.set_up(self._setup)
        return worker

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Local work of several clients."""
        for job, answer in self._answers(self._job("update", task) for task in tasks):
            if isinstance(answer, Failure):
                yield job.id, answer
            else:
                parcel, keeps = answer
                yield job.id, Done(take(parcel), keeps)

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, list[TestResult] | Failure]]:
        """Tests of models at several clients."""
        for job, answer in self._answers(self._job("evaluate", task) for task in tasks):
            yield job.id, answer if isinstance(answer, Failure) else _unpacked(*answer)

    def test(self, tensors: Tensors) -> Tensor | Failure:
        """The global model on the pooled test set, which the workers share in whole chunks."""
        size = len(self._here.runtime.federation.tested[0])
        share = max(math.ceil(size / CHUNK / len(self._workers)), 1) * CHUNK
        chunks = [range(start, min(start + share, size)) for start in range(0, max(size, 1), share)]
        jobs = (_Job("test", self._exchange.post(Message(tensors)), rows=rows) for rows in chunks)
        correct: dict[range, Tensor | Failure] = {}
        for job, answer in self._answers(jobs):
            # A worker that was lost takes no part of the test with it.
            lost = isinstance(answer, Failure)
            correct[job.rows] = self._here.test(tensors, job.rows) if lost else take(answer).tensors[CORRECT]
        failure = next((part for part in correct.values() if isinstance(part, Failure)), None)
        return failure or torch.cat([correct[rows] for rows in chunks])  # type: ignore[misc]

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for worker in self._workers:
            worker.let_go()
        for worker in self._workers:
            worker.join()
        self._exchange.close()

    def _job(self, kind: Literal["update", "evaluate"], task: Task) -> _Job:
        return _Job(kind, self._exchange.post(task.message), task.id, task.round, task.kept, task.test)

    def _answers(self, jobs: Iterator[_Job]) -> Iterator[tuple[_Job, Any]]:
        """Give every free process a job, and what comes back as it comes."""
        while True:
            for at, worker in enumerate(self._workers):
                if worker.job is None and (job := next(jobs, None)) is not None:
                    if not worker.alive:  # killed while it had nothing to do: no client's fault
                        self._workers[at] = worker = self._started()  # noqa: PLW2901
                    worker.give(job, self._timeout)
            busy = [worker for worker in self._workers if worker.job is not None]
            if not busy:
                return
            answers = []
            for worker in self._heard(busy):
                job, answer = worker.job, worker.take()
                if answer is None or job is None:
                    continue
                if worker.lost:
                    self._workers[self._workers.index(worker)] = self._started()
                elif (following := next(jobs, None)) is not None:  # it need not wait until its answer is looked at
                    worker.give(following, self._timeout)
                self._exchange.delivered(job.parcel)
                answers.append((job, answer))
            yield from answers

    @staticmethod
    def _heard(busy: list[_Worker]) -> list[_Worker]:
        """Those that have answered, died, or taken too long; waits until there is one."""
        now = time.monotonic()
        patience = min((worker.deadline - now for worker in busy if worker.deadline is not None), default=None)
        heard = wait([worker.pipe for worker in busy], None if patience is None else max(patience, 0))
        return [worker for worker in busy if worker.pipe in heard or worker.overdue]


class _Worker:
    """One process, and the job that it is at."""

    def __init__(self, exchange: Path) -> None:
        context: SpawnContext = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, exchange), daemon=True)
        try:
            with _without_main(), out_of_reach():
                self._process.start()
        except (OSError, RuntimeError, AssertionError) as error:  # the latter in a process that may have no children
            raise WorkersFailed(f"a worker process cannot be started: {Failure.of(error).reason}") from error
        finally:
            theirs.close()
        self.job: _Job | None = None
        self.deadline: float | None = None  # of time.monotonic()
        self.lost = False
        self._ready = False
        self._setup: _Setup | None = None
        self._timeout: float | None = None

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.is_alive()

    @property
    def overdue(self) -> bool:
        """Whether it should have answered by now."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def wait_until_started(self) -> None:
        """Wait for its first sign of life.

        Raises:
            WorkersFailed: If there is none.
        """
        try:
            self.pipe.recv()
        except (EOFError, OSError):
            raise WorkersFailed(f"a worker process cannot be started: it {self._end()}") from None

    def set_up(self, setup: _Setup) -> None:
        """Let it build another runtime."""
        self._setup, self._ready = setup, False
        with contextlib.suppress(OSError):  # it has died, and will be replaced
            self.pipe.send(setup)

    def give(self, job: _Job, timeout: float | None) -> None:
        """Let it begin."""
        self.job, self._timeout = job, timeout
        self._set_deadline()
        with contextlib.suppress(OSError):  # it has died; `take` will tell
            self.pipe.send(job)

    def take(self) -> Any:
        """Its answer; a `Failure` if it is lost; None if it was only getting ready.

        Raises:
            WorkersFailed: If it cannot get ready, which is no client's fault.
        """
        if not self.pipe.poll():
            self.job, self.lost = None, True
            self._process.kill()
            return Failure(f"no answer within {self._timeout:g} s")
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            if not self._ready:
                raise WorkersFailed(f"a worker process {self._end()} before it was ready") from None
            self.job, self.lost = None, True
            return Failure(f"its worker process {self._end()}")
        if isinstance(answer, _Ready):
            self._be_ready(answer)
            return None
        self.job = self.deadline = None
        return answer

    def _end(self) -> str:
        """How it ended."""
        self._process.join()
        code = self._process.exitcode or 0
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _be_ready(self, told: _Ready) -> None:
        if self._setup is None or told.number != self._setup.number:
            return  # it has started, or was set up for an earlier run, in which it had nothing to do
        if told.failure is not None:
            raise WorkersFailed(f"a worker process cannot start: {told.failure.reason}")
        self._ready = True
        self._set_deadline()

    def _set_deadline(self) -> None:
        """The time that a process takes to start does not count."""
        if self._ready and self._timeout is not None and self.job is not None:
            self.deadline = time.monotonic() + self._timeout

    def let_go(self) -> None:
        """Stop the process, at once if it is at work; else it ends when it reads the end of the pipe."""
        if self.job is not None:
            self._process.kill()
        self.pipe.close()

    def join(self) -> None:
        """Wait until it has gone."""
        self._process.join(5)
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Start processes that do not run the program's main module again; it may be what is starting them."""
    main, method = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if method is None:  # a first start settles the method, which is for the program to do
            multiprocessing.set_start_method(None, force=True)


@functools.lru_cache(maxsize=1)
def _tensors(path: str) -> Tensors:
    """Those of a message to a worker; several clients in a row may get the same."""
    return take(Parcel(path, {})).tensors


_Words = list[tuple[str, str, ClientId | None]]  # of each result: name, fault and client


def _unpacked(parcel: Parcel, words: _Words) -> list[TestResult]:
    """Results as they were `_packed`."""
    of_results: list[Tensors] = [{} for _ in words]
    for path, tensor in take(parcel).tensors.items():
        at, _, name = path.partition("/")
        of_results[int(at)][name] = tensor
    return [
        TestResult(name, own.pop(CORRECT), own, fault, client)
        for (name, fault, client), own in zip(words, of_results, strict=True)
    ]


def _packed(results: list[TestResult], path: Path) -> tuple[Parcel, _Words]:
    """The tensors of results in a parcel, and the rest of them."""
    tensors = {f"{at}/{name}": t for at, result in enumerate(results) for name, t in result.tensors.items()}
    correct = {f"{at}/{CORRECT}": result.correct for at, result in enumerate(results)}
    words = [(result.name, result.fault, result.client) for result in results]
    return post(Message(tensors | correct), path), words


# -- in a worker process ----------------------------------------------------------------------------------------------


@own_settings()
def _serve(pipe: Connection[Any, Any], exchange: Path) -> None:
    """Do jobs until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers it, also where it could not be kept away
    threading.Thread(target=_end_with_parent, args=(exchange,), daemon=True).start()
    keep_freed_memory()
    here: TaskRunner | None = None
    with contextlib.suppress(EOFError, OSError):  # the parent needs nobody any more, or is gone
        pipe.send(_Ready(NO_SETUP))
        for number in itertools.count():
            asked = pipe.recv()
            if isinstance(asked, _Setup):
                here = None  # before the next one takes memory
                try:
                    here = TaskRunner(pickle.loads(asked.build)(), asked.memories)
                    pipe.send(_Ready(asked.number))
                except Exception as error:
                    pipe.send(_Ready(asked.number, Failure.of(error)))
            elif here is not None:
                # The parent may still read the last answer, but not the one before.
                pipe.send(_do(here, asked, exchange / f"up-{os.getpid()}-{number % 2}"))
    clear(exchange)


def _end_with_parent(exchange: Path) -> None:
    """A worker at work whose parent was killed must neither go on nor leave messages in shared memory."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    clear(exchange)
    os._exit(1)


def _do(here: TaskRunner, job: _Job, answer: Path) -> Any:
    try:
        message = Message(_tensors(job.parcel.path), job.parcel.numbers)
        if job.kind == "test":
            correct = here.test(message.tensors, job.rows)
            return correct if isinstance(correct, Failure) else post(Message({CORRECT: correct}), answer)
        task = Task(job.id, job.round, message, job.kept, job.test)
        if job.kind == "evaluate":
            results = here.evaluate(task)
            return results if isinstance(results, Failure) else _packed(results, answer)
        done = here.update(task)
        return done if isinstance(done, Failure) else (post(done.upload, answer), done.keeps)
    except Exception as error:  # a message that cannot be read or written
        return Failure.of(error)
