"""Exact reductions and hand-computed rounds of each method (specification J)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kinfed.data import Federation, Partition
from kinfed.engine.evaluator import Evaluator
from kinfed.learning import LocalTraining, Phase
from kinfed.methods.fedbabu import FedBABU
from kinfed.models import BODY, HEAD, Tensors, build, select
from kinfed.streams import torch_stream
from tests.builders import build_runtime, close, dataset, federation, run, same

# -- FedAvg -----------------------------------------------------------------------------------------------------------


@pytest.mark.independent("fedavg")
def test_fedavg_is_the_plain_loop_of_the_paper(tmp_path: Path) -> None:
    """An independent re-implementation: torch and state dicts; from kinfed only data, streams and initial weights."""
    fed, rounds = federation(), 3
    weights = build("tiny_cnn", (1, 8, 8), 10, 0).state_dict()
    for round in range(1, rounds + 1):
        total: Tensors = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in weights.items()}
        for client in range(len(fed)):
            model = build("tiny_cnn", (1, 8, 8), 10, 99)
            model.load_state_dict(weights)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            samples = fed.train(client)
            shuffled = torch.randperm(len(samples), generator=torch_stream(0, "batches 0", client, round))
            for rows in shuffled.split(16):
                optimiser.zero_grad()
                pixels = samples.inputs[rows].float() / 255
                nn.functional.cross_entropy(model(pixels), samples.labels[rows]).backward()  # type: ignore[index]
                optimiser.step()
            for n, t in model.state_dict().items():
                total[n] += len(samples) / 216 * t.double()
        weights = {n: t.float() for n, t in total.items()}
    assert close(run(build_runtime("fedavg", fed), tmp_path / "out").state.tensors, weights)


@pytest.mark.independent("central")
def test_fedavg_with_one_client_is_central_training(tmp_path: Path) -> None:
    fed = federation(clients=1)
    fedavg, central = (
        run(build_runtime(name, fed, fine_tuning=None), tmp_path / name) for name in ("fedavg", "central")
    )
    assert same(fedavg.state, central.state)
    sent, last = ("down_bytes", "up_bytes"), fedavg.lines[-1]
    for told in (last, last["client_acc"]):
        for name in [name for name in told if name.startswith("refit")]:  # a client of pooled data re-fits no head
            del told[name]
    assert [line | dict.fromkeys(sent, 0) for line in fedavg.lines] == central.lines  # centrally nothing travels


def test_fedavg_of_clients_with_the_same_data_is_one_of_them(tmp_path: Path) -> None:
    data = dataset(60, 20)
    twice = replace(data, train=data.train.take([*range(60)] * 2))
    fed = Federation(
        twice, Partition([np.arange(60), np.arange(60, 120)], [np.arange(10), np.arange(10, 20)]), np.arange(0)
    )
    alone = Federation(data, Partition([np.arange(60)], [np.arange(20)]), np.arange(0))
    training = LocalTraining(lr=0.05, batch_size=60)  # whole batches, whose order does not matter
    both, one = (
        run(build_runtime("fedavg", f, training=training), tmp_path / n) for f, n in ((fed, "both"), (alone, "one"))
    )
    assert close(both.state.tensors, one.state.tensors)


def test_the_global_models_own_test_accuracies_add_up_to_its_accuracy(tmp_path: Path) -> None:
    """Where the local test sets cover the pooled one, the weighted mean over clients is the pooled accuracy (B.1)."""
    line = run(build_runtime("fedavg", rounds=8), tmp_path / "out").lines[-1]
    assert line["global_acc"] > 0.1
    assert line["personal_acc_weighted"] == pytest.approx(line["global_acc"])


# -- local only, central ----------------------------------------------------------------------------------------------


@pytest.mark.independent("local")
def test_local_is_fedavg_with_one_client_for_each(tmp_path: Path) -> None:
    fed = federation(clients=1)
    local, fedavg = (run(build_runtime(name, fed), tmp_path / name) for name in ("local", "fedavg"))
    assert same(local.client_states[0].tensors, fedavg.state.tensors)
    assert not local.state.tensors
    assert local.lines[-1]["client_acc"] == fedavg.lines[-1]["client_acc"]


def test_local_sends_nothing_and_trains_everybody_whatever_the_participation(tmp_path: Path) -> None:
    lines = run(build_runtime("local", participation=0.25), tmp_path / "out").lines
    assert {(line["down_bytes"], line["up_bytes"]) for line in lines} == {(0, 0)}
    assert all(line["clients"] == [0, 1, 2, 3] for line in lines)


def test_one_clients_local_model_does_not_depend_on_the_others(tmp_path: Path) -> None:
    fed = federation()
    cut = replace(fed.partition, train=[fed.partition.train[0], *(rows[:5] for rows in fed.partition.train[1:])])
    whole, others_cut = (
        run(build_runtime("local", f), tmp_path / n) for f, n in ((fed, "a"), (replace(fed, partition=cut), "b"))
    )
    assert same(whole.client_states[0], others_cut.client_states[0])


# -- FedBABU ----------------------------------------------------------------------------------------------------------


@pytest.mark.independent("fedbabu")
def test_fedbabu_never_moves_the_head_and_fine_tuning_moves_what_it_should(tmp_path: Path) -> None:  # case 76
    initial = build("tiny_cnn", (1, 8, 8), 10, 0).tensors()
    for part, moved in (("head", HEAD), ("body", BODY), ("full", HEAD + BODY)):
        training = LocalTraining(lr=0.05, batch_size=16, weight_decay=0.1)
        runtime = build_runtime(
            FedBABU(), rounds=5, training=training, fine_tuning=Phase(train=moved, epochs=5, lr=0.1)
        )
        state = run(runtime, tmp_path / part).state
        untouched = runtime.method.global_model(runtime.server(5), state)
        assert untouched is not None
        assert same(select(untouched, HEAD), select(initial, HEAD))
        assert not same(select(untouched, BODY), select(initial, BODY))
        tuned = Evaluator(runtime).fine_tune(0, 5, untouched)[0].tensors
        for each in (HEAD, BODY):
            assert same(select(tuned, each), select(untouched, each)) == (not set(each) <= set(moved))


def test_fedbabu_sends_the_body_alone_and_keeps_nothing(tmp_path: Path) -> None:
    outcome = run(build_runtime("fedbabu"), tmp_path / "out")
    body = sum(t.nbytes for t in build("tiny_cnn", (1, 8, 8), 10, 0).tensors(BODY).values())
    assert {(line["down_bytes"], line["up_bytes"]) for line in outcome.lines} == {(4 * body, 4 * body)}
    assert not any(state.tensors for state in outcome.client_states.values())
