"""FedPer: Arivazhagan et al. 2019, Federated Learning with Personalization Layers.

https://arxiv.org/abs/1912.00818
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kinfed.methods.fedavg import FedAvg
from kinfed.models import BODY, HEAD, Part

__all__ = ["FedPer"]


@dataclass(frozen=True, kw_only=True)
class FedPer(FedAvg):
    """Shared body, personal head; both are trained together."""

    shared: ClassVar[Part] = BODY
    kept: ClassVar[Part] = HEAD
    personal: ClassVar[bool] = True
    headline: ClassVar[str] = "stale"
    tested: ClassVar[str] = "stale head"
