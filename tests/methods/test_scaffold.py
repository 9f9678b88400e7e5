"""SCAFFOLD: rounds computed by hand, and what it reduces to (specification B.3, J)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from kinfed.data import Federation, Partition
from kinfed.engine import ClientRuntime
from kinfed.learning import LocalTraining
from kinfed.methods import ClientState, Message, ServerState
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.scaffold import SCAFFOLD
from kinfed.models import ALL, build, select
from kinfed.streams import torch_stream
from tests.builders import build_runtime, close, dataset, federation, larger, parabolas, run, same

WEIGHT = "head.weight"
PLAIN = LocalTraining(lr=0.1, momentum=0.0, epochs=2, batch_size=1)  # of one sample: two steps a round


def numbers(message: Message) -> dict[str, float]:
    return {name: tensor.item() for name, tensor in message.tensors.items()}


def a_round(
    runtime: ClientRuntime, round: int, state: ServerState, client_states: dict[int, ClientState], ids: list[int]
) -> tuple[ServerState, dict[int, ClientState]]:
    """The next state and the next client states, if these clients take part."""
    method = runtime.method
    answers = {
        id: runtime.update(id, round, method.download(state, id), client_states.get(id, ClientState())) for id in ids
    }
    state = method.aggregate(runtime.server(round), state, {id: upload for id, (upload, _) in answers.items()})
    return state, {**client_states, **{id: kept for id, (_, kept) in answers.items()}}


def by_hand(runtime: ClientRuntime, rounds: list[list[int]]) -> list[list[float]]:
    """After each round: x, c, and every c_i there is, in the order of the clients."""
    state, client_states, seen = runtime.method.init(runtime.server(0)), {}, []
    for round, ids in enumerate(rounds, start=1):
        state, client_states = a_round(runtime, round, state, client_states, ids)
        of_clients = [client_states[id].tensors[f"control.{WEIGHT}"] for id in sorted(client_states)]
        seen.append([t.item() for t in (state.tensors[WEIGHT], state.tensors[f"control.{WEIGHT}"], *of_clients)])
    return seen


@pytest.mark.parametrize("mode", ["niid", "paper"])  # without momentum they are the same
def test_two_rounds_by_hand(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:  # case 69
    runtime = parabolas(SCAFFOLD(mode=mode), [1, 5], monkeypatch, training=PLAIN)  # type: ignore[arg-type]
    first, second = by_hand(runtime, [[0, 1], [0, 1]])
    assert first == pytest.approx([0.57, -2.85, -0.95, -4.75])
    assert second == pytest.approx([1.0317, -2.3085, -0.3135, -4.3035])


def test_partial_participation_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """C is a mean over all clients: who never took part counts with 0."""
    runtime = parabolas(SCAFFOLD(), [1, 5], monkeypatch, training=PLAIN)
    first, second = by_hand(runtime, [[0], [1]])
    assert first == pytest.approx([0.19, -0.475, -0.95])
    assert second == pytest.approx([1.19415, -2.747875, -0.95, -4.54575])


def test_the_learning_rate_is_that_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = parabolas(SCAFFOLD(), [1, 5], monkeypatch, training=PLAIN, rounds=2, lr_schedule="step:0.5")
    _, second = by_hand(runtime, [[0, 1], [0, 1]])  # at 0.01
    assert second == pytest.approx([0.618357, -2.41785, -0.41835, -4.41735])


def test_the_server_takes_a_share_of_the_mean_change(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = parabolas(SCAFFOLD(server_lr=0.5), [1, 5], monkeypatch, training=PLAIN)
    assert by_hand(runtime, [[0, 1]])[0] == pytest.approx([0.285, -2.85, -0.95, -4.75])


@pytest.mark.parametrize(
    ("method", "x", "own"),
    [
        (SCAFFOLD(mode="niid", denom="steps"), 0.05, -1.25),  # velocity -1, -1.5; shift -0.1 after each step
        (SCAFFOLD(mode="niid", denom="effective"), 0.05, -1.125),
        (SCAFFOLD(mode="paper", denom="steps"), 0.0, -1.0),  # the correction and the gradient cancel
        (SCAFFOLD(mode="paper", denom="effective"), 0.0, -1.0),  # no momentum, the same
    ],
)
def test_momentum_by_hand(method: SCAFFOLD, x: float, own: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client with m = 1 at w = 0, told that c = 1."""
    runtime = parabolas(method, [1], monkeypatch, training=LocalTraining(lr=0.1, momentum=0.5, epochs=2, batch_size=1))
    initial = method.init(runtime.server(0))
    told = ServerState({**initial.tensors, f"control.{WEIGHT}": torch.ones(1, 1)})
    state, client_states = a_round(runtime, 1, told, {}, [0])
    assert numbers(state)[WEIGHT] == pytest.approx(x)
    assert numbers(client_states[0]) == pytest.approx({f"control.{WEIGHT}": own})


