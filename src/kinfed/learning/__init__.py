"""Learning at one client: training in phases, features of frozen models, self-supervised learning, and evaluation."""

from kinfed.learning.evaluation import (
    NotFinite,
    adjusted_rand_index,
    class_overlap,
    correct,
    finite,
    losses,
    over_clients,
    pair_auc,
    rank_correlation,
    scores,
)
from kinfed.learning.frozen import activations, features, frozen_copy, frozen_grams, frozen_rows, with_frozen_body
from kinfed.learning.measures import MEASURES, Answers, Grade, confusion, grades, measures
from kinfed.learning.phases import Batch, LocalTraining, Optimizer, Phase
from kinfed.learning.representation import knn, linear_probe, own_view_nearer
from kinfed.learning.selfsupervised import COLLAPSED, byol_loss, simsiam_loss, spread, train_siamese
from kinfed.learning.training import AfterStep, BeforeStep, Loss, Objective, Tally, cross_entropy, train
from kinfed.learning.views import check_viewable, one_view, two_views, unnormalised

__all__ = [
    "COLLAPSED",
    "MEASURES",
    "AfterStep",
    "Answers",
    "Batch",
    "BeforeStep",
    "Grade",
    "LocalTraining",
    "Loss",
    "NotFinite",
    "Objective",
    "Optimizer",
    "Phase",
    "Tally",
    "activations",
    "adjusted_rand_index",
    "byol_loss",
    "check_viewable",
    "class_overlap",
    "confusion",
    "correct",
    "cross_entropy",
    "features",
    "finite",
    "frozen_copy",
    "frozen_grams",
    "frozen_rows",
    "grades",
    "knn",
    "linear_probe",
    "losses",
    "measures",
    "one_view",
    "over_clients",
    "own_view_nearer",
    "pair_auc",
    "rank_correlation",
    "scores",
    "simsiam_loss",
    "spread",
    "train",
    "train_siamese",
    "two_views",
    "unnormalised",
    "with_frozen_body",
]
