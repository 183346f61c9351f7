"""The unit in which an error in each column of a table is measured."""

from __future__ import annotations

import numpy as np

from divulge.informed.linear.models import Array

_CONSTANT = 1e-9  # of the largest value: a smaller standard deviation is that of a constant column


def column_spread(X: Array) -> Array:
    """The standard deviation of each column; the largest value (at least 1) of a constant column."""
    size = np.abs(X).max(axis=0)
    deviation = X.std(axis=0)
    spread: Array = np.where(deviation > _CONSTANT * size, deviation, np.maximum(size, 1.0))
    return spread
