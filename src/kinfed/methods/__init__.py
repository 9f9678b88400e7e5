"""The methods by name. A new one is a file and a line here."""

from kinfed.errors import InputError
from kinfed.methods.central import Central
from kinfed.methods.central_byol import CentralBYOL
from kinfed.methods.ditto import Ditto
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedavg_crsm import FedAvgCRSM
from kinfed.methods.fedbabu import FedBABU
from kinfed.methods.fedbyol import FedBYOL
from kinfed.methods.fedcka import FedCKA
from kinfed.methods.fedcrc import FedCRC
from kinfed.methods.fedema import FedEMA
from kinfed.methods.fedper import FedPer
from kinfed.methods.fedproto import FedProto
from kinfed.methods.fedprox import FedProx
from kinfed.methods.fedrep import FedRep
from kinfed.methods.fedshibu import FedSHIBU
from kinfed.methods.fedsimsiam import FedSimSiam
from kinfed.methods.fedu import FedU
from kinfed.methods.fedvote import FedVote, carries_vote, with_vote
from kinfed.methods.hetero_ssfl import HeteroSSFL
from kinfed.methods.lg_fedavg import LGFedAvg
from kinfed.methods.local import Local
from kinfed.methods.local_ssl import LocalSSL
from kinfed.methods.method import Client, ClientId, Memory, Message, Method, Server, State
from kinfed.methods.moon import MOON
from kinfed.methods.scaffold import SCAFFOLD

__all__ = ["CARRIER", "METHODS", "Client", "ClientId", "Memory", "Message", "Method", "Server", "State", "method_named"]

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": SCAFFOLD,
    "moon": MOON,
    "fedcka": FedCKA,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "fedshibu": FedSHIBU,
    "fedavg_crsm": FedAvgCRSM,
    "fedcrc": FedCRC,
    "ditto": Ditto,
    "fedproto": FedProto,
    "lg_fedavg": LGFedAvg,
    "fedbyol": FedBYOL,
    "fedsimsiam": FedSimSiam,
    "fedu": FedU,
    "fedema": FedEMA,
    "hetero_ssfl": HeteroSSFL,
    "fedvote": FedVote,
    "local": Local,
    "central": Central,
    "local_ssl": LocalSSL,
    "central_byol": CentralBYOL,
}

CARRIER = "fedvote+"


def method_named(name: str) -> type[Method]:
    """The class of a method, or of ``fedvote+NAME``: another method that carries the vote.

    Raises:
        KeyError: If there is no such method.
    """
    base = METHODS[name.removeprefix(CARRIER)]
    if not name.startswith(CARRIER):
        return base
    if not carries_vote(base):
        able = ", ".join(n for n, kind in METHODS.items() if carries_vote(kind))
        raise InputError(f"method: {name!r} is not allowed; the vote suits methods with a body at the server: {able}")
    return with_vote(base)
