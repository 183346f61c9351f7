"""The first layer: the hyperplanes that every line through the inputs crosses.

Hyperplanes of deeper layers bend, and are crossed elsewhere on another line; those of the first layer are the same on
all lines. Lines are added until the hyperplanes found account for the rank of all gradients. Lines that an attack on
one hidden layer has searched already are taken over. From values, gradients are dear and kinks are not: further lines
are first searched for kinks alone, which must lie where hyperplanes of the first line cross. A hyperplane that narrow
cells of the first line show imprecisely is measured where a further line crosses it, two gradients each. A layer with
more rows than their rank is taken if it shares weights, as a convolution does (``shared_weights.py``), or spans all
inputs.
"""

from __future__ import annotations

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.orientation import orientation
from divulge.extraction.layers.peeling import CONTINUES, next_layer
from divulge.extraction.layers.shared_weights import shared_signs
from divulge.extraction.layers.survey import Survey
from divulge.extraction.layers.value_survey import ValueSurvey

LINES, MOST_LINES = 2, 10
LINES_IF_DEPENDENT = 3
"""Fewest lines for a layer with more rows than their rank."""
KINK_LINES, SAME_PLACE = 2, 1e-5
"""Lines that are searched for kinks alone, and how far beside a hyperplane a kink may lie to be its own, as a share of
one and its distance."""
SAME_DIRECTION = 1e-8
"""One less the cosine between two measurements of the same normal, at most."""
MEASURED_AGAIN = 0.3
"""Share of the hyperplanes that are measured on further lines, at most: else another line is measured as a whole."""
PRECISE, LEAST_PRECISE = 2e-2, 2e-3
"""Kinks of a smaller weight than the first are measured again on a further line, and none may be below the second in
the end; rows are off by some 3e-9 there."""
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
    layer = None
    if isinstance(survey, ValueSurvey) and survey.segments < LINES:
        if not survey.segments:
            _add_lines(survey, 1, reach, rng)
        layer = _from_kinks(survey, reach, rng)
    elif survey.segments >= fewest:
        layer = _from_lines(survey, rng)
    while layer is None and survey.segments < MOST_LINES:
        _add_lines(survey, max(1, fewest - survey.segments), reach, rng)
        layer = _from_lines(survey, rng)
    return layer


def _add_lines(survey: Survey, count: int, reach: float, rng: np.random.Generator) -> None:
    origin, direction = rng.normal(size=(2, count, survey.space.dim))
    survey.add(origin, origin + direction, [-reach, -1.0, 1.0, reach], spread=1.0)


def _from_kinks(survey: ValueSurvey, reach: float, rng: np.random.Generator) -> tuple[Array, Array] | None:
    """The layer from the hyperplanes of one line that have kinks on further ones, which cost no gradients.

    Hyperplanes beside narrow cells are not precise enough to rest on that line alone, and are measured on the others.
    """
    data = survey.data
    precision = data.weight[data.kinked]
    weight, place = data.normal[data.kinked], data.kink[data.kinked]
    seen = np.ones(len(place), bool)
    for line in range(KINK_LINES):
        origin, direction = rng.normal(size=(2, survey.space.dim))
        cut = survey.cut(origin[None], direction[None], reach)[0]
        if not len(cut.kinks):
            return None
        crossing = ((place - origin) * weight).sum(axis=1) / (weight @ direction)
        kink = np.abs(crossing[:, None] - cut.kinks).argmin(axis=1)
        there = np.abs(crossing - cut.kinks[kink]) < SAME_PLACE * (1 + np.abs(crossing))
        seen &= there | (np.abs(crossing) > reach)
        doubtful = np.flatnonzero(seen & there & (precision < PRECISE))
        if len(doubtful) > MEASURED_AGAIN * len(place):
            return None
        if len(doubtful):
            row, point, better = survey.add_around(cut, kink[doubtful])
            taken = np.abs((row * weight[doubtful]).sum(axis=1)) > 1 - SAME_DIRECTION
            taken &= better > precision[doubtful]
            good = doubtful[taken]
            weight[good], place[good], precision[good] = row[taken], point[taken], better[taken]
        if (precision[seen] < LEAST_PRECISE).any():
            continue
        bias = -(weight * place).sum(axis=1)
        layer = _oriented(survey, weight[seen], bias[seen], survey.segments + line + 1, rng)
        if layer is not None:
            return layer
    return None


def _from_lines(survey: Survey, rng: np.random.Generator) -> tuple[Array, Array] | None:
    """The layer from the hyperplanes that all lines of the survey cross."""
    continues = CONTINUES if survey.segments < LENIENT_LINES else LENIENT
    found, _ = next_layer(survey, KnownLayers(survey.space.dim), survey.data.kinked, continues=continues)
    found = [neuron for neuron in found if not neuron.doubtful]
    weight, bias = np.array([neuron.row for neuron in found]), np.array([neuron.bias for neuron in found])
    return _oriented(survey, weight, bias, survey.segments, rng)


def _oriented(
    survey: Survey, weight: Array, bias: Array, lines: int, rng: np.random.Generator
) -> tuple[Array, Array] | None:  # fmt: skip
    """The hyperplanes turned to their active sides; None if some are missing or too few ``lines`` show them."""
    rank = _rank(survey.data.gradient, survey.space.accuracy.at_least(RANK, RANK_ERRORS), rng)
    dependent = len(bias) > rank
    if not len(bias) or len(bias) < rank or (dependent and lines < LINES_IF_DEPENDENT):
        return None
    shared = shared_signs(survey, weight, bias) if dependent else None
    if shared is not None:
        return weight * shared[:, None], bias * shared
    if dependent and rank < survey.space.dim:
        return None
    sign = orientation(survey, KnownLayers(survey.space.dim), weight, bias, rng)
    return (weight * sign[:, None], bias * sign) if (sign != 0).all() else None


def _rank(gradient: Array, smallest: float, rng: np.random.Generator) -> int:
    """Dimension of the space that the gradients [n, k, d] lie in."""
    rows = np.einsum("nkd,nk->nd", gradient, rng.normal(size=gradient.shape[:2]))
    s = np.linalg.svd(rows, compute_uv=False)
    return int((s > smallest * s[0]).sum())
