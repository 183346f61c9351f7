"""What ends a search for reasons of arithmetic: it becomes the reason of a result that is not exact."""

from __future__ import annotations

import numpy as np
import torch

UNSETTLED = (
    "The searches along lines did not settle: the target is not a ReLU network, or its answers are too coarse where it "
    "was asked."
)

FIRST_UNKNOWN = (
    "The first layer was not found completely: the target may have units other than ReLU, or connections that skip it."
)


class SearchFailed(Exception):
    """A search left the range of numbers, or its equations have no solution."""


ARITHMETIC: tuple[type[Exception], ...] = (SearchFailed, np.linalg.LinAlgError, vars(torch.linalg)["LinAlgError"])
"""Errors that the answers of a target which is no ReLU network may cause."""
