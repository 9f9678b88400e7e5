"""The contract suite passes a method from outside, and finds what it is there to find: faults no registered one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from kinfed import testing
from kinfed.learning import LocalTraining, Phase
from kinfed.methods import Client, ClientId, ClientState, Message, Method, Server, ServerState
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedbabu import FedBABU
from kinfed.methods.fedprox import FedProx
from kinfed.methods.moon import MOON
from kinfed.methods.scaffold import SCAFFOLD
from kinfed.models import NOTHING, Part, Tensors
from kinfed.testing import CHECKS, ContractError, check_method, on_trial
from tests.outside.feddyn import FedDyn

QUICK = [check for check in CHECKS if check is not testing.check_learns]


@pytest.mark.slow
def test_a_method_from_outside_passes_and_one_is_tried_with_its_trial() -> None:
    check_method(FedDyn(alpha=0.2))
    check_method(FedProx)


@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.__name__)
def test_a_method_from_outside_passes(check: Any, tmp_path: Path) -> None:
    assert check(FedDyn(), tmp_path) is None


def test_a_method_passes_whatever_the_number_of_threads_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a script, FedBABU was said to report a wrong loss: its sums in two threads differ from those of a run."""
    monkeypatch.setattr(testing, "CHECKS", (testing.check_loss_is_told,))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check_method(FedBABU())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_trial_of_a_method_is_joined_with_that_of_its_bases() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wider(MOON):
        trial: ClassVar[Mapping[str, Any]] = {"tau": 0.7}

    assert on_trial(Wider) == Wider(mu=5.0, tau=0.7)


# -- methods with a fault ---------------------------------------------------------------------------------------------


class _OverTheSampled:
    """The fault: what is a sum over all clients is divided by those that took part."""

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        return super().aggregate(replace(server, clients=len(uploads)), state, uploads)  # type: ignore[misc,no-any-return]


class WrongFedDyn(_OverTheSampled, FedDyn):
    pass


class WrongSCAFFOLD(_OverTheSampled, SCAFFOLD):
    pass


class ForgetfulFedAvg(FedAvg):
    """Another fault: the mean is over all clients, as if those that did not come had sent 0."""

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        mean = super().aggregate(server, state, uploads).tensors
        return ServerState({n: t * len(uploads) / server.clients for n, t in mean.items()})


class Restless(FedAvg):
    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        upload.tensors["head.weight"] += torch.rand(()) * 1e-3
        return upload, kept


class Meddling(FedAvg):
    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        for upload in uploads.values():
            upload.tensors["head.bias"].clamp_(-1e-9, 1e-9)
        return super().aggregate(server, state, uploads)


@dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        vars(self)["rounds_seen"] = vars(self).get("rounds_seen", 0) + 1
        return super().aggregate(server, state, uploads)


class Changeable(FedAvg):
    __setattr__ = object.__setattr__  # type: ignore[assignment]
    __delattr__ = object.__delattr__  # type: ignore[assignment]


class Live(FedAvg):
    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        return replace(
            upload, tensors={n: t.requires_grad_(t.is_floating_point()) for n, t in upload.tensors.items()}
        ), kept


class Boastful(FedAvg):
    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        return replace(upload, numbers={**upload.numbers, "samples": 3}), kept


class Short(FedAvg):
    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        return replace(upload, tensors={n: t for n, t in upload.tensors.items() if n != "head.bias"}), kept


class Silent(FedAvg):
    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        upload, kept = super().update(client, message, state)
        return replace(upload, numbers={n: v for n, v in upload.numbers.items() if n != "cross_entropy"}), kept


class Broken(FedAvg):
    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        raise ZeroDivisionError("by nothing")


class Lazy(FedAvg):
    shared: ClassVar[Part] = NOTHING

    def phases(self) -> list[Phase]:
        return [Phase(train=("head.",), lr=1e-9)]


class Halved(FedAvg):
    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        return {n: t for n, t in state.tensors.items() if n.startswith("body.")}


