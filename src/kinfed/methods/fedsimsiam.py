"""FedSimSiam: FedAvg of SimSiam's networks (Chen and He 2020), as in Zhuang, Wen and Zhang 2022.

https://arxiv.org/abs/2204.04385
"""

from __future__ import annotations

from dataclasses import dataclass

from kinfed.methods.selfsupervised import SelfSupervised

__all__ = ["FedSimSiam"]


@dataclass(frozen=True, kw_only=True)
class FedSimSiam(SelfSupervised):
    """FedBYOL without a target network: both views of an image go through the network that is trained.

    >>> FedSimSiam(hidden=512).has_target()
    False
    """

    def has_target(self) -> bool:
        """Return False: SimSiam has no target network."""
        return False
