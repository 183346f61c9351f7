"""Points worth asking, chosen without a query from the layers that are known.

- far apart in the last known layer's activations, so that segments between them cross much;
- extreme: farthest in a random direction of those activations, where neurons switch that are almost always on or off;
- on the hyperplane of a neuron, in many cells.
"""

from __future__ import annotations

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.neuron import Neuron
from divulge.extraction.layers.query_space import QuerySpace

ASCENT_STEPS, SLOWER, PROJECTIONS = 100, 0.95, 40
POOL, PART = 1_000, 0.3
"""Points among which each ascent begins at the best, and the share of them that it may begin at."""
CORNER = (0.3, 4.0)
"""How much one unit counts beside the others in a corner, least and most: neurons with one positive weight are on
there."""
CORRECTIONS, TRIES, MARGIN = 80, 8, 0.01
MANY_POINTS = 20_000
ROOM = 10.0
"""Points of a hyperplane keep away from units below by so many times the distance at which they are asked."""
FARTHEST = 12.0
"""Extreme points lie at most so many lengths of a typical point from the origin."""


def spread_out(activation: Array, count: int, rng: np.random.Generator) -> Array:
    """Indices of points whose activations point in directions far from each other: farthest first."""
    a = activation / np.maximum(np.linalg.norm(activation, axis=1, keepdims=True), 1e-12)
    a = a - a.mean(axis=0)
    a = a / (np.sqrt((a**2).mean(axis=0)) + 1e-3 * np.abs(a).max() + np.finfo(float).tiny)
    chosen = [int(rng.integers(len(a)))]
    distance = np.linalg.norm(a - a[chosen[0]], axis=1)
    while len(chosen) < min(count, len(a)):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, np.linalg.norm(a - a[chosen[-1]], axis=1))
    return np.array(chosen)


def nearest_directions(points: Array, others: Array) -> Array:
    """For each of ``others`` [m, dim] the index of the point whose direction from the origin is nearest to its own."""
    a, b = (Y / np.maximum(np.linalg.norm(Y, axis=1, keepdims=True), 1e-12) for Y in (points, others))
    return np.asarray((b @ a.T).argmax(axis=1))


def extreme_points(
    space: QuerySpace, layers: KnownLayers, count: int, rng: np.random.Generator, toward: Array | None = None
) -> Array:  # fmt: skip
    """Points whose activations in the last layer go farthest in random directions, by gradient ascent of r a / |a|.

    Every second direction is a corner, where one unit outweighs all others; random activations of the first layer have
    many corners among them. The directions may be given as ``toward`` [count, h].
    """
    r = rng.normal(size=(count, layers.width))
    if toward is not None:
        r = toward
    elif len(layers):
        unit = np.resize(rng.permutation(layers.width), len(r[::2]))
        height = np.exp(rng.uniform(np.log(CORNER[0]), np.log(CORNER[1]), size=(len(unit), 1)))
        r[::2] = height * np.eye(layers.width)[unit] - np.abs(r[::2]) * (1 - np.eye(layers.width)[unit])
    Y = _farthest(space.points(max(count, POOL), rng), layers, r, rng)
    best, top = Y.copy(), np.full(count, -np.inf)
    for step in range(ASCENT_STEPS):
        a, masks = layers.masks(Y)
        size = np.maximum(np.linalg.norm(a, axis=1), 1e-9)
        score = (r * a).sum(axis=1) / size
        better = score > top
        best[better], top[better] = Y[better], score[better]
        slope = layers.pulled_back(r / size[:, None] - (score / size**2)[:, None] * a, masks)
        pace = 0.5 * SLOWER**step * np.linalg.norm(Y, axis=1) / np.maximum(np.linalg.norm(slope, axis=1), 1e-12)
        Y = space.kept_inside(Y + pace[:, None] * slope, rng, 1e-3)
        Y = Y * np.minimum(1, FARTHEST * np.sqrt(space.dim) / np.linalg.norm(Y, axis=1))[:, None]
    return best


def _farthest(pool: Array, layers: KnownLayers, r: Array, rng: np.random.Generator) -> Array:
    """For each direction r [n, h] the point, of a random part of the pool, whose activations go farthest in it."""
    a = layers(pool)
    score = (a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-9)) @ r.T
    score[rng.random(score.shape) > PART] = -np.inf
    return np.asarray(pool[score.argmax(axis=0)])


