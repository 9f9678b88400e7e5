"""FedBYOL: FedAvg of BYOL's online networks (Grill et al. 2020), as in Zhuang, Wen and Zhang 2022.

https://arxiv.org/abs/2204.04385
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
    """Clients train the global online network by BYOL, without labels; encoder and predictor are averaged.

    Attributes:
        update_target: Where a round's target starts: ``own``, at the client's from its last participation, or ``both``,
            at the global encoder, like the online network.
    """

    update_target: Literal["own", "both"] = "own"

    def target(self, online: Siamese, kept: Mapping[str, Tensor]) -> Target | None:
        """ξ, the client's own or a copy of the global o."""
        return super().target(online, kept if self.update_target == "own" else {})
