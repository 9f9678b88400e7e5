"""FedAvg within the true groups of a planted shift, which no method can know: a ceiling for clustered methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from kinfed.methods.grouped import Grouped, with_groups
from kinfed.methods.method import Requirements, Server, ServerState

__all__ = ["OracleGroups"]


@dataclass(frozen=True, kw_only=True)
class OracleGroups(Grouped):
    """Each true group of a planted shift is a federation of its own: a ceiling, not a method that can be used.

    >>> OracleGroups().ceiling
    'the true groups'
    """

    ceiling: ClassVar[str] = "the true groups"

    @property
    def requires(self) -> Requirements:
        """Requirements of the base, and the true groups."""
        return replace(super().requires, true_groups=True)

    def init(self, server: Server) -> ServerState:
        """Initial state: that of the base for each true group."""
        return with_groups(dict.fromkeys(server.true_groups, self.base.init(server)), torch.tensor(server.true_groups))
