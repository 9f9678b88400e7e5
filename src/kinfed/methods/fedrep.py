"""FedRep: Collins et al. 2021, Exploiting Shared Representations for Personalized Federated Learning.

https://arxiv.org/abs/2102.07078
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    The two numbers of epochs replace the local epochs of the run.

    >>> [phase.epochs for phase in FedRep(head_epochs=10).phases()]
    [10, 1]

    Attributes:
        head_epochs: Epochs of the first phase, which trains the head.
        body_epochs: Epochs of the second phase, which trains the body.
    """

    space: ClassVar[Mapping[str, str]] = {"head_epochs": "1,5"}

    trains_head_alone: ClassVar[bool] = True

    head_epochs: Annotated[int, Ge(1)] = 5
    body_epochs: Annotated[int, Ge(1)] = 1

    def head_phase(self) -> Phase:
        """Phase in which the personal head is trained on the frozen body."""
        return Phase(train=HEAD, epochs=self.head_epochs)

    def phases(self) -> Sequence[Phase]:
        """Phases of local training: first the head h_i, then the body φ."""
        return [self.head_phase(), Phase(train=BODY, epochs=self.body_epochs)]
