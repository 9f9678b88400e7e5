"""Clients in worker processes, each with a pipe of its own, so that one which hangs or is killed stops nobody else.

Through the pipes go names and numbers; tensors lie in safetensors files in shared memory. (A pool whose workers share
a queue and its lock can be broken by one kill, which is why none is used here.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load, save
from torch import Tensor

from kinfed.engine.memories import Memories
from kinfed.engine.memory import keep_freed_memory
from kinfed.engine.places import Done, Failure, Inline, Task, Test
from kinfed.engine.workshop import Verdict, Workshop
from kinfed.files import saving
from kinfed.learning.frozen import CHUNK
from kinfed.methods import ClientId, Message
from kinfed.models import Tensors, apart

__all__ = ["Workers", "WorkersFailed"]

SHARED_MEMORY = Path("/dev/shm")  # a file system in memory; where there is none, or little, files are as good
ROOM = 2**30  # bytes that must be free there: two messages a worker are on their way at any time
HITS = "hits"


class WorkersFailed(RuntimeError):
    """Worker processes cannot do any client's work."""


@dataclass(frozen=True)
class _Parcel:
    """A message that lies in a file."""

    path: str
    numbers: dict[str, float]


@dataclass(frozen=True)
class _Job:
    """What a worker is asked to do, with the message in a parcel; for the rest see `Task`."""

    kind: Literal["update", "evaluate", "test"]
    parcel: _Parcel
    id: ClientId = 0
    round: int = 0
    kept: int | None = None
    test: Test = "own models"
    rows: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class _Setup:
    """Which workshop a worker is to work in from now on."""

    number: int
    build: Callable[[], Workshop]
    memories: Memories


@dataclass(frozen=True)
class _Ready:
    """A worker is set up, or cannot be."""

    number: int
    failure: Failure | None = None


class Workers:
    """``count`` worker processes; they take seconds to start, and then serve as many runs as one likes.

    Args:
        count: Processes, ≥ 1.
        timeout: Seconds after which a client's work counts as failed and its process is replaced; None waits for ever.
    """

    def __init__(self, count: int, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._outbox = _Outbox(_exchange())
        self._setup: _Setup | None = None
        self._workers = [self._started() for _ in range(count)]

    def take_on(self, build: Callable[[], Workshop], here: Inline) -> None:
        """From now on, work on this run.

        Args:
            build: Importable function (or a `functools.partial` of one) that builds its workshop in a worker process.
            here: The same workshop in this process.
        """
        self._here = here
        self._setup = _Setup(self._setup.number + 1 if self._setup else 0, build, here.memories)
        for at, worker in enumerate(self._workers):
            if worker.job is None:
                worker.set_up(self._setup)
            else:  # of a run that ended amid a round
                worker.let_go()
                worker.join()
                self._workers[at] = self._started()

    def _started(self) -> _Worker:
        worker = _Worker(self._outbox.folder)
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
                yield job.id, Done(_taken(parcel), keeps)

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, dict[str, Verdict] | Failure]]:
        """Tests of models at several clients."""
        for job, answer in self._answers(self._job("evaluate", task) for task in tasks):
            yield job.id, answer if isinstance(answer, Failure) else _verdicts(_taken(answer).tensors)

    def test(self, tensors: Tensors) -> Tensor | Failure:
        """The global model on the pooled test set, which the workers share in whole chunks."""
        size = len(self._here.workshop.federation.tested[0])
        share = math.ceil(size / CHUNK / len(self._workers)) * CHUNK
        chunks = [(start, min(start + share, size)) for start in range(0, size, share)]
        jobs = (_Job("test", self._outbox.post(Message(tensors)), rows=rows) for rows in chunks)
        hits: dict[tuple[int, int], Tensor | Failure] = {}
        for job, answer in self._answers(jobs):
            # A worker that was lost takes no part of the test with it.
            lost = isinstance(answer, Failure)
            hits[job.rows] = self._here.test_rows(tensors, *job.rows) if lost else _taken(answer).tensors[HITS]
        failure = next((part for part in hits.values() if isinstance(part, Failure)), None)
        return failure or torch.cat([hits[rows] for rows in chunks])  # type: ignore[misc]

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for worker in self._workers:
            worker.let_go()
        for worker in self._workers:
            worker.join()
        shutil.rmtree(self._outbox.folder, ignore_errors=True)

    def _job(self, kind: Literal["update", "evaluate"], task: Task) -> _Job:
        return _Job(kind, self._outbox.post(task.message), task.id, task.round, task.kept, task.test)

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
                self._outbox.delivered(job.parcel)
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
        self._process.start()
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

    def set_up(self, setup: _Setup) -> None:
        """Let it build another workshop."""
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
        """Its answer; a `Failure` if it is lost; None if it was only getting ready."""
        if not self.pipe.poll():
            self.job, self.lost = None, True
            self._process.kill()
            return Failure(f"no answer within {self._timeout:g} s")
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            self.job, self.lost = None, True
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return Failure(f"its worker process {how}")
        if isinstance(answer, _Ready):
            self._be_ready(answer)
            return None
        self.job = self.deadline = None
        return answer

    def _be_ready(self, told: _Ready) -> None:
        if self._setup is None or told.number != self._setup.number:
            return  # for an earlier run, in which this worker had nothing to do
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


