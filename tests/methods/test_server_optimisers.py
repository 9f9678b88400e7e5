"""Optimisers at the server: against torch's, against the paper's formulas, and their reductions to the base."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from kinfed.errors import InputError
from kinfed.methods import METHODS, Message, Server, ServerState, make_method
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.server_optimisers import FedAdam, FedAvgM, FedYogi, ServerOptimiser
from kinfed.models import Model, Tensors
from kinfed.testing import check_method
from tests.builders import build_runtime, close, federation, larger, run, same

NAMES = ("fedavgm", "fedadam", "fedyogi")
SAMPLES = (10, 30)  # of two clients
ROUNDS = 3


def server_of(method: ServerOptimiser, model: str = "tiny_cnn") -> Server:
    fed = larger(federation()) if model == "cnn4" else None
    return build_runtime(method, fed, model=model).server(1)


def weights(method: ServerOptimiser, state: ServerState) -> Tensors:
    """The server's tensors without the moments, as a client gets them."""
    return method.download(state, 0).tensors


def sent(start: Tensors, round: int) -> dict[int, Message]:
    """Uploads of two clients that moved at random, farther for some weights than for others."""
    stream, uploads = torch.Generator().manual_seed(round), {}
    for id, samples in enumerate(SAMPLES):
        moved = {
            name: tensor
            + torch.randn(tensor.shape, generator=stream) * 0.1 ** (1 + 3 * torch.rand(1, generator=stream))
            if tensor.is_floating_point()
            else tensor + 5
            for name, tensor in start.items()
        }
        uploads[id] = Message(moved, {"samples": samples})
    return uploads


def mean(uploads: dict[int, Message]) -> Tensors:
    first, second = (upload.tensors for upload in uploads.values())
    return {name: 0.25 * first[name].double() + 0.75 * second[name].double() for name in first}


def rounds_of(method: ServerOptimiser) -> list[tuple[Tensors, Tensors]]:
    """The server's weights before each round with the clients' mean in it, and the weights after the last round."""
    server, told = server_of(method), []
    state = method.init(server)
    for round in range(ROUNDS):
        uploads = sent(weights(method, state), round)
        told.append((weights(method, state), mean(uploads)))
        state = method.aggregate(server, state, uploads)
    return [*told, (weights(method, state), {})]


def by_torch(method: ServerOptimiser, optimiser_of: type[torch.optim.Optimizer], **options: float) -> None:
    """Check that a method makes the steps of an optimiser of torch with −Δ as the gradient."""
    told = rounds_of(method)
    parameters = {name: torch.nn.Parameter(tensor.double()) for name, tensor in told[0][0].items()}
    optimiser = optimiser_of([*parameters.values()], foreach=False, **options)  # type: ignore[call-arg]
    if optimiser_of is torch.optim.Adam:  # v begins with τ², and so late that the biases have faded
        for p in parameters.values():
            late, v = torch.tensor(1e6), torch.full_like(p, options["eps"] ** 2)
            optimiser.state[p] = {"step": late, "exp_avg": torch.zeros_like(p), "exp_avg_sq": v}
    for (before, of_clients), (after, _) in itertools.pairwise(told):
        for name, p in parameters.items():
            p.data.copy_(before[name])
            p.grad = before[name].double() - of_clients[name]
        optimiser.step()
        assert close(after, {name: p.detach() for name, p in parameters.items()})


@pytest.mark.independent("fedavgm")
def test_fedavgm_steps_as_torchs_sgd_with_momentum() -> None:
    by_torch(FedAvgM(server_lr=0.5, server_momentum=0.8), torch.optim.SGD, lr=0.5, momentum=0.8)


@pytest.mark.independent("fedadam")
def test_fedadam_steps_as_torchs_adam_whose_biases_have_faded() -> None:
    method = FedAdam(server_lr=0.03, beta1=0.8, beta2=0.95, adaptivity=0.01)
    by_torch(method, torch.optim.Adam, lr=0.03, betas=(0.8, 0.95), eps=0.01)  # type: ignore[arg-type]


