"""A method from outside kinfed: FedDyn, Acar et al. 2021, Federated Learning Based on Dynamic Regularization.

https://arxiv.org/abs/2111.04263
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt

from kinfed.methods import Client, ClientId, ClientState, Message, Server, ServerState
from kinfed.methods.aggregation import weighted_mean
from kinfed.methods.fedavg import FedAvg
from kinfed.models import ALL, Tensors, select

H = "h."  # the server's vector


@dataclass(frozen=True, kw_only=True)
class FedDyn(FedAvg):
    """FedAvg whose clients' losses are bent until the minimum of each is that of all.

    Attributes:
        alpha: α, how hard a client is held near the global model.
    """

    alpha: Annotated[float, Gt(0)] = 0.1

    def init(self, server: Server) -> ServerState:
        """Start from θ⁰, and h⁰ = 0 for every parameter."""
        h = {H + name: torch.zeros_like(p, device="cpu") for name, p in server.model.named_parameters()}
        return ServerState(server.model.tensors() | {name: tensor.detach().contiguous() for name, tensor in h.items()})

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Send θ; h stays at the server."""
        return Message(select(state.tensors, ALL))

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Minimise L_k(θ) − ⟨g_k, θ⟩ + (α/2)‖θ − θ^{t−1}‖² (eq. 1); then g_k ← g_k − α(θ_k − θ^{t−1})."""
        model, x = client.model, message.tensors
        model.load(x)
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        g = {name: torch.zeros_like(p) for name, p in start.items()}
        for name, kept in state.tensors.items():
            g[name].copy_(kept)

        def bend(weights: Tensors, gradients: Tensors) -> None:
            for name, gradient in gradients.items():
                gradient.add_(self.alpha * (weights[name] - start[name]) - g[name])

        numbers = self.local_training(client, before_step=bend)
        y = model.tensors()
        kept = {name: g[name].cpu().contiguous() - self.alpha * (y[name] - x[name]) for name in g}
        return Message(y, numbers), ClientState(kept)

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """h ← h − α (1/m) Σ_k (θ_k − θ) over all m clients; θ ← mean of the θ_k − h/α. Buffers are averaged."""
        x, new = select(state.tensors, ALL), weighted_mean(uploads)
        h = {}
        for name in (n for n in x if H + n in state.tensors):
            moved = torch.stack([upload.tensors[name] - x[name] for upload in uploads.values()])
            h[H + name] = state.tensors[H + name] - self.alpha * moved.sum(dim=0) / server.clients
            new[name] = x[name] + moved.mean(dim=0) - h[H + name] / self.alpha
        return ServerState(new | h)

    def global_model(self, server: Server, state: ServerState) -> Tensors:
        """θ, without h."""
        return select(state.tensors, ALL)
