"""What happens at one client: training in phases, frozen features, evaluation."""

from kinfed.learning.evaluation import class_overlap, hits, over_clients, rank_correlation
from kinfed.learning.frozen import activations, features, frozen_copy, frozen_grams, frozen_rows, with_frozen_body
from kinfed.learning.training import SGD, AfterStep, Batch, BeforeStep, Objective, Phase, Tally, cross_entropy, train

__all__ = [
    "SGD",
    "AfterStep",
    "Batch",
    "BeforeStep",
    "Objective",
    "Phase",
    "Tally",
    "activations",
    "class_overlap",
    "cross_entropy",
    "features",
    "frozen_copy",
    "frozen_grams",
    "frozen_rows",
    "hits",
    "over_clients",
    "rank_correlation",
    "train",
    "with_frozen_body",
]
