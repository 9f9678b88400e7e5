"""Flower's app at the server: it asks the sites who they are, and does the run or comparison of a config at them."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file

from kinfed.data import Samples
from kinfed.data.samples import AS_THEY_ARE
from kinfed.engine.interrupt import Stopped
from kinfed.errors import InputError, RunFailed
from kinfed.experiment.config import Config
from kinfed.experiment.config_file import read_toml
from kinfed.experiment.folders import is_ours
from kinfed.experiment.run import compare, resume, run
from kinfed.files import NotSaved
from kinfed.flower.executor import FlowerExecutor, introduced, nodes_of
from kinfed.flower.federation import agreed, refuse_impossible
from kinfed.flower.journal import Journal
from kinfed.settings import own_settings

__all__ = ["app"]

WAIT = 300.0  # seconds in which all nodes must be there, and then introduce themselves

app = ServerApp()


def main(grid: Grid, context: Context) -> None:
    """Do the job that ``run_config`` describes.

    Its entries are ``config``, the path of a config whose ``data`` is a name in angle brackets; ``out``, the folder of
    the run; ``sites``, their number; ``timeout``, the seconds that a site may work on a task, 0 for no limit;
    ``images``, the path of the public images, empty for none; and ``journal``, the path of the journal.
    """
    job = context.run_config
    journal = Journal(Path(str(job["journal"])))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # so that the first one ends the run after its round
    try:
        with own_settings():
            _do(grid, Path(str(job["config"])), Path(str(job["out"])), int(job["sites"]), float(job["timeout"]),
                str(job["images"]), journal)  # fmt: skip
    except (InputError, RunFailed, NotSaved) as error:
        journal.note("failed", type(error).__name__, str(error))
    except Stopped as stopped:
        journal.note("stopped", stopped.exit_code)
    except Exception as error:
        journal.note("failed", type(error).__name__, str(error))
        raise
    else:
        journal.note("done")


def _do(grid: Grid, path: Path, out: Path, sites: int, timeout: float, images: str, journal: Journal) -> None:
    name = str(read_toml(path)["data"])
    config = Config.read(path, {name: None})
    refuse_impossible(config)
    nodes = introduced(grid, nodes_of(grid, sites, WAIT), config, WAIT)
    public = Samples(load_file(images)["images"], None, AS_THEY_ARE) if images else None
    objects = {name: agreed([*nodes.values()], images=public, name=name)}
    config = Config.read(path, objects)
    executor = FlowerExecutor(grid, [*nodes], timeout or None)
    if is_ours(out):
        resume(out, journal.observer, objects=objects, executor=executor)
    elif len(config.methods) > 1 or config.seeds > 1:
        compare(config, out, journal.observer, executor=executor)
    else:
        run(config, out, journal.observer, executor=executor)


app.main()(main)
