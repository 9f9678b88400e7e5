"""FedSimSiam: FedAvg of SimSiam's networks (Chen and He 2020), as in Zhuang, Wen and Zhang 2022.

https://arxiv.org/abs/2204.04385
"""

from __future__ import annotations

from dataclasses import dataclass

from kinfed.methods.selfsupervised import SelfSupervised

__all__ = ["FedSimSiam"]


@dataclass(frozen=True, kw_only=True)
class FedSimSiam(SelfSupervised):
    """FedBYOL without a target: a client's two views are compared by the one network that is trained."""

    def has_target(self) -> bool:
        """It has none."""
        return False