class _Outbox:
    """Messages on their way to workers, as files; one that goes to several in a row is written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: tuple[Message, _Parcel] | None = None
        self._underway: Counter[str] = Counter()
        self._numbers = itertools.count()

    def post(self, message: Message) -> _Parcel:
        """Write a message, unless it is the last one again."""
        if self._last is not None and not _alike(message, self._last[0]):
            last, self._last = self._last[1], None
            self._clear(last)
        if self._last is None:
            self._last = message, _posted(message, self.folder / f"down-{next(self._numbers)}")
        parcel = self._last[1]
        self._underway[parcel.path] += 1
        return parcel

    def delivered(self, parcel: _Parcel) -> None:
        """Nobody waits for it any more, on behalf of one job."""
        self._underway[parcel.path] -= 1
        self._clear(parcel)

    def _clear(self, parcel: _Parcel) -> None:
        if not self._underway[parcel.path] and not (self._last and self._last[1] is parcel):
            del self._underway[parcel.path]
            Path(parcel.path).unlink(missing_ok=True)


def _alike(a: Message, b: Message) -> bool:
    """Whether two messages are of the very same tensors."""
    same_names = a.tensors.keys() == b.tensors.keys() and a.numbers == b.numbers
    return same_names and all(tensor is b.tensors[name] for name, tensor in a.tensors.items())


def _posted(message: Message, path: Path) -> _Parcel:
    """Write a message, over the one that may lie there: memory that a file has need not be found again."""
    with saving(path), path.open("r+b" if path.exists() else "wb") as file:
        file.write(save(apart(message.tensors)))
        file.truncate()
    return _Parcel(str(path), message.numbers)


@functools.lru_cache(maxsize=1)
def _tensors(path: str) -> Tensors:
    """Those of a message to a worker; several clients in a row may get the same."""
    return load(Path(path).read_bytes())


def _taken(parcel: _Parcel) -> Message:
    """A message from a worker."""
    return Message(load(Path(parcel.path).read_bytes()), parcel.numbers)


def _verdicts(tensors: Tensors) -> dict[str, Verdict]:
    """What `_packed` made one message of."""
    models: dict[str, Tensors] = {}
    for path, tensor in tensors.items():
        name, _, of_model = path.partition("/")
        models.setdefault(name, {})[of_model] = tensor
    return {name: Verdict(own.pop(HITS), own) for name, own in models.items()}


def _packed(verdicts: dict[str, Verdict]) -> Message:
    tensors = {f"{name}/{n}": t for name, verdict in verdicts.items() for n, t in verdict.tensors.items()}
    return Message(tensors | {f"{name}/{HITS}": verdict.hits for name, verdict in verdicts.items()})


def _exchange() -> Path:
    """A new folder for messages, in shared memory if there is room."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    return Path(tempfile.mkdtemp(prefix="kinfed-", dir=SHARED_MEMORY if free > ROOM else None))


# -- in a worker process ----------------------------------------------------------------------------------------------


def _serve(pipe: Connection[Any, Any], exchange: Path) -> None:
    """Do jobs until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, args=(exchange,), daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    here: Inline | None = None
    with contextlib.suppress(EOFError, OSError):  # the parent needs it no more
        for number in itertools.count():
            asked = pipe.recv()
            if isinstance(asked, _Setup):
                here = None  # before the next one takes memory
                try:
                    here = Inline(asked.build(), asked.memories)
                    pipe.send(_Ready(asked.number))
                except Exception as error:
                    pipe.send(_Ready(asked.number, Failure.of(error)))
            elif here is not None:
                # The parent may still read the last answer, but not the one before.
                pipe.send(_do(here, asked, exchange / f"up-{os.getpid()}-{number % 2}"))


def _end_with_parent(exchange: Path) -> None:
    """A worker whose parent was killed must neither go on nor leave messages in shared memory."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(exchange, ignore_errors=True)
    os._exit(1)


def _do(here: Inline, job: _Job, answer: Path) -> Any:
    try:
        message = Message(_tensors(job.parcel.path), job.parcel.numbers)
        if job.kind == "test":
            hits = here.test_rows(message.tensors, *job.rows)
            return hits if isinstance(hits, Failure) else _posted(Message({HITS: hits}), answer)
        task = Task(job.id, job.round, message, job.kept, job.test)
        if job.kind == "evaluate":
            verdicts = here.evaluate_one(task)
            return verdicts if isinstance(verdicts, Failure) else _posted(_packed(verdicts), answer)
        done = here.update_one(task)
        return done if isinstance(done, Failure) else (_posted(done.upload, answer), done.keeps)
    except Exception as error:  # a message that cannot be read or written
        return Failure.of(error)
