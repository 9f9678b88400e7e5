"""Sites in one process, behind a grid that answers at once: the same bits as without Flower, and nothing private."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from kinfed.data import Federation
from kinfed.data.cache import keep
from kinfed.engine import RunFolder
from kinfed.experiment.config import Config
from kinfed.experiment.run import folder_of, resume, run
from kinfed.flower.executor import FlowerExecutor, introduced, nodes_of
from kinfed.flower.federation import agreed
from kinfed.methods import METHODS, make_method
from kinfed.models import read_tensors
from kinfed.testing import same, trial_fields
from tests.builders import federation
from tests.flower.loop_grid import LoopGrid

POSSIBLE = [name for name, kind in METHODS.items() if kind.trains != "pooled" and not kind().requires.true_groups]


def config_of(method: str, fed: Federation, **fields: Any) -> Config:
    """A config of three rounds of a small method on a federation."""
    made = make_method(method)
    own = trial_fields(type(made.unwrapped)) | trial_fields(type(made))
    given = {
        "methods": (method,), "settings": {method: own}, "data": "<sites>", "public": len(fed.public_rows),
        "model": "tiny_cnn", "rounds": 3, "participation": 0.75, "lr": 0.05, "batch_size": 16, "checkpoint_every": 1,
        "ft_epochs": 1 if made.adapts else 0,
        **({} if made.supervised else {"linear_probe": False, "knn_every": 0}),
        **fields,
    }  # fmt: skip
    return Config.checked(given, {"<sites>": fed})


def at_sites(fed: Federation, path: Path) -> LoopGrid:
    """A grid of nodes that each have the samples of one client in a folder of their own."""
    nodes = []
    for id in range(len(fed)):
        own = replace(fed.dataset, train=fed.train(id), test=fed.test(id), name=f"site {id}")
        data = keep(own, path / f"site-{id}" / "data")
        nodes.append({"name": f"site-{id}", "data": str(data), "state": str(path / f"site-{id}" / "state")})
    return LoopGrid(nodes)


def run_at_sites(grid: LoopGrid, config: Config, fed: Federation, out: Path, *, again: bool = False) -> RunFolder:
    nodes = introduced(grid, nodes_of(grid, len(fed), wait=1), config, wait=60)
    sites = agreed([*nodes.values()], images=fed.public_images)
    config = Config.checked(config.model_dump(), {"<sites>": sites})
    executor = FlowerExecutor(grid, [*nodes], timeout=120)
    if again:
        resume(out, objects={"<sites>": sites}, executor=executor)
    else:
        run(config, out, executor=executor)
    return replace(folder_of(config, out), states=executor.client_states(out))


@pytest.fixture
def fed() -> Federation:
    """Four clients, whose test samples are the whole test set."""
    made = federation()
    return replace(made, partition=replace(made.partition, names=tuple(f"site-{id}" for id in range(len(made)))))


def states(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("client-*.safetensors") if path.parent.name.isdigit()}


@pytest.mark.parametrize("method", POSSIBLE)
def test_sites_give_the_same_bits_as_one_process(method: str, fed: Federation, tmp_path: Path) -> None:
    config = config_of(method, fed)
    run(config, tmp_path / "here")
    sites = run_at_sites(at_sites(fed, tmp_path), config, fed, tmp_path / "there")
    here = folder_of(config, tmp_path / "here")
    one, other = here.last_checkpoint(), sites.last_checkpoint()
    assert one is not None
    assert other is not None
    assert same(one.state, other.state)
    assert one.stored == other.stored
    kept = {
        name: content for id in range(4) for name, content in states(tmp_path / f"site-{id}" / "state" / "runs").items()
    }  # a site deletes what is not needed before its next task
    assert states(tmp_path / "here" / "memories").items() <= kept.items()
    for here_told, told in zip(here.lines("metrics.jsonl"), sites.lines("metrics.jsonl"), strict=True):
        here_told["global_auroc"] = told.get("global_auroc")  # scores of all sites would have to be at one place
        assert {key: value for key, value in here_told.items() if value != told.get(key)} == {}


def test_nothing_private_travels(fed: Federation, tmp_path: Path) -> None:
    grid = at_sites(fed, tmp_path)
    run_at_sites(grid, config_of("fedper", fed), fed, tmp_path / "out")
    travelled = b"\n".join(grid.travelled)
    assert b"body.conv1" in travelled
    private = [path for id in range(4) for path in (tmp_path / f"site-{id}" / "state").rglob("client-*.safetensors")]
    assert private
    for path in private:
        for name, tensor in read_tensors(path)[0].items():
            if name.startswith("head."):
                assert tensor.numpy().tobytes() not in travelled
    for id in range(4):
        for samples in (fed.train(id), fed.test(id)):
            assert not any(image.numpy().tobytes() in travelled for image in samples.inputs)
            assert samples.labels is not None
            assert samples.labels.numpy().tobytes() not in travelled
            assert json.dumps(samples.labels.tolist())[1:-1].encode() not in travelled
        assert str(tmp_path / f"site-{id}").encode() not in travelled
