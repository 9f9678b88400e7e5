"""Tables of plain features, made of numbers and categories.

Letters: ``n`` rows, ``p`` features.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfed.errors import InputError, plain

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LONGEST", "Encoding", "Table", "column_values", "kind_of", "shown"]

LONGEST = 256  # largest number of characters of a text, since each text in a NumPy array takes the space of the longest
FREE = 50  # a text column with more values than this, in more than half of its rows, is free text
MOST = 1000  # largest number of categories of a column
SHOWN = 40  # characters of a column's name in a remark
NAMELESS = "Unnamed: "  # start of the names that pandas gives to columns without a name
REMARKS = 20  # largest number of remarks
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
COMMA = re.compile(r"[+-]?\d*,\d+")  # a number with a decimal comma
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}( .*)?|\d{4}/\d{1,2}/\d{1,2}( .*)?")


@dataclass(frozen=True)
class Table:
    """Rows of a table of plain features.

    Attributes:
        frame: pandas DataFrame, whose columns have different names, all text.
    """

    frame: pd.DataFrame

    @classmethod
    def of(cls, frame: pd.DataFrame, name: str) -> Table:
        """Make a table of a DataFrame, whose index is dropped.

        Args:
            frame: The DataFrame.
            name: Name of the table in an error message.

        Raises:
            InputError: If there are no rows, or two columns have the same name.
        """
        named = frame.set_axis([str(column) for column in frame.columns], axis=1).reset_index(drop=True)
        if not len(named):
            raise InputError(f"data: {name} has no rows")
        if len(twice := named.columns[named.columns.duplicated()]):
            raise InputError(f"data: {name} has two columns {shown(twice[0])}")
        return cls(named)

    def __len__(self) -> int:
        return len(self.frame)

    def take(self, rows: NDArray[np.int64]) -> Table:
        """Return some rows."""
        return Table(self.frame.iloc[rows].reset_index(drop=True))

    def joined(self, others: Sequence[Table]) -> Table:
        """Return the rows of this table and of others with the same columns, in its order of columns.

        Raises:
            InputError: If a table lacks a column, or has another one.
        """
        import pandas as pd

        columns = [*self.frame.columns]
        for other in others:
            if odd := sorted({*columns} ^ {*other.frame.columns}):
                raise InputError(f"data: only some of the tables have the column {shown(odd[0])}")
        return Table(pd.concat([self.frame, *(other.frame[columns] for other in others)], ignore_index=True))


@dataclass(frozen=True)
class Encoding:
    """Features from the columns of a table, as learned from the training rows: numbers, then one-hot categories.

    Attributes:
        numbers: Median of each column of numbers, which takes the place of missing values.
        categories: Categories of each other column, sorted; each is a feature that is 1 or 0.
        usual: Most frequent category of each of these columns, which takes the place of missing values.

    >>> import pandas as pd
    >>> table = Table(pd.DataFrame({"age": [30, 50, None], "ward": ["a", "b", "a"]}))
    >>> encoding = Encoding.of(table)
    >>> encoding.names
    ('age', 'ward=a', 'ward=b')
    >>> encoding(table).tolist()
    [[30.0, 1.0, 0.0], [50.0, 0.0, 1.0], [40.0, 1.0, 0.0]]
    """

    numbers: Mapping[str, float]
    categories: Mapping[str, tuple[str, ...]]
    usual: Mapping[str, str]

    @classmethod
    def of(cls, table: Table) -> Encoding:
        """Learn the features from the training rows; a column without any value has none.

        Raises:
            InputError: If a column holds dates, free text, or neither numbers nor text, or no column has a value.
        """
        from sklearn.impute import SimpleImputer

        numbers: list[str] = []
        texts: list[str] = []
        for column, values in table.frame.items():
            if values.notna().any():
                (numbers if _is_number(values, str(column)) else texts).append(str(column))
        if not numbers and not texts:
            raise InputError("data: no column of the table has a value")
        medians, usual = [], []
        if numbers:
            cells = np.column_stack([_numbers(table.frame[column], column) for column in numbers])
            medians = SimpleImputer(strategy="median").fit(cells).statistics_.tolist()
        if texts:
            cells = np.column_stack([_texts(table.frame[column]) for column in texts])
            usual = SimpleImputer(strategy="most_frequent", missing_values=None).fit(cells).statistics_.tolist()
        return cls(
            dict(zip(numbers, medians, strict=True)),
            {column: tuple(sorted(_known(table.frame[column]))) for column in texts},
            dict(zip(texts, usual, strict=True)),
        )

    @classmethod
    def of_json(cls, about: Mapping[str, Any]) -> Encoding:
        """Make an encoding from its fields as in JSON, where tuples are lists."""
        categories = {column: tuple(values) for column, values in about["categories"].items()}
        return cls(dict(about["numbers"]), categories, dict(about["usual"]))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the p features: ``COLUMN`` for numbers, ``COLUMN=CATEGORY`` for categories."""
        one_hot = [f"{column}={value}" for column, values in self.categories.items() for value in values]
        return (*self.numbers, *one_hot)

    @property
    def one_hot(self) -> int:
        """The number of features of categories, which are the last ones."""
        return sum(map(len, self.categories.values()))

    def __call__(self, table: Table) -> NDArray[np.float32]:
        """Compute the features of some rows, n×p, not standardised.

        Missing values are filled in. A category that the training rows lack is 0 in all features of its column.

        Raises:
            InputError: If a column is missing, a column of numbers has text, or a number is not finite in float32.
        """
        from sklearn.preprocessing import OneHotEncoder

        for column in (*self.numbers, *self.categories):
            if column not in table.frame:
                raise InputError(f"data: the table has no column {shown(column)}, which the training rows have")
        features = np.empty((len(table), len(self.names)), dtype=np.float32)
        for at, (column, median) in enumerate(self.numbers.items()):
            values = _numbers(table.frame[column], column)
            features[:, at] = np.where(np.isnan(values), median, values)
        if self.categories:
            cells = [_texts(table.frame[column]) for column in self.categories]
            filled = [np.where(own == None, self.usual[c], own) for c, own in zip(self.categories, cells, strict=True)]  # noqa: E711 - by element
            known = [np.array(values, dtype=object) for values in self.categories.values()]
            encoder = OneHotEncoder(categories=known, handle_unknown="ignore", sparse_output=False, dtype=np.float32)
            features[:, len(self.numbers) :] = encoder.fit_transform(np.column_stack(filled))
        return features

    def remarks(self, train: Table, test: Table) -> tuple[str, ...]:
        """Say what was filled in or left out, which numbers are categories, and what only the test rows have."""
        told = []
        for column in train.frame:
            missing = int(train.frame[column].isna().sum() + test.frame[column].isna().sum())
            if column in self.numbers:
                fill = f"{self.numbers[column]:g}, the median"
            elif column in self.categories:
                fill = f"{shown(self.usual[column])}, the most frequent value"
            else:
                told.append(f"column {shown(column)} has no value in the training rows and is left out")
                continue
            if missing:
                told.append(f"column {shown(column)}: {missing:,} missing values became {fill} of the training rows")
            if column in self.categories:
                others = sorted(value for value in self.categories[column] if not _like_number(value))
                if others and len(others) < len(self.categories[column]) / 2:
                    told.append(
                        f"column {shown(column)} has numbers, but also text such as {shown(others[0])}, so that its "
                        "values are categories"
                    )
                strange = {*_known(test.frame[column])} - {*self.categories[column]}
                rows = sum(value in strange for value in _texts(test.frame[column]))
                if rows:
                    told.append(
                        f"column {shown(column)}: {rows:,} test rows have a category that no training row has, such "
                        f"as {shown(min(strange))}; it is 0 in all features"
                    )
        more = len(told) - REMARKS
        return (*told[:REMARKS], *([f"and {more:,} remarks more"] if more > 0 else []))