@pytest.mark.independent("fedyogi")
def test_fedyogi_is_algorithm_2_of_the_paper() -> None:
    method = FedYogi(server_lr=0.03, beta1=0.8, beta2=0.95, adaptivity=0.01)
    told = rounds_of(method)
    m = {name: np.zeros(tensor.shape) for name, tensor in told[0][0].items()}
    v = {name: np.full(tensor.shape, 0.01**2) for name, tensor in told[0][0].items()}
    larger_v = []
    for (before, of_clients), (after, _) in itertools.pairwise(told):
        for name, x in before.items():
            delta = of_clients[name].numpy() - x.double().numpy()
            m[name] = 0.8 * m[name] + 0.2 * delta
            v[name] = v[name] - 0.05 * delta**2 * np.sign(v[name] - delta**2)
            larger_v += (v[name] > delta**2).ravel().tolist()
            expected = x.double().numpy() + 0.03 * m[name] / (np.sqrt(v[name]) + 0.01)
            np.testing.assert_allclose(after[name].numpy(), expected, rtol=0, atol=1e-6)
    assert 0.1 < np.mean(larger_v) < 0.9  # v both grows and shrinks


def test_fedavgm_without_momentum_and_with_rate_1_is_its_base_bit_for_bit(tmp_path: Path) -> None:
    for base in ("fedavg", "fedprox", "fedper", "ditto"):
        wrapped = make_method(f"fedavgm+{base}", {"server_lr": 1.0, "server_momentum": 0.0})
        plain, ours = (
            run(build_runtime(method, rounds=3, participation=0.5), tmp_path / f"{base}{i}")
            for i, method in enumerate((base, wrapped))
        )
        assert isinstance(wrapped, ServerOptimiser)
        assert same(plain.state.tensors, weights(wrapped, ours.state))
        assert plain.lines == ours.lines


@pytest.mark.parametrize("name", NAMES)
def test_running_statistics_are_averaged_and_have_no_moments(name: str) -> None:
    method = make_method(name)
    assert isinstance(method, ServerOptimiser)
    server = server_of(method, "cnn4")
    state = method.init(server)
    state = method.aggregate(server, state, sent(weights(method, state), 0))  # gives FedAvgM a momentum
    uploads = sent(weights(method, state), 1)
    new = weights(method, method.aggregate(server, state, uploads))
    buffers = {name for name, _ in server.model.named_buffers()}
    assert {name.rpartition(".")[2] for name in buffers} == {"running_mean", "running_var", "num_batches_tracked"}
    averaged = FedAvg().aggregate(server, state, uploads).tensors
    assert {name for name, tensor in new.items() if torch.equal(tensor, averaged[name])} == buffers
    kept = {name.partition(".")[2] for name in state.tensors.keys() - new.keys()}
    assert kept == {name for name, _ in server.model.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_layer_does_not_move(name: str, tmp_path: Path) -> None:
    runtime = build_runtime(name, wrap=_with_a_frozen_layer)
    after = run(runtime, tmp_path / "out").state.tensors
    assert torch.equal(after["body.conv1.0.weight"], runtime.initial[0]["body.conv1.0.weight"])
    assert not torch.equal(after["head.weight"], runtime.initial[0]["head.weight"])


def _with_a_frozen_layer(model: Model) -> Model:
    model.get_parameter("body.conv1.0.weight").requires_grad_(requires_grad=False)
    model.keep_frozen()
    return model


def test_an_encoder_without_labels_is_stepped_with_its_projector() -> None:
    method = make_method("fedadam+fedbyol", {"hidden": 32, "out": 16})
    state = method.init(build_runtime(method).server(0))
    kept = {name.removeprefix("first_moment.") for name in state.tensors if name.startswith("first_moment.")}
    assert {name.partition(".")[0] for name in kept} == {"body", "projector", "predictor"}
    assert not any("running" in name for name in kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("base", ["fedper", "fedbabu", "fedprox"])
def test_other_bases_keep_the_rules(name: str, base: str) -> None:
    check_method(make_method(f"{name}+{base}"))


def test_what_has_no_plain_mean_is_no_base() -> None:
    with pytest.raises(InputError, match=r"^method: 'fedadam\+scaffold' is not allowed; an optimiser at the server"):
        make_method("fedadam+scaffold")
    able = {name for name, kind in METHODS.items() if FedAdam.wraps(kind)}
    assert {"fedavg", "fedprox", "moon", "fedper", "fedbabu", "fedbyol"} <= able
    assert not able & {"scaffold", "fedshibu", "fedproto", "local", "central", "hetero_ssfl", "fedkin", "fedadam"}
