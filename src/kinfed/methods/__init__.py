"""The methods by name. A new one of kinfed's own is a file and a line here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from kinfed.errors import InputError
from kinfed.fields import field_types
from kinfed.methods.fedavg import FedAvg
from kinfed.methods.fedvote import Vote, carries_vote
from kinfed.methods.method import (
    Client,
    ClientId,
    ClientState,
    Message,
    Method,
    NamedTensors,
    Requirements,
    Server,
    ServerState,
    Serves,
)
from kinfed.methods.picture import Picture
from kinfed.registry import Registry

__all__ = [
    "METHODS",
    "Client",
    "ClientId",
    "ClientState",
    "Message",
    "Method",
    "NamedTensors",
    "Picture",
    "Requirements",
    "Server",
    "ServerState",
    "Serves",
    "is_method",
    "make_method",
    "method_fields",
    "name_and_fields",
]


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
        "fedvote": "kinfed.methods.fedvote:Vote",
        "local": "kinfed.methods.local:Local",
        "central": "kinfed.methods.central:Central",
        "local_ssl": "kinfed.methods.local_ssl:LocalSSL",
        "central_byol": "kinfed.methods.central_byol:CentralBYOL",
    },
    _fault,
)

WRAPPER = "fedvote"  # alone it is around FedAvg; around another method it is fedvote+NAME
Find = Callable[[str], type[Method]]


def is_method(name: str) -> bool:
    """Tell whether a name is one of a method; ``package.module:Name`` is, whatever it leads to."""
    return _inner(name) in METHODS


def method_fields(name: str, find: Find = METHODS.find) -> dict[str, Any]:
    """Names of a method's fields with their types; of ``fedvote+NAME`` those of both.

    >>> [*method_fields("fedvote+fedprox")]
    ['mu', 'round', 'ballot', 'measure', 'taps', 'images', 'classifier', 'source']

    Args:
        name: Name of a method, or ``fedvote+NAME``.
        find: Class of a method by its name.

    Raises:
        InputError: If there is no such method, or it cannot carry the vote.
    """
    kind, wrapped = _kind(name, find), _wraps(name)
    return field_types(kind) | ({n: t for n, t in field_types(Vote).items() if n != "base"} if wrapped else {})


def make_method(name: str, fields: Mapping[str, Any] | None = None, find: Find = METHODS.find) -> Method:
    """Method of a name, with its fields.

    >>> make_method("fedprox", {"mu": 1.0})
    FedProx(mu=1.0)
    >>> make_method("fedvote+fedprox", {"mu": 1.0, "round": 3}).base
    FedProx(mu=1.0)

    Args:
        name: Name of a method, or ``fedvote+NAME``.
        fields: Values of fields, those of ``fedvote`` and ``NAME`` side by side; the others have their defaults.
        find: Class of a method by its name.

    Raises:
        InputError: If there is no such method, a field must be given, or fields do not go together.
    """
    kind, given = _kind(name, find), fields or {}
    for field in dataclasses.fields(kind):
        if dataclasses.MISSING is field.default is field.default_factory and field.name not in given:
            raise InputError(f"{field.name}: field required")
    if not _wraps(name):
        return kind(**given)
    of_base = {field.name for field in dataclasses.fields(kind)}
    base = kind(**{field: value for field, value in given.items() if field in of_base})
    assert isinstance(base, FedAvg)
    return Vote(base, **{field: value for field, value in given.items() if field not in of_base})


def name_and_fields(method: Method, name_of: Callable[[type[Method]], str]) -> tuple[str, dict[str, Any]]:
    """Name and fields from which `make_method` makes a method again.

    Args:
        method: The method.
        name_of: Name of a class.
    """
    if type(method) is not Vote:
        return name_of(type(method)), dataclasses.asdict(method)
    base, of_base = name_and_fields(method.base, name_of)
    own = {field.name: getattr(method, field.name) for field in dataclasses.fields(Vote) if field.name != "base"}
    return WRAPPER if type(method.base) is FedAvg else f"{WRAPPER}+{base}", {**of_base, **own}


def _wraps(name: str) -> bool:
    return name.partition("+")[0] == WRAPPER


def _inner(name: str) -> str:
    """Name of the method itself, without the vote."""
    wrapper, plus, base = name.partition("+")
    return name if wrapper != WRAPPER else base if plus else "fedavg"


def _kind(name: str, find: Find) -> type[Method]:
    """Class of the method itself, without the vote.

    Raises:
        InputError: If there is no such method, or it cannot carry the vote.
    """
    kind = find(_inner(name))
    if _wraps(name) and not carries_vote(kind):
        able = ", ".join(n for n, kind in METHODS.items() if carries_vote(kind))
        raise InputError(f"method: {name!r} is not allowed; the vote suits methods with a body at the server: {able}")
    return kind
