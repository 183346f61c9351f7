"""Facets of a cell of the known layers: where one unit switches, next to a point.

Beyond the facet of a unit the Jacobian of the activations has one term more, or less: ``effect`` times ``normal``. That
shows rows and derivatives in the direction of the effect. Facets are found by rays from the point, without a query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.query_space import QuerySpace

RAYS, AIMED = 600, 6
"""Rays in random directions, and rays towards each unit's hyperplane."""
SPREAD = 0.5
"""How far aimed rays stray from their aim."""
SMALL = 1e-3
"""Coordinates move at least by this share of the mean one."""
NEW = 1e-3
"""An effect shows something new if this share of it lies outside of what is seen already."""
RANK = 1e-8


@dataclass(frozen=True, eq=False)
class Facet:
    """Where a ray meets the hyperplane of a unit, before any other."""

    point: Array  # [dim]
    along: Array  # [dim] of length one
    room: float
    """How far the ray goes on before it meets another hyperplane."""
    normal: Array  # [dim] slope of the unit before its activation
    effect: Array  # [h] slope of the activations of the last layer by the unit


def facets(
    space: QuerySpace, layers: KnownLayers, y: Array, rng: np.random.Generator, *, within: Array | None = None,
    also: tuple[Array, Array] | None = None,
) -> list[Facet]:  # fmt: skip
    """Facets of the cell of y, the nearest first, one for each unit.

    Rays keep to the hyperplane through y with the normal ``within``, and end at those of further neurons ``also``.
    """
    before, normal, effect = _units(layers, y)
    units = len(before)
    if also is not None:
        activation, _, jacobian = layers.maps(y[None])
        before = np.append(before, activation[0] @ also[0].T + also[1])
        normal = np.concatenate([normal, also[0] @ jacobian[0]])
    if space.positive:
        before, normal = np.append(before, y), np.concatenate([normal, np.eye(len(y))])
    rays = _rays(y, -np.sign(before[:units, None]) * normal[:units], within, rng)
    pace = rays @ normal.T  # [rays, hyperplanes]
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = -before / pace
    reach = np.where((reach > 0) & np.isfinite(reach), reach, np.inf)
    first = reach.argmin(axis=1)
    nearest = np.sort(np.partition(reach, 1, axis=1)[:, :2], axis=1)
    found, taken = [], set()
    for ray in np.argsort(nearest[:, 0]).tolist():
        unit = int(first[ray])
        if unit in taken or unit >= units or not np.isfinite(nearest[ray, 0]):
            continue
        taken.add(unit)
        room = min(float(nearest[ray, 1] - nearest[ray, 0]), float(nearest[ray, 0]))
        found.append(Facet(y + nearest[ray, 0] * rays[ray], rays[ray], room, normal[unit], effect[unit]))
    return found


def telling(basis: Array, found: list[Facet], most: int) -> tuple[list[Facet], Array]:
    """Those of the facets, at most so many, whose effects are not spanned by ``basis`` [h, r] and those before them.

    The second answer is the basis with their effects.
    """
    chosen: list[Facet] = []
    for facet in found:
        if basis.shape[1] == len(basis) or len(chosen) == most:
            break
        rest = facet.effect - basis @ (basis.T @ facet.effect)
        if np.linalg.norm(rest) > NEW * np.linalg.norm(facet.effect) > 0:
            chosen.append(facet)
            basis = np.concatenate([basis, rest[:, None] / np.linalg.norm(rest)], axis=1)
    return chosen, basis


def spanned(columns: Array) -> Array:
    """An orthonormal basis [h, r] of the space of some columns."""
    U, s, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(U[:, s > RANK * max(s[0], np.finfo(float).tiny)])


def _units(layers: KnownLayers, y: Array) -> tuple[Array, Array, Array]:
    """Pre-activations [m], their slopes [m, dim] and effects [m, h] of the units of all layers that can switch."""
    before, normal, masks = [], [], []
    a, jacobian = y, np.eye(len(y))
    for weight, bias, linear in layers.stack:
        z, slope = weight @ a + bias, weight @ jacobian
        masks.append((z > 0) | linear)
        before.append(z)
        normal.append(slope)
        a, jacobian = np.where(masks[-1], z, 0), slope * masks[-1][:, None]
    effect, above = [], np.eye(layers.width)
    for place in range(len(layers) - 1, -1, -1):
        effect.append(above.T)
        above = (above * masks[place]) @ layers.weights[place]
    keep = ~np.concatenate(layers.linear)
    return np.concatenate(before)[keep], np.concatenate(normal)[keep], np.concatenate(effect[::-1])[keep]


def _rays(y: Array, aims: Array, within: Array | None, rng: np.random.Generator) -> Array:
    """Directions [n, dim] of length one; coordinates move in proportion to their size, so that small ones stay."""
    typical = np.abs(y) + SMALL * np.abs(y).mean()
    aimed = np.repeat(aims * typical, AIMED, axis=0)
    aimed = aimed / np.maximum(np.linalg.norm(aimed, axis=1, keepdims=True), np.finfo(float).tiny)
    aimed = aimed * np.sqrt(len(y)) + 2 * SPREAD * rng.random((len(aimed), 1)) * rng.normal(size=aimed.shape)
    rays = np.concatenate([rng.normal(size=(RAYS, len(y))), aimed])
    if within is not None:
        normal = within * typical
        rays = rays - np.outer(rays @ normal, normal) / (normal @ normal)
    rays = rays * typical
    return np.asarray(rays / np.maximum(np.linalg.norm(rays, axis=1, keepdims=True), np.finfo(float).tiny))
