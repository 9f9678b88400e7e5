"""FedCKA: Son, Kim and Chung 2022, Compare Where It Matters: Using Layer-Wise Regularization.

https://arxiv.org/abs/2112.00407
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional

from kinfed.errors import InputError, check_choice
from kinfed.learning import Batch, Loss, Objective, cross_entropy, frozen_copy, frozen_grams, frozen_rows
from kinfed.methods.contrast import ContrastiveBase
from kinfed.methods.method import Client, Message, unread
from kinfed.models import Model, Source, Tensors
from kinfed.similarity import MEASURES, Kernel, Measure, cka_gap
from kinfed.similarity.gram import unit_gram

__all__ = ["FedCKA"]

FEWEST = 4  # least rows of a batch for the term; a similarity of fewer rows has no meaning
BANDWIDTH = 0.5  # bandwidth f of the RBF kernel (specification A.2)
KERNELS = {"linear": "cka", "rbf": "rbf_cka", "debiased": "debiased_cka"}  # measures by short name


@dataclass(frozen=True, kw_only=True)
class FedCKA(ContrastiveBase):
    """FedAvg with a contrastive term on the first layers: similar to the global model, unlike the previous local one.

    >>> FedCKA(mu=0.0, layers=3).idle["layers"]
    'mu above 0'

    Attributes:
        mu: Weight μ of the term, ≥ 0 (the paper: 3, 5 or 10).
        layers: Number M of the model's first layers that are compared.
        tap: Place at which the activations of a layer with pooling are read: ``relu``, before the pooling, or ``pool``,
            after it, with a quarter of the features and of the cost.
        metric: Similarity measure: ``linear`` or ``rbf`` CKA, ``debiased`` linear CKA, or a measure of
            `kinfed.similarity.MEASURES` that has a gradient, such as ``frobenius`` or ``cosine``.
    """

    space: ClassVar[Mapping[str, str]] = {"mu": "0.3,1,3,5"}

    mu: Annotated[float, Ge(0)] = 3.0
    layers: Annotated[int, Ge(1)] = 2
    tap: Literal["relu", "pool"] = "relu"
    metric: str = "linear"

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: those of the term, if its weight is 0."""
        reads = dict.fromkeys(("layers", "tap", "metric"), ("mu above 0", self.mu > 0))
        return {**super().idle, **unread(reads)}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("metric", self.metric, [*KERNELS, *MEASURES] if ":" not in self.metric else [self.metric])
        if not self._measure.differentiable or self._measure.needs_labels:
            raise InputError(
                f"metric: {self.metric!r} is not allowed; must be a measure with a gradient and without labels"
            )

    @property
    def _measure(self) -> Measure:
        return MEASURES[KERNELS.get(self.metric, self.metric)]

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """Refuse what FedAvg refuses, a model with too few layers, and ``tap="pool"`` for layers without pooling."""
        super().check(models, sources, shape)
        for model in models:
            if self.layers > len(model.layers):
                has = f"{len(model.layers)}: {', '.join(model.layers)}"
                raise InputError(f"fedcka.layers: {self.layers} is not allowed; the model has {has}")
        pooled = any(model.pooled(layer) != layer for model in models for layer in model.layers[: self.layers])
        if self.tap == "pool" and not pooled:
            raise InputError("fedcka.tap: 'pool' would do nothing; none of the compared layers is pooled")

    def contrast(self, client: Client, message: Message, previous: Tensors) -> Objective:
        """Return the objective: cross-entropy plus the mean contrastive term of the M layers (equations 1 and 2).

        CE + μ/M Σ_n −log(e^{s(a_n, g_n)} / (e^{s(a_n, g_n)} + e^{s(a_n, p_n)})), where a_n, g_n and p_n are the
        activations of layer n in the local, the global and the previous local model.
        """
        frozen = [frozen_copy(client.model, tensors) for tensors in (previous, message.tensors)]
        taps = [client.model.pooled(n) if self.tap == "pool" else n for n in client.model.layers[: self.layers]]

        def activations(inputs: Tensor) -> Sequence[Tensor]:
            """Activations p_1 … p_M, g_1 … g_M of the frozen models, b×features each."""
            read = [model.activations(inputs, taps) for model in frozen]
            return [_matrix(of_model[tap]) for of_model in read for tap in taps]

        read = (frozen_grams if self._measure.of_grams else frozen_rows)(activations, client.train, client.training)

        def loss(model: Model, batch: Batch) -> Loss:
            if len(batch.rows) < FEWEST:
                return Loss(cross_entropy(model, batch))
            a = model.activations(batch.inputs, [*taps, "head"])
            gaps = self._gaps([_matrix(a[tap]) for tap in taps], read(batch))
            # -log(e^g / (e^g + e^p)) = log(1 + e^(p - g))
            return Loss(functional.cross_entropy(a["head"], batch.labels), self.mu * functional.softplus(gaps).mean())

        return loss

    def _gaps(self, a: Sequence[Tensor], of_frozen: Sequence[Tensor]) -> Tensor:
        """Compute the differences of similarities s(a_n, p_n) - s(a_n, g_n), M numbers.

        Args:
            a: Activations of the M layers of the local model, b×features each.
            of_frozen: Activations p_1 … p_M, g_1 … g_M, b×features each, or their linear Grams, b×b, if the measure
                works on Grams.
        """
        p, g = of_frozen[: len(a)], of_frozen[len(a) :]
        similarity = self._measure
        if not similarity.of_grams:
            return torch.stack([similarity(a[n], p[n]) - similarity(a[n], g[n]) for n in range(len(a))])
        kernel: Kernel = similarity.options.get("kernel", "linear")
        debiased = similarity.debiased
        units = unit_gram(torch.stack([*p, *g]), kernel, BANDWIDTH, debiased=debiased)
        gaps = units[: len(a)] - units[len(a) :]
        return torch.stack(
            [
                cka_gap(x, gap, kernel=kernel, bandwidth=BANDWIDTH, debiased=debiased)
                for x, gap in zip(a, gaps, strict=True)
            ]
        )


def _matrix(x: Tensor) -> Tensor:
    """Reshape activations to b×features, channels last: the order in memory, so that nothing is copied."""
    return x.movedim(1, -1).flatten(1)