@pytest.mark.independent("scaffold")
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_it_is_the_plain_loop_of_the_paper(weights: Literal["samples", "uniform"], tmp_path: Path) -> None:
    """An independent re-implementation: torch alone; from kinfed only data, streams and initial weights."""
    fed, lr, rounds = federation(), 0.05, 3
    model = build("tiny_cnn", (1, 8, 8), 10, 0)
    flat = lambda: torch.cat([p.detach().reshape(-1) for p in model.parameters()]).double()  # noqa: E731
    x = flat()
    c, own = torch.zeros_like(x), torch.zeros(len(fed), len(x), dtype=torch.float64)
    for round in range(1, rounds + 1):
        y, before, sizes = (
            torch.empty_like(own),
            own.clone(),
            torch.tensor([len(fed.train(i)) for i in range(len(fed))]),
        )
        for i in range(len(fed)):
            nn.utils.vector_to_parameters(x.float(), model.parameters())
            samples, steps = fed.train(i), 0
            shuffled = torch.randperm(len(samples), generator=torch_stream(0, "batches 0", i, round))
            for rows in shuffled.split(16):
                loss = nn.functional.cross_entropy(model(samples.inputs[rows].float() / 255), samples.labels[rows])  # type: ignore[index]
                gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, [*model.parameters()])])
                nn.utils.vector_to_parameters((flat() - lr * (gradient - before[i] + c)).float(), model.parameters())
                steps += 1
            y[i] = flat()
            own[i] = before[i] - c + (x - y[i]) / (steps * lr)
        shares = (
            (sizes / sizes.sum()).double() if weights == "samples" else torch.full((len(fed),), 1 / len(fed)).double()
        )
        x = x + shares @ (y - x)
        c = c + (own - before).sum(dim=0) / len(fed)
    state = run(build_runtime(SCAFFOLD(mode="paper", weights=weights), fed), tmp_path / "out").state.tensors
    for prefix, expected in (("", x), ("control.", c)):
        ours = torch.cat([state[prefix + name].reshape(-1) for name, _ in model.named_parameters()])
        assert torch.allclose(ours.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("counts", "alike"), [([20, 20], True), ([8, 32], False)])
def test_equal_weights_are_those_of_equal_sample_counts(counts: list[int], alike: bool, tmp_path: Path) -> None:
    ends = [24, 24 + counts[0], 24 + sum(counts)]  # the first 24 rows are the server's
    cut = Partition([np.arange(*ends[:2]), np.arange(*ends[1:])], [np.arange(60), np.arange(60, 120)])
    fed = Federation(dataset(), cut, np.arange(24))
    samples, uniform = (
        run(build_runtime(SCAFFOLD(weights=weights), fed), tmp_path / weights).state.tensors  # type: ignore[arg-type]
        for weights in ("samples", "uniform")
    )
    assert same(samples, uniform) == alike


def test_its_first_round_is_fedavg(tmp_path: Path) -> None:
    """There c = c_i = 0."""
    scaffold, fedavg = (run(build_runtime(m, rounds=1), tmp_path / type(m).__name__) for m in (SCAFFOLD(), FedAvg()))
    assert scaffold.lines[0]["train_loss"] == fedavg.lines[0]["train_loss"]
    assert close(select(scaffold.state.tensors, ALL), fedavg.state.tensors)


def test_one_client_is_fedavg_with_one_client(tmp_path: Path) -> None:
    """Then c = c_i."""
    fed = federation(clients=1)
    scaffold, fedavg = (run(build_runtime(m, fed), tmp_path / type(m).__name__) for m in (SCAFFOLD(), FedAvg()))
    assert close(select(scaffold.state.tensors, ALL), fedavg.state.tensors)


@pytest.mark.parametrize("participation", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("mode", ["niid", "paper"])
def test_the_control_variate_is_the_mean_of_all_clients(participation: float, mode: str, tmp_path: Path) -> None:
    for rounds in (1, 2, 4):
        runtime = build_runtime(SCAFFOLD(mode=mode), rounds=rounds, participation=participation)  # type: ignore[arg-type]
        outcome = run(runtime, tmp_path / str(rounds))
        c = {name: tensor for name, tensor in outcome.state.tensors.items() if name.startswith("control.")}
        assert any(tensor.any() for tensor in c.values())
        mean = {name: sum(own.tensors[name] for own in outcome.client_states.values()) / 4 for name in c}
        assert close(mean, c)  # type: ignore[arg-type]


def test_a_client_without_a_step_changes_nothing() -> None:
    """A batch of one, which BatchNorm cannot use."""
    cut = Partition([np.arange(24, 25), np.arange(25, 57)], [np.arange(0), np.arange(120)])
    runtime = build_runtime(SCAFFOLD(), larger(Federation(dataset(), cut, np.arange(24))), model="cnn4")
    state, client_states = a_round(runtime, 1, runtime.method.init(runtime.server(0)), {}, [0, 1])
    assert not any(tensor.any() for tensor in client_states[0].tensors.values())
    upload, kept = runtime.update(0, 2, runtime.method.download(state, 0), client_states[1])
    assert (upload.numbers["steps"], "loss" in upload.numbers) == (0, False)
    assert not any(t.any() for n, t in upload.tensors.items() if n.startswith(("change.", "control_change.")))
    assert same(kept, client_states[1])


def test_batchnorm_statistics_are_averaged_and_have_no_control_variate(tmp_path: Path) -> None:
    fed = larger(federation())
    scaffold, fedavg = (
        run(build_runtime(m, fed, rounds=1, model="cnn4"), tmp_path / type(m).__name__)
        for m in (SCAFFOLD(server_lr=0.5), FedAvg())
    )
    x, mean = select(scaffold.state.tensors, ALL), fedavg.state.tensors
    buffers = {name for name in mean if f"control.{name}" not in scaffold.state.tensors}
    assert {name.rsplit(".")[-1] for name in buffers} == {"running_mean", "running_var", "num_batches_tracked"}
    assert same({name: x[name] for name in buffers}, {name: mean[name] for name in buffers})


def test_twice_a_models_parameters_travel_each_way(tmp_path: Path) -> None:
    scaffold, fedavg = (run(build_runtime(m), tmp_path / m).lines[0] for m in ("scaffold", "fedavg"))
    assert (scaffold["down_bytes"], scaffold["up_bytes"]) == (2 * fedavg["down_bytes"], 2 * fedavg["up_bytes"])
