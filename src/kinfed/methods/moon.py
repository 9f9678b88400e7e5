"""MOON: Li, He and Song 2021, Model-Contrastive Federated Learning.

https://arxiv.org/abs/2103.16257
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional

from kinfed.learning import Batch, Loss, Objective, frozen_copy, frozen_rows
from kinfed.methods.contrast import ContrastiveBase
from kinfed.methods.method import Client, Message, unread
from kinfed.models import Model, Tensors

__all__ = ["MOON"]


@dataclass(frozen=True, kw_only=True)
class MOON(ContrastiveBase):
    """FedAvg whose clients keep each sample's representation near the global model's, off their own former one.

    Attributes:
        mu: Weight of the contrastive term.
        tau: Its temperature.
    """

    trial: ClassVar[Mapping[str, Any]] = {"mu": 5.0}  # so that the term shows

    mu: Annotated[float, Ge(0)] = 0.1
    tau: Annotated[float, Gt(0)] = 0.5

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields that would do nothing: those of the term, if its weight is 0."""
        reads = {"tau": ("mu above 0", self.mu > 0)}
        return {**super().idle, **unread(reads)}

    def contrast(self, client: Client, message: Message, previous: Tensors) -> Objective:
        """CE + μ · mean −log(e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ})), equation 3."""
        frozen = [frozen_copy(client.model, tensors) for tensors in (previous, message.tensors)]

        def gap(inputs: Tensor) -> Sequence[Tensor]:
            """z_p - z_g, each of norm 1; b×d."""
            z_p, z_g = (functional.normalize(model.body(inputs)) for model in frozen)
            return [z_p - z_g]

        read = frozen_rows(gap, client.train, client.sgd)

        def loss(model: Model, batch: Batch) -> Loss:
            (z_gap,) = read(batch)
            z = model.body(batch.inputs)
            # The cosines' difference is all that counts: -log(e^g / (e^g + e^p)) = log(1 + e^(p - g)).
            contrast = functional.softplus((functional.normalize(z) * z_gap).sum(dim=1) / self.tau)
            return Loss(functional.cross_entropy(model.head(z), batch.labels), self.mu * contrast.mean())

        return loss
