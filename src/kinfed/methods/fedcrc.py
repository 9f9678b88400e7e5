"""FedCRC and FedCRC-Per: a common representation under a slowly moving global head, and a personal head per client.

Specification C.6 lists what the paper leaves open and how it is resolved. Letters: f is the body and z its output, h_g
the global head, h_i the personal head of client i, p_i the client's share of all training samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from torch.nn import functional

from kinfed.learning import Batch, Loss, Objective, Phase, frozen_copy, train, with_frozen_body
from kinfed.methods.fedper import FedPer
from kinfed.methods.method import Client, ClientId, ClientState, Message, Server, ServerState, Serves, unread
from kinfed.models import ALL, BODY, HEAD, Model, Part, select

__all__ = ["FedCRC"]


@dataclass(frozen=True, kw_only=True)
class FedCRC(FedPer):
    """Common body trained under a slowly moving global head, with a personal head for each client.

    FedCRC is the global model; FedCRC-Per is the same body with a client's personal head.

    >>> FedCRC(tau=1.0).idle
    {'kl': 'tau below 1, where the global head moves'}

    Attributes:
        tau: Fraction τ of the global head that a round keeps, in [0, 1]; 1 gives FedBABU.
        kl: Divergence that distils the personal head into the global one: ``forward``, KL(p_personal‖p_global), or
            ``reverse``, KL(p_global‖p_personal).
    """

    space: ClassVar[Mapping[str, str]] = {"tau": "0.9,0.99"}
    uses_only_means: ClassVar[bool] = True
    shared: ClassVar[Part] = ALL
    serves: ClassVar[Serves] = "both"
    trains_head_alone: ClassVar[bool] = True

    tau: Annotated[float, Ge(0), Le(1)] = 0.99
    kl: Literal["forward", "reverse"] = "forward"

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: the direction of the KL divergence, if the global head never moves."""
        reads = {"kl": ("tau below 1, where the global head moves", self.tau < 1)}
        return {**super().idle, **unread(reads)}

    def phases(self) -> Sequence[Phase]:
        """Phase of step 1: the body f is trained under the frozen global head h_g."""
        return [Phase(train=BODY)]

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train in three steps: the body f under h_g, then h_i on the new f, then h_g on it for one epoch.

        In the third step the personal head h_i is the teacher of the global head h_g.
        """
        h_i = state.tensors or client.model.tensors(HEAD)  # h_i⁰ = h_g⁰
        client.model.load(message.tensors)
        numbers = self.local_training(client)

        model, samples = with_frozen_body(client.model, client.train, client.training)
        model.load(h_i)
        second = train(model, samples, self.head_phase(), client.training, client.stream("personal head"))
        h_i, objective = model.tensors(HEAD), self.imitation(frozen_copy(model, {}))
        model.load(select(message.tensors, HEAD))
        once = Phase(train=HEAD, epochs=1)
        third = train(model, samples, once, client.training, client.stream("global head"), objective)

        numbers["steps"] += second.steps + third.steps
        return Message(client.model.tensors(), numbers), ClientState(h_i)

    def imitation(self, personal: Model) -> Objective:
        """Return the objective of step 3: cross-entropy plus distillation from the personal head, both on the same z.

        CE(h_g(z), y) + KL(h_i(z)‖h_g(z)).
        """

        def loss(model: Model, batch: Batch) -> Loss:
            z = model.body(batch.inputs)
            logits = model.head(z)
            p_g, p_i = logits.log_softmax(dim=1), personal.head(z).log_softmax(dim=1)
            log_p, log_q = (p_i, p_g) if self.kl == "forward" else (p_g, p_i)
            kl = functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
            return Loss(functional.nll_loss(p_g, batch.labels), kl)

        return loss

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Average the bodies, and move the global head slowly towards the mean of the heads.

        f ← Σ p_i f_i and h_g ← τ h_g + (1 − τ) Σ p_i h_{g,i}; a permanently frozen h_g does not change.
        """
        mean = super().aggregate(server, state, uploads).tensors
        moving = {n: h for n, h in select(state.tensors, HEAD).items() if n not in server.model.frozen}
        return ServerState({**mean, **{n: self.tau * h + (1 - self.tau) * mean[n] for n, h in moving.items()}})
