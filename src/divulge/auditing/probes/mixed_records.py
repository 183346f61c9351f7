"""Records of a table of mixed columns in an audit: as the model's owner has them, and in the numbers of the view."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.auditing.target import Target

NOT_REBUILT = "not rebuilt"


def own_estimator(target: Target) -> Any:
    """The released estimator itself: not the one that takes the numbers of its table's view."""
    return target.estimator if target.options.table is None else target.estimator.estimator


def own_labels(target: Target) -> NDArray[Any]:
    """The training labels as the estimator was fitted with them."""
    assert target.labels is not None
    labels, classes = target.labels.numpy(), getattr(own_estimator(target), "classes_", None)
    return np.asarray(labels if classes is None else np.asarray(classes)[labels])


def in_numbers(target: Target, record: Any) -> Tensor:
    """A rebuilt row in the numbers of the training inputs; NaN for columns that the model does not show."""
    if target.frame is not None:
        names = getattr(own_estimator(target), "feature_names_in_", target.columns)
        row = dict(zip(names, record.x.tolist(), strict=True)) if record.row is None else record.row
        return torch.from_numpy(target.estimator.view.encode_record(row))
    if record.row is None:
        return torch.as_tensor(record.x).reshape(-1).to(torch.float64)
    values = [math.nan if value is None else float(value) for value in record.row.values()]
    return torch.tensor(values, dtype=torch.float64)


def side_by_side(target: Target, row: int, guess: Tensor) -> tuple[tuple[str, Any, Any], ...]:
    """Each column with its true value and the rebuilt one."""
    shown = target.estimator.view.decode(guess.nan_to_num(0.0).numpy()[None]).iloc[0]
    found = [NOT_REBUILT if unread else value for value, unread in zip(shown, guess.isnan().tolist(), strict=True)]
    truth = {str(name): target.frame[name].iloc[row] for name in target.frame.columns}
    return tuple((name, truth[name], value) for name, value in zip(target.columns, found, strict=True))
