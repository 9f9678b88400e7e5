from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kinfed.data import Federation, Partition
from kinfed.engine import ClientRuntime, ProcessExecutor, WorkersFailed
from kinfed.engine.executor import Task
from kinfed.errors import RunFailed
from kinfed.learning import LocalTraining, Phase
from kinfed.methods import METHODS, Client, ClientState, Message, Method
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedper import FedPer
from kinfed.models import Model
from kinfed.settings import own_settings
from tests.builders import build_runtime, dataset, federation, run, same

# -- the same bits, wherever clients run ------------------------------------------------------------------------------

AUGMENTED = LocalTraining(lr=0.05, batch_size=16, augment="crop_flip")


@dataclass(frozen=True, kw_only=True)
class Broken(FedPer):
    """FedPer whose client 2 fails in round 2."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        if (client.id, client.round) == (2, 2):
            raise OSError("no space left on this client")
        return super().update(client, message, state)


@dataclass(frozen=True, kw_only=True)
class Diverging(FedPer):
    """FedPer of which client 1 cannot be tested, nor, in the end, any fine-tuned copy."""

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, dict[str, torch.Tensor]]:
        tested = super().evaluated(client, message, state)
        tested["stale"]["head.bias"] /= client.id != 1
        return tested


def untested() -> Federation:
    """Nobody has test samples, and there is no test set."""
    fed = federation()
    return replace(fed, partition=Partition(fed.partition.train, [np.arange(0)] * len(fed), pooled=True))


WORLDS: dict[str, Callable[[], ClientRuntime]] = {
    **{name: functools.partial(build_runtime, name, federation(new=2), participation=0.75) for name in METHODS},
    "augmented": functools.partial(build_runtime, "fedavg", training=AUGMENTED),
    "untested": functools.partial(build_runtime, "fedavg", untested()),
    "broken": functools.partial(build_runtime, Broken()),
    "diverging": functools.partial(build_runtime, Diverging(), fine_tuning=Phase(epochs=1, lr=1e30)),
}


def megabyte(shape: tuple[int, ...], classes: int) -> Model:
    return Model({"flatten": nn.Flatten(), "fc": nn.Linear(64, 3300)}, nn.Linear(3300, classes), ["fc"])


def many() -> ClientRuntime:
    """200 clients of a model of 1 MB, 50 of them in each of five rounds."""
    fed = federation(clients=200, public=0, data=dataset(400, 200))
    return build_runtime("fedavg", fed, rounds=5, participation=0.25, model=f"{__name__}:megabyte")


@contextlib.contextmanager
def working(count: int = 2, timeout: float | None = None) -> Iterator[ProcessExecutor]:
    """Worker processes, of which nothing is left after the block."""
    workers = ProcessExecutor(count, timeout)
    try:
        yield workers
    finally:
        workers.close()
        assert not any(worker.alive for worker in workers._workers)
        assert not workers._exchange.folder.exists()


@pytest.fixture(scope="module")
def two_workers() -> Iterator[ProcessExecutor]:
    with working() as workers:
        yield workers


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_worker_processes_give_the_same_bits_as_this_one(  # cases 53, 55
    name: str, two_workers: ProcessExecutor, tmp_path: Path
) -> None:
    outside = run(WORLDS[name](), tmp_path / "workers", two_workers, WORLDS[name])
    inside = run(WORLDS[name](), tmp_path / "inline")
    assert outside.lines == inside.lines
    assert len(inside.lines) == 3
    assert any(line["refused"] for line in inside.lines) == (name == "broken")
    assert any(line["untested"] for line in inside.lines) == (name in ("diverging", "untested"))
    assert same(outside.state, inside.state)
    assert outside.client_states.keys() == inside.client_states.keys()
    assert all(same(outside.client_states[id], inside.client_states[id]) for id in inside.client_states)
    for kind in ("models", "pictures", "memories"):
        saved = [
            {path.name: path.read_bytes() for path in (tmp_path / where / kind).rglob("*.*")}
            for where in ("inline", "workers")
        ]
        assert saved[0] == saved[1]


@pytest.mark.slow
def test_workers_go_from_one_run_to_the_next(two_workers: ProcessExecutor, tmp_path: Path) -> None:
    before = [worker._process.pid for worker in two_workers._workers]
    for name in ("fedper", "local"):
        run(WORLDS[name](), tmp_path / name, two_workers, WORLDS[name])
    assert [worker._process.pid for worker in two_workers._workers] == before


def test_the_number_of_threads_is_one_inside_and_restored_after() -> None:
    torch.set_num_threads(2)
    with own_settings():
        inside = torch.get_num_threads()
    assert (inside, torch.get_num_threads()) == (1, 2)
    torch.set_num_threads(1)


# -- workers that hang or die -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Deadly(FedAvg):
    """FedAvg: client 1 hangs in round 1, client 2 kills its processes in round 2, and client 0 leaves in 3."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        if (client.id, client.round) == (1, 1):
            time.sleep(600)
        if (client.id, client.round) == (2, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        if (client.id, client.round) == (0, 3):
            os._exit(3)
        return super().update(client, message, state)


@dataclass(frozen=True, kw_only=True)
class Absent(FedAvg):
    """FedAvg to which the same clients do not come."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        if (client.id, client.round) in ((1, 1), (2, 2), (0, 3)):
            raise OSError
        return super().update(client, message, state)


def of(method: Method, **fields: Any) -> ClientRuntime:
    return build_runtime(method, rounds=4, **fields)


@pytest.mark.slow
def test_a_round_goes_on_without_a_client_that_hangs_or_is_killed(tmp_path: Path) -> None:
    build = functools.partial(of, Deadly())
    with working(timeout=2) as workers:
        outcome = run(build(), tmp_path / "out", workers, build)
    assert [line["refused"] for line in outcome.lines] == [
        {"1": "no answer within 2 s"},
        {"2": "3 worker processes were lost with its work; the last one was killed by SIGKILL"},
        {"0": "3 worker processes were lost with its work; the last one ended with exit code 3"},
        {},
    ]
    assert same(outcome.state, run(of(Absent()), tmp_path / "absent").state)


@dataclass(frozen=True, kw_only=True)
class Struck(FedPer):
    """FedPer whose workers are killed twice, from outside as it were, while client 1 works or is tested.

    Attributes:
        folder: Folder for marks of what has happened.
    """

    folder: str = ""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        self._struck(client, "update")
        return super().update(client, message, state)

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, dict[str, torch.Tensor]]:
        self._struck(client, "evaluation")
        return super().evaluated(client, message, state)

    def _struck(self, client: Client, when: str) -> None:
        for mark in (Path(self.folder, f"mark-{when}-{client.round}-{at}") for at in range(2)):
            if self.folder and client.id == 1 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_the_work_of_killed_workers_is_done_again_with_the_same_bits(tmp_path: Path) -> None:
    build = functools.partial(build_runtime, Struck(folder=str(tmp_path)))
    with working() as workers:
        outside = run(build(), tmp_path / "workers", workers, build)
    inside = run(build_runtime(Struck()), tmp_path / "inside")
    assert len([*tmp_path.glob("mark-*")]) == 12
    assert outside.lines == inside.lines
    assert same(outside.state, inside.state)
    assert all(same(outside.client_states[id], inside.client_states[id]) for id in inside.client_states)


class Killing:
    """ProcessExecutor that are killed after every round, when they have nothing to do."""

    def __init__(self, workers: ProcessExecutor) -> None:
        self.start, self.evaluate, self.test, self.close = workers.start, workers.evaluate, workers.test, workers.close
        self.workers = workers

    def update(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
        yield from self.workers.update(tasks)
        for worker in self.workers._workers:
            worker._process.kill()
            worker._process.join()


@pytest.mark.slow
def test_a_worker_that_is_killed_while_idle_is_replaced_and_no_client_is_lost(tmp_path: Path) -> None:
    build = functools.partial(build_runtime, "fedavg", rounds=2)
    with working(1) as workers:
        outcome = run(build(), tmp_path / "out", Killing(workers), build)
    assert not any(line["refused"] or line["untested"] for line in outcome.lines)


def unbuildable() -> ClientRuntime:
    raise OSError("the data are gone")


@pytest.mark.slow
def test_workers_that_cannot_start_end_the_run_with_the_reason_and_serve_the_next(
    two_workers: ProcessExecutor, tmp_path: Path
) -> None:
    with pytest.raises(WorkersFailed, match="cannot start: OSError: the data are gone"):
        run(build_runtime("fedavg"), tmp_path / "out", two_workers, unbuildable)
    build = functools.partial(build_runtime, "fedavg", rounds=1)
    assert run(build(), tmp_path / "next", two_workers, build).lines[0]["refused"] == {}


class Counting:
    """Counts the messages in shared memory whenever an answer has come."""

    def __init__(self, workers: ProcessExecutor) -> None:
        self.start, self.evaluate, self.test, self.close = workers.start, workers.evaluate, workers.test, workers.close
        self.workers, self.most = workers, 0

    def update(self, tasks: Iterable[Task]):  # type: ignore[no-untyped-def]
        for answer in self.workers.update(tasks):
            self.most = max(self.most, sum(1 for _ in self.workers._exchange.folder.iterdir()))
            yield answer


@pytest.mark.slow
def test_messages_in_shared_memory_do_not_pile_up(tmp_path: Path) -> None:
    build = functools.partial(build_runtime, "fedshibu", federation(clients=12), rounds=2)
    with working() as workers:
        counting = Counting(workers)
        run(build(), tmp_path / "out", counting, build)
    # at any time: a message down and two up for each of two workers, and the last one down
    assert 0 < counting.most <= 2 * 3 + 1


class Measuring:
    """Measures worker processes, and the resident memory of all of them and this one, whenever there is a test."""

    def __init__(self, workers: ProcessExecutor) -> None:
        self.start, self.update, self.evaluate, self.close = (
            workers.start,
            workers.update,
            workers.evaluate,
            workers.close,
        )
        self.workers = workers
        self.processes: list[int] = []
        self.resident: list[float] = []  # megabytes

    def test(self, tensors: dict[str, torch.Tensor], *, final: bool):  # type: ignore[no-untyped-def]
        working = multiprocessing.active_children()
        self.processes.append(len(working))
        told = [Path(f"/proc/{pid}/statm").read_text() for pid in (os.getpid(), *(child.pid for child in working))]
        self.resident.append(sum(int(pages.split()[1]) for pages in told) * os.sysconf("SC_PAGE_SIZE") / 1e6)
        return self.workers.test(tensors, final=final)


@pytest.mark.slow
def test_many_clients_pile_up_neither_memory_nor_processes(
    two_workers: ProcessExecutor, tmp_path: Path
) -> None:  # case 97
    measuring = Measuring(two_workers)
    outcome = run(many(), tmp_path / "out", measuring, many)
    assert not any(line["refused"] for line in outcome.lines)
    assert measuring.processes == [2] * 5
    assert measuring.resident[4] - measuring.resident[1] < 50


# -- everything fails -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hopeless(FedAvg):
    """Nobody's work ever ends well."""

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        raise ZeroDivisionError("client %d divides by nought" % client.id)  # noqa: UP031


def test_three_rounds_of_failures_are_three_whether_or_not_the_run_was_stopped_between(tmp_path: Path) -> None:
    def lines_after(rounds: int, path: Path) -> int:
        with contextlib.suppress(RunFailed):
            run(build_runtime(Hopeless(), rounds=rounds, checkpoint_every=1), path)
        return len((path / "metrics.jsonl").read_text().splitlines())

    assert lines_after(9, tmp_path / "a") == 3
    assert lines_after(2, tmp_path / "b") == 2
    assert lines_after(9, tmp_path / "b") == 3
    assert lines_after(9, tmp_path / "b") == 4  # one more try, whoever asks for it


def test_the_first_traceback_of_each_reason_is_kept(tmp_path: Path) -> None:  # case 95
    with pytest.raises(RunFailed, match="the first reason: ZeroDivisionError: client 0 divides by nought"):
        run(build_runtime(Hopeless()), tmp_path / "out")
    told = (tmp_path / "out" / "errors.log").read_text()
    assert told.count("round 1, client 0: ZeroDivisionError: client 0 divides by nought\nTraceback") == 1
    assert told.count("Traceback") == 4
    assert "divides by nought" in told.split("raise ZeroDivisionError", 1)[1]


@dataclass(frozen=True, kw_only=True)
class Untestable(FedPer):
    """The own model of client 1 cannot be had."""

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, dict[str, torch.Tensor]]:
        if client.id == 1:
            raise ValueError("no model")
        return super().evaluated(client, message, state)


def test_a_test_that_fails_leaves_out_one_accuracy_and_nothing_else(tmp_path: Path) -> None:
    outcome, whole = run(build_runtime(Untestable()), tmp_path / "a"), run(build_runtime(FedPer()), tmp_path / "b")
    assert [line["untested"] for line in outcome.lines] == [{"1": "ValueError: no model"}] * 3
    own, all_of_them = (o.lines[-1]["client_acc"]["personal"] for o in (outcome, whole))
    assert own == [all_of_them[0], None, *all_of_them[2:]]
    assert same(outcome.state, whole.state)
