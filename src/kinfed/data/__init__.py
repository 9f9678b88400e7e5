"""Samples, data sets, partitions and federations. Knows nothing of federated learning beyond who holds what."""

from kinfed.data.arrays import from_arrays
from kinfed.data.federation import Federation, balanced, federate, fewer, of_classes
from kinfed.data.partition import Partition
from kinfed.data.proportions import dirichlet, dirichlet_clients, quantity
from kinfed.data.recipes import disjoint, groups, iid, natural, shards, sort
from kinfed.data.samples import Dataset, Normalisation, Samples
from kinfed.data.saved import open_rows, save_rows
from kinfed.data.sources import load

__all__ = [
    "Dataset",
    "Federation",
    "Normalisation",
    "Partition",
    "Samples",
    "balanced",
    "dirichlet",
    "dirichlet_clients",
    "disjoint",
    "federate",
    "fewer",
    "from_arrays",
    "groups",
    "iid",
    "load",
    "natural",
    "of_classes",
    "open_rows",
    "quantity",
    "save_rows",
    "shards",
    "sort",
]
