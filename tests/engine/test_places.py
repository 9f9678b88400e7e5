from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kinfed.engine import Inline, RoundsFailed, Workers, WorkersFailed, Workshop, one_thread
from kinfed.engine.memories import Memories
from kinfed.engine.places import Failure, Task
from kinfed.learning import SGD
from kinfed.methods import METHODS, Client, Memory, Message, Method
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedper import FedPer
from kinfed.models import Model
from tests.worlds import dataset, federation, run, same, workshop

# -- the same bits, wherever clients run ------------------------------------------------------------------------------

AUGMENTED = SGD(lr=0.05, batch_size=16, augment="crop_flip")


@dataclass(frozen=True, kw_only=True)
class Broken(FedPer):
    """FedPer whose client 2 fails in round 2."""

    def update(self, client: Client, message: Message, memory: Memory) -> tuple[Message, Memory]:
        if (client.id, client.round) == (2, 2):
            raise OSError("no space left on this client")
        return super().update(client, message, memory)


WORLDS: dict[str, Callable[[], Workshop]] = {
    **{name: functools.partial(workshop, name, participation=0.75) for name in METHODS},
    "augmented": functools.partial(workshop, "fedavg", sgd=AUGMENTED),
    "broken": functools.partial(workshop, Broken()),
}


def megabyte(shape: tuple[int, ...], classes: int) -> Model:
    return Model({"flatten": nn.Flatten(), "fc": nn.Linear(64, 3300)}, nn.Linear(3300, classes), ["fc"])


def many() -> Workshop:
    """200 clients of a model of 1 MB, 50 of them in each of five rounds."""
    fed = federation(clients=200, probe=0, data=dataset(400, 200))
    return workshop("fedavg", fed, rounds=5, participation=0.25, model=f"{__name__}:megabyte")


class Several(Workshop):
    """In a worker process: each message says which of the worlds it belongs to. Processes take long to start."""

    def _of(self, message: Message) -> Workshop:
        (which,) = (name for name in message.numbers if name in {*WORLDS, "many"})
        del message.numbers[which]
        return worlds(which)

    def update(self, id: int, round: int, message: Message, memory: Memory) -> tuple[Message, Memory]:
        return self._of(message).update(id, round, message, memory)

    def evaluate(self, id: int, round: int, message: Message, memory: Memory):  # type: ignore[no-untyped-def]
        return self._of(message).evaluate(id, round, message, memory)


@functools.cache
def worlds(name: str) -> Workshop:
    return {**WORLDS, "many": many}[name]()


def several() -> Workshop:
    first = worlds("fedavg")
    return Several(first.method, first.federation, first.models, first.plan)


