"""FedSHIBU: FedBABU with personalised aggregation by a client representation similarity matrix (CRSM).

Specification C.4 lists what the paper leaves open or what cannot work as printed, and how it is resolved.
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
    """FedBABU with a mixture of bodies for each client, weighted by the similarity of the clients' representations.

    >>> FedSHIBU(rep_source="local_random", layers="last", norm="sum").requires.public_images  # as printed
    False
    """

    shared: ClassVar[Part] = BODY

    def phases(self) -> Sequence[Phase]:
        """One phase: the body is trained under the frozen initial head h⁰."""
        return [Phase(train=BODY)]
