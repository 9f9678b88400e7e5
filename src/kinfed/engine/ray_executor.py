"""Executor whose workers are actors of Ray, on this machine or on a cluster.

An actor holds what a worker process holds. The tensors of a message go once into Ray's object store, from which every
node fetches them once. What a client keeps is written here and travels with its tasks: no file system is shared.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import logging
import os
import platform
import secrets
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from unittest import mock

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from kinfed.engine.checks import bounded
from kinfed.engine.client_store import StoredRounds
from kinfed.engine.evaluator import GlobalTest
from kinfed.engine.exchange import alike
from kinfed.engine.executor import Done, Executor, Failure, Task, TaskRunner, Tested
from kinfed.engine.malloc import keep_freed_memory
from kinfed.engine.processes import LOGITS, TRIES, packed, parts_of_test, set_up, unpacked
from kinfed.engine.runtime import ClientRuntime
from kinfed.errors import InputError, WorkersFailed
from kinfed.interrupt import kept_handlers, out_of_reach
from kinfed.methods import ClientId, ClientState, Message
from kinfed.models import Tensors, apart, checksum
from kinfed.settings import own_settings, untouched

__all__ = ["RayExecutor"]

PATIENCE = 120.0  # seconds in which the first actor must start

Bytes = NDArray[np.uint8]  # an array, since Ray shares the memory of arrays among the processes of a node
Packed = tuple[Bytes, dict[str, float]]  # tensors in the format of safetensors, and numbers
Ref = Any  # reference to an object in Ray's store

# Environment of Ray: nothing is reported to its makers, and one that is started here listens on loopback only.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True)
class _Job:
    """Job of an actor: a client's task, or a test of the global model on some rows.

    Attributes:
        kind: Kind of the job.
        task: Task, whose message has numbers only.
        tensors: Tensors of the message, in the object store.
        state: State of the client; an error if it cannot be read.
        rows: Rows of the global test.
        lost: Number of actors that were lost with the job.
    """

    kind: Literal["update", "evaluate", "test"]
    task: Task
    tensors: Ref
    state: Packed | Exception | None = None
    rows: range = range(0)
    lost: int = 0


class RayExecutor(Executor):
    """Executor with actors of Ray, which can serve any number of runs.

    What an actor was doing when it was lost, another one does again. A client is refused only after three actors were
    lost with its work. An actor reads the data where it is; if they are missing or differ there, they are sent to it.

    Args:
        address: Address ``HOST:PORT`` of a cluster, or ``auto`` for the one of this machine; None for a Ray of this
            process's own, which listens on loopback only and ends with the executor. A program that is connected to
            Ray stays so.
        count: Number of actors, ≥ 1.
        timeout: Seconds after which a client's task counts as failed and its actor is replaced; None for no limit.
        cpus: Cores that an actor takes, > 0.
        gpus: GPUs that an actor takes, ≥ 0; less than 1 for a part of one.

    Raises:
        InputError: If the cluster cannot be reached, or no node has room for an actor.
        WorkersFailed: If Ray cannot be started.
    """

    def __init__(
        self, address: str | None, count: int, timeout: float | None = None, *, cpus: float = 1.0, gpus: float = 0.0
    ) -> None:
        self._timeout = timeout
        self._kinds: set[str] = {_processor()}
        self._last: tuple[Message, Ref] | None = None
        self._lost_starts = 0  # actors in a row that were lost before they were ready
        with contextlib.ExitStack() as stack:
            self._ray = stack.enter_context(_connected(address, count * cpus))
            room = _room(self._ray.nodes(), cpus, gpus)
            if room < count:
                warnings.warn(
                    f"Ray has room for {room} of {count} actors; the others start when there is more", stacklevel=2
                )
            needs = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0}
            self._kind_of_actor = self._ray.remote(**needs)(_Worker)
            self._setup: _Setup | None = None
            self._actors = [_Actor(self._ray, self._kind_of_actor.remote()) for _ in range(count)]
            self._stack = stack.pop_all()

    def start(self, build: Callable[[], ClientRuntime], here: TaskRunner) -> None:
        """Prepare for a run; each actor builds its own runtime."""
        self._here, self._setup = here, _Setup(self._ray, build, here.runtime)
        for at, actor in enumerate(self._actors):
            if actor.job is None:
                actor.set_up(self._setup)
            else:  # busy with a run that ended in the middle of a round
                self._replace(at)

    def _replace(self, at: int) -> None:
        self._actors[at].kill()
        self._actors[at] = _Actor(self._ray, self._kind_of_actor.remote())
        if self._setup is not None:
            self._actors[at].set_up(self._setup)

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        """Run local training at several clients, write their states, and yield the results."""
        for job, answer in self._answers(self._job("update", task) for task in tasks):
            yield job.task.id, answer if isinstance(answer, Failure) else self._kept(job.task, *answer)

    def _kept(self, task: Task, upload: Packed, kept: Packed | None) -> Done | Failure:
        """Write the state that a client sent with its upload."""
        try:
            state = ClientState() if kept is None else ClientState(*_opened(kept))
            return Done(Message(*_opened(upload)), self._here.client_states.write(task.id, task.round, state))
        except Exception as error:  # as in a worker process
            return Failure.of(error)

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Tested | Failure]]:
        """Run tests at several clients, and yield the results."""
        for job, answer in self._answers(self._job("evaluate", task) for task in tasks):
            if isinstance(answer, Failure):
                yield job.task.id, answer
            else:
                tensors, tested = answer
                yield job.task.id, unpacked(_opened(tensors)[0], tested)

    def test(self, tensors: Tensors, *, final: bool) -> GlobalTest | Failure:
        """Test the global model on the pooled test set, and on the clients' samples; each actor tests a part."""
        message, parts = Message(tensors), parts_of_test(self._here, len(self._actors))
        jobs = (_Job("test", Task(0, 0, Message({})), self._put(message), rows=rows) for rows in parts)
        logits: dict[range, Tensor | Failure] = {}
        for job, answer in self._answers(jobs):
            # What no actor could do is done by this process.
            lost = isinstance(answer, Failure)
            logits[job.rows] = self._here.logits(tensors, job.rows) if lost else _opened(answer)[0][LOGITS]
        if failure := next((part for part in logits.values() if isinstance(part, Failure)), None):
            return failure
        together = torch.cat([logits[rows] for rows in parts])  # type: ignore[misc]
        return self._here.evaluator.graded(together, final=final)

    def close(self) -> None:
        """End the actors, even if they are busy, and Ray if it is this process's own."""
        for actor in self._actors:
            actor.kill()
        self._actors, self._last, self._setup = [], None, None
        self._stack.close()

    def _job(self, kind: Literal["update", "evaluate"], task: Task) -> _Job:
        state: Packed | Exception | None = None
        if task.stored is not None and (kind == "update" or task.test == "own models"):
            try:
                read = self._here.client_states.read(task.id, task.stored)
                state = _closed(read.tensors, read.numbers)
            except Exception as error:  # its task will fail with it
                state = error
        return _Job(kind, replace(task, message=Message({}, task.message.numbers)), self._put(task.message), state)

    def _put(self, message: Message) -> Ref:
        """Put the tensors of a message into the object store; consecutive messages with the same ones share them."""
        if self._last is None or not alike(message, self._last[0]):
            self._last = message, self._ray.put(_closed(message.tensors, {})[0])
        return self._last[1]

    def _answers(self, jobs: Iterator[_Job]) -> Iterator[tuple[_Job, Any]]:
        """Give a job to every free actor, and yield jobs and answers in order of completion."""
        again: list[_Job] = []
        while True:
            free = [actor for actor in self._actors if actor.free]
            for actor in free:
                if (job := again.pop() if again else next(jobs, None)) is None:
                    break
                actor.give(job, self._timeout)
            busy = [actor for actor in self._actors if actor.job is not None]
            if free and not busy:
                return
            actor = self._heard(patient=bool(busy))
            job, answer = actor.job, actor.take(self._kinds_told)
            if isinstance(answer, _Lost):
                self._replace(self._actors.index(actor))
                if job is None:
                    self._lost_starts += 1
                    if self._lost_starts == TRIES:
                        raise WorkersFailed(f"{TRIES} actors of Ray were lost before they were ready: {answer.reason}")
                    continue
                if answer.again and job.lost + 1 < TRIES:
                    again.append(replace(job, lost=job.lost + 1))
                    continue
            if job is not None:
                yield job, answer
            elif actor.free:
                self._lost_starts = 0

    def _heard(self, *, patient: bool) -> _Actor:
        """Wait until an actor has answered, was lost or exceeded its deadline, and return it.

        Args:
            patient: True to wait as long as it takes.

        Raises:
            WorkersFailed: If no actor starts within `PATIENCE`.
        """
        waiting = {actor.awaited: actor for actor in self._actors if actor.awaited is not None}
        deadlines = [actor.deadline for actor in waiting.values() if actor.deadline is not None]
        starting = not patient and all(actor.unborn for actor in waiting.values())
        end = min(deadlines, default=time.monotonic() + PATIENCE if starting else None)
        patience = None if end is None else max(end - time.monotonic(), 0)
        heard, _ = self._ray.wait([*waiting], timeout=patience)
        if heard:
            return waiting[heard[0]]
        if starting:
            raise WorkersFailed(f"no actor of Ray has started within {PATIENCE:g} s; is the cluster full?")
        return min((actor for actor in waiting.values() if actor.deadline is not None), key=lambda a: a.deadline or 0)

    def _kinds_told(self, kind: str) -> None:
        """Note the processor of an actor, and tell once that not all are of one kind."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            if len(self._kinds) == 2:
                warnings.warn(
                    f"the machines differ ({'; '.join(sorted(self._kinds))}): results can differ in the last bits from "
                    "those on one kind of machine",
                    stacklevel=2,
                )


class _Setup:
    """Setup of actors for a run.

    Attributes:
        build: Pickled function that builds the runtime where the data are, in the object store.
        checksum: Checksum of the data and models that it must have.
    """

    def __init__(self, ray: Any, build: Callable[[], ClientRuntime], runtime: ClientRuntime) -> None:
        self._ray, self._runtime = ray, runtime
        self.build = ray.put(_pickled(build))
        self.checksum = _checksum(runtime)

    @functools.cached_property
    def whole(self) -> Ref:
        """Pickled function that builds the runtime of the data and models of this process, in the object store."""
        own = self._runtime
        models = copy.deepcopy(own.models)
        for model, initial in zip(models, own.initial, strict=True):
            model.load(initial)  # another thread may have trained them
        parts = own.method, own.federation, models, own.settings, own.architectures, own.sources
        return self._ray.put(_pickled(functools.partial(ClientRuntime, *parts)))


@dataclass(frozen=True)
class _Lost(Failure):
    """Failure of a job with which an actor was lost.

    Attributes:
        again: True if the job is to be done again, by another actor.
    """

    again: bool = True


class _Actor:
    """Actor with its present job.

    Attributes:
        job: Present job.
        awaited: Answer that the actor owes, in the object store; None if it is free.
        deadline: Time at which the job must be done, on the clock of `time.monotonic`.
        unborn: True until the actor has started.
    """

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray, self._handle = ray, handle
        self.job: _Job | None = None
        self.deadline: float | None = None
        self.unborn = True
        self.awaited: Ref = handle.kind.remote()
        self._setup: _Setup | None = None
        self._ready = self._sent = False

    @property
    def free(self) -> bool:
        """True if the actor is ready for a job."""
        return self._ready and self.job is None

    def set_up(self, setup: _Setup) -> None:
        """Set the actor up for another run, as soon as it has started."""
        self._setup, self._ready, self._sent = setup, False, False
        if not self.unborn:
            self.awaited = self._handle.set_up.remote(setup.build)

    def give(self, job: _Job, timeout: float | None) -> None:
        """Give the actor a job, and seconds after which it is overdue."""
        self.job, self._timeout = job, timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.awaited = self._handle.do.remote(job.kind, job.task, job.tensors, job.state, job.rows)

    def take(self, tell_kind: Callable[[str], None]) -> Any:
        """Take the answer that the actor owes; a `_Lost` if it is lost; None if it only reports that it is ready.

        Args:
            tell_kind: Function that is told the kind of the actor's machine.

        Raises:
            WorkersFailed: If the actor cannot be set up.
        """
        try:
            answer = self._ray.get(self.awaited, timeout=0)
        except self._ray.exceptions.GetTimeoutError:
            return _Lost(f"no answer within {self._timeout:g} s", again=False)
        except self._ray.exceptions.RayTaskError as error:  # the answer or the job could not be sent
            answer = Failure.of(error.cause if isinstance(error.cause, Exception) else error)
            if self.job is None:
                raise WorkersFailed(f"an actor of Ray cannot start: {answer.reason}") from error
        except self._ray.exceptions.RayError as error:
            return _Lost(f"{TRIES} actors were lost with its work: {type(error).__name__}")
        self.awaited = self.deadline = None
        if self.job is not None:
            self.job = None
            return answer
        if self.unborn:
            self.unborn = False
            tell_kind(answer)
            if self._setup is not None:
                self.set_up(self._setup)
            return None
        assert self._setup is not None
        if answer == self._setup.checksum:
            self._ready = True
        elif not self._sent:  # its node has no data, or others
            self._sent = True
            self.awaited = self._handle.set_up.remote(self._setup.whole)
        else:
            reason = answer.reason if isinstance(answer, Failure) else "its data differ from those that it was sent"
            raise WorkersFailed(f"an actor of Ray cannot start: {reason}")
        return None

    def kill(self) -> None:
        """End the actor."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._handle)


