"""The methods by name. A new one of kinfed's own is a file and a line here."""

from __future__ import annotations

import dataclasses
from typing import Any

from kinfed.errors import InputError
from kinfed.methods.fedvote import carries_vote, with_vote
from kinfed.methods.method import Client, ClientId, Memory, Message, Method, Server, State
from kinfed.registry import Registry

__all__ = ["CARRIER", "METHODS", "Client", "ClientId", "Memory", "Message", "Method", "Server", "State", "method_named"]


def _fault(found: Any) -> str | None:
    """What is wrong with a class from elsewhere that shall be a method."""
    if not (isinstance(found, type) and issubclass(found, Method)):
        return "is no method; it must be a class derived from kinfed.methods.Method"
    return None if dataclasses.is_dataclass(found) else "is no dataclass; it must be one, frozen and keyword-only"


METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "fedavg": "kinfed.methods.fedavg:FedAvg",
        "fedprox": "kinfed.methods.fedprox:FedProx",
        "scaffold": "kinfed.methods.scaffold:SCAFFOLD",
        "moon": "kinfed.methods.moon:MOON",
        "fedcka": "kinfed.methods.fedcka:FedCKA",
        "fedper": "kinfed.methods.fedper:FedPer",
        "fedrep": "kinfed.methods.fedrep:FedRep",
        "fedbabu": "kinfed.methods.fedbabu:FedBABU",
        "fedshibu": "kinfed.methods.fedshibu:FedSHIBU",
        "fedavg_crsm": "kinfed.methods.fedavg_crsm:FedAvgCRSM",
        "fedcrc": "kinfed.methods.fedcrc:FedCRC",
        "ditto": "kinfed.methods.ditto:Ditto",
        "fedproto": "kinfed.methods.fedproto:FedProto",
        "lg_fedavg": "kinfed.methods.lg_fedavg:LGFedAvg",
        "fedbyol": "kinfed.methods.fedbyol:FedBYOL",
        "fedsimsiam": "kinfed.methods.fedsimsiam:FedSimSiam",
        "fedu": "kinfed.methods.fedu:FedU",
        "fedema": "kinfed.methods.fedema:FedEMA",
        "hetero_ssfl": "kinfed.methods.hetero_ssfl:HeteroSSFL",
        "fedvote": "kinfed.methods.fedvote:FedVote",
        "local": "kinfed.methods.local:Local",
        "central": "kinfed.methods.central:Central",
        "local_ssl": "kinfed.methods.local_ssl:LocalSSL",
        "central_byol": "kinfed.methods.central_byol:CentralBYOL",
    },
    _fault,
)

CARRIER = "fedvote+"


def method_named(name: str) -> type[Method]:
    """The class of a method, or of ``fedvote+NAME``: another method that carries the vote.

    Raises:
        InputError: If there is no such method, or it cannot carry the vote.
    """
    base = METHODS.find(name.removeprefix(CARRIER))
    if not name.startswith(CARRIER):
        return base
    if not carries_vote(base):
        able = ", ".join(n for n, kind in METHODS.items() if carries_vote(kind))
        raise InputError(f"method: {name!r} is not allowed; the vote suits methods with a body at the server: {able}")
    return with_vote(base)
