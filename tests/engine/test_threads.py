"""An executor of threads, which shows that clients' work shares nothing that any of it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from kinfed.engine import SerialExecutor
from kinfed.engine.executor import Done, Failure, Task, Tested
from kinfed.methods import METHODS, Client, ClientId, ClientState, Message
from kinfed.methods.fedavg import FedAvg
from kinfed.models import Model, build, may_draw
from kinfed.streams import seeded_globals, torch_stream, without_draws
from tests.builders import Outcome, build_runtime, federation, run, same

THREADS = 4
Answer = TypeVar("Answer")


class ThreadExecutor(SerialExecutor):
    """Does clients' work in four threads, whose answers come as they are ready."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(THREADS)
        self.together = 0  # tasks that were at work at the same time, at most
        self._working = 0
        self._lock = threading.Lock()

    def update(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Done | Failure]]:
        return self._answers(self._here.update, iter(tasks))

    def evaluate(self, tasks: Iterable[Task]) -> Iterator[tuple[ClientId, Tested | Failure]]:
        return self._answers(self._here.evaluate, iter(tasks))

    def _answers(self, work: Callable[[Task], Answer], tasks: Iterator[Task]) -> Iterator[tuple[ClientId, Answer]]:
        waiting: dict[Future[Answer], ClientId] = {}
        while True:
            while len(waiting) < THREADS and (task := next(tasks, None)) is not None:
                waiting[self.pool.submit(self._noting, work, task)] = task.id
            if not waiting:
                return
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()

    def _noting(self, work: Callable[[Task], Answer], task: Task) -> Answer:
        with self._lock:
            self._working += 1
            self.together = max(self.together, self._working)
        try:
            return work(task)
        finally:
            with self._lock:
                self._working -= 1

    def close(self) -> None:
        self.pool.shutdown()


@pytest.fixture
def threads() -> Iterator[ThreadExecutor]:
    executor = ThreadExecutor()
    yield executor
    executor.close()


def assert_same(one: Outcome, other: Outcome) -> None:
    assert one.lines == other.lines
    assert same(one.state, other.state)
    assert one.client_states.keys() == other.client_states.keys()
    assert all(same(one.client_states[id], other.client_states[id]) for id in one.client_states)
    assert files(one) == files(other)


def files(outcome: Outcome) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (outcome.folder.path / "models").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_threads_give_the_same_bits_as_one_client_after_the_other(
    name: str, threads: ThreadExecutor, tmp_path: Path
) -> None:
    world = lambda: build_runtime(name, federation(clients=5, new=2), rounds=2)  # noqa: E731
    assert not world().draws
    assert_same(run(world(), tmp_path / "threads", threads), run(world(), tmp_path / "serial"))
    assert threads.together > 1 or METHODS[name].trains == "pooled"


def with_dropout(model: Model) -> Model:
    return Model({**model.stages, "dropout": nn.Dropout()}, model.head, ())


def test_modules_that_draw_take_turns(threads: ThreadExecutor, tmp_path: Path) -> None:
    world = lambda: build_runtime("fedper", federation(clients=6), wrap=with_dropout)  # noqa: E731
    assert world().draws
    assert_same(run(world(), tmp_path / "threads", threads), run(world(), tmp_path / "serial"))


@dataclass(frozen=True, kw_only=True)
class Noisy(FedAvg):
    """FedAvg whose clients draw from torch's global generator."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        return Message({n: t + 1e-3 * torch.randn(()) for n, t in upload.tensors.items()}, upload.numbers), kept


def test_so_do_methods_from_elsewhere(threads: ThreadExecutor, tmp_path: Path) -> None:
    world = lambda: build_runtime(Noisy(), federation(clients=6))  # noqa: E731
    assert world().draws
    assert_same(run(world(), tmp_path / "threads", threads), run(world(), tmp_path / "serial"))


class Own(nn.Linear):
    """A layer of somebody's own."""


def hooked() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: torch.rand(2))
    return layer


@pytest.mark.parametrize(
    ("module", "draws"),
    [(nn.Linear(2, 2), False), (nn.Dropout(), True), (nn.LSTM(2, 2), True), (Own(2, 2), True), (hooked(), True)],
)
def test_only_layers_that_are_known_are_taken_to_draw_nothing(module: nn.Module, draws: bool) -> None:
    assert may_draw(nn.Sequential(module)) == draws


@pytest.mark.parametrize("architecture", ["tiny_cnn", "cnn4", "resnet18", "mlp"])
def test_kinfeds_own_models_draw_nothing(architecture: str) -> None:
    assert not may_draw(build(architecture, (3, 32, 32), 10, 0))


def test_a_block_without_draws_leaves_the_global_generators_alone_unless_something_draws_for_certain() -> None:
    def drawn(**how: Any) -> float:
        with without_draws(), seeded_globals(torch_stream(0, "x"), **how):
            return torch.rand(()).item()

    with seeded_globals(torch_stream(0, "x")):
        expected = torch.rand(()).item()
    assert drawn() == expected
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert drawn(certain=False) != expected
