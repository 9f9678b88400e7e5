"""FedRep: Collins et al. 2021, Exploiting Shared Representations for Personalized Federated Learning.

https://arxiv.org/abs/2102.07078
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from kinfed.learning import Phase
from kinfed.methods.fedper import FedPer
from kinfed.models import BODY, HEAD

__all__ = ["FedRep"]


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """Shared body, personal head, trained one after the other: first the head, then the body under it.

    Attributes:
        head_epochs: Of the first phase; these two stand in the place of the run's local epochs.
        body_epochs: Of the second.
    """

    trains_head_alone: ClassVar[bool] = True

    head_epochs: Annotated[int, Ge(1)] = 5
    body_epochs: Annotated[int, Ge(1)] = 1

    def head_phase(self) -> Phase:
        """The body is frozen at what came."""
        return Phase(train=HEAD, epochs=self.head_epochs)

    def phases(self) -> Sequence[Phase]:
        """First h_i, then φ."""
        return [self.head_phase(), Phase(train=BODY, epochs=self.body_epochs)]
