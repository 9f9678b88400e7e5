"""FedSHIBU: every client gets its own mixture of the clients' bodies, weighted by how alike their representations are.

FedBABU with personalised aggregation by a client representation similarity matrix (CRSM). Specification C.4 says where
the paper is silent or cannot work as printed, and what stands in for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kinfed.learning import Phase
from kinfed.methods.crsm import CRSMMixing
from kinfed.models import BODY, Part

__all__ = ["FedSHIBU"]


@dataclass(frozen=True, kw_only=True)
class FedSHIBU(CRSMMixing):
    """Bodies are trained under the initial head, which nobody changes, and each client gets its own mixture of them."""

    shared: ClassVar[Part] = BODY

    def phases(self) -> Sequence[Phase]:
        """The head is frozen at h⁰."""
        return [Phase(train=BODY)]
