"""Options of the reading of a data set: what its columns mean, and what is held out as test set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.data.samples import CLIENT, GROUP
from kinfed.errors import InputError
from kinfed.fields import short

__all__ = ["PLAIN", "Reading", "named_column"]


@dataclass(frozen=True)
class Reading:
    """Options of the reading of a data set.

    Attributes:
        label: Name of the column that is the label; None for the label that the format itself gives.
        client: Name of the column whose values are the clients; None if no column is named.
        group: Name of the column of groups, such as patients: samples of one group stay on one side of the cut between
            training and test set.
        test_fraction: Share of the samples that is held out as test set where data have no split, in (0, 1).
        drop: Names of columns of a table that are no features.
        standardise: False if features n×p are standardised already; None to standardise them.

    >>> Reading(client="ward").given
    {'client': 'ward'}
    """

    label: str | None = None
    client: str | None = None
    group: str | None = None
    test_fraction: float | None = None
    drop: tuple[str, ...] = ()
    standardise: bool | None = None

    def __post_init__(self) -> None:
        if self.test_fraction is not None and not 0 < self.test_fraction < 1:
            raise InputError(f"test_fraction: {self.test_fraction!r} is not allowed; must be between 0 and 1")

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def refuse(self, *names: str, why: str) -> None:
        """Refuse the first given option of these names.

        Args:
            *names: Names of options that would do nothing.
            why: Reason, for the message.

        Raises:
            InputError: If one of them is given.
        """
        for name in names:
            if name in self.given:
                raise InputError(f"{name}: {short(self.given[name])} would do nothing; {why}")

    def with_roles(self, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the columns with those of the clients and of the groups under the names that kinfed reads.

        Args:
            columns: Values of each sample by name of the column.

        Raises:
            InputError: If a named column does not exist.
        """
        roles = {}
        for option, role, column in (("client", CLIENT, self.client), ("group", GROUP, self.group)):
            if column is not None:
                roles[role] = named_column(option, column, columns)
        return {**columns, **roles}


def named_column(option: str, column: str, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the values of the column that an option names.

    Args:
        option: Name of the option, for a message.
        column: Name of the column.
        columns: Values of each sample by name, of all columns that can be a label, clients or groups.

    Raises:
        InputError: If it is none of these columns.
    """
    if column not in columns:
        raise InputError(
            f"{option}: {short(column)} is not allowed; must be a column of whole numbers or short text without "
            f"missing values: {', '.join(columns) or 'there is none'}"
        )
    return np.asarray(columns[column])


PLAIN = Reading()
