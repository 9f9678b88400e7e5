"""Runs side by side, each in a process of its own; what its observer is told, it tells to the observer here."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle

from kinfed import fork_server
from kinfed.engine import Callback, Executor
from kinfed.engine.processes import TRIES
from kinfed.errors import InputError, RunFailed, WorkersFailed
from kinfed.experiment.config import Config
from kinfed.files import NotSaved
from kinfed.interrupt import SIGNALS, Interrupt, Stopped
from kinfed.settings import own_settings

__all__ = ["Doing", "InTurn", "Job", "SideBySide"]

LOOK = 0.2  # seconds between two looks for a signal
OBSERVED = ("started", "working", "round", "stopping", "ended")  # functions of `Callback`
PASSED_ON = (InputError, RunFailed, WorkersFailed, NotSaved)  # errors that mean the same here

Do = Callable[[Config, Path, "int | None", Callback, Executor], None]  # what a run is, from its config to its folder
Ended = Callable[["Job", "RunFailed | None"], None]


@dataclass(frozen=True)
class Job:
    """Run to do, or to continue.

    Attributes:
        config: Config of one method and one seed.
        out: Folder of the run.
        observe: Function that makes the observer of the run.
        until: Round after which it pauses; None to run to the end.
        lost: Number of processes that were lost with it.
    """

    config: Config
    out: Path
    observe: Callable[[], Callback]
    until: int | None = None
    lost: int = 0


class InTurn:
    """Doer of runs in this process, one after the other.

    Args:
        do: Function that does a run.
        executor: Executor of the clients' tasks.
    """

    def __init__(self, do: Do, executor: Executor) -> None:
        self._do, self._executor = do, executor

    def __call__(self, jobs: Iterable[Job], ended: Ended) -> None:
        """Do runs, and report each that has ended, with the reason if it failed."""
        for job in jobs:
            failed = None
            try:
                self._do(job.config, job.out, job.until, job.observe(), self._executor)
            except RunFailed as error:
                failed = error
            ended(job, failed)


class SideBySide:
    """Doer of runs in processes of their own, so many at a time; results do not depend on it.

    The run of a process that was killed continues from its last checkpoint in another one; it has failed when three
    were lost with it.

    Args:
        count: Number of processes, ≥ 2.
        do: Importable function that does a run.
        executor_of: Importable function, or a `functools.partial` of one, that gives the executor for a config.
    """

    def __init__(self, count: int, do: Do, executor_of: Callable[[Config], AbstractContextManager[Executor]]) -> None:
        self._work = cloudpickle.dumps((do, executor_of))
        self._again: list[Job] = []  # runs whose processes were lost
        self._asked: int | None = None  # number of the signal that asks to stop
        self._processes = [_Process(self._work) for _ in range(count)]

    def __call__(self, jobs: Iterable[Job], ended: Ended) -> None:
        """Do runs, and report each that has ended, with the reason if it failed.

        Raises:
            Stopped: If a signal ends the runs, each after its present round, with a checkpoint.
        """
        waiting = iter(jobs)
        self._again, self._asked = [], None
        with Interrupt() as interrupt:
            while busy := self._busy(waiting):
                for pipe in wait([*busy], LOOK):
                    self._hear(busy[pipe], ended)
                if interrupt.asked and self._asked is None:
                    self._asked = interrupt.asked
                    for process in self._processes:
                        process.signal(self._asked)
        if self._asked is not None:
            raise Stopped(self._asked)

    def _busy(self, waiting: Iterator[Job]) -> dict[Any, _Process]:
        """Give a run to each free process, unless a signal asks to stop; return those that do one by their pipes."""
        for process in self._processes:
            if process.job is None and self._asked is None:
                if (job := self._again.pop() if self._again else next(waiting, None)) is None:
                    break
                process.give(job)
        return {process.pipe: process for process in self._processes if process.job is not None}

    def _hear(self, process: _Process, ended: Ended) -> None:
        """Hear a message of a process, and report its run if that has ended."""
        job, answer = process.job, process.hear()
        assert job is not None
        if isinstance(answer, Stopped):
            self._asked = self._asked or answer.exit_code - 128
        elif isinstance(answer, _Lost):
            self._processes[self._processes.index(process)] = _Process(self._work)
            if job.lost + 1 < TRIES:
                self._again.append(replace(job, lost=job.lost + 1))
            else:
                ended(job, RunFailed(f"{TRIES} processes were lost with it; the last one {answer.end}"))
        elif answer is not None:
            ended(job, answer.failed)

    def close(self) -> None:
        """End the processes; what they have saved stays."""
        for process in self._processes:
            process.end()


Doing = InTurn | SideBySide


@dataclass(frozen=True)
class _Ended:
    """Message of a process that a run has ended."""

    failed: RunFailed | None = None


@dataclass(frozen=True)
class _Lost:
    """End of a process, in words, that has not told it."""

    end: str


class _Process:
    """Process that does runs, with its present one."""

    def __init__(self, work: bytes) -> None:
        context: Any = multiprocessing.get_context(fork_server.START)
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, work, dict(os.environ)))
        try:
            with fork_server.own_server():
                self._process.start()
        except (OSError, EOFError, RuntimeError) as error:
            raise WorkersFailed(f"a process for runs cannot be started: {type(error).__name__}: {error}") from error
        finally:
            theirs.close()
        self.job: Job | None = None
        self._observer: Callback | None = None

    def give(self, job: Job) -> None:
        """Give the process a run to do."""
        self.job, self._observer = job, job.observe()
        getattr(self._observer, "stay", lambda: None)()
        with contextlib.suppress(OSError):  # it has died; `hear` will tell
            self.pipe.send_bytes(cloudpickle.dumps((job.config, job.out, job.until)))

    def hear(self) -> _Ended | _Lost | Stopped | None:
        """Hear a message of the process; None if the run goes on.

        Raises:
            InputError, WorkersFailed, NotSaved: If the run has ended with it.
            RuntimeError: If it has ended with another error.
        """
        try:
            what, told = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            what, told = "lost", f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if what in OBSERVED:
            getattr(self._observer, what)(*told)
            return None
        if what == "warning":
            text, category = told
            warnings.warn(text, category, stacklevel=2)
            return None
        self.job = None
        getattr(self._observer, "over", lambda: None)()
        if what == "error":
            raise told
        return {"over": _Ended, "stopped": Stopped, "lost": _Lost}[what](told)  # type: ignore[no-any-return]

    def signal(self, number: int) -> None:
        """Send the process a signal, if it does a run."""
        if self.job is not None:
            with contextlib.suppress(OSError):
                os.kill(self._process.pid, number)

    def end(self) -> None:
        """End the process: kill it if it does a run; otherwise close the pipe, at whose end it exits."""
        if self.job is not None:
            self._process.kill()
        self.pipe.close()
        self._process.join(5)
        self._process.kill()
        self._process.join()


# -- in a process for runs --------------------------------------------------------------------------------------------


@own_settings()
def _serve(pipe: Connection[Any, Any], work: bytes, environment: Mapping[str, str]) -> None:
    """Do runs until the pipe is closed.

    Args:
        pipe: Pipe to the parent.
        work: Pickled functions that do a run and give the executor for it.
        environment: Environment of the parent; that of the fork server may be older.
    """
    os.environ.clear()
    os.environ.update(environment)
    # Signals come from the parent, which gets those of a terminal and of `kill` for all.
    os.setpgid(0, 0)
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.showwarning = lambda message, category, *_: pipe.send(("warning", (str(message), category)))
    do, executor_of = cloudpickle.loads(work)
    with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as stack:  # the parent has closed the pipe
        executor: Executor | None = None
        while True:
            config, out, until = cloudpickle.loads(pipe.recv_bytes())
            try:
                executor = executor or stack.enter_context(executor_of(config))
                do(config, out, until, _Telling(pipe), executor)
                pipe.send(("over", None))
            except RunFailed as error:
                pipe.send(("over", error))
            except KeyboardInterrupt as error:
                pipe.send(("stopped", getattr(error, "exit_code", 128 + signal.SIGINT) - 128))
            except PASSED_ON as error:
                pipe.send(("error", error))
            except Exception as error:
                pipe.send(("error", RuntimeError(f"{error!r} in a process for runs\n{traceback.format_exc()}")))


def _end_with_parent() -> None:
    """End this process when its parent ends, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Telling:
    """Observer of a run that tells the parent."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in OBSERVED:
            raise AttributeError(name)
        return lambda *told: self._pipe.send((name, told))
