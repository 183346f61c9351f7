"""All boundary points that were measured, with the facets that some of them belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.facets import Facet
from divulge.extraction.labels.network import LabelNetwork


@dataclass(frozen=True, eq=False)
class BoundaryPoints:
    """Boundary points in standardised coordinates."""

    points: Array  # [n, d]
    pairs: Array  # [n, 2]
    facet: Array  # [n], which of the facets a point was measured for; -1 where none
    facets: Sequence[Facet]

    @property
    def first(self) -> Array:
        """A point of each facet [f]."""
        return np.asarray(np.searchsorted(np.maximum.accumulate(self.facet), np.arange(len(self.facets))))

    @property
    def normals(self) -> Array:
        """Of the facets [f, d]."""
        return np.array([f.normal for f in self.facets])

    def only(self, keep: Array) -> BoundaryPoints:
        """These points; facets that lose one are no facets any more."""
        broken = np.isin(self.facet, self.facet[~keep])
        return BoundaryPoints(self.points[keep], self.pairs[keep], np.where(broken, -1, self.facet)[keep], self.facets)

    def whole_facets(self, network: LabelNetwork) -> tuple[Array, Array]:
        """The facets on which the network is linear, and which points are of no such facet [n]."""
        base = np.array([f.base for f in self.facets]).reshape(-1, self.points.shape[1])
        of_facet = self.facet >= 0
        on, there = (x @ network.W.T + network.b > 0 for x in (base, self.points[of_facet]))
        bent = self.facet[of_facet][(there != on[self.facet[of_facet]]).any(axis=1)]
        whole = np.setdiff1d(self.facet[of_facet], bent)
        return whole, ~np.isin(self.facet, whole)
