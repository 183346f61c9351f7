"""A neuron's hyperplane from two facets that meet at a corner, and corners elsewhere.

Two facets that meet where a neuron switches differ by a multiple of the neuron's own hyperplane. They leave one number
of it open: w = r n2 - n1 with r > 0, a pencil of hyperplanes. Every corner of the same neuron elsewhere gives that
number. Corners of other neurons give other numbers, so the neuron is where several corners agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.special

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.polygon import Corner, Slice
from divulge.extraction.labels.tolerances import Tolerances

WINDOW = 10.0
"""Angles agree if they differ by no more than this many times their errors."""
FAINTEST = 1e-3
"""Pencils of a coarse target that are less precise than this do not tell a neuron."""
BESIDE_FACET, SAME_PLANE = 0.02, 1e-3
"""A neuron's hyperplane, of a coarse target, is at least so far from the facets of its pencil; and pencils nearer to
each other than this, as cosines, are of the same facets."""
BY_CHANCE = 1e-4
"""Corners agree on a neuron if fewer such agreements than this are to be expected among random angles."""
APART = 1e-4
"""Corners nearer to each other than this, in spreads, are one: where few neurons below are on, slices that have
nothing else in common meet in the same point of their outputs."""


class Sighting(Protocol):
    """A point on a neuron's hyperplane."""

    neuron: int | None
    """Which neuron, once that is known."""

    @property
    def x(self) -> Array: ...

    @property
    def error(self) -> float: ...

    @property
    def slice(self) -> Slice: ...


@dataclass(frozen=True)
class Neuron:
    """The hyperplane w . x + b = 0 of a hidden neuron, w of unit length."""

    w: Array
    b: float
    error: float
    """Angle by which it may be off."""

    @staticmethod
    def of(row: Array, spread: float, error: float) -> Neuron:
        """From a homogeneous row, for (x / spread, 1)."""
        w, b = row[:-1] / spread, float(row[-1])
        length = float(np.linalg.norm(w))
        return Neuron(w / length, b / length, error)

    def homogeneous(self, spread: float) -> Array:
        """(w spread, b) at unit length."""
        row = np.append(self.w * spread, self.b)
        return np.asarray(row / np.linalg.norm(row))


@dataclass(frozen=True, eq=False)
class Pencil:
    """The hyperplanes spanned by the two facets at a corner."""

    corner: Corner
    basis: Array  # [2, d + 1] orthonormal
    error: float
    facets: Array  # [2, 2] the facets in that basis
    slices: int = 0
    """How many slices there were when it was found."""

    @staticmethod
    def of(corner: Corner, spread: float, slices: int) -> Pencil:
        """Of a corner both of whose facets are known, found after so many slices."""
        one, two = corner.before.facet, corner.after.facet
        assert one is not None
        assert two is not None
        rows = np.stack([one.homogeneous(spread), two.homogeneous(spread)])
        cosine = float(rows[0] @ rows[1])
        sine = float(np.linalg.norm(rows[1] - rows[0])) if cosine > 0 else math.sqrt(max(1e-30, 1 - cosine**2))
        basis = np.linalg.qr(np.stack([rows[0], rows[1] - rows[0]]).T)[0].T
        error = math.hypot(one.error, two.error) / max(sine, 1e-12)
        return Pencil(corner, basis, error, rows @ basis.T, slices)

    def allows(self, angles: Array) -> Array:
        """Whether the hyperplanes at these angles of the basis may be the neuron's: r > 0, and no facet itself."""
        rows = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        parts = rows @ np.linalg.inv(self.facets)
        size = np.abs(parts)
        return np.asarray((parts[..., 0] * parts[..., 1] < 0) & (size.min(axis=-1) > 1e-6 * size.max(axis=-1)))

    def clear_of_facets(self, row: Array) -> bool:
        """Whether a hyperplane of the pencil, as a homogeneous row, lies clearly between its facets, r > 0."""
        c = self.basis @ row
        c = c / np.linalg.norm(c)
        beside = np.abs(self.facets[:, 0] * c[1] - self.facets[:, 1] * c[0])
        return bool(self.allows(np.array(math.atan2(c[1], c[0]))) and beside.min() > max(BESIDE_FACET, 3 * self.error))

    def members(self, ratios: Array, spread: float) -> list[Neuron]:
        """The hyperplanes that these ratios of the slopes on the two sides would make."""
        rows = [ratio * self.facets[1] - self.facets[0] for ratio in ratios]
        return [Neuron.of(row / np.linalg.norm(row) @ self.basis, spread, self.error) for row in rows]

    def ridge(self, corner: Sighting, spread: float) -> bool:
        """Whether a corner is on both facets, where it tells nothing of the open number."""
        row = np.append(corner.x / spread, 1.0)
        reach = float(np.linalg.norm(self.basis @ row))
        return reach < WINDOW * (self.error * float(np.linalg.norm(row)) + corner.error / spread) + 1e-9

    def holds(self, rows: Array, loose: float) -> bool:
        """Whether one of these homogeneous rows [n, d + 1] is in the pencil."""
        away = np.linalg.norm(rows - rows @ self.basis.T @ self.basis, axis=1)
        return bool((away < 10 * (loose + self.error)).any())

    def angles(self, corners: Sequence[Sighting], spread: float) -> tuple[Array, Array, Array]:
        """For each corner the angle of the hyperplane through it, the error of the angle, and whether it is usable."""
        rows = np.concatenate([np.stack([c.x for c in corners]) / spread, np.ones((len(corners), 1))], axis=1)
        size = np.linalg.norm(rows, axis=1)
        g = rows @ self.basis.T
        reach = np.linalg.norm(g, axis=1)
        own = np.array([c.error for c in corners]) / spread
        error = (self.error * size + own) / np.maximum(reach, 1e-300)
        angles = np.arctan2(-g[:, 0], g[:, 1])
        return angles % math.pi, error, (reach > 1e-6 * size) & self.allows(angles)