def column_values(column: pd.Series) -> NDArray[Any] | None:
    """Convert a column of whole numbers, booleans or short text without missing values to an array; None for others."""
    from pandas.api import types

    if column.isna().any():
        return None
    kind = kind_of(column)
    if types.is_integer_dtype(column.dtype):
        return column.to_numpy(dtype=np.int64) if column.max() <= np.iinfo(np.int64).max else None
    if kind == "number":
        values = column.to_numpy(dtype=np.float64)
        whole = np.isfinite(values).all() and (np.abs(values) < 2**53).all() and (values == np.trunc(values)).all()
        return values.astype(np.int64) if whole else None
    if kind != "text":
        return None
    texts: NDArray[Any] = _texts(column)
    return texts.astype(np.str_) if max(map(len, texts), default=0) <= LONGEST else None


def kind_of(column: pd.Series) -> str:
    """Return ``number``, ``text`` (which booleans are as well), ``date``, or what else pandas finds in a column."""
    from pandas.api import types

    if types.is_bool_dtype(column.dtype):
        return "text"
    if types.is_numeric_dtype(column.dtype):
        return "complex" if types.is_complex_dtype(column.dtype) else "number"
    if isinstance(column.dtype, types.CategoricalDtype):
        column = column.astype(object)
    found = types.infer_dtype(column, skipna=True)
    if found in ("string", "boolean") or all(isinstance(value, str | bool) for value in column.dropna()):
        return "text"
    if found in ("integer", "floating", "decimal", "mixed-integer-float"):
        return "number"
    return "date" if found in ("date", "datetime", "datetime64", "time", "timedelta", "period") else found


