"""Derivatives of the outputs by the activations of the last known layer, pieced together from neighbouring cells.

A gradient at one sample is J^T p, where p are the derivatives of an output by the activations, and J, the Jacobian of
the activations, has the rank of whichever layer has fewest units on. So one sample tells p in few directions. Samples
in cells beside it (``facets.py``) have another J, and the same p, as long as no neuron of the next layer or above
switches between them: together they tell more of p, mostly all of it. They lie on the same side of all hyperplanes of
the next layer that are known. Whether a neuron above has switched shows in the gradient: it then
contradicts those of the other samples. Combinations of rows that make up p tell the active sides of neurons
(``orientation.py``) and those that are always on (``linear_units.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divulge.extraction.layers.facets import facets, spanned, telling
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Survey

MANY_POINTS = 5_000
HOPS = 5
"""Facets that are crossed one after the other, at most."""
BEYOND = 0.3
"""How far beyond a facet to ask, as a share of the room that there is."""
RANK, CONSISTENT = 1e-8, 1e-7
"""Singular values below the first share of the largest are zero; gradients that are off by less than the second agree.
"""


@dataclass(frozen=True)
class Slopes:
    """What is told of the derivatives p [k, h] at a sample: ``seen`` [r, h] @ p[k] = ``told`` [k]."""

    sample: int
    seen: Array  # [r, h]
    told: Array  # [k, r]


def base_points(
    space: QuerySpace, layers: KnownLayers, weight: Array, bias: Array, count: int, rng: np.random.Generator
) -> Array:
    """Of many random points those with most units on in whichever layer has fewest, no two between the same neurons."""
    Y = space.points(MANY_POINTS, rng)
    activation, _, fewest = layers.units(Y)
    order = np.argsort(-fewest - 2 * rng.random(len(fewest)))[: 20 * count]
    side = activation[order] @ weight.T + bias > 0
    _, first = np.unique(side, axis=0, return_index=True)
    return np.asarray(Y[order[np.sort(first)[:count]]])


def asked_slopes(
    survey: Survey, layers: KnownLayers, weight: Array, bias: Array, count: int, rng: np.random.Generator
) -> list[Slopes]:  # fmt: skip
    """The derivatives at so many points, from a few batches of further points in the cells around them."""
    base = base_points(survey.space, layers, weight, bias, count, rng)
    members = [[sample] for sample in range(len(survey.data.Y), len(survey.data.Y) + len(base))]
    survey.add_points(base)
    done = [0] * len(members)
    for _ in range(HOPS):
        points, owner = [], []
        for walk, samples_ in enumerate(members):
            for y in _beyond(survey, layers, samples_, done[walk], (weight, bias), rng):
                points.append(y)
                owner.append(walk)
            done[walk] = len(samples_)
        if not points:
            break
        start = len(survey.data.Y)
        survey.add_points(np.array(points))
        for place, walk in enumerate(owner, start):
            members[walk].append(place)
        members = [slopes_at(survey, layers, samples_)[1] for samples_ in members]
    return [slopes_at(survey, layers, samples_)[0] for samples_ in members]


def _beyond(
    survey: Survey, layers: KnownLayers, members: list[int], done: int, also: tuple[Array, Array],
    rng: np.random.Generator,
) -> list[Array]:  # fmt: skip
    """Points just beyond facets of the cells of these samples, but for the first ``done``, that show p in more ways."""
    Y = survey.data.Y[members]
    basis = spanned(np.concatenate(list(layers.maps(Y)[2]), axis=1))
    points = []
    for y in Y[done:]:
        chosen, basis = telling(basis, facets(survey.space, layers, y, rng, also=also), layers.width)
        points += [facet.point + BEYOND * facet.room * facet.along for facet in chosen]
    return points


def slopes_at(survey: Survey, layers: KnownLayers, members: list[int]) -> tuple[Slopes, list[int]]:
    """The derivatives at the first of these samples, and which others do not contradict those before them."""
    data = survey.data
    jacobian = layers.maps(data.Y[members])[2]
    gradient = data.gradient[members]
    accepted = [0]
    fit = _fit(jacobian[:1], gradient[:1])
    for place in range(1, len(members)):
        trial = _fit(jacobian[[*accepted, place]], gradient[[*accepted, place]])
        if trial[2] < survey.space.accuracy.at_least(CONSISTENT, 1e3):
            accepted.append(place)
            fit = trial
    return Slopes(members[0], fit[0], fit[1]), [members[place] for place in accepted]


def _fit(jacobian: Array, gradient: Array) -> tuple[Array, Array, float]:
    """Directions [r, h] and what gradients [n, k, d] tell of p in them [k, r], and how far they contradict that."""
    system = jacobian.transpose(0, 2, 1).reshape(-1, jacobian.shape[1])
    goal = gradient.transpose(0, 2, 1).reshape(len(system), -1)
    U, s, Vt = np.linalg.svd(system, full_matrices=False)
    keep = s > RANK * max(s[0], np.finfo(float).tiny)
    told = U[:, keep].T @ goal
    off = np.linalg.norm(goal - U[:, keep] @ told) / max(float(np.linalg.norm(goal)), np.finfo(float).tiny)
    return s[keep, None] * Vt[keep] / s[0], told.T / s[0], float(off)
