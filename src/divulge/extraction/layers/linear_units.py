"""Neurons that are on at every sample: they have no kink there, and pass a linear function of the layer below on.

Where the neurons found are fewer than the units that are on below, the gradient is a combination of those units with
coefficients p = sum c_j w_j + sum c_v v, over the neurons found that are on and those that are always on. The part of p
outside the span of the rows w_j belongs to the latter alone. Inside it the coefficient of w_j is a linear function of
that part wherever neuron j is off, and differs from it wherever j is on. A robust fit of that function to the samples
tells v, up to a change of basis, and the active side of every neuron at once. Its bias is part of the next layer's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.survey import Survey

MOST_HIDDEN = 4
"""Most neurons of one layer that are always on."""
NOTHING = 1e-8
"""Gradients whose part outside the span of the rows is below this share lie in it."""
SAME = 1e-6
TRIALS = 400
FEWEST_OFF = 2
"""Samples, beyond those that determine the function, at which a neuron must be seen off."""
ONE_SIDED = 0.95
"""Share of the samples at which a neuron is on that must lie on one side of its hyperplane."""


@dataclass(frozen=True)
class LinearPart:
    """Rows of the neurons that are always on [m, h], and the sides of the others [neurons], 0 where unknown."""

    rows: Array
    sign: Array


def linear_part(
    survey: Survey, layers: KnownLayers, weight: Array, bias: Array, rng: np.random.Generator
) -> LinearPart | None:
    """The linear part of the layer with the neurons ``weight``, ``bias``; None if the samples do not tell it."""
    system = _coefficients(survey, layers, weight, rng)
    if system is None:
        return None
    inside, outside, basis, index = system
    s = np.linalg.svd(outside, compute_uv=False)
    accuracy = survey.space.accuracy
    hidden = int((s > accuracy.at_least(NOTHING, 300) * np.sqrt(len(outside))).sum())
    if not 0 < hidden <= MOST_HIDDEN or len(outside) < 3 * hidden + FEWEST_OFF:
        return None
    mix = np.linalg.svd(outside, full_matrices=False)[2][:hidden]  # [hidden, c] of the complement
    part = outside @ mix.T
    side = np.sign(layers(survey.data.Y[index]) @ weight.T + bias)
    sign, slope = np.zeros(len(bias)), np.zeros((hidden, len(bias)))
    for j in range(len(bias)):
        slope[:, j], sign[j] = _robust(part, inside[:, j], side[:, j], accuracy.at_least(SAME, 1e3), rng)
    if (sign == 0).any():
        return None
    rows = mix @ basis.T + slope @ weight
    return LinearPart(rows / np.linalg.norm(rows, axis=1, keepdims=True), sign)


def _coefficients(
    survey: Survey, layers: KnownLayers, weight: Array, rng: np.random.Generator
) -> tuple[Array, Array, Array, Array] | None:
    """Coefficients of gradients inside [n, neurons] and outside [n, c] the span of the rows, the basis [h, c] of the
    outside, and the samples, which are those where all units below are on; gradients have length one."""
    data = survey.data
    width = layers.width
    rank = np.linalg.matrix_rank(weight)
    if rank < len(weight) or len(weight) >= width:
        return None
    _, on, fewest = layers.units(data.Y)
    index = np.flatnonzero(on.all(axis=1) & (fewest >= width))
    if not len(index):
        return None
    gradient = np.einsum("nkd,nk->nd", data.gradient[index], rng.normal(size=data.gradient.shape[:2])[index])
    if len(layers):
        jacobian = layers.maps(data.Y[index])[2]
        inverse = np.linalg.pinv(jacobian.transpose(0, 2, 1), rcond=1e-10)
        above = np.einsum("nhd,nd->nh", inverse, gradient)
        fits = np.linalg.norm(np.einsum("nhd,nh->nd", jacobian, above) - gradient, axis=1)
        good = fits < survey.space.accuracy.at_least(1e-9, 300) * np.linalg.norm(gradient, axis=1)
        above, index = above[good], index[good]
    else:
        above = gradient
    size = np.linalg.norm(above, axis=1)
    if not len(above) or not size.any():
        return None
    good = size > 1e-6 * np.median(size)
    above, index = above[good] / size[good, None], index[good]
    basis = np.linalg.svd(weight, full_matrices=True)[2][rank:].T  # [h, c]
    inside = (above - above @ basis @ basis.T) @ np.linalg.pinv(weight)
    return inside, above @ basis, basis, index


def _robust(
    part: Array, goal: Array, side: Array, close: float, rng: np.random.Generator
) -> tuple[Array, float]:  # fmt: skip
    """The linear function of ``part`` that samples on one side of a neuron agree on, and not those on the other.

    The second answer is the neuron's sign, 0 if there is no such side.
    """
    hidden = part.shape[1]
    level = np.abs(goal) + np.abs(part).sum(axis=1) + 1e-12
    for off in (1.0, -1.0):
        here, there = np.flatnonzero(side == off), np.flatnonzero(side == -off)
        if len(here) < hidden + FEWEST_OFF or len(there) < hidden + 1:
            continue
        for _ in range(TRIALS):
            pick = rng.choice(here, size=hidden, replace=False)
            solution = np.linalg.lstsq(part[pick], goal[pick], rcond=None)[0]
            same = np.abs(part @ solution - goal) < close * level
            if same[here].mean() < ONE_SIDED:
                continue
            if same[there].mean() > 1 - ONE_SIDED or _explained(part[there], goal[there], close):
                break
            agreed = here[same[here]]
            return np.linalg.lstsq(part[agreed], goal[agreed], rcond=None)[0], -off
    return np.zeros(hidden), 0.0


def _explained(part: Array, goal: Array, close: float) -> bool:
    """Whether a linear function explains these samples too: then nothing tells which side is off."""
    solution = np.linalg.lstsq(part, goal, rcond=None)[0]
    return bool(len(goal) > part.shape[1] + 1 and np.abs(part @ solution - goal).max() < close * np.abs(goal).max())
