"""Executor with worker processes; each has a pipe of its own, so that one that hangs or is killed stops no other.

The pipes carry names and numbers; tensors are in safetensors files in shared memory. (Process pools are not used, since
their workers share a queue and its lock, which one kill can break.) Workers do not run the program's main module, so
it may be a script without a guard, a notebook or standard input. On Linux they are forks of a server that has imported
this module (`kinfed.fork_server`).
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
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from kinfed import fork_server
from kinfed.engine.client_store import ClientStates
from kinfed.engine.evaluator import GlobalTest
from kinfed.engine.exchange import Exchange, Parcel, clear, post, take
from kinfed.engine.executor import Done, Executor, Failure, Task, TaskRunner, Test, Tested
from kinfed.engine.malloc import keep_freed_memory
from kinfed.engine.runtime import ClientRuntime
from kinfed.errors import WorkersFailed
from kinfed.learning.frozen import CHUNK
from kinfed.methods import ClientId, Message
from kinfed.models import Tensors
from kinfed.settings import own_settings

__all__ = ["TRIES", "ProcessExecutor", "packed", "parts_of_test", "set_up", "unpacked"]

LOGITS = "logits"
TRIES = 3  # workers that may be lost with a client's work before the client is refused
NO_SETUP = -1  # number of the setup in the message of a worker that has just started


def parts_of_test(here: TaskRunner, count: int) -> list[range]:
    """Divide the rows of the global test among so many workers, in whole chunks of those that are tested at once."""
    size = len(here.runtime.federation.tested.samples)
    share = max(math.ceil(size / CHUNK / count), 1) * CHUNK
    return [range(start, min(start + share, size)) for start in range(0, max(size, 1), share)]


@dataclass(frozen=True)
class _Job:
    """Job of a worker: a `Task` with its message in a parcel, or a test of the global model on some rows."""

    kind: Literal["update", "evaluate", "test"]
    parcel: Parcel
    id: ClientId = 0
    round: int = 0
    stored: int | None = None
    test: Test = "own models"
    final: bool = False
    rows: range = range(0)
    lost: int = 0  # workers that were lost with it


@dataclass(frozen=True)
class _Setup:
    """Setup of a worker for a run.

    Attributes:
        number: Number of the setup.
        build: Pickled function that builds the runtime.
        client_states: Client states.
    """

    number: int
    build: bytes
    client_states: ClientStates


@dataclass(frozen=True)
class _Ready:
    """Message of a worker that it has started, is set up, or cannot be set up."""

    number: int
    failure: Failure | None = None


@dataclass(frozen=True)
class _Lost(Failure):
    """Failure of a job whose process has ended: it may have been killed from outside.

    Attributes:
        end: End of the process, in words.
        ready: False if the process had not yet begun with the job.
    """

    end: str = ""
    ready: bool = True

    @classmethod
    def at(cls, end: str, *, ready: bool) -> _Lost:
        """Make the failure of a job with which the last of three processes has ended."""
        return cls(f"{TRIES} worker processes were lost with its work; the last one {end}", end=end, ready=ready)


class ProcessExecutor(Executor):
    """Executor with worker processes, which take seconds to start and can then serve any number of runs.

    What a process was doing when it was killed, another one does again. A client is refused only after three processes
    have ended with its work.

    Args:
        count: Number of processes, ≥ 1.
        timeout: Seconds after which a client's task counts as failed and its process is replaced; None for no limit.

    Raises:
        WorkersFailed: If the processes cannot be started.
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
        """Prepare for a run; each worker process builds its own runtime."""
        self._here = here
        self._setup = _Setup(self._setup.number + 1 if self._setup else 0, cloudpickle.dumps(build), here.client_states)
        for at, worker in enumerate(self._workers):
            if worker.job is None:
                worker.set_up(self._setup)
            else:  # busy with a run that ended in the middle of a round
                worker.let_go()
                worker.join()
                self._workers[at] = self._started()

    def _started(self) -> _Worker:
        worker = _Worker(self._exchange.folder)
        if self._setup is not None:
            worker.set_up(self._setup)
        return worker

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Run local training at several clients, and yield the results."""
        for job, answer in self._answers(self._job("update", task) for task in tasks):
            if isinstance(answer, Failure):
                yield job.id, answer
            else:
                parcel, keeps = answer
                yield job.id, Done(take(parcel), keeps)

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Tested | Failure]]:
        """Run tests at several clients, and yield the results."""
        for job, answer in self._answers(self._job("evaluate", task) for task in tasks):
            yield job.id, answer if isinstance(answer, Failure) else unpacked(take(answer[0]).tensors, answer[1])

    def test(self, tensors: Tensors, *, final: bool) -> GlobalTest | Failure:
        """Test the global model on the pooled test set, and on the clients' samples; each worker tests a part."""
        chunks = parts_of_test(self._here, len(self._workers))
        jobs = (_Job("test", self._exchange.post(Message(tensors)), rows=rows) for rows in chunks)
        logits: dict[range, Tensor | Failure] = {}
        for job, answer in self._answers(jobs):
            # If a worker is lost, this process does its part.
            lost = isinstance(answer, Failure)
            logits[job.rows] = self._here.logits(tensors, job.rows) if lost else take(answer).tensors[LOGITS]
        if failure := next((part for part in logits.values() if isinstance(part, Failure)), None):
            return failure
        together = torch.cat([logits[rows] for rows in chunks])  # type: ignore[misc]
        return self._here.evaluator.graded(together, final=final)

    def close(self) -> None:
        """End the processes, even if they are busy, and remove the exchange folder."""
        for worker in self._workers:
            worker.let_go()
        for worker in self._workers:
            worker.join()
        self._exchange.close()

    def _job(self, kind: Literal["update", "evaluate"], task: Task) -> _Job:
        return _Job(kind, self._exchange.post(task.message), task.id, task.round, task.stored, task.test, task.final)

    def _answers(self, jobs: Iterator[_Job]) -> Iterator[tuple[_Job, Any]]:
        """Give a job to every free process, and yield jobs and answers in order of completion.

        The job of a lost process is given again: what it computes depends on nothing but the job.
        """
        again: list[_Job] = []

        def following() -> _Job | None:
            return again.pop() if again else next(jobs, None)

        while True:
            for at, worker in enumerate(self._workers):
                if worker.job is None and (job := following()) is not None:
                    if not worker.alive:  # killed while idle: no client's fault
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
                    if isinstance(answer, _Lost):
                        if job.lost + 1 < TRIES:
                            again.append(replace(job, lost=job.lost + 1))
                            continue
                        if not answer.ready:
                            raise WorkersFailed(f"a worker process {answer.end} before it was ready")
                elif (further := following()) is not None:  # works while its answer is read
                    worker.give(further, self._timeout)
                self._exchange.delivered(job.parcel)
                answers.append((job, answer))
            yield from answers

    @staticmethod
    def _heard(busy: list[_Worker]) -> list[_Worker]:
        """Wait until a worker has answered, died or exceeded its deadline, and return all such workers."""
        now = time.monotonic()
        patience = min((worker.deadline - now for worker in busy if worker.deadline is not None), default=None)
        heard = wait([worker.pipe for worker in busy], None if patience is None else max(patience, 0))
        return [worker for worker in busy if worker.pipe in heard or worker.overdue]


