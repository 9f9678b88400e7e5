"""Models of a user's own: layers that are frozen, used twice, or never used, under every method (cases 321 to 323)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import kinfed
from kinfed.errors import InputError
from kinfed.learning import LocalTraining, Phase
from kinfed.methods import METHODS, Method, make_method
from kinfed.methods.fedcrc import FedCRC
from kinfed.methods.moon import MOON
from kinfed.models import Model, Tensors
from tests.builders import Outcome, build_runtime, federation, run, same, small

FROZEN = ("conv1.0.weight", "conv1.0.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
SERVERS_OWN = ("control.", "change.", "control_change.")  # SCAFFOLD's: what is not trained has none


class Spare(nn.Module):
    """Has a layer that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def own_model(_: Model | None = None) -> Model:
    """A frozen convolution and statistics; a layer and an activation that stand twice; a layer that is never used."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        conv1, norm, twice, relu = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Linear(64, 64), nn.ReLU(True)
        nn.init.constant_(norm.running_mean, 0.3)  # type: ignore[arg-type]
        conv1.requires_grad_(False)
        norm.eval()
        stages = {
            "conv1": nn.Sequential(conv1), "norm": norm, "act1": relu, "pool1": nn.MaxPool2d((2, 4)), "spare": Spare(),
            "flatten": nn.Flatten(), "fc64": nn.Sequential(nn.Linear(128, 64), nn.ReLU()), "twice": twice,
            "act2": relu, "again": twice, "norm2": nn.BatchNorm1d(64),
        }  # fmt: skip
        return Model(stages, nn.Linear(64, 10), ["conv1", "fc64", "again"])


def everything(outcome: Outcome) -> list[tuple[str, torch.Tensor]]:
    """All tensors that the server, the clients or the models folder has after the last round."""
    messages = [outcome.state.tensors, *(state.tensors for state in outcome.client_states.values())]
    saved = [load_file(path) for path in (outcome.folder.path / "models").glob("*.safetensors")]
    return [(name, tensor) for tensors in (*messages, *saved) for name, tensor in tensors.items()]


def trained_by(method: Method | str, path: Path, wrap: Any = own_model, **fields: Any) -> Outcome:
    runtime = build_runtime(
        method, federation(new=1), wrap=wrap, rounds=2, training=LocalTraining(lr=0.05, batch_size=16), **fields
    )
    outcome = run(runtime, path)
    assert not any(line["refused"] or line["untested"] for line in outcome.lines)
    return outcome


@pytest.mark.parametrize("name", [name for name in METHODS if not make_method(name).requires.fixed_statistics])
def test_what_is_frozen_keeps_its_bits_and_the_rest_is_trained(name: str, tmp_path: Path) -> None:
    outcome = trained_by(name, tmp_path / "out")
    initial, moved, seen = own_model().tensors(), set(), set()
    for name_there, tensor in everything(outcome):
        assert "again" not in name_there  # it is what "twice" is
        if name_there.startswith(SERVERS_OWN):
            assert not tensor.any() or not name_there.endswith(FROZEN)
            continue
        for name_here, value in initial.items():
            if not name_there.endswith(name_here):
                continue
            same_bits = torch.equal(tensor, value.expand_as(tensor))
            assert same_bits or not name_here.endswith(FROZEN), name_there
            (seen if same_bits else moved).add(name_here)
    shared = {name for name, _ in everything(outcome) if "conv1" in name}
    assert not shared or {f"body.{frozen}" for frozen in FROZEN} <= seen
    assert {"body.twice.weight", "body.norm.weight", "body.fc64.0.weight"} <= moved


@pytest.mark.parametrize("method", [MOON(prev_init="random"), FedCRC(tau=0.5)], ids=["moon", "fedcrc"])
def test_what_is_frozen_keeps_its_bits_where_a_method_reckons_with_weights(method: Method, tmp_path: Path) -> None:
    def frozen_head(_: Model) -> Model:
        model = own_model()
        model.head.requires_grad_(False)
        model.keep_frozen()
        return model

    outcome = trained_by(method, tmp_path / "out", frozen_head)
    initial = frozen_head(own_model()).tensors()
    heads = [(name, tensor) for name, tensor in everything(outcome) if name.startswith("head.")]
    assert heads
    assert all(torch.equal(tensor, initial[name]) for name, tensor in heads)


def test_what_is_frozen_is_the_same_in_a_random_previous_model() -> None:
    from kinfed.methods.contrast import _random

    runtime = build_runtime(MOON(prev_init="random"), wrap=own_model)
    previous, initial = _random(runtime.client(0, 1)), own_model().tensors()
    unlike = {name for name in initial if not torch.equal(previous[name], initial[name])}
    assert not any(name.endswith(FROZEN) for name in unlike)
    assert {"body.twice.weight", "head.weight"} <= unlike


def test_a_source_does_not_replace_what_is_frozen(tmp_path: Path) -> None:
    from kinfed.methods.fedvote import fitting

    runtime = build_runtime("fedvote", wrap=own_model)
    assert fitting(runtime.sources[0], own_model()) == ["body.fc64.0.weight", "body.fc64.0.bias"]
    free = own_model()
    free.frozen = frozenset()
    assert "body.conv1.0.weight" in fitting(runtime.sources[0], free)


def with_frozen(part: str) -> Any:
    def frozen(_: Model) -> Model:
        model = own_model()
        getattr(model, part).requires_grad_(False)
        model.keep_frozen()
        return model

    return frozen


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("fedbabu", "body", "all parameters of its body are frozen, so that nothing can be trained"),
        ("fedbyol", "body", "all parameters of its body are frozen, so that no representation can be learned"),
    ],
)
def test_a_model_in_which_a_method_can_train_nothing_is_refused(name: str, part: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_runtime(name, wrap=with_frozen(part))


@pytest.mark.parametrize("name", ["fedrep", "fedper", "fedcrc", "fedbabu"])
def test_a_phase_whose_part_is_frozen_makes_no_step(name: str, tmp_path: Path) -> None:
    tuning = Phase(train=("head.",), epochs=1, lr=0.01)
    outcome = trained_by(name, tmp_path / "out", with_frozen("head"), fine_tuning=tuning)
    assert not any(line["zero_step_clients"] for line in outcome.lines)


def test_a_model_that_stands_still_is_the_same_for_two_targets() -> None:
    """The target of BYOL is in training mode, but for what is frozen in evaluation mode."""
    online = small("fedbyol").online(build_runtime("fedbyol", wrap=own_model).client(0, 1))  # type: ignore[attr-defined]
    target = small("fedbyol").target(online, {})  # type: ignore[attr-defined]
    body = target.target.body
    assert (body.norm.training, body.norm2.training) == (False, True)


# -- in worker processes ----------------------------------------------------------------------------------------------


class Noise(nn.Module):
    """Draws from all three global generators, in training and in evaluation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * (random.random() + float(np.random.rand()) + torch.rand(1).item())  # noqa: NPY002