def _is_number(column: pd.Series, name: str) -> bool:
    """Return True for a column of numbers and False for one of categories; refuse others, and those without a name."""
    kind, drop = kind_of(column), "leave it out with drop"
    if name.startswith(NAMELESS):
        raise InputError(f"data: column {shown(name)} had no name in the file, and may number the rows; {drop}")
    if kind == "number":
        return True
    if kind == "text":
        values = _known(column)
        if all(DATE.fullmatch(value) for value in values):
            kind = "date"
        elif any(COMMA.fullmatch(value) for value in values) and all(_like_number(value) for value in values):
            raise InputError(f"data: column {shown(name)} has numbers with a decimal comma; must be a point; or {drop}")
        elif max(map(len, values)) > LONGEST:
            raise InputError(f"data: column {shown(name)} has a text of more than {LONGEST} characters; {drop}")
        elif len(values) > FREE and len(values) > len(column) / 2:
            raise InputError(
                f"data: column {shown(name)} is free text, with {len(values):,} different values in {len(column):,} "
                f"rows; {drop}"
            )
        elif len(values) > MOST:
            raise InputError(
                f"data: column {shown(name)} has {len(values):,} categories; must be at most {MOST:,}; {drop}"
            )
        else:
            return False
    what = "dates" if kind == "date" else f"neither numbers nor text ({kind})"
    raise InputError(f"data: column {shown(name)} has {what}; {drop}")


def _like_number(value: str) -> bool:
    return bool(NUMBER.fullmatch(value) or COMMA.fullmatch(value))


def _numbers(column: pd.Series, name: str) -> NDArray[np.float64]:
    """Return the numbers of a column, NaN for missing ones."""
    import pandas as pd

    try:
        values: NDArray[np.float64] = pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"data: column {shown(name)} has numbers in the training rows, and other values elsewhere"
        ) from error
    if (np.abs(values) > np.finfo(np.float32).max).any():
        raise InputError(f"data: column {shown(name)} has a value that is not finite in float32")
    return values


def _texts(column: pd.Series) -> NDArray[Any]:
    """Return the values of a column as text, None for missing ones."""
    there = column.notna().to_numpy()
    texts = np.full(len(column), None, dtype=object)
    texts[there] = [str(value) for value in column[there]]
    return texts


def _known(column: pd.Series) -> set[str]:
    return {str(value) for value in column.dropna().unique()}


def shown(name: object) -> str:
    """Return the name of a column, or a category, for a message: in quotes, on one line and not long."""
    told = plain(name)
    return repr(told if len(told) <= SHOWN else f"{told[: SHOWN - 1]}…")
