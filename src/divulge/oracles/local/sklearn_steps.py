"""What is known of scikit-learn's transformers: which can be undone, and which columns one of several reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

EXACT = (
    "StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "PowerTransformer", "OneHotEncoder",
    "OrdinalEncoder", "LabelBinarizer",
)  # fmt: skip
"""Classes whose ``inverse_transform`` gives back what went in, to rounding."""
UNCHANGED = ("SimpleImputer", "KNNImputer", "IterativeImputer")
"""Classes that change missing values only, where they keep the columns."""


def column_places(columns: Any, names: Sequence[Any]) -> list[int]:
    """The places among ``names`` of the columns that a part of a fitted ColumnTransformer reads (``transformers_``)."""
    known = list(names)
    if isinstance(columns, slice):
        if isinstance(columns.start, str) or isinstance(columns.stop, str):  # of names the last one is included
            first = 0 if columns.start is None else known.index(columns.start)
            return list(range(first, len(known) if columns.stop is None else known.index(columns.stop) + 1))
        return list(range(*columns.indices(len(known))))
    chosen = np.atleast_1d(np.asarray(columns))
    if chosen.dtype == bool:
        return [int(place) for place in np.flatnonzero(chosen)]
    return [known.index(column) if isinstance(column, str) else range(len(known))[column] for column in chosen.tolist()]
