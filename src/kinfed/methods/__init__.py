"""Registry of the federated methods. A new built-in method is a file and a line here."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from kinfed.errors import InputError, check_choice
from kinfed.fields import field_types
from kinfed.registry import Registry

if TYPE_CHECKING:
    from kinfed.methods.fedavg import FedAvg
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
    from kinfed.methods.wrapper import Wrapper

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
    "Wrapper",
    "check_name",
    "is_method",
    "make_method",
    "method_fields",
    "name_and_fields",
]

_MODULES = {
    "method": (
        "Client", "ClientId", "ClientState", "Message", "Method", "NamedTensors", "Requirements", "Server",
        "ServerState", "Serves",
    ),
    "picture": ("Picture",),
    "wrapper": ("Wrapper",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # Imports are lazy, so that the command's list of the methods needs no torch.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"kinfed.methods.{module}"), name)
    raise AttributeError(f"module 'kinfed.methods' has no attribute {name!r}")


def _fault(found: Any) -> str | None:
    """Return the reason why an object from outside kinfed cannot be a method; None if it can."""
    from kinfed.methods.method import Method

    if not (isinstance(found, type) and issubclass(found, Method)):
        return "is not a method; it must be a class derived from kinfed.methods.Method"
    return None if dataclasses.is_dataclass(found) else ("is not a dataclass; it must be frozen and keyword-only")


METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "fedavg": "kinfed.methods.fedavg:FedAvg",
        "fedprox": "kinfed.methods.fedprox:FedProx",
        "fedavgm": "kinfed.methods.server_optimisers:FedAvgM",
        "fedadam": "kinfed.methods.server_optimisers:FedAdam",
        "fedyogi": "kinfed.methods.server_optimisers:FedYogi",
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
        "fedkin": "kinfed.methods.fedkin:FedKin",
        "dp": "kinfed.methods.dp:DP",
        "cfl": "kinfed.methods.cfl:CFL",
        "ifca": "kinfed.methods.ifca:IFCA",
        "oracle_groups": "kinfed.methods.oracle_groups:OracleGroups",
        "local": "kinfed.methods.local:Local",
        "central": "kinfed.methods.central:Central",
        "local_ssl": "kinfed.methods.local_ssl:LocalSSL",
        "central_byol": "kinfed.methods.central_byol:CentralBYOL",
    },
    _fault,
)

BASE = "base"  # the field of a wrapper that is no field of a config
Find = Callable[[str], "type[Method]"]


def is_method(name: str) -> bool:
    """Return True if a name is that of a method; every ``package.module:Name`` counts, even if it cannot be imported.

    >>> is_method("fedprox"), is_method("fedvote+fedprox"), is_method("fedvote+fedprofit")
    (True, True, False)
    """
    return all(part in METHODS for part in name.split("+", 1))


def check_name(name: str) -> None:
    """Refuse a name that is not that of a method; nothing is imported.

    Args:
        name: Name of a method, or ``WRAPPER+NAME``.

    Raises:
        InputError: If there is no such method; the message suggests the nearest name.
    """
    for part in name.split("+", 1):
        check_choice("method", part, METHODS)


def method_fields(name: str, find: Find = METHODS.find) -> dict[str, Any]:
    """Return the fields of a method with their types, by name; for ``WRAPPER+NAME`` the fields of both.

    >>> [*method_fields("fedvote+fedprox")]
    ['mu', 'round', 'ballot', 'measure', 'taps', 'images', 'classifier', 'source']

    Args:
        name: Name of a method, or ``WRAPPER+NAME``.
        find: Function that returns the class of a method for its name.

    Raises:
        InputError: If there is no such method, or the wrapper cannot wrap it.
    """
    wrapper, kind = _kinds(name, find)
    of_wrapper = field_types(wrapper) if wrapper else {}
    return {**field_types(kind), **{name: of for name, of in of_wrapper.items() if name != BASE}}


def make_method(name: str, fields: Mapping[str, Any] | None = None, find: Find = METHODS.find) -> Method:
    """Make a method from its name and fields.

    >>> make_method("fedprox", {"mu": 1.0})
    FedProx(mu=1.0)
    >>> make_method("fedvote+fedprox", {"mu": 1.0, "round": 3}).base
    FedProx(mu=1.0)

    Args:
        name: Name of a method, or ``WRAPPER+NAME``.
        fields: Values of fields by name, for ``WRAPPER+NAME`` those of both; the others get their defaults.
        find: Function that returns the class of a method for its name.

    Raises:
        InputError: If there is no such method, a field without a default is missing, or fields exclude each other.
    """
    (wrapper, kind), given = _kinds(name, find), fields or {}
    for field in dataclasses.fields(kind):
        if dataclasses.MISSING is field.default is field.default_factory and field.name not in given:
            raise InputError(f"{field.name}: field required")
    if wrapper is None:
        return kind(**given)
    of_base = {field.name for field in dataclasses.fields(kind)}
    base = kind(**{field: value for field, value in given.items() if field in of_base})
    return wrapper(cast("FedAvg", base), **{field: value for field, value in given.items() if field not in of_base})


def name_and_fields(method: Method, name_of: Callable[[type[Method]], str]) -> tuple[str, dict[str, Any]]:
    """Return the name and fields from which `make_method` makes an equal method.

    >>> method = make_method("fedvote+fedprox", {"round": 3, "source": "mnist"})
    >>> name, fields = name_and_fields(method, METHODS.name_of)
    >>> name, fields["mu"], fields["round"]
    ('fedvote+fedprox', 0.1, 3)

    Args:
        method: Method to describe.
        name_of: Function that returns the name of a method's class.
    """
    from kinfed.methods.fedavg import FedAvg
    from kinfed.methods.wrapper import Wrapper

    name = name_of(type(method))
    if not isinstance(method, Wrapper):
        return name, dataclasses.asdict(method)
    base, of_base = name_and_fields(method.base, name_of)
    own = {field.name: getattr(method, field.name) for field in dataclasses.fields(method) if field.name != BASE}
    return name if type(method.base) is FedAvg else f"{name}+{base}", {**of_base, **own}


def _kinds(name: str, find: Find) -> tuple[type[Wrapper] | None, type[Method]]:
    """Return the class of the wrapper, if the name has one, and that of the method itself.

    Raises:
        InputError: If there is no such method, or the wrapper cannot wrap it.
    """
    from kinfed.methods.fedavg import FedAvg
    from kinfed.methods.wrapper import Wrapper

    first, plus, inner = name.partition("+")
    kind = find(first)
    if not issubclass(kind, Wrapper):
        if plus:
            raise InputError(f"method: {name!r} is not allowed; {first} cannot be joined with another method")
        return None, kind
    base = find(inner) if plus else FedAvg
    if not kind.wraps(base):
        able = ", ".join(n for n, kind_of in METHODS.items() if kind.wraps(kind_of))
        raise InputError(f"method: {name!r} is not allowed; {kind.needs()}: {able}")
    return kind, base
