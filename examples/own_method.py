"""A federated method of your own: the server takes the median of the clients' models instead of the mean.

A client whose model is far off, by mistake or on purpose, moves a mean but hardly a median. Whether that costs accuracy
where all clients are honest is what the comparison shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

import kinfed
from kinfed.methods import ClientId, Message, Server, ServerState
from kinfed.methods.fedavg import FedAvg
from kinfed.testing import check_method


@dataclass(frozen=True, kw_only=True)
class MedianFedAvg(FedAvg):
    """FedAvg with the median of every weight over the clients."""

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Take the median of each number over the uploads."""
        models = [message.tensors for message in uploads.values()]
        return ServerState(
            {name: torch.stack([m[name] for m in models]).median(dim=0).values for name in state.tensors}
        )


if __name__ == "__main__":
    check_method(MedianFedAvg())  # names the rule that a method breaks: the same bits, no state of its own, …
    result = kinfed.compare(
        ["fedavg", MedianFedAvg()],
        clients=6,
        partition="iid",
        rounds=5,
        out="runs/own_method",
        overwrite=True,
        quiet=True,
    )
    result.table()
