"""Roles of the columns of a table: label, clients, groups and features.

Letters: ``n`` rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.data.reading import Reading
from kinfed.data.samples import CLIENT, GROUP
from kinfed.data.tables import LONGEST, Table, column_values, kind_of, shown
from kinfed.errors import InputError, check_choice

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LABELS", "Roles", "role_values"]

LABELS = ("label", "fine_label", "labels")  # names of the column of labels; the first one found is used


@dataclass(frozen=True)
class Roles:
    """A table divided by the roles of its columns.

    Attributes:
        features: The columns that are features.
        labels: Label of each row, n.
        columns: Values of each row by name: the named clients and groups, and other columns that a partition can use.
    """

    features: Table
    labels: NDArray[Any]
    columns: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, table: Table, reading: Reading, name: str) -> Roles:
        """Divide a table.

        Args:
            table: The whole table.
            reading: Names of the columns that have a role, and of those that are dropped.
            name: Name of the table in an error message.

        Raises:
            InputError: If a named column does not exist or has a missing value, there is no label, or no feature.
        """
        frame = table.frame
        known = next((label for label in LABELS if label in frame), None)
        label = known if reading.label is None else reading.label
        if label is None:
            raise InputError(
                f"label: must name the column of {name} that has the labels; its columns are {', '.join(frame)}"
            )
        named = {"label": label, "client": reading.client, "group": reading.group}
        for role, column in (*named.items(), *(("drop", column) for column in reading.drop)):
            if column is not None:
                check_choice(role, column, [*frame])
        of_role = [column for column in named.values() if column is not None]
        if twice := [column for column in reading.drop if column in of_role]:
            raise InputError(f"drop: {shown(twice[0])} would do nothing; it has a role, so that it is no feature")
        values = {}
        for role, column in named.items():
            if column is not None:
                values[role] = role_values(frame[column], role, name)
        features = frame.drop(columns=[*dict.fromkeys([*of_role, *reading.drop])])
        if not features.shape[1]:
            raise InputError(f"data: {name} has no column that is a feature; its columns are {', '.join(frame)}")
        # Columns that are called client or group without being named as such may be features like any others.
        others = [c for c in frame if c in reading.drop or kind_of(frame[c]) == "text"]
        usable = {c: column_values(frame[c]) for c in others if c not in (*of_role, CLIENT, GROUP)}
        roles = {column: values[role] for role, column in named.items() if column is not None and role != "label"}
        columns = {column: own for column, own in usable.items() if own is not None}
        return cls(Table(features), values["label"], reading.with_roles({**columns, **roles}))


def role_values(column: pd.Series, role: str, name: str) -> NDArray[Any]:
    """Convert a column with a role; numbers with fractions stay, and are refused where they are used as labels.

    Args:
        column: The column.
        role: ``label``, ``client`` or ``group``.
        name: Name of the table in an error message.

    Raises:
        InputError: If a value is missing, or is neither a whole number nor short text.
    """
    if missing := int(column.isna().sum()):
        raise InputError(f"{role}: column {shown(column.name)} of {name} has {missing:,} missing values")
    values = column_values(column)
    if values is not None:
        return values
    if role == "label" and kind_of(column) == "number":
        numbers: NDArray[np.float64] = column.to_numpy(dtype=np.float64)
        return numbers
    raise InputError(
        f"{role}: column {shown(column.name)} of {name} must have whole numbers, or text of at most {LONGEST} "
        "characters"
    )
