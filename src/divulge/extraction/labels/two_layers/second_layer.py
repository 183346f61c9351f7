"""The second hidden layer, from the corners and facets of the boundary in psi.

Two facets of psi that meet at a corner span a pencil, and corners elsewhere settle it, as in the first layer. A facet
past a known neuron follows from one point. With few neurons left, random sets of corners are of one neuron often
enough, and its row is their null vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.polygon import Corner
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.two_layers.features import FirstFeatures, Joined, Row
from divulge.extraction.labels.two_layers.first_layer import FirstLayer

ON_ROW = 1e-7
"""Largest product of a corner and a row on which it lies, both at unit length."""
PRECISE = 1e-9
LARGE = 1e-4
VOTES = 3
"""Corners that must agree on a row, or on an entry of it."""
MISSING = 3
"""Entries of a row that may be unknown when it is found."""
SETS = 1500
"""Random sets of corners that are tried for a common null vector."""

ROUNDS = 400


@dataclass(eq=False)
class SecondLayer:
    """Neurons of the second layer found so far."""

    survey: Survey
    first: FirstLayer
    features: FirstFeatures
    neurons: list[Row] = field(default_factory=list)
    open_corners: int = 0
    """Corners of neither layer."""

    def run(self, most_slices: int) -> None:
        """Find neurons until every corner is one of a known neuron, or the slices are used up."""
        for _ in range(ROUNDS):
            joined = Joined(self.survey, self.features)
            corners = [c for c in self.survey.corners() if c.neuron is None]
            if not corners:
                self.open_corners = 0
                return
            P = self.features(np.stack([c.x for c in corners]))
            self._fill(P)
            owner = [self.owner(p) for p in P]
            self._refit(P, owner)
            self._past_known(joined, corners, owner)
            free = [i for i, k in enumerate(owner) if k is None]
            self.open_corners = len(free)
            if self._from_pencils(joined, corners, P, free) or self._from_sets(P[free]):
                continue
            if not free or len(self.survey.slices) >= most_slices:
                return
            self._ask_more(joined, [corners[i] for i in free])

    def owner(self, p: Array) -> int | None:
        """The neuron on whose row a corner lies."""
        for k, row in enumerate(self.neurons):
            if (p[~row.known] == 0).all() and abs(float(row.entries @ p)) < ON_ROW:
                return k
        return None

    # -- without labels -----------------------------------------------------------------------------------------------

    def _fill(self, P: Array) -> None:
        """Entries of neurons that were not on yet: corners with just one such neuron on must agree on it."""
        for k, row in enumerate(self.neurons):
            for j in np.nonzero(~row.known)[0]:
                others = ~row.known
                others[j] = False
                use = [p for p in P if p[j] > LARGE and (p[others] == 0).all() and self.owner(p) is None]
                if len(use) < VOTES:
                    continue
                value = np.array([-(row.entries @ p) / p[j] for p in use])
                votes = (np.abs(value[:, None] - value) < ON_ROW * (1 + np.abs(value))).sum(axis=1)
                best = int(votes.argmax())
                if votes[best] >= VOTES:
                    entries, known = row.entries.copy(), row.known.copy()
                    entries[j], known[j] = value[best], True
                    row = self.neurons[k] = Row(entries / np.linalg.norm(entries), known)

    def _refit(self, P: Array, owner: list[int | None]) -> None:
        """Each neuron's row once more, from all of its corners."""
        for k, row in enumerate(self.neurons):
            mine = P[[i for i, o in enumerate(owner) if o == k]]
            if len(mine) <= row.known.sum() + 2 or not ((mine.max(axis=0) > 0) | ~row.known).all():
                continue
            _, singular, vt = np.linalg.svd(mine[:, row.known], full_matrices=False)
            entries = np.zeros(len(row.known))
            entries[row.known] = vt[-1]
            if singular[-1] < 1e-3 * singular[-2] and abs(float(entries @ row.entries)) > 1 - PRECISE:
                self.neurons[k] = Row(entries, row.known)

    def _past_known(self, joined: Joined, corners: list[Corner], owner: list[int | None]) -> None:
        """Facets for nothing: past a known neuron one point gives the next, and the others check it."""
        again = True
        while again:
            again = False
            for corner, k in zip(corners, owner, strict=True):
                if k is None:
                    continue
                sides = [joined.where[id(edge)] for edge in (corner.before, corner.after)]
                for i, j in (sides, sides[::-1]):
                    if i in joined.facets and j not in joined.facets:
                        found = _beyond(joined.facets[i], self.neurons[k], joined.points[j])
                        if found is not None:
                            joined.facets[j] = found
                            again = True

    def _from_pencils(self, joined: Joined, corners: list[Corner], P: Array, free: list[int]) -> bool:
        """Whether the two facets at a corner, and corners elsewhere, gave a neuron."""
        for i in free:
            sides = [joined.where[id(edge)] for edge in (corners[i].before, corners[i].after)]
            if sides[0] == sides[1] or not all(side in joined.facets for side in sides):
                continue
            one, two = (joined.facets[side] for side in sides)
            known = one.known & two.known
            rest = P[[k for k in free if k != i and (P[k][~known] == 0).all()]]
            if known.sum() < len(known) - MISSING or len(rest) < VOTES:
                continue
            row = _settled(np.where(known, one.entries, 0.0), np.where(known, two.entries, 0.0), rest)
            if row is not None:
                self.neurons.append(Row(row, known))
                return True
        return False

    def _from_sets(self, P: Array) -> bool:
        """Whether random sets of corners gave a neuron on which nearly all of them lie."""
        n, m = P.shape
        if n <= m + 4:
            return False
        random = self.survey.random
        picks = np.stack([random.choice(n, m - 1, replace=False) for _ in range(SETS)])
        _, singular, vt = np.linalg.svd(P[picks])
        rows = vt[:, -1]
        fits = np.abs(rows @ P.T) < PRECISE
        wide = (np.abs(rows) > 1e-6).sum(axis=1) > 3
        votes = np.where(wide & (singular[:, -1] > 1e-6), fits.sum(axis=1), 0)
        best = int(votes.argmax())
        if votes[best] < max(m + 4, 0.9 * n):  # fewer may lie in a subspace by chance, of neurons that are off
            return False
        mine = P[fits[best]]
        known = mine.max(axis=0) > 0
        row = np.zeros(m)
        row[known] = np.linalg.svd(mine[:, known])[2][-1]
        if np.abs(mine @ row).max() > PRECISE or (~known).sum() > 2:
            return False
        self.neurons.append(Row(row, known))
        return True

    # -- with labels --------------------------------------------------------------------------------------------------

    def _ask_more(self, joined: Joined, corners: list[Corner]) -> None:
        """A slice through the group beside an open corner that is nearest to being a facet; at times a random one."""
        survey = self.survey
        best: tuple[tuple[bool, int, bool, int], int] | None = None
        for corner in corners:
            for edge, over in ((corner.before, corner.after), (corner.after, corner.before)):
                i = joined.where[id(edge)]
                if i in joined.facets and joined.facets[i].known.all():
                    continue
                group = joined.groups[i]
                on = int((joined.points[i].max(axis=0, initial=0.0) > 0).sum())
                measured = any(e.facet is not None for e in group)
                score = (joined.where[id(over)] in joined.facets, on, measured, len(group))
                if best is None or score > best[0]:
                    best = (score, i)
        if best is None or survey.random.random() < 0.2 or not self._through(joined, best[1]):
            pair = survey.different()
            if pair is not None:
                survey.walk([survey.between(*pair)])
        self.first.update()

    def _through(self, joined: Joined, i: int) -> bool:
        """Whether a slice could be walked through a facet of the group."""
        survey, group = self.survey, joined.groups[i]
        spread = survey.tolerances.spread
        facets = [e for e in group if e.facet is not None]
        if not facets:
            longest = max(group, key=lambda e: e.extent(spread)[1])
            survey.measure([longest])
            facets = [longest] if longest.facet is not None else []
        if not facets:
            return False
        edge = facets[int(survey.random.integers(len(facets)))]
        assert edge.facet is not None
        step = edge.facet.step or 0.1 * min(edge.extent(spread)[1], spread)
        survey.walk([survey.through(edge.facet, step)])
        return True