def settle(
    pencil: Pencil, corners: Sequence[Sighting], tolerances: Tolerances, least: int, by_chance: float = BY_CHANCE
) -> tuple[Neuron, Array] | None:
    """The hyperplane on which more corners lie than by chance, and which corners; None if there is none."""
    angles, error, usable = pencil.angles(corners, tolerances.spread)
    index = np.nonzero(usable & (error < 100 * tolerances.loose))[0]
    if len(index) < least:
        return None
    angles, error = angles[index], error[index]
    both = error[:, None] + error
    window = np.minimum(np.maximum(tolerances.loose, WINDOW / 3 * both), WINDOW * both + 1e-11)
    inside = np.abs(_wrapped(angles[:, None] - angles)) < window
    counts = inside.sum(axis=1)
    chance = _chance(len(index), counts, np.where(inside, window, 0.0).max(axis=1))
    centre = int(chance.argmin())
    if counts[centre] < least or chance[centre] > by_chance:
        return None
    members = inside[centre]
    if _places([corners[i] for i in index[members]], tolerances.spread) < least:
        return None
    weights = 1 / np.maximum(error[members], 1e-16) ** 2
    angle = angles[centre] + float((_wrapped(angles[members] - angles[centre]) * weights).sum() / weights.sum())
    row = math.cos(angle) * pencil.basis[0] + math.sin(angle) * pencil.basis[1]
    return Neuron.of(row, tolerances.spread, 1 / math.sqrt(weights.sum())), index[members]


def _places(corners: Sequence[Sighting], spread: float) -> int:
    """How many of the corners are in different places."""
    found: list[Array] = []
    for corner in corners:
        if all(np.linalg.norm(corner.x - other) > APART * spread for other in found):
            found.append(corner.x)
    return len(found)


def _chance(corners: int, counts: Array, window: Array) -> Array:
    """How many agreements of so many corners within such windows random angles would show."""
    others = counts - 1
    return np.asarray(corners * (corners * 2 * window / math.pi) ** others / scipy.special.factorial(others))


def shared(pencil: Pencil, others: Sequence[Pencil], tolerances: Tolerances) -> tuple[Neuron, Pencil] | None:
    """The hyperplane that this pencil has in common with another one, and which: one neuron, met twice.

    Of a coarse target that alone tells a neuron, because pencils of different neurons hardly ever come near to each
    other in many dimensions. It must then be clearly none of the facets, which two pencils may share as well.
    """
    coarse = tolerances.coarse
    found: list[tuple[float, Neuron, Pencil]] = []
    for other in others:
        u, cosines, _ = np.linalg.svd(pencil.basis @ other.basis.T)
        row = u[:, 0] @ pencil.basis
        away = float(np.linalg.norm(row - (other.basis @ row) @ other.basis))
        if away > _meeting(pencil, other, tolerances) or cosines[1] > 1 - (SAME_PLANE if coarse else 1e-6):
            continue
        if not pencil.allows(np.array(math.atan2(u[1, 0], u[0, 0]))):
            continue
        if coarse and not all(p.clear_of_facets(row) for p in (pencil, other)):
            continue
        error = max(away, pencil.error) if coarse else max(away, 1e-14)
        found.append((away, Neuron.of(row, tolerances.spread, error), other))
    return min(found, key=lambda f: f[0])[1:] if found else None


def _meeting(one: Pencil, two: Pencil, tolerances: Tolerances) -> float:
    """How far two pencils of one neuron may be apart."""
    error = one.error + two.error
    if not tolerances.coarse:
        return min(0.1 * tolerances.loose, WINDOW * error + 1e-12)
    return WINDOW / 3 * error if max(one.error, two.error) < FAINTEST else 0.0


def distinct(pencils: Sequence[Pencil]) -> list[Pencil]:
    """One pencil of each pair of facets."""
    found: list[Pencil] = []
    for pencil in pencils:
        if all(abs(np.linalg.det(pencil.basis @ other.basis.T)) < 1 - 1e-6 for other in found):
            found.append(pencil)
    return found


def _wrapped(angles: Array) -> Array:
    """Differences of angles of lines, in [-pi/2, pi/2)."""
    return np.asarray((angles + math.pi / 2) % math.pi - math.pi / 2)
