"""The contract suite finds what it is there to find: methods with a fault, which no registered one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch

from kinfed.methods import Client, ClientId, Memory, Message, Method, Server, State
from kinfed.methods.aggregation import weighted_mean
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.scaffold import SCAFFOLD
from kinfed.models import Tensors
from tests.methods.test_contract import assert_one_weight_is_learned, path_of_one_weight

H = "h."


@dataclass(frozen=True, kw_only=True)
class FedDyn(FedAvg):
    """Acar et al. 2021: losses L_i(θ) − ⟨g_i, θ⟩ + (α/2)‖θ − θ^t‖², and h, the mean of all clients' g_i."""

    alpha: float = 0.5

    def init(self, server: Server) -> State:
        x = server.model.tensors()
        return State(x | {H + n: torch.zeros_like(t) for n, t in x.items()})

    def download(self, state: State, client: ClientId) -> Message:
        return Message({n: t for n, t in state.tensors.items() if not n.startswith(H)})

    def update(self, client: Client, message: Message, memory: Memory) -> tuple[Message, Memory]:
        x = message.tensors
        g = memory.tensors or {n: torch.zeros_like(t) for n, t in x.items()}
        client.model.load(x)

        def regularise(weights: Tensors, gradients: Tensors) -> None:
            for n, gradient in gradients.items():
                gradient.add_(self.alpha * (weights[n] - x[n]) - g[n])

        numbers = self.local_training(client, before_step=regularise)
        y = client.model.tensors()
        return Message(y, numbers), Memory({n: g[n] - self.alpha * (y[n] - x[n]) for n in x})

    def aggregate(self, server: Server, state: State, uploads: Mapping[ClientId, Message]) -> State:
        x, mean = self.download(state, 0).tensors, weighted_mean(uploads)
        moved = {n: torch.stack([u.tensors[n] - x[n] for u in uploads.values()]).sum(dim=0) for n in x}
        h = {n: state.tensors[H + n] - self.alpha * moved[n] / server.clients for n in x}
        return State({n: mean[n] - h[n] / self.alpha for n in x} | {H + n: t for n, t in h.items()})

    def global_model(self, server: Server, state: State) -> Tensors | None:
        return self.download(state, 0).tensors


class _OverTheSampled:
    """The fault: what is a sum over all clients is divided by those that took part."""

    def aggregate(self, server: Server, state: State, uploads: Mapping[ClientId, Message]) -> State:
        return super().aggregate(replace(server, clients=len(uploads)), state, uploads)  # type: ignore[misc,no-any-return]


class WrongFedDyn(_OverTheSampled, FedDyn):
    pass


class WrongSCAFFOLD(_OverTheSampled, SCAFFOLD):
    pass


class ForgetfulFedAvg(FedAvg):
    """Another fault: the mean is over all clients, as if those that did not come had sent 0."""

    def aggregate(self, server: Server, state: State, uploads: Mapping[ClientId, Message]) -> State:
        mean = super().aggregate(server, state, uploads).tensors
        return State({n: t * len(uploads) / server.clients for n, t in mean.items()})


def test_a_method_that_is_right_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_weight_is_learned(path_of_one_weight(FedDyn(), monkeypatch, rounds=240))


@pytest.mark.parametrize(
    "method",
    [WrongSCAFFOLD(), WrongSCAFFOLD(mode="paper"), WrongFedDyn(), ForgetfulFedAvg()],
    ids=lambda m: type(m).__name__,
)
def test_a_mean_over_the_wrong_number_of_clients_is_found(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:  # case 354
    path = path_of_one_weight(method, monkeypatch, rounds=240)
    with pytest.raises(AssertionError):
        assert_one_weight_is_learned(path)
