"""A matrix that a method shows in reports, with the words that go with it."""

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
    """A matrix, r×c, that a report draws.

    Attributes:
        matrix: Values; NaN where there is none.
        title: Title, one line.
        rows: Meaning of the rows.
        columns: Meaning of the columns.
        low: Value at the low end of the colours; the least of the matrix if it is not given.
        high: Value at the high end; the greatest of the matrix if it is not given.
        similarity: The matrix says how alike every two clients are, 1 on the diagonal. It is then shown over the
            rounds, beside the classes that clients share, with those that share classes together.
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
        """All of it but the matrix, as JSON has it."""
        rows, columns = (axis if isinstance(axis, str) else list(axis) for axis in (self.rows, self.columns))
        ends = {"low": self.low, "high": self.high}
        return {"title": self.title, "rows": rows, "columns": columns, **ends, "similarity": self.similarity}
