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


def coded_columns(estimator: Any) -> frozenset[str]:
    """The names of the columns that the first step of a pipeline, fitted or not, reads as categories alone."""
    own = getattr(estimator, "best_estimator_", getattr(estimator, "estimator", estimator))
    first = own[0] if hasattr(own, "steps") else own
    parts = getattr(first, "transformers_", getattr(first, "transformers", ()))
    names = getattr(first, "feature_names_in_", None)
    coded: set[str] = set()
    others: set[str] = set()
    for _, part, columns in parts:
        if names is not None:
            read = [str(names[place]) for place in column_places(columns, list(names))]
        else:
            read = [name for name in np.atleast_1d(columns).tolist() if isinstance(name, str)]
        steps = [step for _, step in part.steps] if hasattr(part, "steps") else [part]
        encoders = any(hasattr(step, "categories") for step in steps)
        (coded if encoders else others).update(read if part != "drop" else [])
    return frozenset(coded - others)


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
