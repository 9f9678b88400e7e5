"""Flower's app at the server: it asks the sites who they are, and does the run or comparison of a config at them."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from httpx import HTTPStatusError
from rich.console import Console
from safetensors.torch import load_file

from kinfed.data import Samples, load
from kinfed.data.samples import AS_THEY_ARE
from kinfed.display import Display
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.folders import is_ours
from kinfed.experiment.run import MakeCallback, compare, resume, run
from kinfed.files import NotSaved
from kinfed.flower.executor import FlowerExecutor, introduced, nodes_of
from kinfed.flower.federation import agreed, refuse_impossible
from kinfed.flower.journal import Journal
from kinfed.interrupt import Stopped
from kinfed.settings import own_settings
from kinfed.streams import with_secret

__all__ = ["app", "secret_in"]

WAIT = 300.0  # seconds in which all nodes must be there, and then introduce themselves
GONE = "the SuperLink does not know this run any more: somebody has stopped it, or the SuperLink has lost its database"

app = ServerApp()


def main(grid: Grid, context: Context) -> None:
    """Do the job that ``run_config`` describes.

    Its entries are ``config``, the text of a config whose ``data`` is a name in angle brackets; ``out``, the folder of
    the run, which is resumed if it has begun; ``sites``, their number; ``timeout``, the seconds that a site may work on
    a task; ``images``, the public images, as data or as a safetensors file, empty for none; ``journal``, the path of a
    journal; and ``secret``, the path of a file with a secret number, empty to draw all from the seed of the config.
    """
    job = context.run_config
    display = Display(Console(highlight=False, emoji=False, soft_wrap=True))  # lines that Flower shows and keeps
    journal = Journal(Path(str(job["journal"])), display.run)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # so that the first one ends the run after its round
    try:
        with own_settings(), with_secret(secret_in(str(job["secret"]), anew=not is_ours(Path(str(job["out"]))))):
            _do(grid, job, journal.observer, display.say)
    except Stopped as stopped:
        journal.note("stopped", stopped.exit_code)
    except Exception as raised:
        error = RunFailed(GONE) if _refused_by_superlink(raised) else raised
        journal.note("failed", type(error).__name__, str(error))
        display.say(f"kinfed: {error if isinstance(error, InputError | RunFailed | NotSaved) else repr(error)}")
        raise
    else:
        journal.note("done")


def _refused_by_superlink(error: Exception) -> bool:
    """Return True if the SuperLink no longer lets this process speak for its run."""
    return isinstance(error, HTTPStatusError) and error.response.status_code in (401, 403)


def _do(grid: Grid, job: Mapping[str, Any], observer: MakeCallback, say: Callable[[str], None]) -> None:
    """Do the run or comparison of a job, or the rest of it; `say` shows a line."""
    out, sites = Path(str(job["out"])), int(job["sites"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(str(job["config"]))
        name = str(read_toml(path)["data"])
        config = Config.read(path, {name: None})
        refuse_impossible(config)
        nodes = introduced(grid, nodes_of(grid, sites, WAIT, say), config, WAIT)
        objects = {name: agreed([*nodes.values()], images=_public(str(job["images"]), config), name=name)}
        config = Config.read(path, objects)
    executor = FlowerExecutor(grid, [*nodes], float(job["timeout"]))
    if is_ours(out):
        resume(out, observer, objects=objects, executor=executor)
    elif len(config.methods) > 1 or config.seeds > 1:
        compare(config, out, observer, executor=executor)
    else:
        run(config, out, observer, executor=executor)


def secret_in(path: str, *, anew: bool) -> int | None:
    """Read a secret number from a file that only this user can read.

    Args:
        path: Path of the file, which is written if it is missing; empty for no secret.
        anew: True for a new number, so that no two runs have the same noise; False for that of a run that goes on.

    Raises:
        InputError: If the file is somebody else's.
    """
    if not path:
        return None
    file = Path(path)
    if anew or not file.is_file():
        if file.is_file() and not file.read_text("utf-8", "replace").strip().isdecimal():
            raise InputError(f"secret: {path!r} is no file of kinfed; move it away")
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as new:
            new.write(f"{secrets.randbits(128)}\n")
    return int(file.read_text())


def _public(images: str, config: Config) -> Samples | None:
    """Return the public images of the server; None if it has none."""
    if not images:
        return None
    if Path(images).suffix == ".safetensors":
        return Samples(load_file(images)["images"], None, AS_THEY_ARE)
    own = load(images, channels=config.channels, image_size=config.image_size).train.without_labels()
    return own if config.public is None else own.take(range(min(config.public, len(own))))


app.main()(main)