FAULTS: list[tuple[Method, Any, str]] = [
    (WrongSCAFFOLD(), testing.check_one_weight, "WrongSCAFFOLD trains one weight to .*: few of many clients"),
    (WrongSCAFFOLD(mode="paper"), testing.check_one_weight, "trains one weight to"),
    (WrongFedDyn(), testing.check_one_weight, "WrongFedDyn trains one weight to"),
    (ForgetfulFedAvg(), testing.check_one_weight, ", but the mean of its clients' optima is 2.00"),
    (Restless(), testing.check_no_global_generator, "Restless draws from torch's global generator"),
    (Meddling(), testing.check_changes_no_argument, "Meddling.aggregate changes a message or state that it receives"),
    (
        Counting(),
        testing.check_holds_hyper_parameters_only,
        "Counting has changed its own fields: rounds_seen .*no state",
    ),
    (
        Changeable(),
        testing.check_holds_hyper_parameters_only,
        r"Changeable is not frozen; make it a dataclass\(frozen",
    ),
    (Live(), testing.check_messages_are_plain, "requires a gradient; detach it"),
    (Boastful(), testing.check_uploads_are_as_said, "Boastful reports 3 samples for a client that has "),
    (
        Short(),
        testing.check_uploads_are_as_said,
        "the upload of Short does not match its upload_like: head.bias is missing",
    ),
    (Silent(), testing.check_loss_is_told, "Silent does not report a cross-entropy, but supervised is True"),
    (Broken(), testing.check_one_client, "a run of Broken failed with RunFailed.*ZeroDivisionError: by nothing"),
    (Broken(), testing.check_messages_are_plain, "a round of Broken failed with ZeroDivisionError: by nothing"),
    (Lazy(), testing.check_learns, "Lazy: the loss was"),
    (Halved(), testing.check_models_are_saved, "Halved"),
]


@pytest.mark.parametrize(
    ("method", "check", "message"), FAULTS, ids=lambda one: getattr(one, "__name__", str(one)[:20])
)
def test_a_fault_is_told_in_one_sentence(method: Method, check: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=message) as caught:
        check(method, tmp_path)
    assert "\n" not in str(caught.value)


# -- FedDyn is what its paper says ------------------------------------------------------------------------------------


def test_a_step_of_feddyn_is_that_of_the_bent_loss() -> None:
    """One step of gradient descent a round, against autograd on the loss of equation 1, written out."""
    method, eta = FedDyn(alpha=0.3), 0.5
    training = LocalTraining(lr=eta, batch_size=1000, epochs=1, momentum=0.0)
    runtime = testing.small_runtime(method, training=training, model="mlp")
    ids, m = range(4), 4
    state, client_states = method.init(runtime.server(0)), {id: ClientState() for id in ids}
    theta = {n: t.double() for n, t in state.tensors.items() if not n.startswith("h.")}
    h = {n: torch.zeros_like(t) for n, t in theta.items()}
    g = {id: {n: torch.zeros_like(t) for n, t in theta.items()} for id in ids}
    for round in (1, 2, 3):
        uploads = {}
        took_part = ids if round == 1 else [0, 2]
        for id in took_part:
            uploads[id], client_states[id] = runtime.update(id, round, method.download(state, id), client_states[id])
        state = method.aggregate(runtime.server(round), state, uploads)

        ends = {}
        for id in took_part:
            client = runtime.client(id, round)
            model, samples = client.model.double(), client.train
            model.load(theta)
            model.zero_grad()
            logits = model(samples.batch(slice(None)).double())
            loss = torch.nn.functional.cross_entropy(logits, samples.labels)
            for n, p in model.named_parameters():
                loss = loss - (g[id][n] * p).sum() + 0.3 / 2 * ((p - theta[n]) ** 2).sum()
            loss.backward()
            ends[id] = {n: theta[n] - eta * p.grad for n, p in model.named_parameters()}  # type: ignore[operator]
            g[id] = {n: g[id][n] - 0.3 * (ends[id][n] - theta[n]) for n in theta}
            model.float()
        h = {n: h[n] - 0.3 / m * sum(end[n] - theta[n] for end in ends.values()) for n in theta}
        theta = {n: sum(end[n] for end in ends.values()) / len(ends) - h[n] / 0.3 for n in theta}
    for n, expected in theta.items():
        torch.testing.assert_close(state.tensors[n].double(), expected, rtol=0, atol=2e-6)
        torch.testing.assert_close(state.tensors[f"h.{n}"].double(), h[n], rtol=0, atol=2e-6)
    assert max(t.abs().max() for t in h.values()) > 1e-3
