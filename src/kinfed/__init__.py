"""Federated learning among kin: for clients that differ in their data, their labels or their models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfed import similarity
    from kinfed.api import (
        Result,
        advise,
        compare,
        evaluate,
        export,
        load,
        open_result,
        reproduce,
        resume,
        run,
        train_sources,
        tune,
        vote,
    )
    from kinfed.data.partitions.columns import ByColumn, Folders
    from kinfed.data.partitions.dirichlet import Dirichlet, DirichletClients, Quantity
    from kinfed.data.partitions.disjoint import Disjoint, TwoGroups
    from kinfed.data.partitions.iid import IID
    from kinfed.data.partitions.partitioner import Partitioner
    from kinfed.data.partitions.saved import Saved
    from kinfed.data.partitions.shards import Shards, SortedShards
    from kinfed.engine import ProcessExecutor, SerialExecutor
    from kinfed.errors import InputError, RunFailed
    from kinfed.learning import LocalTraining
    from kinfed.methods.central import Central
    from kinfed.methods.central_byol import CentralBYOL
    from kinfed.methods.cfl import CFL
    from kinfed.methods.ditto import Ditto
    from kinfed.methods.dp import DP
    from kinfed.methods.fedavg import FedAvg
    from kinfed.methods.fedavg_crsm import FedAvgCRSM
    from kinfed.methods.fedbabu import FedBABU
    from kinfed.methods.fedbyol import FedBYOL
    from kinfed.methods.fedcka import FedCKA
    from kinfed.methods.fedcrc import FedCRC
    from kinfed.methods.fedema import FedEMA
    from kinfed.methods.fedkin import FedKin
    from kinfed.methods.fedper import FedPer
    from kinfed.methods.fedproto import FedProto
    from kinfed.methods.fedprox import FedProx
    from kinfed.methods.fedrep import FedRep
    from kinfed.methods.fedshibu import FedSHIBU
    from kinfed.methods.fedsimsiam import FedSimSiam
    from kinfed.methods.fedu import FedU
    from kinfed.methods.fedvote import Vote
    from kinfed.methods.hetero_ssfl import HeteroSSFL
    from kinfed.methods.ifca import IFCA
    from kinfed.methods.lg_fedavg import LGFedAvg
    from kinfed.methods.local import Local
    from kinfed.methods.local_ssl import LocalSSL
    from kinfed.methods.moon import MOON
    from kinfed.methods.oracle_groups import OracleGroups
    from kinfed.methods.scaffold import SCAFFOLD
    from kinfed.methods.server_optimisers import FedAdam, FedAvgM, FedYogi

_WHERE = {
    **dict.fromkeys(
        (
            "Result",
            "advise",
            "compare",
            "evaluate",
            "export",
            "load",
            "open_result",
            "reproduce",
            "resume",
            "run",
            "train_sources",
            "tune",
            "vote",
        ),
        "kinfed.api",
    ),
    "ByColumn": "kinfed.data.partitions.columns",
    "Dirichlet": "kinfed.data.partitions.dirichlet",
    "DirichletClients": "kinfed.data.partitions.dirichlet",
    "Disjoint": "kinfed.data.partitions.disjoint",
    "Folders": "kinfed.data.partitions.columns",
    "IID": "kinfed.data.partitions.iid",
    "Partitioner": "kinfed.data.partitions.partitioner",
    "ProcessExecutor": "kinfed.engine",
    "Quantity": "kinfed.data.partitions.dirichlet",
    "Saved": "kinfed.data.partitions.saved",
    "SerialExecutor": "kinfed.engine",
    "Shards": "kinfed.data.partitions.shards",
    "SortedShards": "kinfed.data.partitions.shards",
    "TwoGroups": "kinfed.data.partitions.disjoint",
    "InputError": "kinfed.errors",
    "RunFailed": "kinfed.errors",
    "LocalTraining": "kinfed.learning",
    "Central": "kinfed.methods.central",
    "CentralBYOL": "kinfed.methods.central_byol",
    "CFL": "kinfed.methods.cfl",
    "Ditto": "kinfed.methods.ditto",
    "DP": "kinfed.methods.dp",
    "FedAvg": "kinfed.methods.fedavg",
    "FedAvgCRSM": "kinfed.methods.fedavg_crsm",
    "FedBABU": "kinfed.methods.fedbabu",
    "FedBYOL": "kinfed.methods.fedbyol",
    "FedCKA": "kinfed.methods.fedcka",
    "FedCRC": "kinfed.methods.fedcrc",
    "FedEMA": "kinfed.methods.fedema",
    "FedKin": "kinfed.methods.fedkin",
    "FedPer": "kinfed.methods.fedper",
    "FedProto": "kinfed.methods.fedproto",
    "FedProx": "kinfed.methods.fedprox",
    "FedRep": "kinfed.methods.fedrep",
    "FedSHIBU": "kinfed.methods.fedshibu",
    "FedSimSiam": "kinfed.methods.fedsimsiam",
    "FedU": "kinfed.methods.fedu",
    "Vote": "kinfed.methods.fedvote",
    "HeteroSSFL": "kinfed.methods.hetero_ssfl",
    "IFCA": "kinfed.methods.ifca",
    "LGFedAvg": "kinfed.methods.lg_fedavg",
    "Local": "kinfed.methods.local",
    "LocalSSL": "kinfed.methods.local_ssl",
    "MOON": "kinfed.methods.moon",
    "OracleGroups": "kinfed.methods.oracle_groups",
    "SCAFFOLD": "kinfed.methods.scaffold",
    "FedAdam": "kinfed.methods.server_optimisers",
    "FedAvgM": "kinfed.methods.server_optimisers",
    "FedYogi": "kinfed.methods.server_optimisers",
}

__all__ = [
    "CFL",
    "DP",
    "IFCA",
    "IID",
    "MOON",
    "SCAFFOLD",
    "ByColumn",
    "Central",
    "CentralBYOL",
    "Dirichlet",
    "DirichletClients",
    "Disjoint",
    "Ditto",
    "FedAdam",
    "FedAvg",
    "FedAvgCRSM",
    "FedAvgM",
    "FedBABU",
    "FedBYOL",
    "FedCKA",
    "FedCRC",
    "FedEMA",
    "FedKin",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedSHIBU",
    "FedSimSiam",
    "FedU",
    "FedYogi",
    "Folders",
    "HeteroSSFL",
    "InputError",
    "LGFedAvg",
    "Local",
    "LocalSSL",
    "LocalTraining",
    "OracleGroups",
    "Partitioner",
    "ProcessExecutor",
    "Quantity",
    "Result",
    "RunFailed",
    "Saved",
    "SerialExecutor",
    "Shards",
    "SortedShards",
    "TwoGroups",
    "Vote",
    "__version__",
    "advise",
    "compare",
    "evaluate",
    "export",
    "load",
    "open_result",
    "reproduce",
    "resume",
    "run",
    "similarity",
    "train_sources",
    "tune",
    "vote",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Late, so that `import kinfed` and the command's help need no torch.
    if name == "similarity":
        return importlib.import_module("kinfed.similarity")
    if name in _WHERE:
        from kinfed.settings import untouched

        with untouched():
            module = importlib.import_module(_WHERE[name])
        return getattr(module, name)
    raise AttributeError(f"module 'kinfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
