"""Models: a body that gives the representation, a head, and tap points whose activations can be read."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfed.models.batchnorm import BatchNorm, set_batchnorm
    from kinfed.models.building import build
    from kinfed.models.card import Card
    from kinfed.models.catalogue import ARCHITECTURES, Architecture, OwnArchitecture, default_architecture
    from kinfed.models.drawing import may_draw
    from kinfed.models.model import ALL, BODY, HEAD, NOTHING, Model, Part, Tensors, reinitialised, select, under
    from kinfed.models.own import Maker, factory, from_module
    from kinfed.models.pool import Source, open_pool
    from kinfed.models.saved import load_weights, open_saved, refuse_pickle, restored, saved_about, weights_for
    from kinfed.models.shards import MODEL_FILES, is_saved, saved_models, shard_name, write_cards
    from kinfed.models.siamese import ONLINE, PREDICTOR, PROJECTOR, TARGET, Siamese, Target
    from kinfed.models.tensor_files import (
        apart,
        checksum,
        members,
        read_tensors,
        save_shard,
        save_tensors,
        told_in,
    )

__all__ = [
    "ALL",
    "ARCHITECTURES",
    "BODY",
    "HEAD",
    "MODEL_FILES",
    "NOTHING",
    "ONLINE",
    "PREDICTOR",
    "PROJECTOR",
    "TARGET",
    "Architecture",
    "BatchNorm",
    "Card",
    "Maker",
    "Model",
    "OwnArchitecture",
    "Part",
    "Siamese",
    "Source",
    "Target",
    "Tensors",
    "apart",
    "build",
    "checksum",
    "default_architecture",
    "factory",
    "from_module",
    "is_saved",
    "load_weights",
    "may_draw",
    "members",
    "open_pool",
    "open_saved",
    "read_tensors",
    "refuse_pickle",
    "reinitialised",
    "restored",
    "save_shard",
    "save_tensors",
    "saved_about",
    "saved_models",
    "select",
    "set_batchnorm",
    "shard_name",
    "told_in",
    "under",
    "weights_for",
    "write_cards",
]

_MODULES = {
    "batchnorm": ("BatchNorm", "set_batchnorm"),
    "building": ("build",),
    "card": ("Card",),
    "catalogue": ("ARCHITECTURES", "Architecture", "OwnArchitecture", "default_architecture"),
    "drawing": ("may_draw",),
    "model": ("ALL", "BODY", "HEAD", "NOTHING", "Model", "Part", "Tensors", "reinitialised", "select", "under"),
    "own": ("Maker", "factory", "from_module"),
    "pool": ("Source", "open_pool"),
    "saved": ("load_weights", "open_saved", "refuse_pickle", "restored", "saved_about", "weights_for"),
    "shards": ("MODEL_FILES", "is_saved", "saved_models", "shard_name", "write_cards"),
    "siamese": ("ONLINE", "PREDICTOR", "PROJECTOR", "TARGET", "Siamese", "Target"),
    "tensor_files": ("apart", "checksum", "members", "read_tensors", "save_shard", "save_tensors", "told_in"),
}


def __getattr__(name: str) -> Any:
    # Imports are lazy, so that the command's list of the architectures needs no torch.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"kinfed.models.{module}"), name)
    raise AttributeError(f"module 'kinfed.models' has no attribute {name!r}")
