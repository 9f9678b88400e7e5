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
from kinfed.methods.method import (
    Client,
    ClientId,
    ClientState,
    Message,
    Method,
    NamedTensors,
    Server,
    ServerState,
    Site,
)
from kinfed.methods.travels import OF_ALL, Sent, of_parts
from kinfed.models import ALL, NOTHING, Model, Part, Source, Tensors, select

__all__ = ["FedAvg"]


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """One global model: clients train it, and the server averages their models, weighted by training samples.

    Variants declare the part that travels (``shared``), the part that stays (``private``) and the trained parts
    (`phases`).

    >>> FedAvg().serves
    'global'

    Attributes:
        shared: Part of the model that is sent and averaged.
        private: Part of the model that stays with the client between rounds; the rest starts from the initial model in
            every round.
    """

    uses_only_means: ClassVar[bool] = True
    shared: ClassVar[Part] = ALL
    private: ClassVar[Part] = NOTHING

    def phases(self) -> Sequence[Phase]:
        """Phases of local training, in order."""
        return [Phase(train=ALL)]

    @property
    def reads(self) -> frozenset[str]:
        """Fields read: ``local_epochs`` by phases without own epochs, and ``save_local`` if whole models are sent."""
        epochs = {"local_epochs"} if any(phase.epochs is None for phase in self.phases()) else set()
        return frozenset({"momentum", *epochs, *({"save_local"} if self.shared == ALL else ())})

    @property
    def carries_up(self) -> Sequence[Sent]:
        """The shared part after local training."""
        return of_parts(self.shared, "after the client's training", labels=self.supervised)

    @property
    def carries_down(self) -> Sequence[Sent]:
        """The shared part of the server's model."""
        return of_parts(self.shared, "of the server", labels=self.supervised, body=OF_ALL, head=OF_ALL)

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """Refuse a model without a trainable parameter in any phase of local training."""
        super().check(models, sources, shape)
        trained = tuple(prefix for phase in self.phases() for prefix in phase.train)
        if not all(model.trainable(trained) for model in models):
            parts = " and ".join(dict.fromkeys(prefix.rstrip(".") for prefix in trained))
            raise InputError(f"model: all parameters of its {parts} are frozen, so that nothing can be trained")

    def init(self, server: Server) -> ServerState:
        """Initial state: the shared part of the initial model, w⁰."""
        return ServerState(server.model.tensors(self.shared))

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message with the server's tensors, the same for every client."""
        del client
        return Message(dict(state.tensors))

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Load the received and the private part, train, upload the shared part and keep the private part."""
        client.model.load({**message.tensors, **state.tensors})
        numbers = self.local_training(client)
        return Message(client.model.tensors(self.shared), numbers), ClientState(client.model.tensors(self.private))

    def local_training(
        self,
        client: Client,
        objective: Objective = cross_entropy,
        *,
        before_step: BeforeStep | None = None,
        after_step: AfterStep | None = None,
    ) -> dict[str, float]:
        """Train the client's model in place, phase after phase, and return the numbers of the upload.

        Args:
            client: Client that trains.
            objective: Function for the loss of a batch.
            before_step: Function called before each optimiser step.
            after_step: Function called after each optimiser step.

        Returns:
            ``samples``, ``steps`` and ``skipped`` samples; with at least one step in the last phase also its ``loss``,
            ``cross_entropy`` and, if the objective has one, ``term``.
        """
        tallies = [
            train(
                client.model,
                client.train,
                phase,
                client.training,
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
        """Average the uploads w_k, weighted by the clients' training samples n_k: w ← Σ n_k w_k / Σ n_k."""
        del server, state
        return ServerState(weighted_mean(uploads))

    def transferred(self, state: ServerState, tensors: Tensors) -> ServerState:
        """Replace tensors of the server's model, or of every client's mixture, by those of the same name.

        Args:
            state: State of the server.
            tensors: New tensors by name; those that the server does not have are ignored.
        """
        return replace(
            state,
            tensors={n: tensors[n].expand_as(own) if n in tensors else own for n, own in state.tensors.items()},
        )

    def network(self, site: Site) -> Model:
        """Return the network of which a part is shared: the site's model."""
        return site.model

    def parameters(self, site: Site) -> list[str]:
        """Return the names of the shared parameters, without those that are permanently frozen."""
        network = self.network(site)
        names = [name for name, _ in network.named_parameters() if name.startswith(self.shared)]
        return [name for name in names if name not in network.frozen]

    def change(self, site: Site, start: NamedTensors, upload: Message) -> Tensors:
        """Return the change of the shared parameters in a client's training, by name; buffers are left out.

        Args:
            site: Server or client in this round.
            start: State of the server before the round, or the message with which the client began.
            upload: Upload of the client.
        """
        names = [name for name, _ in site.model.named_parameters() if name.startswith(self.shared)]
        return {name: upload.tensors[name] - start.tensors[name] for name in names}

    def upload_like(self, server: Server) -> Tensors:
        """Tensors of the shared part of the model."""
        return select(server.model.named_tensors(), self.shared)

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Return the averaged model; None if only a part of the model is shared."""
        del server
        return dict(state.tensors) if self.shared == ALL else None

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Personal model of the client: the received part joined with its private part; empty if there is none.

        The private part of a client that never took part is the initial one, even if the server has such a part too.
        """
        if not self.private:
            return {}
        received = {name: tensor for name, tensor in message.tensors.items() if not name.startswith(self.private)}
        client.model.load({**received, **state.tensors})
        return {self.primary: client.model.tensors()}