def _beyond(facet: Row, neuron: Row, points: Array) -> Row | None:
    """The facet past a neuron: a multiple of the neuron's row is added."""
    known = facet.known & neuron.known
    X = points[(points[:, ~known] == 0).all(axis=1)]
    if len(X) < 2:
        return None
    lever = X @ neuron.entries
    k = int(np.abs(lever).argmax())
    row = np.where(known, facet.entries - float(X[k] @ facet.entries) / lever[k] * neuron.entries, 0.0)
    row /= np.linalg.norm(row)
    return Row(row, known) if np.abs(X @ row).max() < 10 * PRECISE else None


def _settled(one: Array, two: Array, corners: Array) -> Array | None:
    """The row of the pencil of two facets on which at least three corners agree."""
    one, two = one / np.linalg.norm(one), two / np.linalg.norm(two)
    basis = np.linalg.qr(np.stack([one, two]).T)[0].T
    g = corners @ basis.T
    g = g[np.linalg.norm(g, axis=1) > LARGE]
    if len(g) < VOTES:
        return None
    angle = np.arctan2(-g[:, 0], g[:, 1]) % math.pi
    near = np.abs((angle[:, None] - angle + math.pi / 2) % math.pi - math.pi / 2) < ON_ROW
    rows = np.stack([np.cos(angle), np.sin(angle)], axis=1) @ basis
    own = np.maximum(np.abs(rows @ one), np.abs(rows @ two)) > 1 - 1e-10  # the facets themselves
    votes = np.where(own, 0, near.sum(axis=1))
    best = int(votes.argmax())
    return np.asarray(rows[best]) if votes[best] >= VOTES else None
