"""FedBYOL: FedAvg of BYOL's online networks (Grill et al. 2020), as in Zhuang, Wen and Zhang 2022.

https://arxiv.org/abs/2204.04385. An online network is an encoder o (body and projector) with a predictor q; its target
network ξ is a moving average of o.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kinfed.methods.selfsupervised import SelfSupervised
from kinfed.models import Siamese, Target

__all__ = ["FedBYOL"]


@dataclass(frozen=True, kw_only=True)
class FedBYOL(SelfSupervised):
    """BYOL without labels at the clients; the server averages the online networks: encoder o and predictor q.

    >>> FedBYOL(hidden=512, out=64).supervised
    False

    Attributes:
        update_target: Initial target network of a round: ``own``, the client's target of its last participation;
            ``both``, a copy of the global encoder, from which the online network starts as well.
    """

    update_target: Literal["own", "both"] = "own"

    def target(self, online: Siamese, kept: Mapping[str, Tensor]) -> Target | None:
        """Return the target ξ: the client's own, or a copy of the global o, according to ``update_target``."""
        return super().target(online, kept if self.update_target == "own" else {})
