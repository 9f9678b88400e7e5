"""Matrices that a method shows in reports, with their titles and axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

__all__ = ["Axis", "Picture"]

Axis = Literal["clients", "classes"] | Sequence[str]
"""Meaning of the rows or columns of a matrix: one for each client, one for each class, or a name for each."""


@dataclass(frozen=True)
class Picture:
    """Matrix that a report draws, with its title and axes.

    >>> import torch
    >>> Picture(torch.eye(2), "Similarity", "clients", "clients", low=0.0, high=1.0).words["title"]
    'Similarity'

    Attributes:
        matrix: Values, r×c; NaN for missing ones.
        title: Title, one line.
        rows: Meaning of the rows.
        columns: Meaning of the columns.
        low: Value at the low end of the colour scale; None for the least value of the matrix.
        high: Value at the high end of the colour scale; None for the greatest value of the matrix.
        similarity: True for a matrix of similarities between clients, 1 on the diagonal. A report shows it over the
            rounds, beside the class overlap of the clients, with clients of similar classes next to each other.
    """

    matrix: Tensor
    title: str
    rows: Axis
    columns: Axis
    low: float | None = None
    high: float | None = None
    similarity: bool = False

    @property
    def words(self) -> dict[str, Any]:
        """All fields but the matrix, as JSON values."""
        rows, columns = (axis if isinstance(axis, str) else list(axis) for axis in (self.rows, self.columns))
        ends = {"low": self.low, "high": self.high}
        return {"title": self.title, "rows": rows, "columns": columns, **ends, "similarity": self.similarity}
