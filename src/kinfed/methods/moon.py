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
    """FedAvg with a contrastive term on representations: near the global model's, far from the previous local ones.

    >>> MOON(mu=0.0, tau=0.2).idle["tau"]
    'mu above 0'

    Attributes:
        mu: Weight μ of the contrastive term, ≥ 0.
        tau: Temperature τ of the contrastive term, > 0.
    """

    space: ClassVar[Mapping[str, str]] = {"mu": "0.1,1,5"}
    trial: ClassVar[Mapping[str, Any]] = {"mu": 5.0}  # large enough for the term to matter in a few rounds

    mu: Annotated[float, Ge(0)] = 0.1
    tau: Annotated[float, Gt(0)] = 0.5

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: those of the term, if its weight is 0."""
        reads = {"tau": ("mu above 0", self.mu > 0)}
        return {**super().idle, **unread(reads)}

    def contrast(self, client: Client, message: Message, previous: Tensors) -> Objective:
        """Return the objective: cross-entropy plus the model-contrastive term (equation 3).

        CE + μ · mean −log(e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_p)/τ})), where z, z_g and z_p are the
        representations of the local, the global and the previous local model.
        """
        frozen = [frozen_copy(client.model, tensors) for tensors in (previous, message.tensors)]

        def gap(inputs: Tensor) -> Sequence[Tensor]:
            """Difference z_p - z_g of the representations, each of norm 1; b×d."""
            z_p, z_g = (functional.normalize(model.body(inputs)) for model in frozen)
            return [z_p - z_g]

        read = frozen_rows(gap, client.train, client.training)

        def loss(model: Model, batch: Batch) -> Loss:
            (z_gap,) = read(batch)
            z = model.body(batch.inputs)
            # Only the difference of the cosines is needed: -log(e^g / (e^g + e^p)) = log(1 + e^(p - g)).
            contrast = functional.softplus((functional.normalize(z) * z_gap).sum(dim=1) / self.tau)
            return Loss(functional.cross_entropy(model.head(z), batch.labels), self.mu * contrast.mean())

        return loss