def own_module(shape: tuple[int, ...], classes: int) -> nn.Module:
    assert (shape, classes) == ((1, 8, 8), 10)
    model = own_model()
    stages = {**model.stages, "noise": Noise(), "dropout": nn.Dropout(0.2)}
    nn.init.constant_(model.head.bias, random.random())  # a start weight that belongs to the seed as well
    return Model(stages, model.head, ["conv1", "fc64"])


def models_of(path: Path) -> dict[str, Tensors]:
    return {file.stem: load_file(file) for file in (path / "models").glob("*.safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ditto", "moon"])
def test_worker_processes_freeze_and_draw_alike(name: str, tmp_path: Path) -> None:  # cases 322 and 352
    fields: dict[str, Any] = {
        "data": "digits", "clients": 3, "partition": "iid", "rounds": 2, "train_images": 300, "ft_epochs": 1,
        "model": f"{__name__}:own_module", "quiet": True,
    }  # fmt: skip
    random.seed(1)
    here = kinfed.run(name, out=tmp_path / "here", **fields)
    random.seed(2)
    there = kinfed.run(name, out=tmp_path / "there", workers=2, **fields)
    rounds = [[json.loads(line) for line in (r.path / "metrics.jsonl").read_text().splitlines()] for r in (here, there)]
    told = ("train_loss", "refused", "untested", "own_acc_mean", "fine_tuned_acc_mean")
    assert [[line.get(name) for name in told] for line in rounds[0]] == [
        [line.get(name) for name in told] for line in rounds[1]
    ]
    assert not any(line["refused"] for line in rounds[0])
    initial, (a, b) = own_model().tensors(), (models_of(r.path) for r in (here, there))
    assert a.keys() == b.keys()
    assert all(same(a[model], b[model]) for model in a)
    for tensors in (*a.values(), *b.values()):
        assert all(torch.equal(t, initial[n]) for n, t in tensors.items() if n.endswith(FROZEN))