def segments(space: QuerySpace, layers: KnownLayers, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Begin and end [count, dim] of segments between points whose activations differ much; half end at extremes."""
    pool = space.points(800, rng)
    if len(layers) > 1:  # prefer cells where rows show completely: no layer below has fewer units on than the last
        _, on, _ = layers.units(pool)
        slack = layers.first(len(layers) - 1).units(pool)[2] - on.sum(axis=1)
        pool = pool[np.argsort(-np.minimum(slack, 1), kind="stable")[: max(200, int((slack >= 0).sum()))]]
    begin = pool[spread_out(layers(pool), count, rng)]
    end = pool[rng.choice(len(pool), size=count, replace=False)]
    if layers.width > 1:
        end[::2] = extreme_points(space, layers, len(end[::2]), rng)
    return begin, end


def hyperplane_points(
    space: QuerySpace, layers: KnownLayers, neuron: Neuron, count: int, rng: np.random.Generator
) -> Array:
    """Points on a neuron's hyperplane, from projecting ``count`` others onto it; few or none if it is hard to reach."""
    Y = space.points(count, rng)
    for step in range(PROJECTIONS):
        activation, _, jacobian = layers.maps(Y)
        before, normal = activation @ neuron.row + neuron.bias, neuron.row @ jacobian
        Y = Y - (before / np.maximum((normal**2).sum(axis=1), 1e-12))[:, None] * normal
        if step < PROJECTIONS - 1:
            Y = space.kept_inside(Y, rng, 1e-3 * float(np.median(np.abs(Y))))
    activation, on, _ = layers.units(Y)
    largest = np.abs(Y).max(axis=1)
    good = ~(on & ~neuron.known).any(axis=1) & (np.abs(activation @ neuron.row + neuron.bias) < 1e-9 * (1 + largest))
    good &= largest < 100
    if space.positive:
        good &= (Y > 0).all(axis=1)
    normal = neuron.row @ layers.maps(Y)[2]
    length = np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    good &= length[:, 0] > 1e-12  # else the neuron does not depend on the point there
    room = ROOM * space.beside * np.median(np.abs(Y), axis=1, keepdims=True) * normal / length
    good &= ~layers.cross(Y - room, Y + room)  # projections between two cells may end where they meet
    return np.asarray(Y[good])


def all_on_points(
    space: QuerySpace, layers: KnownLayers, weight: Array, bias: Array, count: int, rng: np.random.Generator
) -> Array:
    """Points where all units of the last layer are on, ``count`` on each side of each of further hyperplanes; or fewer.

    Points are moved across the hyperplane that each of them is farthest on the wrong side of, again and again.
    """
    neuron = np.tile(np.arange(len(bias)), 2 * count * TRIES)
    side = np.repeat([1.0, -1.0], len(neuron) // 2)
    Y = space.points(len(neuron), rng)
    every = np.arange(len(neuron))
    for _ in range(CORRECTIONS):
        below = layers.first(len(layers) - 1)
        a, _, jacobian = below.maps(Y)
        before, slope = a @ layers.weights[-1].T + layers.biases[-1], np.matmul(layers.weights[-1], jacobian)
        before[:, layers.linear[-1]] = np.inf
        last, _, above = layers.maps(Y)
        row = side[:, None] * weight[neuron]
        before = np.c_[before, (last * row).sum(axis=1) + side * bias[neuron]]
        slope = np.concatenate([slope, np.einsum("nh,nhd->nd", row, above)[:, None]], axis=1)
        length = np.maximum(np.linalg.norm(slope, axis=2), 1e-12)
        margin = MARGIN * np.linalg.norm(Y, axis=1) / np.sqrt(space.dim)
        distance = before / length - margin[:, None]
        worst = distance.argmin(axis=1)
        short = np.minimum(distance[every, worst], 0)
        move = slope[every, worst] / length[every, worst][:, None]
        Y = space.kept_inside(Y - 1.5 * short[:, None] * move, rng, 1e-3)
    good = np.flatnonzero((short == 0) & layers.units(Y)[1].all(axis=1))
    kept = [good[(neuron[good] == j) & (side[good] == s)][:count] for j in range(len(bias)) for s in (1.0, -1.0)]
    return np.asarray(Y[np.concatenate(kept)])


def most_on_points(space: QuerySpace, layers: KnownLayers, count: int, rng: np.random.Generator) -> Array:
    """Of many points those with most units on in whichever layer has fewest: gradients show most there."""
    Y = space.points(MANY_POINTS, rng)
    _, on, fewest = layers.units(Y)
    best = np.argsort(-fewest - rng.random(len(Y)))[: 4 * count]
    return np.asarray(Y[best[spread_out(on[best].astype(float), count, rng)]])
