"""Hetero-SSFL: Makhija, Ho and Ghosh 2022, Federated Self-Supervised Learning for Heterogeneous Clients.

https://arxiv.org/abs/2205.12493. specification D.5 says where the paper is silent or cannot work as printed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from kinfed.learning import unnormalised
from kinfed.learning.frozen import store
from kinfed.methods.local_ssl import LocalSSL
from kinfed.methods.method import Client, ClientId, ClientState, Message, Requirements, Server, ServerState, unread
from kinfed.methods.selfsupervised import target_state
from kinfed.models import ONLINE, Siamese, Tensors
from kinfed.similarity import Gram, cka

__all__ = ["HeteroSSFL", "disagreement"]

# What travels down: A₁ … A_N side by side, each times √w_j, so that K̄ = A Aᵀ; or K̄ where that is smaller.
FACTORS, GRAM = "factors", "gram"
# What travels up, A_k or where that is smaller K_k; the server keeps everybody's, times √w_k or w_k.
REPRESENTATION, CLIENTS = "representation", "clients"


@dataclass(frozen=True, kw_only=True)
class HeteroSSFL(LocalSSL):
    """Clients of any architecture learn alone, but keep their view of common images like everybody's mean view.

    The common images are the server's probe set, the paper's RAD of L images, which every client is given. Weights
    never leave a client: what it sends is A_k, what its network says of the L images.

    Attributes:
        mu: μ, weight of 1 − CKA of the client's and the mean Gram (the paper: 0.5, on Tiny-ImageNet 1).
        phi: Where A is read: at the output of the predictor (the paper), of the projector, or of the body.
        normalise_gram: Whether each Gram is divided by its norm before the mean is taken; if not (the paper), clients
            with large outputs count for more.
        rad_batch: Images of the RAD that a step compares, drawn anew; 0 is as many as the step has of its own.
        rad_full: Whether it compares all of them instead.
        rad_every: Steps from one comparison to the next.
        rad_bn: Mode of BatchNorm on the RAD: with ``eval`` its running statistics are used and stay as they are.
        start: First round with the term, 1 or 2. In round 1 the mean is that of the initial networks.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "sampled"

    mu: Annotated[float, Ge(0)] = 0.5
    phi: Literal["predictor", "projector", "backbone"] = "predictor"
    normalise_gram: bool = False
    rad_batch: Annotated[int, Ge(0)] = 0
    rad_full: bool = False
    rad_every: Annotated[int, Ge(1)] = 1
    rad_bn: Literal["eval", "train"] = "eval"
    start: Annotated[int, Ge(1), Le(2)] = 1

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields that would do nothing: those of the term, if its weight is 0."""
        of_term = ("phi", "normalise_gram", "rad_full", "rad_every", "rad_bn", "start")
        reads = dict.fromkeys(of_term, ("mu above 0", self.mu > 0))
        batch = {"rad_batch": ("mu above 0 with rad_full=false", self.mu > 0 and not self.rad_full)}
        return {**super().idle, **unread(reads | batch)}

    @property
    def requires(self) -> Requirements:
        """Public images at the server and at the clients: the RAD."""
        return Requirements(public_images=True, public_images_at_clients=True)

    # -- at the server ------------------------------------------------------------------------------------------------

    def init(self, server: Server) -> ServerState:
        """Everybody is taken to say what the server's own initial network says of the RAD.

        Clients of its architecture start with the same weights, so of them it is exact.
        """
        own = self._weighted(self._sent(self.online(server), server), server)
        return self._state(own.expand(server.clients, *own.shape))

    def download(self, state: ServerState, client: ClientId) -> Message:
        """K̄ = Σ_j w_j K_j over all N clients, in the form that is smaller; the same for everybody."""
        del client
        if GRAM in state.tensors:
            return Message({GRAM: state.tensors[GRAM]})
        return Message({FACTORS: state.tensors[CLIENTS].movedim(0, 1).flatten(1)})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Note what came. Who took no part has not changed, so what it said last still holds."""
        clients = state.tensors[CLIENTS].clone()
        for id, upload in uploads.items():
            clients[id] = self._weighted(upload.tensors[REPRESENTATION], server)
        return self._state(clients)

    def upload_like(self, server: Server) -> Tensors:
        """A_k, L×d, or K_k, L×L."""
        assert server.probe is not None
        images = len(server.probe)
        return {REPRESENTATION: torch.empty(images, self.out if self._sends_rows(images) else images)}

    def _state(self, clients: Tensor) -> ServerState:
        """What everybody said, N×L×d or N×L×L, and K̄ if that is smaller than N·d columns."""
        count, images, width = clients.shape
        if not self._sends_rows(images):
            return ServerState({CLIENTS: clients, GRAM: clients.sum(dim=0)})
        if count * width < images:
            return ServerState({CLIENTS: clients})
        factors = clients.movedim(0, 1).flatten(1)
        return ServerState({CLIENTS: clients, GRAM: factors @ factors.T})

    def _weighted(self, sent: Tensor, server: Server) -> Tensor:
        """√w A or w K with w = 1/N, or with 1/(N ‖HKH‖)."""
        weight = 1 / server.clients
        rows = self._sends_rows(len(sent))
        if self.normalise_gram:
            centred = sent.double() - sent.double().mean(dim=0)  # H A or H K; ‖HKH‖ = ‖(HA)ᵀ HA‖
            norm = _norm(centred.T @ centred if rows else centred - centred.mean(dim=1, keepdim=True))
            weight = weight / norm if norm else 0.0
        return sent * (weight**0.5 if rows else weight)

    # -- where the data are -------------------------------------------------------------------------------------------

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Train one's own network by SSL + μ (1 − CKA(K_k, K̄)); send A_k."""
        online = self.own(client, memory)
        target = self.target(online, memory.tensors)
        numbers = self.learn(client, online, target, self._term(client, online, message))
        return (
            Message({REPRESENTATION: self._sent(online, client)}, numbers),
            ClientState({**online.tensors(ONLINE), **target_state(target)}),
        )

    def _term(self, client: Client, online: Siamese, message: Message) -> Callable[[], Tensor | None] | None:
        """μ (1 − CKA) on a part of the RAD, for each step."""
        if not self.mu or client.round < self.start:
            return None
        assert client.probe is not None
        rad, stream, steps = unnormalised(client.probe), client.stream("rad"), itertools.count()
        count = len(rad) if self.rad_full else min(self.rad_batch or client.sgd.batch_size, len(rad))
        shared = {name: tensor.to(rad.inputs.device) for name, tensor in message.tensors.items()}

        def term() -> Tensor | None:
            if next(steps) % self.rad_every:
                return None
            rows = torch.randperm(len(rad), generator=stream)[:count].to(rad.inputs.device)
            return self.mu * disagreement(self._represented(online, rad.batch(rows)), shared, rows)

        return term

    def _represented(self, online: Siamese, images: Tensor) -> Tensor:
        """A for some images, b×d; parameters get a gradient whatever the mode of BatchNorm."""
        online.train(self.rad_bn == "train")
        a: Tensor = online.body(images)
        if self.phi != "backbone":
            a = online.projector(a)
        if self.phi == "predictor":
            a = online.predictor(a)
        online.train()
        return a

    def _sent(self, online: Siamese, site: Client | Server) -> Tensor:
        """A_k or K_k on the CPU, with BatchNorm as in the term."""
        assert site.probe is not None
        rad = unnormalised(site.probe)
        if self.rad_bn == "eval":
            stored = store(lambda images: [self._represented(online, images)], rad)
            assert stored is not None
            rows = stored[0]
        else:  # all images are one batch
            with torch.no_grad():
                rows = self._represented(online, rad.batch(slice(None)))
        return (rows if self._sends_rows(len(rows)) else rows @ rows.T).cpu()

    def _sends_rows(self, images: int) -> bool:
        """Whether A_k travels up: it is smaller than K_k, and as wide with every architecture."""
        return self.phi != "backbone" and self.out < images


def disagreement(a: Tensor, shared: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """1 − CKA, linear and centred, of a client's and the mean Gram on some images; in [0, 1], 0 is alike.

    Args:
        a: What the client's network says of these images, b×d.
        shared: ``factors``, L×D, or ``gram``, L×L.
        rows: Which of the L images these are, b.
    """
    if GRAM in shared:
        mean = Gram.of_matrix(shared[GRAM].index_select(0, rows).index_select(1, rows))
    else:
        mean = Gram.of_features(shared[FACTORS].index_select(0, rows))
    return 1 - cka(a, mean)


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix))
