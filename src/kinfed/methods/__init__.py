"""The methods by name. A new one is a file and a line here."""

from kinfed.methods.central import Central
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedbabu import FedBABU
from kinfed.methods.fedper import FedPer
from kinfed.methods.fedprox import FedProx
from kinfed.methods.fedshibu import FedSHIBU
from kinfed.methods.local import Local
from kinfed.methods.method import Client, ClientId, Memory, Message, Method, Server, State
from kinfed.methods.scaffold import SCAFFOLD

__all__ = ["METHODS", "Client", "ClientId", "Memory", "Message", "Method", "Server", "State"]

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": SCAFFOLD,
    "fedper": FedPer,
    "fedbabu": FedBABU,
    "fedshibu": FedSHIBU,
    "local": Local,
    "central": Central,
}
