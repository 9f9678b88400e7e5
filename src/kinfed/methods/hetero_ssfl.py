"""Hetero-SSFL: Makhija, Ho and Ghosh 2022, Federated Self-Supervised Learning for Heterogeneous Clients.

https://arxiv.org/abs/2205.12493. Specification D.5 lists what the paper leaves open or what cannot work as printed, and
how it is resolved.

Letters: N clients, L public images (the paper's RAD, representation alignment data set), A_k the outputs of client k's
network for them, L×d, K_k = A_k A_kᵀ their Gram, L×L, w_k the weight of client k, K̄ = Σ w_k K_k the mean Gram, and
D = N·d.
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

# Names in a download: A = (√w₁ A₁ … √w_N A_N), L×D, so that K̄ = A Aᵀ; or K̄, L×L, if it is smaller.
FACTORS, GRAM = "factors", "gram"
# Names of A_k in an upload, or K_k if it is smaller, and of all √w_k A_k or w_k K_k in the server's state.
REPRESENTATION, CLIENTS = "representation", "clients"


@dataclass(frozen=True, kw_only=True)
class HeteroSSFL(LocalSSL):
    """Self-supervised clients of any architecture, whose representations of common images are kept similar.

    The common images are the server's L public images, the paper's RAD, which every client receives. Weights never
    leave a client: it uploads A_k, the outputs of its network for the L images.

    >>> HeteroSSFL(rad_full=True, rad_batch=64).idle
    {'rad_batch': 'mu above 0 with rad_full=false'}

    Attributes:
        mu: Weight μ of the term 1 − CKA between the client's and the mean Gram, ≥ 0 (the paper: 0.5; 1 on
            Tiny-ImageNet).
        phi: Part of the network whose outputs A are compared: ``predictor`` (the paper), ``projector`` or ``backbone``.
        normalise_gram: True to divide each Gram by its norm before the mean; otherwise (the paper) clients with large
            outputs have more weight.
        rad_batch: Number of common images in a step, drawn anew in each; 0 takes the batch size.
        rad_full: True to compare all common images in each step.
        rad_every: Steps from one comparison to the next, ≥ 1.
        rad_bn: Mode of BatchNorm on the common images; ``eval`` uses the running statistics and does not change them.
        start: First round with the term, 1 or 2. In round 1 the mean Gram is that of the initial networks.
    """

    space: ClassVar[Mapping[str, str]] = {"mu": "0.1,0.5,1"}
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
        """Fields without effect: those of the term, if its weight is 0."""
        of_term = ("phi", "normalise_gram", "rad_full", "rad_every", "rad_bn", "start")
        reads = dict.fromkeys(of_term, ("mu above 0", self.mu > 0))
        batch = {"rad_batch": ("mu above 0 with rad_full=false", self.mu > 0 and not self.rad_full)}
        return {**super().idle, **unread(reads | batch)}

    @property
    def requires(self) -> Requirements:
        """Public images (the RAD) at the server and at the clients."""
        return Requirements(public_images=True, public_images_at_clients=True)

    # -- at the server ------------------------------------------------------------------------------------------------

    def init(self, server: Server) -> ServerState:
        """Initial state: the outputs of the server's initial network on the RAD stand for those of every client.

        They are exact for clients of the same architecture, which start from the same weights.
        """
        own = self._weighted(self._sent(self.online(server), server), server)
        return self._state(own.expand(server.clients, *own.shape))

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message with the mean Gram of all N clients, K̄ = Σ_j w_j K_j, in its smaller form; equal for all clients."""
        del client
        if GRAM in state.tensors:
            return Message({GRAM: state.tensors[GRAM]})
        return Message({FACTORS: state.tensors[CLIENTS].movedim(0, 1).flatten(1)})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Replace the outputs of the participants; those of the other clients, which have not changed, remain exact."""
        clients = state.tensors[CLIENTS].clone()
        for id, upload in uploads.items():
            clients[id] = self._weighted(upload.tensors[REPRESENTATION], server)
        return self._state(clients)

    def upload_like(self, server: Server) -> Tensors:
        """Outputs A_k, L×d, or their Gram K_k, L×L."""
        assert server.public_images is not None
        images = len(server.public_images)
        return {REPRESENTATION: torch.empty(images, self.out if self._sends_rows(images) else images)}

    def _state(self, clients: Tensor) -> ServerState:
        """State with the weighted outputs of all clients, N×L×d or N×L×L, and with K̄ if it is smaller than L×N·d."""
        count, images, width = clients.shape
        if not self._sends_rows(images):
            return ServerState({CLIENTS: clients, GRAM: clients.sum(dim=0)})
        if count * width < images:
            return ServerState({CLIENTS: clients})
        factors = clients.movedim(0, 1).flatten(1)
        return ServerState({CLIENTS: clients, GRAM: factors @ factors.T})

    def _weighted(self, sent: Tensor, server: Server) -> Tensor:
        """Weight an upload: √w A or w K, with w = 1/N, or with w = 1/(N ‖HKH‖) for ``normalise_gram``."""
        weight = 1 / server.clients
        rows = self._sends_rows(len(sent))
        if self.normalise_gram:
            centred = sent.double() - sent.double().mean(dim=0)  # H A or H K; ‖HKH‖ = ‖(HA)ᵀ HA‖
            norm = _norm(centred.T @ centred if rows else centred - centred.mean(dim=1, keepdim=True))
            weight = weight / norm if norm else 0.0
        return sent * (weight**0.5 if rows else weight)

    # -- at the client -------------------------------------------------------------------------------------------------

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train the client's network by the self-supervised loss plus μ (1 − CKA(K_k, K̄)), and upload A_k."""
        online = self.own(client, state)
        target = self.target(online, state.tensors)
        numbers = self.learn(client, online, target, self._term(client, online, message))
        return (
            Message({REPRESENTATION: self._sent(online, client)}, numbers),
            ClientState({**online.tensors(ONLINE), **target_state(target)}),
        )

    def _term(self, client: Client, online: Siamese, message: Message) -> Callable[[], Tensor | None] | None:
        """Return a function for the term of a step, μ (1 − CKA) on a part of the RAD; None in a round without it."""
        if not self.mu or client.round < self.start:
            return None
        assert client.public_images is not None
        rad, stream, steps = unnormalised(client.public_images), client.stream("rad"), itertools.count()
        count = len(rad) if self.rad_full else min(self.rad_batch or client.training.batch_size, len(rad))
        shared = {name: tensor.to(rad.inputs.device) for name, tensor in message.tensors.items()}

        def term() -> Tensor | None:
            if next(steps) % self.rad_every:
                return None
            rows = torch.randperm(len(rad), generator=stream)[:count].to(rad.inputs.device)
            return self.mu * disagreement(self._represented(online, rad.batch(rows)), shared, rows)

        return term

    def _represented(self, online: Siamese, images: Tensor) -> Tensor:
        """Compute the outputs A of the part ``phi`` of a network: predictor, projector or backbone (body).

        BatchNorm is in the mode ``rad_bn``; afterwards the network is in training mode. The outputs have a gradient,
        unless the caller switches gradients off.

        Args:
            online: Network of the client.
            images: Public images, b×c×h×w, scaled to [0, 1].

        Returns:
            Outputs, b×d.
        """
        online.train(self.rad_bn == "train")
        a: Tensor = online.body(images)
        if self.phi != "backbone":
            a = online.projector(a)
        if self.phi == "predictor":
            a = online.predictor(a)
        online.train()
        return a

    def _sent(self, online: Siamese, site: Client | Server) -> Tensor:
        """Compute the matrix that a client uploads, A_k or K_k, on the CPU; BatchNorm has the mode ``rad_bn``."""
        assert site.public_images is not None
        rad = unnormalised(site.public_images)
        if self.rad_bn == "eval":
            stored = store(lambda images: [self._represented(online, images)], rad)
            assert stored is not None
            rows = stored[0]
        else:  # with batch statistics, all images must be one batch
            with torch.no_grad():
                rows = self._represented(online, rad.batch(slice(None)))
        return (rows if self._sends_rows(len(rows)) else rows @ rows.T).cpu()

    def _sends_rows(self, images: int) -> bool:
        """Return True if A_k is uploaded: it is smaller than K_k, and its width is the same for all architectures."""
        return self.phi != "backbone" and self.out < images


def disagreement(a: Tensor, shared: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """Dissimilarity 1 − CKA (linear, centred) of a client's and the mean Gram on some images, in [0, 1]; 0 if equal.

    >>> a = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 3.0]])
    >>> round(disagreement(a, {"factors": 2 * a}, torch.arange(3)).item(), 4)
    0.0

    Args:
        a: Outputs of the client's network for b images, b×d.
        shared: Mean Gram over the clients: ``gram``, L×L, or ``factors``, L×D.
        rows: Indices of the b images among the L common images.
    """
    if GRAM in shared:
        mean = Gram.of_matrix(shared[GRAM].index_select(0, rows).index_select(1, rows))
    else:
        mean = Gram.of_features(shared[FACTORS].index_select(0, rows))
    return 1 - cka(a, mean)


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix))
