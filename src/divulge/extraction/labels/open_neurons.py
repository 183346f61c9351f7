"""Neurons that bend the boundary between one pair of facets only.

The two facets leave one number of such a neuron open, r in w = r n2 - n1, and no corner elsewhere gives it. Boundary
points beyond other neurons do. Where it is known on which side of the neuron each point lies, the logits are linear in
n1 and n2 of every such neuron, and r is the ratio of their weights. All of them are solved for together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.output_layer import equations, orientations
from divulge.extraction.labels.pencils import Neuron, Pencil, Sighting, settle
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Tolerances

ROUNDS = 5
"""How often the sides of the points are found anew with the numbers solved for."""
INDEPENDENT = 1e-9
"""Smallest singular value of linear parts that are kept, relative to the largest."""
EXPLAINED = 1e-6
"""Largest singular value, relative to the largest of all, of equations that have a solution."""
DETERMINED = 1e-4
"""Smallest singular value, in the same measure, of those that have one only."""
RATIOS = np.geomspace(1e-2, 1e2, 41)
"""Slopes on one side of such a neuron, relative to those on the other, among which one is chosen."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known beside the open neurons: the other neurons, and boundary points."""

    W: Array  # [h, d], turned to the side on which each neuron is on
    b: Array  # [h]
    known: Array  # [h], whether that side is known
    points: Array  # [n, d]
    pairs: Array  # [n, 2]
    classes: int
    tolerances: Tolerances

    @staticmethod
    def of(W: Array, b: Array, survey: Survey) -> Evidence:
        """The neurons found [h, d] and [h], turned where their side is known, and all boundary points."""
        turn = orientations(W, b, survey.facets, survey.tolerances)
        side = np.where(turn != 0, turn, 1.0)
        points, pairs = survey.known_points()
        return Evidence(side[:, None] * W, side * b, turn != 0, points, pairs, survey.classes, survey.tolerances)


def solved_members(pencils: Sequence[Pencil], ratios: Sequence[float], evidence: Evidence) -> list[Neuron] | None:
    """The neurons of these pencils, from ratios that cross no edge; None where the points do not tell them all."""
    spread, found = evidence.tolerances.spread, np.array(ratios)
    for _ in range(ROUNDS):
        members = [p.members(found[i : i + 1], spread)[0] for i, p in enumerate(pencils)]
        weights = _weights(pencils, members, evidence)
        if weights is None:
            return None
        solved = np.array([_ratio(weights[:, 2 * i : 2 * i + 2]) for i in range(len(pencils))])
        if not (solved > 0).all():
            return None
        if np.allclose(solved, found, rtol=evidence.tolerances.loose):
            return members
        found = solved
    return None


def _weights(pencils: Sequence[Pencil], members: Sequence[Neuron], evidence: Evidence) -> Array | None:
    """Of n1 and n2 of each pencil on one side of its neuron [k - 1, 2 pencils]; None if there are several, or none."""
    points, spread = evidence.points, evidence.tolerances.spread
    z, one = points @ evidence.W.T + evidence.b, np.ones((len(points), 1))
    rows = np.concatenate([points / spread, one], axis=1)
    heights = [rows @ (p.facets @ p.basis).T for p in pencils]
    on = [(points @ n.w + n.b > 0)[:, None] * height for n, height in zip(members, heights, strict=True)]
    linear, size, _ = np.linalg.svd(np.concatenate([z[:, ~evidence.known], one, *heights], axis=1), full_matrices=False)
    features = np.concatenate([np.maximum(z, 0), linear[:, size > INDEPENDENT * size[0]], *on], axis=1)
    found = equations(features, evidence.pairs, evidence.classes)
    size = np.linalg.norm(found, axis=0)
    size[size == 0] = 1
    _, singular, vt = np.linalg.svd(found / size, full_matrices=False)
    if len(singular) < len(size) or singular[-1] > EXPLAINED * singular[0] or singular[-2] < DETERMINED * singular[0]:
        return None
    return np.asarray((vt[-1] / size).reshape(evidence.classes - 1, -1)[:, -2 * len(pencils) :])


def _ratio(weights: Array) -> float:
    """r, from the weights of n1 and n2 in each logit [k - 1, 2]; negative where they tell none."""
    one, two = np.linalg.svd(weights)[2][0]
    return float(-two / one) if one else -1.0


def uncrossed(pencil: Pencil, survey: Survey) -> float | None:
    """The middle one of the longest run of slopes whose hyperplanes no edge crosses; None if there is none."""
    crossed = survey.crossed(pencil.members(RATIOS, survey.tolerances.spread))
    runs = np.split(np.arange(len(RATIOS)), np.nonzero(np.diff(crossed))[0] + 1)
    longest = max((run for run in runs if not crossed[int(run[0])]), key=len, default=None)
    return None if longest is None else float(RATIOS[longest[len(longest) // 2]])


def likeliest(
    pencils: Sequence[Pencil], corners: Sequence[Sighting], survey: Survey
) -> tuple[Pencil, Neuron, list[Sighting]] | None:
    """The pencil and its neuron on which most corners off its ridge agree, be it a single one, and which corners."""
    t = survey.tolerances
    found = []
    for pencil in pencils:
        elsewhere = [c for c in corners if not pencil.ridge(c, t.spread)]
        best = settle(pencil, elsewhere, t, 1, by_chance=math.inf) if elsewhere else None
        if best is not None and not survey.crossed([best[0]])[0]:
            found.append((pencil, best[0], [elsewhere[i] for i in best[1]]))
    return max(found, key=lambda f: (len(f[2]), -f[1].error), default=None)
