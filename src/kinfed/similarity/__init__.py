"""How alike two representations are. Knows nothing of federated learning; useful alone."""

from kinfed.similarity.cka import cka, similarity_matrix

__all__ = ["cka", "similarity_matrix"]
