"""A neuron from a single kink, followed along its bent hyperplane into the neighbouring cells.

A kink shows the row w of its neuron in as many directions as the Jacobian J of the activations below has dimensions:
n = J^T w, up to a scale. In a deep network that is as many as the layer with fewest units on has, and two kinks of a
neuron far from each other share too little to be recognised. Beyond a facet of the cell (``facets.py``), where a unit
comes on, the hyperplane continues with the normal n + r m, where m is the unit's own: two gradients, one on each side,
tell r, and so w in one direction more, at the same scale. The jump between them lies in the plane of n and m, or the
kink belongs to another neuron. What is found holds for all layers below the neuron's own: a neuron of a deeper layer
looks like one of the next layer as long as none of that switches, and is told apart by the kinks that its row predicts
elsewhere.

Rolnick and Kording 2020 follow bent hyperplanes to tell the layers of neurons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divulge.extraction.layers.facets import Facet, facets, spanned, telling
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Survey, normals

HOPS = 4
"""Facets that are crossed one after the other, at most."""
STEP = 0.05
"""How far beyond a facet to ask, as a share of the room that there is."""
LARGEST = 20.0
"""The part of the normal that a unit adds is at most so many times as long as the normal."""
INSIDE = 0.5
"""Ends of the segment across the hyperplane lie so far inside the cell."""
SHORT = 1e-4
"""They are at most this share of the point's distance from the origin apart: other kinks may lie near."""
SAME_NEURON = 1e-6
"""A jump that leaves the plane of the two normals by more than this is of another neuron."""
KNOWN = 1e-5
"""Entries that what is seen leaves open by less than this are known."""
RANK, CONSISTENT = 1e-7, 1e-6


@dataclass(frozen=True)
class Followed:
    """Points of one neuron's hyperplane [m, dim] and its normals there [m, dim], all at the same scale."""

    points: Array
    normals: Array
    depth: int  # layers that were known

    def row(self, layers: KnownLayers) -> tuple[Array, float, Array] | None:
        """Row of length one, bias and known entries, if it is a neuron on ``layers``; None if it is not."""
        activation, _, jacobian = layers.maps(self.points)
        system = jacobian.transpose(0, 2, 1).reshape(-1, layers.width)
        goal = self.normals.reshape(-1)
        U, s, Vt = np.linalg.svd(system, full_matrices=False)
        keep = s > RANK * max(s[0], np.finfo(float).tiny)
        inside = U[:, keep].T @ goal
        if np.linalg.norm(goal - U[:, keep] @ inside) > CONSISTENT * np.linalg.norm(goal):
            return None
        seen = Vt[keep].T  # [h, r]
        open_ = 1 - (seen**2).sum(axis=1)
        known = np.sqrt(np.maximum(open_, 0)) < KNOWN
        telling_bias = np.flatnonzero(~((activation > 0) & ~known).any(axis=1))
        if not len(telling_bias):
            return None
        row = np.where(known, seen @ (inside / s[keep]), 0.0)
        size = float(np.linalg.norm(row))
        if size == 0:
            return None
        return row / size, -float(activation[telling_bias[0]] @ row) / size, known


def follow(
    survey: Survey, layers: KnownLayers, intervals: list[int], rng: np.random.Generator,
    also: tuple[Array, Array] | None = None,
) -> None:  # fmt: skip
    """Follow the kinks of these intervals from cell to cell; two gradients for each facet that is crossed.

    What is found is noted in the survey. Kinks that were followed on fewer layers go on from there.
    """
    walks = [_Walk.of(survey, interval) for interval in intervals]
    for _ in range(HOPS):
        plans = [(walk, *plan) for walk in walks for plan in walk.plans(survey.space, layers, rng, also)]
        if not plans:
            break
        Y = np.array([end for _, _, _, ends in plans for end in ends])
        start = len(survey.data.Y)
        survey.add_points(Y)
        gradient = survey.data.gradient[start:]
        for place, (walk, normal, facet, _) in enumerate(plans):
            pair = slice(2 * place, 2 * place + 2)
            kink = _kink(normal, facet, Y[pair], gradient[pair])
            if kink is not None:
                walk.points.append(kink[0])
                walk.normals.append(kink[1])
    for walk in walks:
        survey.followed[walk.interval] = Followed(np.array(walk.points), np.array(walk.normals), len(layers))


