"""Server of which worker processes are forks, so that kinfed is imported for all of them once.

On Linux a process of its own (`multiprocessing.forkserver`) imports the engine, which takes seconds, and does nothing
else. It starts with the first worker of a program, or ahead of it, and ends with the program. Elsewhere each worker is
a new interpreter.

This module imports neither torch nor the engine, so that a program can start the server before it imports them itself.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import sys
import threading
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinfed.interrupt import out_of_reach
from kinfed.settings import untouched

if TYPE_CHECKING:
    from multiprocessing.forkserver import ForkServer  # not on every system

__all__ = ["START", "own_server", "start_ahead"]

START = "forkserver" if sys.platform == "linux" else "spawn"  # elsewhere system libraries do not allow a fork
IMPORTED = "kinfed.engine.processes"  # by the server
_LOCK = threading.Lock()


def start_ahead() -> None:
    """Start the server and return at once, so that it imports the engine while this process does so too."""
    if START == "forkserver":
        # A server that cannot be started is told when the first worker asks for it.
        with contextlib.suppress(OSError), own_server():
            _server().ensure_running()


@contextlib.contextmanager
def own_server() -> Iterator[None]:
    """Context manager for starting processes as workers are started.

    kinfed's server forks them; they do not run the main module, and the signals that end a run do not reach them. One
    thread at a time does so, since it changes settings of the program.
    """
    with _LOCK, _without_main(), _with_server(), out_of_reach():
        yield


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Context manager for starting processes that do not import the main module, which may be starting them."""
    main, method = sys.modules["__main__"], multiprocessing.get_start_method(allow_none=True)
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if method is None:  # the first start fixes the method, but the choice is the program's
            multiprocessing.set_start_method(None, force=True)


@contextlib.contextmanager
def _with_server() -> Iterator[None]:
    """Context manager for starting processes by kinfed's own fork server, not by that of the program.

    The server has the program's search path for modules when it starts. Its processes block signals (`out_of_reach`),
    which those of the program must not.
    """
    if START != "forkserver":
        yield
        return
    from multiprocessing import forkserver

    connect = forkserver.connect_to_new_process
    with untouched():
        os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        os.environ["PYTHONSAFEPATH"] = "1"
        forkserver.connect_to_new_process = _server().connect_to_new_process
        try:
            yield
        finally:
            forkserver.connect_to_new_process = connect


@functools.cache
def _server() -> ForkServer:
    from multiprocessing.forkserver import ForkServer

    server = ForkServer()
    server.set_forkserver_preload([IMPORTED])
    return server
