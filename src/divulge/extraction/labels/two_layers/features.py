"""The boundary in the features of the first hidden layer, in which neurons of the second are flat.

With the first layer known, psi(x) = [relu(z), 1] makes every neuron of the second layer a hyperplane again. Edges that
are joined by corners of the first layer form one facet in psi: the null vector of their points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.polygon import Corner, Edge
from divulge.extraction.labels.survey import Survey

FLAT = 1e-6
"""Largest ratio of the last two singular values of a facet's points."""
SPREAD_OUT = 1e-5
"""Smallest ratio of the second last singular value to the first."""


@dataclass(frozen=True, eq=False)
class Row:
    """A hyperplane in psi, and which of its entries are known: those of first-layer neurons that were on."""

    entries: Array  # [h1 + 1]
    known: Array  # [h1 + 1] bool


@dataclass(frozen=True, eq=False)
class FirstFeatures:
    """psi of the first layer: W, b oriented so that relu keeps what the boundary depends on."""

    W: Array  # [h1, d]
    b: Array  # [h1]

    def __call__(self, x: Array) -> Array:
        """[n, h1 + 1], each row at unit length."""
        z = np.maximum(np.atleast_2d(x) @ self.W.T + self.b, 0)
        rows = np.concatenate([z, np.ones((len(z), 1))], axis=1)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


class Joined:
    """The edges of a survey in groups that corners of the first layer, or a shared facet, join."""

    def __init__(self, survey: Survey, features: FirstFeatures) -> None:
        self.groups = _groups(survey.edges(), survey.corners())
        self.where = {id(edge): i for i, group in enumerate(self.groups) for edge in group}
        self.points = [_points(group, features) for group in self.groups]
        self.facets: dict[int, Row] = {}
        for i, points in enumerate(self.points):
            facet = flat(points)
            if facet is not None:
                self.facets[i] = facet


def _groups(edges: Sequence[Edge], corners: Sequence[Corner]) -> list[list[Edge]]:
    parent = {id(edge): id(edge) for edge in edges}

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for corner in corners:
        if corner.neuron is not None and id(corner.before) in parent and id(corner.after) in parent:
            parent[root(id(corner.before))] = root(id(corner.after))
    first: dict[int, int] = {}
    for edge in edges:
        if edge.facet is not None:
            parent[root(id(edge))] = root(first.setdefault(id(edge.facet), id(edge)))
    groups: dict[int, list[Edge]] = {}
    for edge in edges:
        groups.setdefault(root(id(edge)), []).append(edge)
    return list(groups.values())


def _points(group: Sequence[Edge], features: FirstFeatures) -> Array:
    """The boundary points of a group that were asked, in psi."""
    rows = [edge.asked_points() for edge in group]
    rows += [edge.facet.points for edge in group if edge.facet is not None and edge.facet.measured]
    return features(np.concatenate(rows))


def flat(points: Array) -> Row | None:
    """The hyperplane of points in psi; None where they do not determine one."""
    known = points.max(axis=0, initial=0.0) > 0
    if len(points) <= known.sum() or known.sum() < 3:
        return None
    _, singular, vt = np.linalg.svd(points[:, known], full_matrices=False)
    if singular[-1] > FLAT * singular[-2] or singular[-2] < SPREAD_OUT * singular[0]:
        return None
    entries = np.zeros(points.shape[1])
    entries[known] = vt[-1]
    return Row(entries, known)
