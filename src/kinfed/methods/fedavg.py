"""FedAvg: McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data.

https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kinfed.errors import InputError
from kinfed.learning import AfterStep, BeforeStep, Objective, Phase, cross_entropy, train
from kinfed.methods.aggregation import weighted_mean
from kinfed.methods.method import Client, ClientId, ClientState, Message, Method, Server, ServerState
from kinfed.models import ALL, NOTHING, Model, Part, Source, Tensors, select

__all__ = ["FedAvg"]


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """One model for everybody: clients train it, the server averages it by their sample counts.

    Methods that differ in what travels, what stays and what is trained declare just that.

    Attributes:
        shared: The part that travels and is averaged.
        kept: The part that stays with the client from round to round; the rest starts anew from the initial model.
    """

    shared: ClassVar[Part] = ALL
    kept: ClassVar[Part] = NOTHING

    def phases(self) -> Sequence[Phase]:
        """Local training, one phase after the other."""
        return [Phase(train=ALL)]

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """There must be something in every model that local training moves."""
        super().check(models, sources, shape)
        trained = tuple(prefix for phase in self.phases() for prefix in phase.train)
        if not all(model.trainable(trained) for model in models):
            parts = " and ".join(dict.fromkeys(prefix.rstrip(".") for prefix in trained))
            raise InputError(f"model: all parameters of its {parts} are frozen, and nothing else is to be trained")

    def init(self, server: Server) -> ServerState:
        """w⁰."""
        return ServerState(server.model.tensors(self.shared))

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Everybody gets the same."""
        del client
        return Message(dict(state.tensors))

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Load what came and what was kept, train, send back the one and keep the other."""
        client.model.load({**message.tensors, **memory.tensors})
        numbers = self.local_training(client)
        return Message(client.model.tensors(self.shared), numbers), ClientState(client.model.tensors(self.kept))

    def local_training(
        self,
        client: Client,
        objective: Objective = cross_entropy,
        *,
        before_step: BeforeStep | None = None,
        after_step: AfterStep | None = None,
    ) -> dict[str, float]:
        """Train the client's model in place, phase after phase; what an upload tells of it."""
        tallies = [
            train(
                client.model,
                client.train,
                phase,
                client.sgd,
                client.stream(f"batches {i}"),
                objective,
                before_step=before_step,
                after_step=after_step,
            )
            for i, phase in enumerate(self.phases())
        ]
        last = tallies[-1]
        told = {"loss": last.loss, "cross_entropy": last.plain, "term": last.term}
        return {
            "samples": len(client.train),
            "steps": sum(tally.steps for tally in tallies),
            "skipped": sum(tally.skipped for tally in tallies),
            **({name: number for name, number in told.items() if number is not None} if last.steps else {}),
        }

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """W ← Σ n_k w_k / Σ n_k."""
        del server, state
        return ServerState(weighted_mean(uploads))

    def transferred(self, state: ServerState, tensors: Tensors) -> ServerState:
        """The state with some tensors of the model replaced, as far as the server has them, or of every client's."""
        return replace(
            state,
            tensors={n: tensors[n].expand_as(own) if n in tensors else own for n, own in state.tensors.items()},
        )

    def upload_like(self, server: Server) -> Tensors:
        """The shared part of the model."""
        return select(server.model.named_tensors(), self.shared)

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """The average; where only a part travels, there is no global model."""
        del server
        return dict(state.tensors) if self.shared == ALL else None

    def evaluated(self, client: Client, message: Message, memory: ClientState) -> dict[str, Tensors]:
        """Where a part stays with the client: what the server has, joined with what the client kept.

        The kept part of a client that never took part is the initial one, also where the server has one of its own.
        """
        if not self.kept:
            return {}
        received = {name: tensor for name, tensor in message.tensors.items() if not name.startswith(self.kept)}
        client.model.load({**received, **memory.tensors})
        return {self.primary: client.model.tensors()}
