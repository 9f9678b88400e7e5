"""SCAFFOLD: Karimireddy et al. 2020, Stochastic Controlled Averaging for Federated Learning (option II).

https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Gt

from kinfed.learning import Optimizer
from kinfed.methods.aggregation import uniform_mean, weighted_mean
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import (
    Client,
    ClientId,
    ClientState,
    Message,
    NamedTensors,
    Server,
    ServerState,
    Site,
    unread,
)
from kinfed.methods.travels import OF_ALL, OF_BODY, OF_HEAD, Sent
from kinfed.models import ALL, Tensors, select, under

__all__ = ["SCAFFOLD"]

CONTROL = "control."  # prefix of c in the server's state and in downloads, and of c_i in a client's state
CHANGE, CONTROL_CHANGE = "change.", "control_change."  # prefixes of Δy_i and Δc_i in uploads


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(FedAvg):
    """FedAvg with control variates: c − c_i corrects each step of a client for the drift of its gradients.

    c and c_i are estimates of the mean gradient of all clients and of the client's own gradient. Further letters: x is
    the server's model, y_i the client's after K_i steps with learning rate η, g a gradient, Δ a change in a round,
    p_i the client's weight, N the number of clients.

    >>> SCAFFOLD(mode="paper", server_lr=0.5).idle
    {'denom': 'mode=niid; without momentum both are the same'}

    Attributes:
        mode: Form of the correction: ``niid`` (NIID-Bench) keeps the run's momentum and shifts the weights by
            −η(c − c_i) after each step; ``paper`` adds c − c_i to the gradients and trains without momentum.
        denom: Divisor of x − y_i in the estimate of a client's gradient: ``effective``, K_i η / (1 − momentum), which
            allows for the longer way with momentum; ``steps``, K_i η (NIID-Bench). Both are equal without momentum.
        server_lr: Learning rate η_g of the server, > 0.
        weights: Weights p_i of the clients in the mean change of the model: ``samples``, each client's share of the
            training samples, as in the other methods; ``uniform``, the paper's ``1/|S|``, equal for all clients of a
            round.
    """

    optimizers: ClassVar[tuple[Optimizer, ...]] = ("sgd",)  # (x − y_i) / (K_i η) is a mean gradient with SGD only

    mode: Literal["niid", "paper"] = "niid"
    denom: Literal["effective", "steps"] = "effective"
    server_lr: Annotated[float, Gt(0)] = 1.0
    weights: Literal["samples", "uniform"] = "samples"

    @property
    def carries_up(self) -> Sequence[Sent]:
        """Changes of the model and of the control variate in the client's training, and buffers."""
        return [
            Sent((CHANGE,), "change of the model in the client's training", "the model", OF_HEAD),
            Sent((CONTROL_CHANGE,), "change of the client's control variate, its mean gradient", "the model", OF_HEAD),
            Sent(ALL, "running statistics", "those of the model", OF_BODY, "if the model has BatchNorm"),
        ]

    @property
    def carries_down(self) -> Sequence[Sent]:
        """The server's model and its control variate."""
        return [*super().carries_down, Sent((CONTROL,), "control variate of the server", "the model", OF_ALL)]

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: ``denom`` without momentum, where both choices are equal."""
        reads = {"denom": ("mode=niid; without momentum both are the same", self.mode == "niid")}
        return {**super().idle, **unread(reads)}

    @property
    def reads(self) -> frozenset[str]:
        """Fields read: ``local_epochs``, and ``momentum`` unless ``mode`` is ``paper``."""
        return super().reads - {"save_local"} - ({"momentum"} if self.mode == "paper" else set())

    def init(self, server: Server) -> ServerState:
        """Initial state: the initial model x⁰, and the control variate c = 0 of every parameter."""
        x = server.model.tensors()
        c = {name: torch.zeros_like(x[name]) for name, _ in server.model.named_parameters()}
        return ServerState({**x, **_named(CONTROL, c)})

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train with corrected steps, then update the client's control variate; without a step nothing changes.

        K_i steps y ← y − η(g(y) − c_i + c), then c_i ← c_i − c + (x − y)/(K_i η).
        """
        model, training = client.model, client.training
        x, c = select(message.tensors, ALL), under(CONTROL, message.tensors)
        c_i = under(CONTROL, state.tensors) or {name: torch.zeros_like(tensor) for name, tensor in c.items()}
        model.load(x)
        correction = {name: torch.empty_like(p).copy_(c[name] - c_i[name]) for name, p in model.named_parameters()}

        def correct(tensors: Tensors, factor: float) -> None:
            own = [correction[name] for name in tensors]
            torch._foreach_add_([*tensors.values()], own, alpha=factor)

        if self.mode == "paper":
            training = replace(training, momentum=0.0)
            numbers = self.local_training(replace(client, training=training), before_step=lambda _, g: correct(g, 1.0))
        else:
            numbers = self.local_training(client, after_step=lambda y: correct(y, -training.lr))
        y = model.tensors()
        k_eta = numbers["steps"] * training.lr / (1 - training.momentum if self.denom == "effective" else 1)
        dy = {name: y[name] - x[name] for name in c}
        dc = {name: -c[name] - dy[name] / k_eta if k_eta else torch.zeros_like(c[name]) for name in c}
        buffers = {name: tensor for name, tensor in y.items() if name not in c}
        upload = {**buffers, **_named(CHANGE, dy), **_named(CONTROL_CHANGE, dc)}
        return Message(upload, numbers), ClientState(_named(CONTROL, {name: c_i[name] + dc[name] for name in c}))

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Move the model by the mean change, and c by the sum of changes over all N clients; average the buffers.

        x ← x + η_g Σ p_i Δy_i and c ← c + (1/N) Σ Δc_i.
        """
        sent = {id: replace(upload, tensors=select(upload.tensors, (*ALL, CHANGE))) for id, upload in uploads.items()}
        mean = weighted_mean(sent) if self.weights == "samples" else uniform_mean(sent)
        x, dy = select(state.tensors, ALL), under(CHANGE, mean)
        c, dcs = under(CONTROL, state.tensors), [under(CONTROL_CHANGE, upload.tensors) for upload in uploads.values()]
        x = {name: x[name] + self.server_lr * dy[name] if name in dy else mean[name] for name in x}
        c = {name: c[name] + torch.stack([dc[name] for dc in dcs]).sum(dim=0) / server.clients for name in c}
        return ServerState({**x, **_named(CONTROL, c)})

    def change(self, site: Site, start: NamedTensors, upload: Message) -> Tensors:
        """Return the change Δy_i of the parameters."""
        del site, start
        return under(CHANGE, upload.tensors)

    def upload_like(self, server: Server) -> Tensors:
        """Changes Δy_i and Δc_i of the parameters, and the buffers."""
        tensors, parameters = server.model.named_tensors(), dict(server.model.named_parameters())
        buffers = {name: tensor for name, tensor in tensors.items() if name not in parameters}
        return {**buffers, **_named(CHANGE, parameters), **_named(CONTROL_CHANGE, parameters)}

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Return the model x, without c."""
        del server
        return select(state.tensors, ALL)


def _named(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}
