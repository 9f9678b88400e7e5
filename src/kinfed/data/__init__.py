"""Samples, data sets, partitions and federations. Knows nothing of federated learning beyond who holds what."""

from kinfed.data.arrays import from_arrays
from kinfed.data.federation import Federation, federate
from kinfed.data.partition import Partition, dirichlet, iid, shards
from kinfed.data.samples import Dataset, Normalisation, Samples
from kinfed.data.sources import load

__all__ = [
    "Dataset",
    "Federation",
    "Normalisation",
    "Partition",
    "Samples",
    "dirichlet",
    "federate",
    "from_arrays",
    "iid",
    "load",
    "shards",
]
