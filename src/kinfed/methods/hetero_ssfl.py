"""Hetero-SSFL: Makhija, Ho and Ghosh 2022, Federated Self-Supervised Learning for Heterogeneous Clients.

https://arxiv.org/abs/2205.12493. Specification D.5 lists what the paper leaves open or what cannot work as printed, and
how it is resolved.

Letters: N clients, L public images (the paper's RAD, representation alignment data set), A_k the outputs of client k's
network for them, L×d, K_k = A_k A_kᵀ their Gram, L×L, w_k the weight of client k, K̄ = Σ w_k K_k the mean Gram, and
D = N·d. What the server does with K̄ is in `mean_gram`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.learning import one_view, unnormalised
from kinfed.learning.frozen import store
from kinfed.methods.local_ssl import LocalSSL
from kinfed.methods.mean_gram import (
    FACTORS,
    GRAM,
    Cleaning,
    cka_with_colour,
    cleaned,
    mean_colours,
    participation_ratio,
)
from kinfed.methods.method import Client, ClientId, ClientState, Message, Requirements, Server, ServerState, unread
from kinfed.methods.selfsupervised import target_state
from kinfed.methods.travels import NO_LABELS, Sent
from kinfed.models import ONLINE, Model, Siamese, Tensors
from kinfed.similarity import Gram, cka
from kinfed.streams import torch_stream

__all__ = ["HeteroSSFL", "disagreement"]

# A download has A = (√w₁ A₁ … √w_N A_N), L×D, so that K̄ = A Aᵀ; or K̄, L×L, if it is smaller (`mean_gram`).
# Names of A_k in an upload, or K_k if it is smaller, and of all √w_k A_k or w_k K_k in the server's state.
REPRESENTATION, CLIENTS = "representation", "clients"
VIEWS = "views"  # the number of the round whose views of the common images K̄ is of, in a download and in the state


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
        start: First round with the term, ≥ 1. In round 1 the mean Gram is that of the initial networks. Messages travel
            in the rounds before, too.
        ramp: Rounds from ``start`` on in which the term has less weight, ≥ 0: the weight rises in equal steps, and is
            ``mu`` in round ``start`` + ``ramp``.
        initial: Initial networks of which the mean Gram of round 1 is: the ``server``'s, of the first architecture, for
            all clients, or those of the ``clients`` (the paper), which differ if the architectures do.
        views: True to compare random views of the common images, as BYOL sees images, instead of the images: in each
            round one view of each image, the same for all clients. The mean is then over the clients of the round
            before, since what the others sent was about other views.
        clean: What the server does with the mean Gram before it sends it (`mean_gram.cleaned`): ``none`` (the paper);
            ``colour`` takes out what is linear in the images' mean colours; ``whitened`` gives its leading directions
            equal weights, and drops the rest; ``neighbours`` makes images as similar as they have neighbours in common.
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
    start: Annotated[int, Ge(1)] = 1
    ramp: Annotated[int, Ge(0)] = 0
    initial: Literal["server", "clients"] = "server"
    views: bool = False
    clean: Cleaning = "none"

    @property
    def carries_up(self) -> Sequence[Sent]:
        """Outputs for the public images, and how far they spread."""
        return [
            Sent((REPRESENTATION,), "its network's outputs for the public images", "L × d or L × L", NO_LABELS),
            *super().carries_up,
        ]

    @property
    def carries_down(self) -> Sequence[Sent]:
        """What the clients' outputs are on average."""
        return [
            Sent(("gram", "factors"), "mean similarity of the public images, over the clients", "L × L", NO_LABELS),
            Sent((), "the public images", "L images", NO_LABELS, "once"),
        ]

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: those of the term, if its weight is 0."""
        of_term = ("phi", "normalise_gram", "rad_full", "rad_every", "rad_bn", "start", "ramp", "views", "clean")
        reads = dict.fromkeys(of_term, ("mu above 0", self.mu > 0)) | {
            "rad_batch": ("mu above 0 with rad_full=false", self.mu > 0 and not self.rad_full),
            # With views, what was said before round 1 is replaced as a whole.
            "initial": (
                "mu above 0 with start=1 or views=false",
                self.mu > 0 and (self.start == 1 or not self.views),
            ),
        }
        return {**super().idle, **unread(reads)}

    @property
    def requires(self) -> Requirements:
        """Public images (the RAD) at the server and at the clients; with ``initial=clients`` the clients' models."""
        return Requirements(public_images=True, public_images_at_clients=True, client_models=self.initial == "clients")

    # -- at the server ------------------------------------------------------------------------------------------------

    def init(self, server: Server) -> ServerState:
        """Initial state: the outputs of the initial networks on the RAD, of round 1.

        Those of the server's network stand for those of every client, unless ``initial=clients``. They are exact for
        clients of the same architecture, which start from the same weights.
        """
        models = server.client_models if self.initial == "clients" else [server.model] * server.clients
        said: dict[Model, Tensor] = {}
        for model in models:
            if model not in said:
                sent = self._sent(self.online(replace(server, model=model)), server, 1)
                said[model] = self._weighted(sent, server.clients)
        return self._state(torch.stack([said[model] for model in models]), server, 1)

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message with the mean Gram of all N clients, K̄ = Σ_j w_j K_j, in its smaller form; equal for all clients."""
        del client
        found = {name: state.tensors[name] for name in (GRAM, FACTORS) if name in state.tensors}
        return Message(found or self._mean(state.tensors[CLIENTS]), state.numbers)

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Replace the outputs of the participants; those of the other clients, which have not changed, remain exact.

        With ``views``, only the participants remain, since the others' outputs are of other views.
        """
        sent = {id: upload.tensors[REPRESENTATION] for id, upload in uploads.items()}
        if self.views:
            clients = torch.stack([self._weighted(of, len(sent)) for of in sent.values()])
        else:
            clients = state.tensors[CLIENTS].clone()
            for id, of in sent.items():
                clients[id] = self._weighted(of, server.clients)
        return self._state(clients, server, server.round + 1)

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return what is in K̄ before it is cleaned, besides the ``spread``; undefined numbers are left out.

        They are its `participation_ratio` and its `cka_with_colour`, as ``mean_gram_participation_ratio`` and
        ``mean_gram_cka_with_colour``.
        """
        whole = self._mean(state.tensors[CLIENTS]) if self.clean != "none" else self.download(state, 0).tensors
        found = {
            "mean_gram_participation_ratio": participation_ratio(whole),
            "mean_gram_cka_with_colour": cka_with_colour(whole, self._colours(server, state.numbers)),
        }
        told = {name: value for name, value in found.items() if value is not None}
        return super().notes(server, state, uploads, class_counts) | told

    def upload_like(self, server: Server) -> Tensors:
        """Outputs A_k, L×d, or their Gram K_k, L×L."""
        assert server.public_images is not None
        images = len(server.public_images)
        return {REPRESENTATION: torch.empty(images, self.out if self._sends_rows(images) else images)}

    def _state(self, clients: Tensor, server: Server, round: int) -> ServerState:
        """Make the state after a round.

        Args:
            clients: Weighted outputs of the clients, N×L×d, or their Grams, N×L×L.
            server: Server in that round.
            round: Number of the next round, in which the mean Gram is sent.
        """
        mean = self._mean(clients)
        numbers: dict[str, float] = {VIEWS: round} if self.views else {}
        if self.clean != "none":
            return ServerState({CLIENTS: clients, **cleaned(mean, self.clean, self._colours(server, numbers))}, numbers)
        kept = {name: tensor for name, tensor in mean.items() if name == GRAM}  # the factors are the clients' outputs
        return ServerState({CLIENTS: clients, **kept}, numbers)

    def _mean(self, clients: Tensor) -> Tensors:
        """Mean Gram from the weighted outputs or Grams of the clients: K̄, L×L, or its factors, L×N·d, if smaller."""
        count, images, width = clients.shape
        if not self._sends_rows(images):
            return {GRAM: clients.sum(dim=0)}
        factors = clients.movedim(0, 1).flatten(1)
        return {FACTORS: factors} if count * width < images else {GRAM: factors @ factors.T}

    def _colours(self, server: Server, numbers: Mapping[str, float]) -> Tensor:
        return mean_colours(self._images(server, numbers))

    def _weighted(self, sent: Tensor, count: int) -> Tensor:
        """Weight one of N outputs: √w A or w K, with w = 1/N, or with w = 1/(N ‖HKH‖) for ``normalise_gram``."""
        weight = 1 / count
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
            Message({REPRESENTATION: self._sent(online, client, client.round + 1)}, numbers),
            ClientState({**online.tensors(ONLINE), **target_state(target)}),
        )

    def _term(self, client: Client, online: Siamese, message: Message) -> Callable[[], Tensor | None] | None:
        """Return a function for the term of a step, μ (1 − CKA) on a part of the RAD; None in a round without it."""
        if not self.mu or client.round < self.start:
            return None
        weight = self.mu * min(1.0, (client.round - self.start + 1) / (self.ramp + 1))
        rad, stream, steps = self._images(client, message.numbers), client.stream("rad"), itertools.count()
        count = len(rad) if self.rad_full else min(self.rad_batch or client.training.batch_size, len(rad))
        shared = {name: tensor.to(rad.inputs.device) for name, tensor in message.tensors.items()}

        def term() -> Tensor | None:
            if next(steps) % self.rad_every:
                return None
            rows = torch.randperm(len(rad), generator=stream)[:count].to(rad.inputs.device)
            return weight * disagreement(self._represented(online, rad.batch(rows)), shared, rows)

        return term

    def _images(self, site: Client | Server, numbers: Mapping[str, float]) -> Samples:
        """Return the common images as the networks see them: in [0, 1], and with ``views`` a view of each.

        Args:
            site: Client or server.
            numbers: Numbers of a download or a state, with the round of the views.
        """
        assert site.public_images is not None
        if not self.views:
            return unnormalised(site.public_images)
        return one_view(site.public_images, torch_stream(site.seed, "rad views", int(numbers[VIEWS])))

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

    def _sent(self, online: Siamese, site: Client | Server, round: int) -> Tensor:
        """Compute the matrix that a client uploads, A_k or K_k, on the CPU; BatchNorm has the mode ``rad_bn``.

        Args:
            online: Network of the client.
            site: Client, or the server for it.
            round: Number of the next round, on whose views the clients compare with what they are sent.
        """
        rad = self._images(site, {VIEWS: round})
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
