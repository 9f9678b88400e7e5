"""Samples, data sets, partitions and federations; no training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfed.data.federation import Federation
    from kinfed.data.formats import FORMATS, Files, Format
    from kinfed.data.formats.arrays import from_arrays
    from kinfed.data.images import Encoded
    from kinfed.data.loading import load
    from kinfed.data.objects import as_dataset
    from kinfed.data.partitioning import make_federation
    from kinfed.data.partitions import PARTITIONS, make_partition, partition_fields
    from kinfed.data.partitions.columns import ByColumn, Folders
    from kinfed.data.partitions.dirichlet import Dirichlet, DirichletClients, Quantity
    from kinfed.data.partitions.disjoint import Disjoint, TwoGroups
    from kinfed.data.partitions.iid import IID
    from kinfed.data.partitions.partition import Partition
    from kinfed.data.partitions.partitioner import Partitioner
    from kinfed.data.partitions.saved import Saved, open_rows, save_rows
    from kinfed.data.partitions.shards import Shards, SortedShards
    from kinfed.data.samples import Dataset, Normalisation, Samples
    from kinfed.data.shifts import SHIFTS, with_shift
    from kinfed.data.splits import Split
    from kinfed.data.subsets import balanced, select_classes, subsample
    from kinfed.data.validation import with_validation

__all__ = [
    "FORMATS",
    "IID",
    "PARTITIONS",
    "SHIFTS",
    "ByColumn",
    "Dataset",
    "Dirichlet",
    "DirichletClients",
    "Disjoint",
    "Encoded",
    "Federation",
    "Files",
    "Folders",
    "Format",
    "Normalisation",
    "Partition",
    "Partitioner",
    "Quantity",
    "Samples",
    "Saved",
    "Shards",
    "SortedShards",
    "Split",
    "TwoGroups",
    "as_dataset",
    "balanced",
    "from_arrays",
    "load",
    "make_federation",
    "make_partition",
    "open_rows",
    "partition_fields",
    "save_rows",
    "select_classes",
    "subsample",
    "with_shift",
    "with_validation",
]

_MODULES = {
    "federation": ("Federation",),
    "formats": ("FORMATS", "Files", "Format"),
    "formats.arrays": ("from_arrays",),
    "images": ("Encoded",),
    "loading": ("load",),
    "objects": ("as_dataset",),
    "partitioning": ("make_federation",),
    "partitions": ("PARTITIONS", "make_partition", "partition_fields"),
    "partitions.columns": ("ByColumn", "Folders"),
    "partitions.dirichlet": ("Dirichlet", "DirichletClients", "Quantity"),
    "partitions.disjoint": ("Disjoint", "TwoGroups"),
    "partitions.iid": ("IID",),
    "partitions.partition": ("Partition",),
    "partitions.partitioner": ("Partitioner",),
    "partitions.saved": ("Saved", "open_rows", "save_rows"),
    "partitions.shards": ("Shards", "SortedShards"),
    "samples": ("Dataset", "Normalisation", "Samples"),
    "shifts": ("SHIFTS", "with_shift"),
    "splits": ("Split",),
    "subsets": ("balanced", "select_classes", "subsample"),
    "validation": ("with_validation",),
}


def __getattr__(name: str) -> Any:
    # Imports are lazy, so that the command's help, which lists the partitions, needs no torch.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"kinfed.data.{module}"), name)
    raise AttributeError(f"module 'kinfed.data' has no attribute {name!r}")
