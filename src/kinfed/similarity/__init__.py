"""Similarity measures of representations; usable without federated learning.

Every measure returns a similarity: the larger, the more similar. Distances are named as such. `similarity.inputs`
states the rules that all measures follow: input types, precision, and undefined values.

>>> import numpy as np
>>> x = np.random.default_rng(0).normal(size=(100, 4))
>>> round(cka(x, 2 * x + 1), 3)
1.0
"""

from kinfed.similarity.bias import BiasedSimilarityWarning
from kinfed.similarity.cca import canonical_correlations, cca, kept_dimensions, pwcca, svcca
from kinfed.similarity.cka import cka, cka_gap
from kinfed.similarity.emd import emd, emd_distance
from kinfed.similarity.entrywise import cosine, frobenius, frobenius_distance
from kinfed.similarity.gram import Gram, Kernel, median_square_distance
from kinfed.similarity.inputs import UndefinedSimilarityWarning, flatten
from kinfed.similarity.layers import LayerSimilarity, compare_layers, load_activations, load_ids
from kinfed.similarity.matrix import similarity_matrix
from kinfed.similarity.measures import MEASURES, Measure, as_measure
from kinfed.similarity.minibatch import minibatch_cka
from kinfed.similarity.procrustes import procrustes, procrustes_distance
from kinfed.similarity.rsa import dissimilarities, rsa, spearman
from kinfed.similarity.sketch import sketched_cka
from kinfed.similarity.unpaired import class_mean, class_means, feature_cov

__all__ = [
    "MEASURES",
    "BiasedSimilarityWarning",
    "Gram",
    "Kernel",
    "LayerSimilarity",
    "Measure",
    "UndefinedSimilarityWarning",
    "as_measure",
    "canonical_correlations",
    "cca",
    "cka",
    "cka_gap",
    "class_mean",
    "class_means",
    "compare_layers",
    "cosine",
    "dissimilarities",
    "emd",
    "emd_distance",
    "feature_cov",
    "flatten",
    "frobenius",
    "frobenius_distance",
    "kept_dimensions",
    "load_activations",
    "load_ids",
    "median_square_distance",
    "minibatch_cka",
    "procrustes",
    "procrustes_distance",
    "pwcca",
    "rsa",
    "similarity_matrix",
    "sketched_cka",
    "spearman",
    "svcca",
]