class _Worker:
    """Worker process with its present job."""

    def __init__(self, exchange: Path) -> None:
        context: Any = multiprocessing.get_context(fork_server.START)
        self.pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, exchange, dict(os.environ)), daemon=True
        )
        try:
            with fork_server.own_server():
                self._process.start()
        except (OSError, EOFError, RuntimeError, AssertionError) as error:  # AssertionError: a daemonic process
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
        """True if the process is running."""
        return self._process.is_alive()

    @property
    def overdue(self) -> bool:
        """True if the process has exceeded its deadline."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def wait_until_started(self) -> None:
        """Wait until the process has started.

        Raises:
            WorkersFailed: If it ends before.
        """
        try:
            self.pipe.recv()
        except (EOFError, OSError):
            raise WorkersFailed(f"a worker process cannot be started: it {self._end()}") from None

    def set_up(self, setup: _Setup) -> None:
        """Send the process the setup of another run."""
        self._setup, self._ready = setup, False
        with contextlib.suppress(OSError):  # it has died, and will be replaced
            self.pipe.send(setup)

    def give(self, job: _Job, timeout: float | None) -> None:
        """Send the process a job.

        Args:
            job: Job to do.
            timeout: Seconds after which the process is overdue; None for no limit.
        """
        self.job, self._timeout = job, timeout
        self._set_deadline()
        with contextlib.suppress(OSError):  # it has died; `take` will tell
            self.pipe.send(job)

    def take(self) -> Any:
        """Receive the answer of the process; a `Failure` if the process is lost; None if it only reports its setup.

        Raises:
            WorkersFailed: If the process cannot be set up.
        """
        if not self.pipe.poll():
            self.job, self.lost = None, True
            self._process.kill()
            return Failure(f"no answer within {self._timeout:g} s")
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.job, self.lost = None, True
            return _Lost.at(self._end(), ready=self._ready)
        if isinstance(answer, _Ready):
            self._be_ready(answer)
            return None
        self.job = self.deadline = None
        return answer

    def _end(self) -> str:
        """Describe the end of the process."""
        self._process.join()
        code = self._process.exitcode or 0
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _be_ready(self, told: _Ready) -> None:
        if self._setup is None or told.number != self._setup.number:
            return  # it has just started, or was set up for an earlier run without a job for it
        if told.failure is not None:
            raise WorkersFailed(f"a worker process cannot start: {told.failure.reason}")
        self._ready = True
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Set the deadline of the job; the time that the process takes to start does not count."""
        if self._ready and self._timeout is not None and self.job is not None:
            self.deadline = time.monotonic() + self._timeout

    def let_go(self) -> None:
        """Stop the process: kill it if it is busy; otherwise close the pipe, at whose end it exits."""
        if self.job is not None:
            self._process.kill()
        self.pipe.close()

    def join(self) -> None:
        """Wait until the process has ended; kill it after 5 seconds."""
        self._process.join(5)
        self._process.kill()
        self._process.join()


