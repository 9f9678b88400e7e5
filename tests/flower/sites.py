"""Sites of a small federation in one process, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfed.data import Federation
from kinfed.data.cache import keep
from kinfed.engine import RunFolder
from kinfed.experiment.config import Config
from kinfed.experiment.run import folder_of, resume, run
from kinfed.flower.executor import FlowerExecutor, introduced, nodes_of
from kinfed.flower.federation import agreed
from kinfed.methods import make_method
from kinfed.testing import trial_fields
from tests.builders import federation
from tests.flower.loop_grid import LoopGrid

DATA = "<sites>"


def named_federation() -> Federation:
    """Four clients with names, whose test samples are the whole test set."""
    made = federation()
    return replace(made, partition=replace(made.partition, names=tuple(f"site-{id}" for id in range(len(made)))))


def config_of(method: str, fed: Federation, **fields: Any) -> Config:
    """A config of three rounds of a method on a federation."""
    made = make_method(method)
    own = trial_fields(type(made.unwrapped)) | trial_fields(type(made))
    given = {
        "methods": (method,), "settings": {method: own}, "data": DATA, "public": len(fed.public_rows),
        "model": "tiny_cnn", "rounds": 3, "participation": 0.75, "lr": 0.05, "batch_size": 16, "checkpoint_every": 1,
        "ft_epochs": 1 if made.adapts else 0,
        **({} if made.supervised else {"linear_probe": False, "knn_every": 0}),
        **fields,
    }  # fmt: skip
    return Config.checked(given, {DATA: fed})


def at_sites(fed: Federation, path: Path, kind: Callable[..., LoopGrid] = LoopGrid, **entries: str) -> LoopGrid:
    """A grid of nodes that each have the samples of one client in a folder of their own."""
    nodes = []
    for id in range(len(fed)):
        own = replace(fed.dataset, train=fed.train(id), test=fed.test(id), name=f"site {id}")
        data = keep(own, path / f"site-{id}" / "data")
        state = path / f"site-{id}" / "state"
        nodes.append({"name": f"site-{id}", "data": str(data), "state": str(state), **entries})
    return kind(nodes)


def run_at_sites(
    grid: LoopGrid, config: Config, fed: Federation, out: Path, *, again: bool = False, timeout: float | None = 120
) -> RunFolder:
    """Run a config at the sites of a grid, or resume the run."""
    nodes = introduced(grid, nodes_of(grid, len(fed), wait=1), config, wait=60)
    sites = agreed([*nodes.values()], images=fed.public_images)
    config = Config.checked(config.model_dump(), {DATA: sites})
    executor = FlowerExecutor(grid, [*nodes], timeout)
    if again:
        resume(out, objects={DATA: sites}, executor=executor)
    else:
        run(config, out, executor=executor)
    return replace(folder_of(config, out), states=executor.client_states(out))


def site_states(path: Path) -> dict[str, bytes]:
    """Files of the client states in the folders of all sites, by name."""
    return {file.name: file.read_bytes() for file in path.glob("site-*/state/runs/*/memories/*/*.safetensors")}
