"""When the server of worker processes starts, and that workers are its forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import kinfed
from kinfed import api, fork_server
from kinfed.engine import SerialExecutor
from kinfed.errors import InputError

needs_forks = pytest.mark.skipif(fork_server.START != "forkserver", reason="no fork server on this system")


@pytest.mark.parametrize(
    ("fields", "starts"),
    [
        ({"workers": "2"}, True),
        ({"workers": 2}, True),
        ({"parallel": "2"}, True),
        ({}, False),
        ({"workers": "0"}, False),
        ({"workers": 2, "executor": "ray"}, False),
        ({"workers": 2, "executor": SerialExecutor()}, False),
        ({"workers": "2", "lr": "x"}, False),
    ],
)
def test_the_server_starts_ahead_of_what_needs_torch_if_the_fields_ask_for_processes(
    fields: dict[str, Any], starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []
    monkeypatch.setattr(api, "start_ahead", lambda: started.append(True))
    with pytest.raises(InputError, match=r"^(fedprox\.mu|lr): "):
        kinfed.compare("fedprox:mu=x", **fields)
    assert started == [True] * starts


@needs_forks
@pytest.mark.slow
def test_workers_are_forks_of_the_server_that_was_started_ahead_without_torch() -> None:
    program = """if True:
        import os, sys
        from kinfed import fork_server
        fork_server.start_ahead()
        assert not {"torch", "kinfed.engine"} & {*sys.modules}
        server = fork_server._server()._forkserver_pid
        from kinfed.engine import ProcessExecutor
        workers = ProcessExecutor(1)
        assert fork_server._server()._forkserver_pid == server
        pid = workers._workers[0]._process.pid
        parent = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]
        assert int(parent) == server
        workers.close()
        """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@needs_forks
def test_a_server_that_cannot_be_started_ahead_is_left_to_the_first_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(fork_server._server(), "ensure_running", full)
    fork_server.start_ahead()


@needs_forks
def test_threads_that_start_workers_at_once_leave_the_program_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from multiprocessing import forkserver

    before = sys.modules["__main__"], forkserver.connect_to_new_process, dict(os.environ)
    monkeypatch.setattr(fork_server._server(), "ensure_running", lambda: time.sleep(0.001))
    threads = [threading.Thread(target=lambda: [fork_server.start_ahead() for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.modules["__main__"], forkserver.connect_to_new_process, dict(os.environ)) == before
