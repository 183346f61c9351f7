"""The first layer: the hyperplanes that every line through the inputs crosses.

Hyperplanes of deeper layers bend, and are crossed elsewhere on another line; those of the first layer are the same on
all lines. Lines are added until the hyperplanes found account for the rank of all gradients. Lines that an attack on
one hidden layer has searched already are taken over. A layer with more rows than their rank is taken if it shares
weights, as a convolution does (``shared_weights.py``), or spans all inputs.
"""

from __future__ import annotations

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.orientation import orientation
from divulge.extraction.layers.peeling import CONTINUES, next_layer
from divulge.extraction.layers.shared_weights import shared_signs
from divulge.extraction.layers.survey import Survey

LINES, MOST_LINES = 2, 10
LINES_IF_DEPENDENT = 3
"""Fewest lines for a layer with more rows than their rank."""
LENIENT_LINES, LENIENT = 5, 0.7
"""From so many lines on a hyperplane need not show on all of them."""
RANK, RANK_ERRORS = 1e-9, 50.0
"""Singular values of gradients below this share of the largest are zero, or below so many times their error."""


def first_layer(
    survey: Survey, reach: float, rng: np.random.Generator, *, fewest: int = LINES
) -> tuple[Array, Array] | None:
    """Weights and biases of the first layer, turned to their active sides; None if they were not all found.

    At least ``fewest`` lines are searched, those of the survey included.
    """
    inputs = survey.space.dim
    nothing = KnownLayers(inputs)
    layer = _oriented(survey, nothing, rng) if survey.segments >= fewest else None
    while layer is None and survey.segments < MOST_LINES:
        count = max(1, fewest - survey.segments)
        origin, direction = rng.normal(size=(2, count, inputs))
        survey.add(origin, origin + direction, [-reach, -1.0, 1.0, reach], spread=1.0)
        layer = _oriented(survey, nothing, rng)
    return layer


def _oriented(survey: Survey, nothing: KnownLayers, rng: np.random.Generator) -> tuple[Array, Array] | None:
    data = survey.data
    continues = CONTINUES if survey.segments < LENIENT_LINES else LENIENT
    found, _ = next_layer(survey, nothing, data.kinked, continues=continues)
    found = [neuron for neuron in found if not neuron.doubtful]
    rank = _rank(data.gradient, survey.space.accuracy.at_least(RANK, RANK_ERRORS), rng)
    dependent = len(found) > rank
    if not found or len(found) < rank or (dependent and survey.segments < LINES_IF_DEPENDENT):
        return None
    weight = np.array([neuron.row for neuron in found])
    bias = np.array([neuron.bias for neuron in found])
    shared = shared_signs(survey, weight, bias) if dependent else None
    if shared is not None:
        return weight * shared[:, None], bias * shared
    if dependent and rank < nothing.inputs:
        return None
    sign = orientation(survey, nothing, weight, bias, rng)
    return (weight * sign[:, None], bias * sign) if (sign != 0).all() else None


def _rank(gradient: Array, smallest: float, rng: np.random.Generator) -> int:
    """Dimension of the space that the gradients [n, k, d] lie in."""
    rows = np.einsum("nkd,nk->nd", gradient, rng.normal(size=gradient.shape[:2]))
    s = np.linalg.svd(rows, compute_uv=False)
    return int((s > smallest * s[0]).sum())
