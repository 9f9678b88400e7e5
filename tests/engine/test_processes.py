"""Worker processes start wherever a run is started from, and leave nothing behind however it ends."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import nn

import kinfed
from kinfed import fork_server
from kinfed.engine import ProcessExecutor, WorkersFailed, exchange
from kinfed.engine.exchange import Exchange, clear_left_behind
from kinfed.errors import InputError
from kinfed.interrupt import SIGNALS, Interrupt, Stopped, held_back, out_of_reach
from kinfed.methods import Message
from tests.builders import build_runtime, run
from tests.engine.test_executors import working

SMALL: dict[str, Any] = {"clients": 3, "partition": "iid", "rounds": 1, "ft_epochs": 0, "quiet": True}

# -- how they start ---------------------------------------------------------------------------------------------------

SCRIPT = f"import kinfed, sys; kinfed.run('fedper', workers=2, out=sys.argv[1], **{SMALL})"


@pytest.mark.slow
def test_a_program_without_a_guard_may_have_workers(tmp_path: Path) -> None:  # case 309
    (tmp_path / "script.py").write_text(SCRIPT)
    ways: dict[str, tuple[list[str], str | None]] = {
        "script": ([str(tmp_path / "script.py")], None),
        "input": (["-"], SCRIPT),
        "command": (["-c", SCRIPT], None),  # as in a notebook, __main__ has no file
    }
    inside = kinfed.run("fedper", out=tmp_path / "inside", **SMALL).path
    for name, (how, text) in ways.items():
        out = tmp_path / name
        done = subprocess.run(
            [sys.executable, *how, str(out)], input=text, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        for file in ("metrics.jsonl", *(f"models/client-{id:05d}-personal.safetensors" for id in range(3))):
            assert (out / file).read_bytes() == (inside / file).read_bytes()


def net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def test_a_model_that_workers_cannot_import_is_refused_before_anything_is_written(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # case 309
    monkeypatch.setattr(sys.modules["__main__"], "net", net, raising=False)
    with pytest.raises(InputError, match=r"^model: '__main__:net' cannot be imported by workers; move it to a module"):
        kinfed.run("fedavg", out=out, model="__main__:net", head="1", workers=2, **SMALL)
    assert not out.exists()


def dying() -> Any:
    os._exit(3)


@pytest.mark.slow
def test_a_process_that_dies_before_it_is_ready_is_no_clients_fault(tmp_path: Path) -> None:  # case 309
    with (
        working(1) as workers,
        pytest.raises(WorkersFailed, match=r"^a worker process ended with exit code 3 before it was ready$"),
    ):
        run(build_runtime("fedavg"), tmp_path / "out", workers, dying)
    assert not (tmp_path / "out" / "metrics.jsonl").read_text()


def built_of(anything: object) -> Any:
    raise AssertionError(f"{type(anything).__name__} is here")


@pytest.mark.slow
def test_classes_of_the_main_module_travel_to_workers_which_change_nothing_in_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_own = vars(forkserver._forkserver).copy()
    before = multiprocessing.get_start_method(allow_none=True), sys.modules["__main__"]
    gone = type("Gone", (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Gone", gone, raising=False)
    with working(1) as workers:
        assert (multiprocessing.get_start_method(allow_none=True), sys.modules["__main__"]) == before
        assert vars(forkserver._forkserver) == programs_own
        with pytest.raises(WorkersFailed, match=r"^a worker process cannot start: AssertionError: Gone is here"):
            run(build_runtime("fedavg"), tmp_path / "out", workers, functools.partial(built_of, gone()))
    assert capfd.readouterr().err == ""


@pytest.fixture
def exchanges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of their own for exchange folders."""
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(exchange, "SHARED_MEMORY", place)
    monkeypatch.setattr(exchange, "ROOM", 0)
    return place


def test_processes_that_cannot_be_started_are_told_and_leave_nothing(
    exchanges: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: BaseProcess) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(BaseProcess, "start", full)
    with pytest.raises(WorkersFailed, match=r"^a worker process cannot be started: BlockingIOError: .* unavailable$"):
        ProcessExecutor(2)
    assert not [*exchanges.iterdir()]


@pytest.mark.parametrize(
    ("start", "reason"),
    [("spawn", "it ended with exit code 1"), ("forkserver", r"(Connection\w+|BrokenPipe|EOF)Error.*")],
)
def test_processes_that_end_as_soon_as_they_start_are_told(
    start: str, reason: str, exchanges: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "START", start)
    fork_server._server()._stop()  # the next process starts another one
    multiprocessing.set_executable("/bin/false")
    try:
        with pytest.raises(WorkersFailed, match=rf"^a worker process cannot be started: {reason}$"):
            ProcessExecutor(1)
    finally:
        multiprocessing.set_executable(sys.executable)
    assert not [*exchanges.iterdir()]


def write_about(file: Path) -> Any:
    about = {
        "threads": torch.get_num_threads(),
        "blas": [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"],
        "environment": dict(os.environ),
        "path": sys.path,
        "folder": os.getcwd(),
        "blocked": [*map(int, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))],
        "drawn": np.random.random(),  # noqa: NPY002
    }
    file.write_text(json.dumps(about))
    raise OSError("enough")