@functools.lru_cache(maxsize=1)
def _tensors(path: str) -> Tensors:
    """Read the tensors of a message to a worker; cached, since consecutive clients may get the same message."""
    return take(Parcel(path, {})).tensors


def unpacked(tensors: Tensors, tested: Tested) -> Tested:
    """Restore the results that `packed` has packed."""
    of_results: list[Tensors] = [{} for _ in tested.results]
    for path, tensor in tensors.items():
        at, _, name = path.partition("/")
        of_results[int(at)][name] = tensor
    results = [replace(result, tensors=own) for result, own in zip(tested.results, of_results, strict=True)]
    return replace(tested, results=results)


def packed(tested: Tested) -> tuple[Tensors, Tested]:
    """Pack results: their tensors together, and the results without them."""
    tensors = {f"{at}/{name}": t for at, result in enumerate(tested.results) for name, t in result.tensors.items()}
    without = [replace(result, tensors={}) for result in tested.results]
    return tensors, replace(tested, results=without)


# -- in a worker process ----------------------------------------------------------------------------------------------


@own_settings()
def _serve(pipe: Connection[Any, Any], exchange: Path, environment: Mapping[str, str]) -> None:
    """Do jobs until the pipe is closed.

    Args:
        pipe: Pipe to the parent.
        exchange: Exchange folder.
        environment: Environment of the parent; that of the fork server may be older.
    """
    os.environ.clear()
    os.environ.update(environment)
    np.random.seed()  # noqa: NPY002  # otherwise all forks draw the same numbers, if a user's code draws from it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it; not every system can block it at the start
    threading.Thread(target=_end_with_parent, args=(exchange,), daemon=True).start()
    keep_freed_memory()
    here: TaskRunner | None = None
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe or ended
        pipe.send(_Ready(NO_SETUP))
        for number in itertools.count():
            asked = pipe.recv()
            if isinstance(asked, _Setup):
                here = None  # frees its memory before the next one is built
                try:
                    here = set_up(asked.build, asked.client_states)
                    pipe.send(_Ready(asked.number))
                except Exception as error:
                    pipe.send(_Ready(asked.number, Failure.of(error)))
            elif here is not None:
                # Two files in turn: the parent may still be reading the previous answer.
                pipe.send(_do(here, asked, exchange / f"up-{os.getpid()}-{number % 2}"))
    clear(exchange)


def set_up(build: bytes, client_states: ClientStates) -> TaskRunner:
    """Make the runner of a worker from the pickled function that builds its runtime."""
    here = TaskRunner(pickle.loads(build)(), client_states)
    if here.runtime.settings.training.optimizer != "sgd":  # imports for seconds: not in a client's time
        torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    return here


def _end_with_parent(exchange: Path) -> None:
    """End this worker when its parent ends, and remove the exchange folder, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    clear(exchange)
    os._exit(1)


def _do(here: TaskRunner, job: _Job, answer: Path) -> Any:
    try:
        message = Message(_tensors(job.parcel.path), job.parcel.numbers)
        if job.kind == "test":
            logits = here.logits(message.tensors, job.rows)
            return logits if isinstance(logits, Failure) else post(Message({LOGITS: logits}), answer)
        task = Task(job.id, job.round, message, job.stored, job.test, job.final)
        if job.kind == "evaluate":
            tested = here.evaluate(task)
            if isinstance(tested, Failure):
                return tested
            tensors, without = packed(tested)
            return post(Message(tensors), answer), without
        done = here.update(task)
        return done if isinstance(done, Failure) else (post(done.upload, answer), done.keeps)
    except Exception as error:  # a message that cannot be read or written
        return Failure.of(error)
