"""FedCRC and FedCRC-Per: a common representation under a slowly moving global predictor, and a personal predictor each.

specification C.6 says where the paper is silent, and what stands in for it.
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
    """The body is trained under a global head that hardly moves; on that body, a personal head and the global one.

    The global model is FedCRC; each client's, the same body under its own head, is FedCRC-Per.

    Attributes:
        tau: τ, how much of the global head a round leaves; 1 is FedBABU.
        kl: What the global head's imitation of the personal one minimises: ``forward`` KL(p_personal‖p_global),
            ``reverse`` KL(p_global‖p_personal).
    """

    shared: ClassVar[Part] = ALL
    serves: ClassVar[Serves] = "both"
    trains_head_alone: ClassVar[bool] = True

    tau: Annotated[float, Ge(0), Le(1)] = 0.99
    kl: Literal["forward", "reverse"] = "forward"

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields that would do nothing: the direction of the KL divergence, if the global head never moves."""
        reads = {"kl": ("tau below 1, where the global head moves", self.tau < 1)}
        return {**super().idle, **unread(reads)}

    def phases(self) -> Sequence[Phase]:
        """Step 1: f under the frozen h_g."""
        return [Phase(train=BODY)]

    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Three steps: f under h_g, then h_i on that f, then h_g on it, for an epoch, with h_i as its teacher."""
        h_i = memory.tensors or client.model.tensors(HEAD)  # h_i⁰ = h_g⁰
        client.model.load(message.tensors)
        numbers = self.local_training(client)

        model, samples = with_frozen_body(client.model, client.train, client.sgd)
        model.load(h_i)
        second = train(model, samples, self.head_phase(), client.sgd, client.stream("personal head"))
        h_i, objective = model.tensors(HEAD), self.imitation(frozen_copy(model, {}))
        model.load(select(message.tensors, HEAD))
        once = Phase(train=HEAD, epochs=1)
        third = train(model, samples, once, client.sgd, client.stream("global head"), objective)

        numbers["steps"] += second.steps + third.steps
        return Message(client.model.tensors(), numbers), ClientState(h_i)

    def imitation(self, personal: Model) -> Objective:
        """CE(h_g(z), y) + KL(h_i(z)‖h_g(z)), the representation z computed once for both."""

        def loss(model: Model, batch: Batch) -> Loss:
            z = model.body(batch.inputs)
            logits = model.head(z)
            p_g, p_i = logits.log_softmax(dim=1), personal.head(z).log_softmax(dim=1)
            log_p, log_q = (p_i, p_g) if self.kl == "forward" else (p_g, p_i)
            kl = functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
            return Loss(functional.nll_loss(p_g, batch.labels), kl)

        return loss

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Take f ← Σ p_i f_i and h_g ← τ h_g + (1 − τ) Σ p_i h_{g,i}; a frozen h_g keeps its bits."""
        mean = super().aggregate(server, state, uploads).tensors
        moving = {n: h for n, h in select(state.tensors, HEAD).items() if n not in server.model.frozen}
        return ServerState({**mean, **{n: self.tau * h + (1 - self.tau) * mean[n] for n, h in moving.items()}})