def about_a_worker(start: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of a new worker process."""
    monkeypatch.setattr(fork_server, "START", start)
    with working(1) as workers, pytest.raises(WorkersFailed, match="enough"):
        run(build_runtime("fedavg"), folder, workers, functools.partial(write_about, folder.with_suffix(".json")))
    about: dict[str, Any] = json.loads(folder.with_suffix(".json").read_text())
    return about


@pytest.mark.slow
def test_a_forked_worker_has_the_settings_of_a_new_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = about_a_worker("forkserver", tmp_path / "first", monkeypatch)  # starts the server, if there is none yet
    monkeypatch.setenv("KINFED_LATER", "set after the start of the server")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    forked, spawned = (about_a_worker(start, tmp_path / start, monkeypatch) for start in ("forkserver", "spawn"))
    assert len({about.pop("drawn") for about in (first, forked, spawned)}) == 3
    assert forked == spawned != first
    assert forked["threads"] == 1


# -- what they leave --------------------------------------------------------------------------------------------------


def test_only_what_a_killed_run_of_ones_own_left_is_removed(
    exchanges: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # case 310
    used, left, foreign = Exchange(), Exchange(), Exchange()
    for one in (used, left, foreign):
        one.post(Message({"w": torch.ones(2)}))
    for one in (left, foreign):
        one._lock.release()  # as the end of its process does
    (foreign.folder / "notes.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "down-1").write_text("mine")
    (exchanges / "kinfed-exchange-alink").symlink_to(elsewhere)
    (exchanges / "kinfed-exchange-afile").write_text("mine")
    with monkeypatch.context() as another_user:
        another_user.setattr(os, "getuid", lambda: os.geteuid() + 1)
        clear_left_behind()
    assert left.folder.exists()
    clear_left_behind()
    assert not left.folder.exists()
    assert sorted(path.name for path in used.folder.iterdir()) == ["down-0", "lock"]
    assert [path.name for path in foreign.folder.iterdir()] == ["notes.txt"]
    assert (elsewhere / "down-1").read_text() == (exchanges / "kinfed-exchange-afile").read_text() == "mine"
    used.close()
    assert not used.folder.exists()


def held_by(process: subprocess.Popen[Any]) -> Path:
    """The exchange folder of a running command."""
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        held = Path(os.readlink(descriptor))
        if held.name == "lock" and held.parent.name.startswith("kinfed-exchange-"):
            return held.parent
    raise AssertionError("it has none")


def at_work(out: Path) -> subprocess.Popen[str]:
    """A long run with two workers, in a process group of its own, that is in its second round."""
    options = ["--clients", "10", "--rounds", "400", "--checkpoint-every", "400", "--evaluate-every", "9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kinfed", "run", "fedper", *options, "--workers", "2", "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.01)
    return process


def group(process: subprocess.Popen[Any]) -> list[int]:
    """Who is left of a command and its workers."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == process.pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
    assert done()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_to_all_processes_ends_the_run_after_its_round_with_a_checkpoint(
    name: str, out: Path
) -> None:  # case 310
    process = at_work(out)
    folder = held_by(process)
    os.killpg(process.pid, getattr(signal, name))
    _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + getattr(signal, name)
    assert told.splitlines()[-1] == f"kinfed: stopped; what was saved stays, go on with: kinfed resume {out}"
    assert "Traceback" not in told
    assert "refused" not in told
    done = len((out / "metrics.jsonl").read_text().splitlines())
    assert [path.stem for path in (out / "checkpoints").iterdir()] == [f"round-{done:06d}"]
    assert not folder.exists()
    wait_until(lambda: not group(process))


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed_and_leave_nothing(out: Path) -> None:
    process = at_work(out)
    folder = held_by(process)
    process.kill()
    process.communicate()
    wait_until(lambda: not group(process) and not folder.exists())


@pytest.mark.slow
def test_what_is_left_where_all_processes_are_killed_at_once_goes_with_the_next_run(out: Path) -> None:  # case 310
    process = at_work(out)
    folder = held_by(process)
    clear_left_behind()
    assert folder.exists()  # it is in use
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not group(process))
    assert folder.exists()
    kinfed.run("fedavg", out=out.with_name("next"), **SMALL)
    assert not folder.exists()


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def handlers() -> Iterator[None]:
    """Handlers of signals as a program has them, and as they were after the test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.usefixtures("handlers")
def test_the_first_signal_is_noted_and_the_second_stops_at_once(number: int) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interrupt() as interrupt:
        os.kill(os.getpid(), number)
        assert interrupt.asked == number
        with pytest.raises(Stopped) as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.exit_code == 143
    assert isinstance(stopped.value, KeyboardInterrupt)
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_the_program_ignores_or_handles_stays_its_own() -> None:
    heard = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.asked is None
    assert heard == [signal.SIGTERM]


@pytest.mark.usefixtures("handlers")
def test_signals_that_are_held_back_arrive_afterwards() -> None:
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    with held_back():
        signal.raise_signal(signal.SIGTERM)  # to this thread; the process of a test may have others
        assert not heard
    assert heard == [signal.SIGTERM]


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_is_held_back_does_not_end_the_process_without_clearing_away() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(Stopped, match="stopped by SIGTERM"), held_back():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_processes_started_out_of_reach_do_not_get_the_signals() -> None:
    telling = "import signal; print(*sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with out_of_reach():
        told = subprocess.run([sys.executable, "-S", "-c", telling], capture_output=True, text=True, check=True).stdout
    assert {*map(int, told.split())} >= {*map(int, SIGNALS)}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
