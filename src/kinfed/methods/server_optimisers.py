"""Optimisers at the server: FedAvgM, FedAdam and FedYogi.

FedAvgM is Hsu, Qi and Brown 2019, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, https://arxiv.org/abs/1909.06335. FedAdam and FedYogi are Reddi et al. 2021, Adaptive Federated
Optimization, https://arxiv.org/abs/2003.00295, Algorithm 2. Letters: x is the server's model, Δ its change to the mean
of the clients' models, η the server's learning rate, m and v the moments of Δ, which the server keeps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import ClientId, Message, Method, Server, ServerState
from kinfed.methods.wrapper import Wrapper
from kinfed.models import Tensors

__all__ = ["FedAdam", "FedAvgM", "FedYogi", "ServerOptimiser"]

FIRST, SECOND = "first_moment.", "second_moment."  # prefixes of m and v in the server's state

Rate = Annotated[float, Gt(0)]
Decay = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True, kw_only=True)
class ServerOptimiser(Wrapper):
    """Method whose server takes the change of its model to the clients' mean as a gradient, and steps by an optimiser.

    Only trained parameters are stepped. Buffers, such as the running statistics of BatchNorm, are averaged as in the
    base: they are estimates and no parameters, and a step beyond the clients' values could make a variance negative.
    """

    uses_only_means: ClassVar[bool] = True

    @classmethod
    def wraps(cls, kind: type[Method]) -> bool:
        """Return True for a class whose clients send a part of a model, of which the server keeps the plain mean."""
        averages = issubclass(kind, FedAvg) and kind.aggregate is FedAvg.aggregate and bool(kind.shared)
        return averages and kind.download is FedAvg.download and kind.trains == "sampled"

    @classmethod
    def needs(cls) -> str:
        """Return the reason for which other methods cannot be the base, in words."""
        return "an optimiser at the server needs a method whose server keeps the mean of what the clients send"

    @abstractmethod
    def begun(self, like: Tensor) -> Tensors:
        """Return the moments of a parameter before the first round, by their prefixes.

        Args:
            like: The parameter.
        """

    @abstractmethod
    def step(self, change: Tensor, moments: Tensors) -> tuple[Tensor, Tensors]:
        """Return the step of a parameter, and its new moments.

        Args:
            change: Change Δ of the parameter to the clients' mean.
            moments: Moments of the parameter, by their prefixes.
        """

    def init(self, server: Server) -> ServerState:
        """Initial state: that of the base, and the moments of every parameter that is trained."""
        state = self.base.init(server)
        moments = {
            prefix + name: moment
            for name in self.base.parameters(server)
            for prefix, moment in self.begun(state.tensors[name]).items()
        }
        return replace(state, tensors={**state.tensors, **moments})

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message of the base, without the moments."""
        return self.base.download(_of_base(state), client)

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Aggregate as the base does, then step each parameter: x ← x + step(Δ).

        This is computed as mean + (step − Δ), so that a step of Δ gives the mean, bit for bit.
        """
        before = _of_base(state)
        after = self.base.aggregate(server, before, uploads)
        tensors = dict(after.tensors)
        for name in self.base.parameters(server):
            change = after.tensors[name] - before.tensors[name]
            kept = {
                prefix: state.tensors[prefix + name] for prefix in (FIRST, SECOND) if prefix + name in state.tensors
            }
            step, moments = self.step(change, kept)
            tensors[name] = after.tensors[name] + (step - change)
            tensors |= {prefix + name: moment for prefix, moment in moments.items()}
        return replace(after, tensors=tensors)

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Global model of the base."""
        return self.base.global_model(server, _of_base(state))


@dataclass(frozen=True, kw_only=True)
class FedAvgM(ServerOptimiser):
    """FedAvg with momentum at the server: m ← β m + Δ and x ← x + η m.

    >>> from kinfed.methods.fedprox import FedProx
    >>> FedAvgM(FedProx(mu=1.0), server_momentum=0.5).base
    FedProx(mu=1.0)

    Attributes:
        server_lr: Learning rate η of the server, > 0. Momentum makes a step up to 1 / (1 − β) times as long, so that
            η = 1 takes steps ten times those of the base. With 1 and without momentum the base is unchanged.
        server_momentum: Momentum β of the server, in [0, 1).
    """

    space: ClassVar[Mapping[str, str]] = {"server_momentum": "0.5,0.9"}

    server_lr: Rate = 0.3
    server_momentum: Decay = 0.9

    def begun(self, like: Tensor) -> Tensors:
        """Return m = 0."""
        return {FIRST: torch.zeros_like(like)}

    def step(self, change: Tensor, moments: Tensors) -> tuple[Tensor, Tensors]:
        """Return η m and the new m."""
        m = self.server_momentum * moments[FIRST] + change
        return self.server_lr * m, {FIRST: m}


@dataclass(frozen=True, kw_only=True)
class _Adaptive(ServerOptimiser):
    """Step divided by the size of the changes so far: m ← β₁ m + (1 − β₁) Δ and x ← x + η m / (√v + τ).

    m and v begin with 0 and τ², and have no correction for it, as in the paper's Algorithm 2.

    Attributes:
        server_lr: Learning rate η of the server, > 0: about the largest step of a weight in a round.
        beta1: Decay β₁ of m, in [0, 1).
        beta2: Decay β₂ of v, in [0, 1).
        adaptivity: Adaptivity τ, > 0. Weights that change by less than τ in a round make smaller steps than others.
    """

    space: ClassVar[Mapping[str, str]] = {"server_lr": "0.003,0.01,0.03"}

    server_lr: Rate = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    adaptivity: Annotated[float, Gt(0)] = 1e-3

    @abstractmethod
    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the new v, from the old one and the square of Δ."""

    def begun(self, like: Tensor) -> Tensors:
        """Return m = 0 and v = τ²."""
        return {FIRST: torch.zeros_like(like), SECOND: torch.full_like(like, self.adaptivity**2)}

    def step(self, change: Tensor, moments: Tensors) -> tuple[Tensor, Tensors]:
        """Return η m / (√v + τ), and the new m and v."""
        m = self.beta1 * moments[FIRST] + (1 - self.beta1) * change
        v = self.second(moments[SECOND], change.square())
        return self.server_lr * m / (v.sqrt() + self.adaptivity), {FIRST: m, SECOND: v}


@dataclass(frozen=True, kw_only=True)
class FedAdam(_Adaptive):
    """FedAvg with Adam at the server: steps are divided by the size of the changes, v ← β₂ v + (1 − β₂) Δ².

    >>> FedAdam(server_lr=0.003).beta2
    0.99
    """

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return β₂ v + (1 − β₂) Δ²."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True, kw_only=True)
class FedYogi(_Adaptive):
    """FedAvg with Yogi at the server: v ← v − (1 − β₂) Δ² sign(v − Δ²), which moves by Δ² at most.

    >>> FedYogi().adaptivity
    0.001
    """

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v − (1 − β₂) Δ² sign(v − Δ²)."""
        return v - (1 - self.beta2) * square * (v - square).sign()


def _of_base(state: ServerState) -> ServerState:
    """Return the base's state."""
    tensors = {name: tensor for name, tensor in state.tensors.items() if not name.startswith((FIRST, SECOND))}
    return replace(state, tensors=tensors)