@dataclass
class _Walk:
    """One neuron: the points of its hyperplane so far, and its normals there."""

    interval: int
    points: list[Array]
    normals: list[Array]
    done: int = 0  # points whose facets were looked at

    @classmethod
    def of(cls, survey: Survey, interval: int) -> _Walk:
        before = survey.followed.get(interval)
        if isinstance(before, Followed):
            return cls(interval, list(before.points), list(before.normals))
        return cls(interval, [survey.data.kink[interval]], [survey.data.normal[interval]])

    def plans(
        self, space: QuerySpace, layers: KnownLayers, rng: np.random.Generator, also: tuple[Array, Array] | None
    ) -> list[tuple[Array, Facet, tuple[Array, Array]]]:
        """Facets beyond which the row shows in further directions, the normal before them, and where to ask."""
        jacobian = layers.maps(np.array(self.points))[2]
        basis = spanned(np.concatenate(list(jacobian), axis=1))
        plans = []
        for place in range(self.done, len(self.points)):
            normal = self.normals[place]
            found = facets(space, layers, self.points[place], rng, within=normal, also=also)
            pairs = [(facet, _ends(space, layers, normal, facet)) for facet in found]
            chosen, basis = telling(basis, [facet for facet, ends in pairs if ends is not None], layers.width)
            plans += [(normal, facet, ends) for facet, ends in pairs if ends is not None and facet in chosen]
        self.done = len(self.points)
        return plans


def _ends(space: QuerySpace, layers: KnownLayers, normal: Array, facet: Facet) -> tuple[Array, Array] | None:
    """Ends of a segment across the neuron's hyperplane just beyond a facet; None if there is no room for it."""
    size = np.linalg.norm(facet.point)
    unit = facet.normal / max(float(np.linalg.norm(facet.normal)), np.finfo(float).tiny)
    across = normal - (normal @ unit) * unit
    length = float(np.linalg.norm(across))
    if length < 1e-3:
        return None
    across /= length
    step = STEP * facet.room
    y = facet.point + step * facet.along
    room = min(INSIDE * _room(space, layers, y, across), SHORT * float(size))
    if room < 1e-7 * size:
        return None
    # the hyperplane lies at most this far from y
    height = step * abs(float(unit @ facet.along))
    if LARGEST * height > room * length:
        step *= room * length / (LARGEST * height)
        y = facet.point + step * facet.along
    if step < 1e-8 * size:
        return None
    return y - room * across, y + room * across


def _room(space: QuerySpace, layers: KnownLayers, y: Array, across: Array) -> float:
    """How far one can go from y both ways before a unit of the known layers switches."""
    room, a, jacobian = np.inf, y, np.eye(len(y))
    for weight, bias, linear in layers.stack:
        z, slope = weight @ a + bias, weight @ jacobian
        pace = np.abs(slope @ across)
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = np.where(linear | (pace == 0), np.inf, np.abs(z) / pace)
        room = min(room, float(reach.min()))
        on = (z > 0) | linear
        a, jacobian = np.where(on, z, 0), slope * on[:, None]
    if space.positive:
        room = min(room, float((y / np.maximum(np.abs(across), np.finfo(float).tiny)).min()))
    return min(room, float(np.linalg.norm(y)))


def _kink(normal: Array, facet: Facet, ends: Array, gradient: Array) -> tuple[Array, Array] | None:
    """The kink between two ends and its normal at the scale of ``normal``; None if it is another neuron's."""
    jump = gradient[1] - gradient[0]  # [k, d]
    size = np.linalg.norm(jump)
    if size <= 1e-9 * np.linalg.norm(gradient):
        return None
    unit, _ = normals(gradient[:1], gradient[1:])
    plane = np.stack([normal, facet.normal], axis=1)
    share, _, rank, _ = np.linalg.lstsq(plane, unit[0], rcond=1e-9)
    if rank < 2 or np.linalg.norm(plane @ share - unit[0]) > SAME_NEURON or abs(share[0]) < 1e-6:
        return None
    if np.linalg.norm(jump - np.outer(jump @ unit[0], unit[0])) > SAME_NEURON * size:
        return None  # several neurons
    here = normal + share[1] / share[0] * facet.normal
    heights = (ends - facet.point) @ here
    if heights[0] * heights[1] >= 0:
        return None
    return ends[0] + heights[0] / (heights[0] - heights[1]) * (ends[1] - ends[0]), here
