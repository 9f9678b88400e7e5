"""Models: a body that gives the representation, a head, and tap points whose activations can be read."""

from kinfed.models.batchnorm import BatchNorm, set_batchnorm
from kinfed.models.card import Card
from kinfed.models.catalogue import ARCHITECTURES, Architecture, OwnArchitecture, build, default_architecture
from kinfed.models.drawing import may_draw
from kinfed.models.model import ALL, BODY, HEAD, NOTHING, Model, Part, Tensors, reinitialised, select, under
from kinfed.models.own import Maker, factory, from_module
from kinfed.models.pool import Source, open_pool
from kinfed.models.saved import load_weights, open_saved, refuse_pickle, restored, saved_about, weights_for
from kinfed.models.siamese import ONLINE, PREDICTOR, PROJECTOR, TARGET, Siamese, Target
from kinfed.models.tensor_files import apart, checksum, read_tensors, save_tensors, told_in

__all__ = [
    "ALL",
    "ARCHITECTURES",
    "BODY",
    "HEAD",
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
    "load_weights",
    "may_draw",
    "open_pool",
    "open_saved",
    "read_tensors",
    "refuse_pickle",
    "reinitialised",
    "restored",
    "save_tensors",
    "saved_about",
    "select",
    "set_batchnorm",
    "told_in",
    "under",
    "weights_for",
]
