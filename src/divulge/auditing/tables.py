"""A DataFrame of mixed columns as training data: the audit asks and judges in the numeric view of its table.

The view takes numbers from their ranges and categories from their values (``oracles.local.table_view``). It is used
where an estimator takes a DataFrame that numbers alone do not describe: columns of text, of categories, or with missing
values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from divulge.auditing.options import AuditOptions
from divulge.core.errors import InvalidInput
from divulge.oracles.local.estimator_scores import fitted, quietly
from divulge.oracles.local.sklearn_estimator import is_estimator
from divulge.oracles.local.sklearn_steps import coded_columns
from divulge.oracles.local.table_view import TableView, is_mixed


def with_view(source: Any, data: Any, options: AuditOptions) -> tuple[Any, AuditOptions]:
    """Training data and options in the numeric view of their table; as they are where no view is needed."""
    inside, outside = _frame(data), _frame(options.unseen)
    mixed = any(is_mixed(frame) for frame in (inside, outside) if frame is not None)
    if not is_estimator(source) or (options.table is None and not mixed):
        return _numbered(source, data), replace(options, unseen=_numbered(source, options.unseen))
    frames = [frame for frame in (options.table, inside, outside) if frame is not None]
    table = _joined(frames)
    for frame, what in ((inside, "training"), (outside, "unseen")):
        _check_taken(source, frame, what)
    view = TableView(table, coded_columns(source))
    shown = replace(
        options,
        table=table,
        unseen=_encoded(source, options.unseen, view),
        columns=options.columns or tuple(map(str, table.columns)),
    )
    return _encoded(source, data, view), shown


def _frame(data: Any) -> Any:
    """The DataFrame in (X, y), or X alone; None where it is none."""
    X = data[0] if isinstance(data, tuple) and len(data) == 2 else data
    return X if hasattr(X, "dtypes") and hasattr(X, "columns") and hasattr(X, "iloc") else None


def _joined(frames: list[Any]) -> Any:
    import pandas as pd

    first = frames[0]
    for other in frames[1:]:
        if set(other.columns) != set(first.columns):
            lost = sorted(map(str, set(first.columns) ^ set(other.columns)))
            raise InvalidInput(f"The tables differ in the column {lost[0]!r}; training and unseen data need the same.")
    return pd.concat([frame[list(first.columns)] for frame in frames], ignore_index=True)


def _check_taken(source: Any, frame: Any, what: str) -> None:
    """That the model answers every row: an encoder may refuse values that it was not fitted with."""
    if frame is None:
        return
    model = fitted(source)
    try:
        quietly(model.predict, frame)
    except Exception as error:  # of any step, which may be the user's own
        fault = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise InvalidInput(
            f"The model does not take the {what} data: {fault}; give rows such as it was fitted to."
        ) from error


def _encoded(source: Any, data: Any, view: TableView) -> Any:
    frame = _frame(data)
    if frame is None:
        if data is not None:
            raise InvalidInput("This model takes a table of mixed columns; give its data as a pandas DataFrame, too.")
        return None
    rows = view.encode(frame)
    return (rows, _labels(source, data[1])) if isinstance(data, tuple) else rows


def _numbered(source: Any, data: Any) -> Any:
    """(X, y) with labels as places among the estimator's classes."""
    if not (isinstance(data, tuple) and len(data) == 2) or getattr(source, "classes_", None) is None:
        return data
    return data[0], _labels(source, data[1])


def _labels(source: Any, labels: Any) -> Any:
    """Labels as places in ``classes_``, where the estimator has one such list; of numbers and text the same kind."""
    y, classes = np.asarray(labels), getattr(source, "classes_", None)
    if classes is None or isinstance(classes, list) or y.ndim != 1:
        return y
    known = np.asarray(classes)
    if (y.dtype.kind in "fiub") != (known.dtype.kind in "fiub"):
        raise InvalidInput(f"The model's labels are like {known[0]!r}, and the data's like {y[0]!r}; give the model's.")
    order = np.argsort(known)
    place = np.searchsorted(known, y, sorter=order).clip(0, len(known) - 1)
    wrong = known[order[place]] != y
    if wrong.any():
        raise InvalidInput("The training data has a label that the model was not fitted with; drop such rows.")
    return order[place]
