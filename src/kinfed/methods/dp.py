"""Differential privacy at the client's level: clipped updates, and Gaussian noise on their mean.

DP-FedAvg is McMahan, Ramage, Talwar and Zhang 2018, Learning Differentially Private Recurrent Language Models,
https://arxiv.org/abs/1710.06963, Algorithm 1 with a clip of the whole update; the clipping norm may follow a quantile
of the updates' norms: Andrew, Thakkar, McMahan and Ramaswamy 2021, Differentially Private Learning with Adaptive
Clipping, https://arxiv.org/abs/1905.03871. A round has a fixed number m of clients instead of a random one, and
`privacy_loss` accounts for that. Letters: Δ_k is the change of the trained parameters at client k, S the clipping norm,
z the noise multiplier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import torch
from annotated_types import Gt, Lt
from numpy.typing import NDArray
from torch import Tensor, nn

from kinfed.errors import InputError
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import ClientId, Message, Method, Requirements, Server, ServerState
from kinfed.methods.privacy_loss import check_installed, epsilon, noise_for
from kinfed.methods.server_optimisers import ServerOptimiser
from kinfed.methods.travels import Sent
from kinfed.methods.wrapper import Wrapper
from kinfed.models import Model, Source, Tensors
from kinfed.streams import secret_stream

__all__ = ["DP"]

NOISE, CLIP = "dp.noise", "dp.clip"  # numbers of the server's state
PROTECTED = "of any one client no more than ε allows"
STEP = 0.2  # learning rate of the logarithm of S, as in Andrew et al.
COUNT_NOISE = 1 / 20  # standard deviation of the noise of the number of clients below S, as a share of m

Share = Annotated[float, Gt(0), Lt(1)]
Positive = Annotated[float, Gt(0)]


@dataclass(frozen=True, kw_only=True)
class DP(Wrapper):
    """Differential privacy for each client: updates are clipped, and the server adds Gaussian noise to their mean.

    The base aggregates the noisy mean as if it were the upload of one client. All clients have the same weight, and all
    that is no trained parameter, such as a buffer, keeps its initial value. ε is told for every round; it is about the
    models that the server publishes, not about the losses and accuracies in the metrics.

    >>> DP(FedAvg(), epsilon=8.0).idle
    {'noise': 'epsilon=None'}

    Attributes:
        base: Method whose server uses nothing of the uploads but their mean.
        noise: Noise multiplier z: the standard deviation of the noise of the sum of updates is z S.
        epsilon: Privacy loss ε after the planned rounds, for which z is found; None to use ``noise``.
        clip: Clipping norm S; in the first round, if ``quantile`` is given.
        delta: Probability δ with which ε may not hold; it should be far below 1/N for N clients.
        quantile: Share of the clients in (0, 1) whose updates should be shorter than S, which follows; None for a fixed
            S.
    """

    trial: ClassVar[Mapping[str, Any]] = {"noise": 0.01}
    space: ClassVar[Mapping[str, str]] = {"clip": "0.1,0.3,1,3"}

    noise: Positive = 1.0
    epsilon: Positive | None = None
    clip: Positive = 1.0
    delta: Share = 1e-5
    quantile: Share | None = None

    @classmethod
    def wraps(cls, kind: type[Method]) -> bool:
        """Return True for a class whose server uses nothing of the uploads but their mean, and so says itself."""
        definer = next(parent for parent in kind.__mro__ if "aggregate" in vars(parent))
        sends = issubclass(kind, ServerOptimiser) or (issubclass(kind, FedAvg) and bool(kind.shared))
        return bool(vars(definer).get("uses_only_means", False)) and sends and kind.trains == "sampled"

    @classmethod
    def needs(cls) -> str:
        """Return the reason for which other methods cannot be the base, in words."""
        return "noise protects a method whose server uses nothing of what clients send but the mean"

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect: those of the base, and ``noise`` if it is found for an ``epsilon``."""
        return {**super().idle, **({} if self.epsilon is None else {"noise": "epsilon=None"})}

    @property
    def requires(self) -> Requirements:
        """Requirements of the base, and running statistics that stay as they are."""
        return replace(super().requires, fixed_statistics=True)

    @property
    def carries_down(self) -> Sequence[Sent]:
        """What clients of the base receive, with noise."""
        return [replace(sent, what=f"{sent.what}, with noise", labels=PROTECTED) for sent in super().carries_down]

    @property
    def _trained(self) -> FedAvg:
        """Method whose clients train, inside an optimiser at the server."""
        return cast(FedAvg, self.base.unwrapped)

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:
        """Refuse BatchNorm with running statistics in the part that is sent, and a missing dp-accounting."""
        super().check(models, sources, shape)
        check_installed()
        for model in models:
            for name, layer in model.named_modules():
                tracks = isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
                if tracks and layer.training and name.startswith(self._trained.shared):
                    raise InputError(
                        f"bn: 'track' is not allowed with dp; the running statistics of {name} would leave the clients "
                        "without noise; allowed: group, frozen, batch"
                    )

    # -- at the server ------------------------------------------------------------------------------------------------

    def init(self, server: Server) -> ServerState:
        """Initial state of the base, with the noise multiplier z and the first clipping norm S."""
        state, z = super().init(server), self.noise
        if self.epsilon is not None:
            z = noise_for(self.epsilon, self.delta, server.rounds, server.clients, server.cohort)
        return replace(state, numbers={**state.numbers, NOISE: z, CLIP: self.clip})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Give the base the noisy mean x + (Σ Δ_k min(1, S/‖Δ_k‖) + z S ξ) / m, with ξ ~ N(0, 1) for each parameter.

        The sum is divided by the number m of clients that were drawn, also if some of them sent nothing usable.
        """
        start = self.base.download(state, 0).tensors
        names = [name for name in self._trained.parameters(server) if name in start]
        z, clip = (state.numbers[name] for name in (NOISE, CLIP))
        x = _flat(start, names)
        total, short = torch.zeros_like(x), 0
        for upload in uploads.values():
            change = _flat(upload.tensors, names) - x
            norm = float(change.norm())
            short += norm <= clip
            total += change * min(1.0, clip / norm) if norm > 0 else change
        # Two methods with the same noise would give it away by their difference.
        stream = secret_stream(server.seed, "dp noise", repr(self), server.round)
        if self.quantile is not None:
            z, clip = self._adapted(z, clip, short, server.cohort, stream)
        scale = z * state.numbers[CLIP]
        mean = x + (total + scale * torch.from_numpy(stream.standard_normal(len(x)))) / server.cohort
        upload = Message({**start, **_parts(mean, start, names)}, {"samples": 1})
        after = super().aggregate(server, state, {0: upload})
        return replace(after, numbers={**after.numbers, NOISE: state.numbers[NOISE], CLIP: clip})

    def _adapted(
        self, z: float, clip: float, short: int, cohort: int, stream: np.random.Generator
    ) -> tuple[float, float]:
        """Return the noise multiplier of the sum, and the next S ← S exp(−η (b − γ)) with the noisy share b below S.

        The count gets noise with the standard deviation σ. So that both together are as private as noise z alone, the
        sum gets the noise multiplier (z⁻² − (2σ)⁻²)^(−1/2).
        """
        assert self.quantile is not None
        sigma = max(COUNT_NOISE * cohort, z)
        share = (short - cohort / 2 + sigma * stream.standard_normal()) / cohort + 0.5
        return (z**-2 - (2 * sigma) ** -2) ** -0.5, clip * math.exp(-STEP * (share - self.quantile))

    # -- for metrics and reports --------------------------------------------------------------------------------------

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Notes of the base, ``epsilon`` after this round, and ``dp_clip`` if it follows a quantile."""
        z = state.numbers[NOISE]
        told = {"epsilon": epsilon(z, self.delta, server.round, server.clients, server.cohort)}
        moving = {} if self.quantile is None else {"dp_clip": state.numbers[CLIP]}
        return {**super().notes(server, state, uploads, class_counts), **told, **moving}

    def outcome(
        self, server: Server, lines: Sequence[Mapping[str, Any]], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Entries of the base, and ``epsilon`` after the last round with its ``delta``."""
        of_base = super().outcome(server, lines, class_counts)
        return {**of_base, "epsilon": lines[-1]["epsilon"] if lines else 0.0, "delta": self.delta}


def _flat(tensors: Tensors, names: Sequence[str]) -> Tensor:
    """Return the named tensors as one vector in float64."""
    return torch.cat([tensors[name].double().flatten() for name in names])


def _parts(vector: Tensor, like: Tensors, names: Sequence[str]) -> Tensors:
    """Return the named tensors from one vector, in the shapes and types of others."""
    parts = vector.split([like[name].numel() for name in names])
    return {name: part.view(like[name].shape).to(like[name].dtype) for name, part in zip(names, parts, strict=True)}
