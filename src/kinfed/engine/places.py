"""Where clients run: in this process, or in worker processes. The results are the same, bit for bit.

Both use one intra-op thread a process, since the order of a sum depends on how many threads share it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
from safetensors.torch import load, save

from kinfed.engine.workshop import Verdict, Workshop
from kinfed.methods import ClientId, Memory, Message
from kinfed.models import Tensors

__all__ = ["Failure", "Inline", "Place", "Task", "Workers", "one_thread"]


@dataclass(frozen=True)
class Task:
    """One client's work in one round: what it received and what it kept."""

    id: ClientId
    round: int
    message: Message
    memory: Memory


@dataclass(frozen=True)
class Failure:
    """A client's work ended in an error."""

    reason: str


class Place(Protocol):
    """Does clients' work; answers come in the order of the tasks."""

    def update(self, tasks: Sequence[Task]) -> Iterator[tuple[Message, Memory] | Failure]:
        """Local work of several clients."""

    def evaluate(self, tasks: Sequence[Task]) -> Iterator[dict[str, Verdict]]:
        """Tests of several clients' own models."""


def _attempt(workshop: Workshop, task: Task) -> tuple[Message, Memory] | Failure:
    try:
        return workshop.update(task.id, task.round, task.message, task.memory)
    except Exception as error:  # one client's fault must not end the others' run
        return Failure(f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run a block with one intra-op thread, and restore what was set before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Inline:
    """In this process, one client after the other."""

    workshop: Workshop

    def update(self, tasks: Sequence[Task]) -> Iterator[tuple[Message, Memory] | Failure]:
        """Local work of several clients."""
        return (_attempt(self.workshop, task) for task in tasks)

    def evaluate(self, tasks: Sequence[Task]) -> Iterator[dict[str, Verdict]]:
        """Tests of several clients' own models."""
        return (self.workshop.evaluate(task.id, task.round, task.message, task.memory) for task in tasks)


# What goes to and from a worker process: tensors as safetensors bytes, so that nothing of them is pickled.
Packed = tuple[bytes, dict[str, float]]
PackedTask = tuple[ClientId, int, Packed, Packed]


def _packed(message: Message) -> Packed:
    return save({name: tensor.contiguous() for name, tensor in message.tensors.items()}), message.numbers


def _unpacked(packed: Packed) -> Message:
    return Message(load(packed[0]), packed[1])


class Workers:
    """In ``count`` worker processes, each of which builds its own workshop once.

    Args:
        count: Processes, ≥ 1.
        build: Importable function (or a `functools.partial` of one) that builds the workshop there.
    """

    def __init__(self, count: int, build: Callable[[], Workshop]) -> None:
        self._pool = ProcessPoolExecutor(
            count, multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(build,)
        )

    def update(self, tasks: Sequence[Task]) -> Iterator[tuple[Message, Memory] | Failure]:
        """Local work of several clients."""
        for answer in self._pool.map(_work, [_packed_task(task) for task in tasks]):
            yield Failure(answer) if isinstance(answer, str) else (_unpacked(answer[0]), _unpacked(answer[1]))

    def evaluate(self, tasks: Sequence[Task]) -> Iterator[dict[str, Verdict]]:
        """Tests of several clients' own models."""
        for answer in self._pool.map(_test, [_packed_task(task) for task in tasks]):
            models = {name: load(packed) for name, packed in answer.items()}
            yield {name: Verdict(tensors.pop(_HITS), tensors) for name, tensors in models.items()}

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


_HITS = "hits"
_workshop: Workshop | None = None  # a worker process's own


def _start_worker(build: Callable[[], Workshop]) -> None:
    global _workshop  # noqa: PLW0603 - a process pool has no other place for what a worker keeps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    _workshop = build()


def _packed_task(task: Task) -> PackedTask:
    return task.id, task.round, _packed(task.message), _packed(task.memory)


def _unpacked_task(packed: PackedTask) -> Task:
    return Task(packed[0], packed[1], _unpacked(packed[2]), _unpacked(packed[3]))


def _work(packed: PackedTask) -> tuple[Packed, Packed] | str:
    assert _workshop is not None
    answer = _attempt(_workshop, _unpacked_task(packed))
    return answer.reason if isinstance(answer, Failure) else (_packed(answer[0]), _packed(answer[1]))


def _test(packed: PackedTask) -> dict[str, bytes]:
    assert _workshop is not None
    task = _unpacked_task(packed)
    verdicts = _workshop.evaluate(task.id, task.round, task.message, task.memory)
    return {name: save({**_contiguous(v.tensors), _HITS: v.hits}) for name, v in verdicts.items()}


def _contiguous(tensors: Tensors) -> Tensors:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
