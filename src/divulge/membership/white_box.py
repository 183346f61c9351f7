"""Membership from the weights: the size of the gradient that a record would cause, layer by layer.

Nasr et al. 2019: training drives the gradient of members towards zero. The logarithm of its norm in every parameter is
standardised among the non-members of the same class (``calibration``), and the mean over the parameters is the score.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from divulge.membership.calibration import by_class
from divulge.membership.records import Records
from divulge.oracles.record_gradients import gradient_log_norms
from divulge.oracles.record_scores import Asked

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def gradient_scores(model: Asked, inside: Records, outside: Records) -> tuple[Pair, Pair]:
    """Scores of both sides: the mean over parameters of the negated logarithm of the gradient's norm.

    They come standardised among the non-members of the same class, and as they are.
    """
    own, others = (gradient_log_norms(model, side.X, side.y) for side in (inside, outside))
    flat = model.task == "regression"
    classes = [np.zeros(len(side)) if flat else side.y for side in (inside, outside)]
    pairs = [by_class(-own[:, p], -others[:, p], *classes) for p in range(own.shape[1])]
    standardised = np.mean([pair[0] for pair in pairs], axis=0), np.mean([pair[1] for pair in pairs], axis=0)
    return standardised, (-own.mean(axis=1), -others.mean(axis=1))