def _closed(tensors: Tensors, numbers: Mapping[str, float]) -> Packed:
    return np.frombuffer(save(apart(tensors)), dtype=np.uint8), dict(numbers)


def _opened(packed: Packed) -> tuple[Tensors, dict[str, float]]:
    return load(packed[0].tobytes()), packed[1]


def _pickled(build: Callable[[], ClientRuntime]) -> Bytes:
    return np.frombuffer(cloudpickle.dumps(build), dtype=np.uint8)


def _checksum(runtime: ClientRuntime) -> int:
    """Compute a checksum of the data, of the clients' rows and of the initial models."""
    federation = runtime.federation
    parts = federation.partition, federation.new_clients
    held = [rows for part in parts for rows in (*part.train, *part.test)]
    held += [*federation.validation, federation.public_rows]
    tensors = {"rows": torch.from_numpy(np.concatenate([[*map(len, held)], *held]))}
    for name, samples in {"train": federation.dataset.train, "test": federation.dataset.test}.items():
        tensors[name] = samples.inputs
        if samples.labels is not None:
            tensors[f"{name} labels"] = samples.labels
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    for at, initial in enumerate(runtime.initial):
        tensors |= {f"model {at}: {name}": tensor.cpu() for name, tensor in initial.items()}
    return checksum(tensors)


