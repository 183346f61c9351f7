"""A table of mixed columns as rows of numbers, so that an attack can ask a pipeline that takes DataFrames.

Every column becomes one number. A column of numbers is scaled so that the table's own range is [0, 1]; values beyond
the range are extrapolated. A column of m categories cuts [0, 1] into m equal parts, one for each value in sorted order;
numbers outside [0, 1] stand for the first or the last value. A uniform draw from [0, 1] therefore takes numbers from
their ranges and categories from their values. Where a column has missing values, numbers below -1/2 stand for "missing"
in a column of numbers, and "missing" is the last value of a column of categories.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from divulge.core.errors import InvalidInput, MissingPackage, WrongShape

if TYPE_CHECKING:
    import pandas as pd

MISSING = -1.0
"""The number of the view for a missing value in a column of numbers."""


_WHOLE = 1e-12  # so near, for its size, a number is a whole one that was scaled there and back


@dataclass(frozen=True)
class TableColumn:
    """One column of a table and its place in the numeric view.

    Parameters
    ----------
    name : str
        The column's name.
    low, high : float
        The range that becomes [0, 1], for a column of numbers.
    categories : tuple
        The values of a column of categories, in order, with None for "missing"; empty for a column of numbers.
    missing : bool
        Whether a column of numbers has missing values.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    categories: tuple[object, ...] = ()
    missing: bool = False

    def decode(self, x: NDArray[np.float64]) -> Any:
        """The column's own values for numbers of the view."""
        if not self.categories:
            value = self.low + x * (self.high - self.low)
            near = np.round(value)
            value = np.where(np.abs(value - near) <= _WHOLE * np.abs(near), near, value)
            return np.where(x < MISSING / 2, np.nan, value) if self.missing else value
        index = np.clip(np.floor(x * len(self.categories)), 0, len(self.categories) - 1).astype(int)
        values = np.empty(len(self.categories), dtype=object)
        values[:] = self.categories
        return values[index]

    def encode(self, values: Any) -> NDArray[np.float64]:
        """Numbers of the view for the column's own values."""
        if not self.categories:
            place = (np.asarray(values, dtype=np.float64) - self.low) / (self.high - self.low)
            return np.where(np.isnan(place), MISSING, place) if self.missing else place
        values = values.astype(object).where(values.notna(), None)
        places = {value: place for place, value in enumerate(self.categories)}
        try:
            index = np.array([places[value] for value in values], dtype=np.float64)
        except KeyError as error:
            raise InvalidInput(f"Column {self.name!r} has no value {error.args[0]!r} in the table given.") from error
        return (index + 0.5) / len(self.categories)


class TableView:
    """The numeric view of a DataFrame: ``columns`` is the mapping, ``encode`` and ``decode`` apply it.

    Parameters
    ----------
    table : pandas.DataFrame
        Example rows: every column's range or values are taken from them.
    coded : set of str, default empty
        Columns of numbers that the model reads as categories.

    Raises
    ------
    InvalidInput
        If the table has no rows, or a column of dates, without any value, or with values of several kinds.

    Examples
    --------
    >>> import pandas as pd
    >>> from divulge.oracles.local.table_view import TableView
    >>> view = TableView(pd.DataFrame({"age": [20, 60], "job": ["cook", "pilot"]}))
    >>> view.decode([[0.5, 0.2], [0.0, 0.9]])
        age    job
    0  40.0   cook
    1  20.0  pilot
    """

    def __init__(self, table: pd.DataFrame, coded: Collection[str] = ()) -> None:
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackage("A table of mixed columns needs pandas; install divulge[tables].") from error
        if not isinstance(table, pd.DataFrame):
            raise InvalidInput(f"table= is a pandas DataFrame of example rows, not a {type(table).__name__}.")
        if table.empty:
            raise InvalidInput("table= has no rows; give some that the model was made for.")
        self.columns = tuple(_column(name, table[name], str(name) in coded) for name in table.columns)
        self._dtypes = {str(name): table[name].dtype for name in table.columns}

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def decode(self, X: Any) -> pd.DataFrame:
        """The DataFrame that rows of the view [n, d] stand for."""
        import pandas as pd

        rows = np.asarray(X, dtype=np.float64)
        return pd.DataFrame({column.name: self._typed(column, rows[:, k]) for k, column in enumerate(self.columns)})

    def encode(self, table: pd.DataFrame) -> NDArray[np.float64]:
        """The rows [n, d] of the view that a DataFrame stands for."""
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            raise WrongShape(f"The table lacks the columns {', '.join(missing)}.")
        return np.stack([column.encode(table[column.name]) for column in self.columns], axis=1)

    def encode_record(self, row: Mapping[str, Any]) -> NDArray[np.float64]:
        """The numbers [d] of one record by column; NaN where it is None, which stands for "not known"."""
        import pandas as pd

        found = np.full(self.width, np.nan)
        for place, column in enumerate(self.columns):
            if row.get(column.name) is not None:
                found[place] = column.encode(pd.Series([row[column.name]]))[0]
        return found

    def _typed(self, column: TableColumn, x: NDArray[np.float64]) -> Any:
        import pandas as pd

        dtype = self._dtypes[column.name]
        values = pd.Series(column.decode(x))
        return values.astype(dtype) if column.categories else values


def is_mixed(table: Any) -> bool:
    """Whether a table has columns that are no numbers, or values that are missing."""
    kinds = [getattr(dtype, "kind", "O") for dtype in table.dtypes]
    return any(kind not in "iufb" for kind in kinds) or bool(table.isna().any().any())


def _column(name: object, values: Any, coded: bool) -> TableColumn:
    import pandas as pd

    present = values.dropna()
    missing = len(present) < len(values)
    if present.empty:
        raise InvalidInput(f"Column {name!r} of the table has no value at all; drop it.")
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if numeric and not coded and not isinstance(values.dtype, pd.CategoricalDtype):
        low, high = float(present.min()), float(present.max())
        if not np.isfinite([low, high]).all():
            raise InvalidInput(f"Column {name!r} of the table holds infinite values.")
        return TableColumn(str(name), low, high if high > low else low + 1.0, missing=missing)
    if pd.api.types.is_datetime64_any_dtype(values):
        raise InvalidInput(f"Column {name!r} of the table holds dates; turn them into numbers first.")
    try:
        known = tuple(sorted(present.astype(object).unique()))
        return TableColumn(str(name), categories=(*known, None) if missing else known)
    except TypeError as error:
        raise InvalidInput(f"Column {name!r} of the table mixes kinds of values: {error}.") from error