@dataclass(frozen=True)
class Marked:
    """A place that tells the workers which world a task belongs to."""

    name: str
    workers: Workers

    def _marked(self, tasks: Iterable[Task]) -> Iterator[Task]:
        for task in tasks:
            numbers = {**task.message.numbers, self.name: 1.0}
            yield replace(task, message=Message(task.message.tensors, numbers))

    def update(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
        return self.workers.update(self._marked(tasks))

    def evaluate(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
        return self.workers.evaluate(self._marked(tasks))

    def test(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor | Failure:
        return self.workers.test(tensors)


@contextlib.contextmanager
def working(build: Callable[[], Workshop], here: Inline, count: int = 2, timeout: float | None = None):  # type: ignore[no-untyped-def]
    """Worker processes, of which nothing is left after the block."""
    workers = Workers(count, build, here, timeout)
    try:
        yield workers
    finally:
        workers.close()
        assert not any(worker.alive for worker in workers._workers)
        assert not workers._outbox.folder.exists()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Two workers for many runs, and the run folder in which they keep memories."""
    path = tmp_path_factory.mktemp("workers") / "out"
    shop = several()
    with working(several, Inline(shop, Memories(path / "memories"))) as workers:
        yield path, workers


@pytest.mark.parametrize("name", WORLDS)
def test_worker_processes_give_the_same_bits_as_this_one(name: str, shared: Any, tmp_path: Path) -> None:  # 53, 55
    path, workers = shared
    shutil.rmtree(path, ignore_errors=True)
    outside = run(WORLDS[name](), path, lambda _: Marked(name, workers))
    inside = run(WORLDS[name](), tmp_path / "inline")
    assert outside.lines == inside.lines
    assert len(inside.lines) == 3
    assert any(line["refused"] for line in inside.lines) == (name == "broken")
    assert same(outside.state, inside.state)
    assert outside.memories.keys() == inside.memories.keys()
    assert all(same(outside.memories[id], inside.memories[id]) for id in inside.memories)
    for kind in ("models", "pictures", "memories"):
        saved = {p.relative_to(tmp_path / "inline"): p.read_bytes() for p in (tmp_path / "inline" / kind).rglob("*.s*")}
        assert saved == {p.relative_to(path): p.read_bytes() for p in (path / kind).rglob("*.s*")}


def test_the_number_of_threads_is_one_inside_and_restored_after() -> None:
    torch.set_num_threads(2)
    with one_thread():
        inside = torch.get_num_threads()
    assert (inside, torch.get_num_threads()) == (1, 2)
    torch.set_num_threads(1)


# -- workers that hang or die -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Deadly(FedAvg):
    """FedAvg whose client 1 hangs in round 1, whose client 2 kills its process in round 2, and client 0 leaves in 3."""

    def update(self, client: Client, message: Message, memory: Memory) -> tuple[Message, Memory]:
        if (client.id, client.round) == (1, 1):
            time.sleep(600)
        if (client.id, client.round) == (2, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        if (client.id, client.round) == (0, 3):
            os._exit(3)
        return super().update(client, message, memory)


@dataclass(frozen=True, kw_only=True)
class Absent(FedAvg):
    """FedAvg to which the same clients do not come."""

    def update(self, client: Client, message: Message, memory: Memory) -> tuple[Message, Memory]:
        if (client.id, client.round) in ((1, 1), (2, 2), (0, 3)):
            raise OSError
        return super().update(client, message, memory)


def here(shop: Workshop, path: Path) -> Inline:
    return Inline(shop, Memories(path / "out" / "memories"))


def of(method: Method, **fields: Any) -> Workshop:
    return workshop(method, rounds=4, **fields)


def test_a_round_goes_on_without_a_client_that_hangs_or_is_killed(tmp_path: Path) -> None:
    shop = of(Deadly())
    with working(functools.partial(of, Deadly()), here(shop, tmp_path), timeout=2) as workers:
        outcome = run(shop, tmp_path / "out", lambda _: workers)
    assert [line["refused"] for line in outcome.lines] == [
        {"1": "no answer within 2 s"},
        {"2": "its worker process was killed by SIGKILL"},
        {"0": "its worker process ended with exit code 3"},
        {},
    ]
    assert same(outcome.state, run(of(Absent()), tmp_path / "absent").state)


def test_a_worker_that_is_killed_while_idle_is_replaced_and_no_client_is_lost(tmp_path: Path) -> None:
    shop = of(FedAvg())

    class Killing:
        def __init__(self, workers: Workers) -> None:
            self.evaluate, self.test, self.workers = workers.evaluate, workers.test, workers

        def update(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
            yield from self.workers.update(tasks)
            for worker in self.workers._workers:
                worker._process.kill()
                worker._process.join()

    with working(functools.partial(of, FedAvg()), here(shop, tmp_path), 1) as workers:
        outcome = run(replace(shop, plan=replace(shop.plan, rounds=2)), tmp_path / "out", lambda _: Killing(workers))
    assert not any(line["refused"] or line["untested"] for line in outcome.lines)


def unbuildable() -> Workshop:
    raise OSError("the data are gone")


def test_workers_that_cannot_start_end_the_run_with_the_reason(tmp_path: Path) -> None:
    shop = of(FedAvg())
    with (
        working(unbuildable, here(shop, tmp_path), 1) as workers,
        pytest.raises(WorkersFailed, match="cannot start: OSError: the data are gone"),
    ):
        run(shop, tmp_path / "out", lambda _: workers)


def test_messages_in_shared_memory_are_deleted_as_soon_as_they_were_read(shared: Any, tmp_path: Path) -> None:
    path, workers = shared
    shutil.rmtree(path, ignore_errors=True)
    most = 0

    class Counting(Marked):
        def update(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
            nonlocal most
            for answer in super().update(tasks):
                most = max(most, sum(1 for _ in workers._outbox.folder.iterdir()))
                yield answer

    fed = federation(clients=12)
    run(workshop("fedshibu", fed), path, lambda _: Counting("fedshibu", workers))
    # at any time: a message down and one up for each of two workers, and the last one down
    assert 0 < most <= 2 * 2 + 1


def test_rounds_of_many_clients_pile_up_neither_memory_nor_processes(shared: Any, tmp_path: Path) -> None:  # case 97
    path, workers = shared
    shutil.rmtree(path, ignore_errors=True)
    resident, processes = [], []

    def megabytes(pid: int) -> float:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    class Measuring(Marked):
        def test(self, tensors: dict[str, torch.Tensor]):  # type: ignore[no-untyped-def]
            working = multiprocessing.active_children()
            processes.append(len(working))
            resident.append(sum(megabytes(pid) for pid in (os.getpid(), *(child.pid for child in working))))
            return super().test(tensors)

    outcome = run(many(), path, lambda _: Measuring("many", workers))
    assert not any(line["refused"] for line in outcome.lines)
    assert processes == [2] * 5
    assert resident[4] - resident[1] < 50


# -- everything fails -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hopeless(FedAvg):
    """Nobody's work ever ends well."""

    def update(self, client: Client, message: Message, memory: Memory) -> tuple[Message, Memory]:
        raise ZeroDivisionError("client %d divides by nought" % client.id)  # noqa: UP031


def test_three_rounds_of_failures_are_three_whether_or_not_the_run_was_stopped_between(tmp_path: Path) -> None:
    def lines_after(rounds: int, path: Path) -> int:
        with contextlib.suppress(RoundsFailed):
            run(workshop(Hopeless(), rounds=rounds, checkpoint_every=1), path)
        return len((path / "metrics.jsonl").read_text().splitlines())

    assert lines_after(9, tmp_path / "a") == 3
    assert lines_after(2, tmp_path / "b") == 2
    assert lines_after(9, tmp_path / "b") == 3


def test_the_first_traceback_of_each_reason_is_kept(tmp_path: Path) -> None:  # case 95
    with pytest.raises(RoundsFailed, match="the first reason: ZeroDivisionError: client 0 divides by nought"):
        run(workshop(Hopeless()), tmp_path / "out")
    told = (tmp_path / "out" / "errors.log").read_text()
    assert told.count("round 1, client 0: ZeroDivisionError: client 0 divides by nought\nTraceback") == 1
    assert told.count("Traceback") == 4
    assert "divides by nought" in told.split("raise ZeroDivisionError", 1)[1]


@dataclass(frozen=True, kw_only=True)
class Untestable(FedPer):
    """The own model of client 1 cannot be had."""

    def evaluated(self, client: Client, message: Message, memory: Memory) -> dict[str, dict[str, torch.Tensor]]:
        if client.id == 1:
            raise ValueError("no model")
        return super().evaluated(client, message, memory)


def test_a_test_that_fails_leaves_out_one_accuracy_and_nothing_else(tmp_path: Path) -> None:
    outcome, whole = run(workshop(Untestable()), tmp_path / "a"), run(workshop(FedPer()), tmp_path / "b")
    assert [line["untested"] for line in outcome.lines] == [{"1": "ValueError: no model"}] * 3
    own, all_of_them = (o.lines[-1]["client_acc"]["personal"] for o in (outcome, whole))
    assert own == [all_of_them[0], None, *all_of_them[2:]]
    assert same(outcome.state, whole.state)
