"""Entries of a neuron's row that no kink has shown: segments that show them, and rows where they would matter most.

The entry of unit m shows at a kink of the neuron where m is on. Such a place is found without queries: points are moved
in turn onto the neuron's hyperplane, as far as it is known, and to where m is barely on. The unknown entry moves the
hyperplane little there, so that a short segment across it is searched.

An entry that no segment shows may have no effect at all: wherever m is on, the neuron is off. Whether that is so is
asked where it is least likely, at points with m on that bring the neuron nearest to being on.
"""

from __future__ import annotations

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.neuron import Neuron
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Survey

STARTS, STEPS = 48, 40
LEAST_ENTRY, LARGEST_ENTRY = 0.8, 3.0
"""How large the unknown entry may be: the second number of typical entries of a row of unit length, and the first."""
ASCENTS, TELLING = 48, 12
"""Paths towards rows where an entry would matter, and how many of them are asked."""
ABOVE_ZERO = 1e-6
"""Activations of the first layer stay above this share of typical ones: its own kinks lie at zero."""
FARTHEST = 30.0
"""Segments lie at most so many times as far out as typical samples."""


def segment_for_entry(
    survey: Survey, layers: KnownLayers, neuron: Neuron, unit: int, rng: np.random.Generator
) -> tuple[Array, Array] | None:
    """Begin and end of a segment that crosses the neuron's hyperplane where ``unit`` has just come on; None if none."""
    space, samples = survey.space, survey.data.Y
    Y = samples[rng.choice(len(samples), size=STARTS)]
    Y = Y * np.exp(0.3 * rng.normal(size=Y.shape))
    reach = float(np.median(np.abs(samples).max(axis=1)))
    Y = _moved(survey, layers, neuron, unit, Y, reach, rng)
    activation, on, jacobian = layers.maps(Y)
    before, normal = activation @ neuron.row + neuron.bias, neuron.row @ jacobian
    length = np.linalg.norm(normal, axis=1)
    others = (on & ~neuron.known).sum(axis=1) - on[:, unit]
    good = (np.abs(before) < 1e-6) & on[:, unit] & (others == 0) & (length > 1e-6)
    good &= np.abs(Y).max(axis=1) < FARTHEST * reach
    if space.positive:
        good &= (Y > 0).all(axis=1)
    if not good.any():
        return None
    hidden = layers.units(Y)[2] < on.sum(axis=1)
    score = np.where(good, activation[:, unit] / np.maximum(length, 1e-9) + 10.0 * hidden, np.inf)
    best = int(np.argmin(score))
    entry = LEAST_ENTRY + LARGEST_ENTRY / np.sqrt(max(1, int(neuron.known.sum())))
    half = (entry * activation[best, unit] + 1e-4) / length[best] ** 2 * normal[best]
    begin, end = Y[best] - half, Y[best] + half
    if not space.positive:
        return begin, end
    return np.maximum(begin, ABOVE_ZERO * reach), np.maximum(end, ABOVE_ZERO * reach)


def _moved(
    survey: Survey, layers: KnownLayers, neuron: Neuron, unit: int, Y: Array, reach: float, rng: np.random.Generator
) -> Array:
    """Alternate projections: to where the unit is barely on, and onto the neuron's hyperplane."""
    below, space = layers.first(len(layers) - 1), survey.space
    row, bias = layers.weights[-1][unit], layers.biases[-1][unit]
    wanted = np.exp(rng.uniform(np.log(1e-3), np.log(0.05), size=len(Y)))
    for step in range(STEPS):
        activation, _, jacobian = below.maps(Y)
        before, slope = activation @ row + bias, row @ jacobian
        if step == 0:
            wanted = wanted * np.median(np.abs(before))
        away = (before < 0.5 * wanted) | (before > 2 * wanted)
        move = np.where(away, (wanted - before) / np.maximum((slope**2).sum(axis=1), 1e-12), 0)
        Y = space.kept_inside(Y + move[:, None] * slope, rng, 1e-3 * reach)
        activation, _, jacobian = layers.maps(Y)
        before, normal = activation @ neuron.row + neuron.bias, neuron.row @ jacobian
        Y = Y - (before / np.maximum((normal**2).sum(axis=1), 1e-12))[:, None] * normal
        if step < STEPS - 1:
            Y = space.kept_inside(Y, rng, 1e-3 * reach)
    return Y


def telling_rows(
    space: QuerySpace, layers: KnownLayers, depth: int, neuron: int, unit: int, samples: Array, rng: np.random.Generator
) -> Array:
    """Rows [n, dim] with a unit on that bring a neuron of the layer ``depth`` nearest to being on; maybe none.

    Its pre-activation, as far as known, rises along the rows' paths, relative to that of the unit.
    """
    below, upto = layers.first(depth - 1), layers.first(depth)
    row, bias = layers.weights[depth - 1][unit], layers.biases[depth - 1][unit]
    above, offset = layers.weights[depth][neuron], layers.biases[depth][neuron]
    pool = np.concatenate([samples, space.points(len(samples) // 2, rng)])
    before = below(pool) @ row + bias
    Y = pool[np.argsort(-before / (1e-9 + np.linalg.norm(pool, axis=1)))[:ASCENTS]]
    best, top = Y.copy(), np.full(len(Y), -np.inf)
    for step in range(STEPS):
        activation, _, jacobian = below.maps(Y)
        height, rise = activation @ row + bias, row @ jacobian
        a, _, up = upto.maps(Y)
        drive, slope = a @ above + offset, above @ up
        score = np.where(height > 0, drive / np.maximum(height, 1e-6), -np.inf)
        better = score > top
        best[better], top[better] = Y[better], score[better]
        aim = np.where((height > 0)[:, None], slope, rise)
        pace = 0.3 * 0.93**step * np.linalg.norm(Y, axis=1) / np.maximum(np.linalg.norm(aim, axis=1), 1e-12)
        Y = space.kept_inside(Y + pace[:, None] * aim, rng, 1e-3)
    order = np.argsort(-top)[:TELLING]
    return np.asarray(best[order[np.isfinite(top[order])]])