def _processor() -> str:
    """Return the kind of processor and of GPU, if one is used, and the version of torch, on which the bits depend."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def _room(nodes: Sequence[Mapping[str, Any]], cpus: float, gpus: float) -> int:
    """Return how many actors there is room for on the nodes of a cluster, were these free.

    Raises:
        InputError: If no node has room for one.
    """
    there = [node["Resources"] for node in nodes if node["Alive"]]
    needs = {"CPU": cpus, "GPU": gpus}
    room = sum(min(int(of.get(name, 0) / needed + 1e-9) for name, needed in needs.items() if needed) for of in there)
    if not room:
        most = {name: max((of.get(name, 0) for of in there), default=0) for name in needs}
        name = next((name for name, needed in needs.items() if needed > most[name]), "CPU")
        raise InputError(
            f"{name.lower()}s_per_client: {needs[name]:g} is not allowed; the largest node of Ray has {most[name]:g}"
        )
    return room


@contextlib.contextmanager
def _connected(address: str | None, cores: float) -> Iterator[Any]:
    """Context manager that connects this process with Ray, and gives Ray's module.

    Args:
        address: Address of a cluster; None to start Ray here.
        cores: Cores of a Ray that is started here. They are only counted, so that there may be more than real ones.

    Raises:
        InputError: If the cluster cannot be reached.
        WorkersFailed: If Ray cannot be started.
    """
    with contextlib.ExitStack() as stack:
        with untouched(), kept_handlers(), out_of_reach():
            os.environ.update(QUIET if address else QUIET | _for_own())
            ray: Any = importlib.import_module("ray")
            if not ray.is_initialized():
                how: dict[str, Any] = {"address": address}
                if address is None:
                    place = tempfile.TemporaryDirectory(prefix="kinfed-ray-", ignore_cleanup_errors=True)
                    how = {"num_cpus": cores, "include_dashboard": False, "_temp_dir": stack.enter_context(place)}
                # Ray prints lost nodes to the standard output, even if it shall print nothing there.
                stack.enter_context(mock.patch.object(ray._private.worker, "print_to_stdstream", create=True))
                stack.callback(ray.shutdown)
                try:
                    ray.init(**how, log_to_driver=False, logging_level=logging.ERROR)
                except (ConnectionError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                    reason = bounded(f"{type(error).__name__}: {error}")
                    if address is None:
                        raise WorkersFailed(f"Ray cannot be started: {reason}") from error
                    raise InputError(f"executor: Ray at {address!r} cannot be reached: {reason}") from error
        yield ray


@functools.cache
def _for_own() -> dict[str, str]:
    """Environment for a Ray that this process starts; it has a token, without which nobody can give it work.

    Ray reads it once, when it is imported; a program that has imported it before has chosen for itself.
    """
    if "ray" in sys.modules:
        return {}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return ON_LOOPBACK | ({} if "RAY_AUTH_MODE" in os.environ else token)


# -- in an actor ------------------------------------------------------------------------------------------------------


class _Worker:
    """Actor: it holds what a worker process holds, and does one job after the other."""

    def __init__(self) -> None:
        keep_freed_memory()
        self._settings = contextlib.ExitStack()
        self._settings.enter_context(own_settings())  # until the process ends
        self._carried = _Carried()
        self._here: TaskRunner | None = None

    def kind(self) -> str:
        """Return the kind of this machine."""
        return _processor()

    def set_up(self, build: Bytes) -> int | Failure:
        """Build the runtime of a run; return the checksum of its data and models."""
        self._here = None  # frees its memory before the next one is built
        try:
            self._here = set_up(build.tobytes(), self._carried)
            return _checksum(self._here.runtime)
        except Exception as error:
            return Failure.of(error)

    def do(self, kind: str, task: Task, tensors: Bytes, state: Packed | Exception | None, rows: range) -> Any:
        """Do a job; return its result, packed, or a `Failure`."""
        here, carried = self._here, self._carried
        assert here is not None
        try:
            task = replace(task, message=Message(load(tensors.tobytes()), task.message.numbers))
            carried.came, carried.written = state, None
            if kind == "test":
                logits = here.logits(task.message.tensors, rows)
                return logits if isinstance(logits, Failure) else _closed({LOGITS: logits}, {})
            if kind == "evaluate":
                tested = here.evaluate(task)
                if isinstance(tested, Failure):
                    return tested
                own, without = packed(tested)
                return _closed(own, {}), without
            done = here.update(task)
            if isinstance(done, Failure):
                return done
            kept = carried.written
            return (
                _closed(done.upload.tensors, done.upload.numbers),
                None if kept is None else _closed(kept.tensors, kept.numbers),
            )
        except Exception as error:  # what cannot be packed
            return Failure.of(error)


@dataclass
class _Carried:
    """State of the client that works, which came with its task; what it keeps goes back with the answer.

    Attributes:
        came: State that came with the task; an error if it could not be read.
        written: State that the client wrote; None if it keeps nothing.
    """

    came: Packed | Exception | None = None
    written: ClientState | None = None

    def read(self, id: ClientId, round: int | None) -> ClientState:
        """Return the state that came with the task."""
        del id, round
        if isinstance(self.came, Exception):
            raise self.came
        return ClientState() if self.came is None else ClientState(*_opened(self.came))

    def write(self, id: ClientId, round: int, state: ClientState) -> bool:
        """Take the state to the answer; return False if it is empty."""
        del id, round
        self.written = state if state.tensors or state.numbers else None
        return self.written is not None

    def forget(self, id: ClientId, round: int) -> None:
        """Do nothing: states are kept where the run is."""

    def sync(self, stored: Mapping[ClientId, int]) -> None:
        """Do nothing."""

    def forget_all_but(self, needed: Sequence[StoredRounds]) -> None:
        """Do nothing."""

    def tidy(self, needed: Sequence[StoredRounds]) -> None:
        """Do nothing."""
