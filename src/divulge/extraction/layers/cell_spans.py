"""Active sides of a layer's neurons, and neurons that are always on, from the gradients inside single cells.

In a cell of the known layers and of the layer's hyperplanes the Jacobian J of the activations below is constant, and a
gradient is J^T (sum c_j w_j + sum c_v v), over the neurons j that are on in the cell and those v that are always on.
The coefficients change where deeper neurons switch. So gradients asked at several points of one cell span the space of
J^T w_j and J^T v, and no more: a neuron is on if and only if its own J^T w_j lies in that span. Where the span has more
dimensions than neurons in it, the others belong to neurons that have no kink, because they are on at every sample.
One such neuron is solved for: what the neurons that are on leave of each gradient is parallel to what they leave of
J^T v. Its bias is part of the next layer's. ``linear_units.py`` does the same without queries where all units below are
on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.linear_units import LinearPart
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Survey

ROUNDS, CELLS = 4, 10
"""Rounds of queries, and cells that are asked in each."""
MORE_POINTS = 6
"""Points asked in a cell, beyond the dimensions that its gradients can have."""
INSET = 0.98
"""Steps end so far inside the cell, as a share of the way to its edge."""
MOVES = 6
"""Random steps between two points of a cell."""
FARTHEST = 30.0
"""Points lie at most so many times as far out as typical samples."""
SPARE = 2
"""Dimensions that the span must leave for a neuron not to lie in it by chance."""
RANK, INSIDE = 1e-8, 1e-6
"""Singular values below the first share are zero; rows that leave a span by less than the second lie in it."""
MOST_HIDDEN = 1
"""Most neurons of one layer that are always on."""
FEWEST_INSIDE = 2
"""Neurons that must lie in the span of a cell for it to count: none does while gradients span less than all of them."""
MOST_SAMPLES = 1500
CLEAR = 1e-6
"""The equations for a neuron that is always on have one solution if their smallest singular value is below this share
of the next, in at least ``MOST_AGREE`` of the samples."""
MOST_AGREE = 0.9
TRIMMED = 4
"""Fits, each without the samples that contradict the one before."""


@dataclass(frozen=True)
class _Cell:
    """A cell whose gradients leave part of their space out."""

    side: Array  # [neurons] signs of the pre-activations
    inside: Array  # [neurons] whether each neuron lies in the span
    rank: int  # of the span

    @property
    def more(self) -> int:
        """Dimensions of the span beyond the neurons in it."""
        return self.rank - int(self.inside.sum())


def sides_from_cells(
    survey: Survey, layers: KnownLayers, weight: Array, bias: Array, rng: np.random.Generator
) -> LinearPart | None:
    """The sides of neurons ``weight``, ``bias``, and the neurons of their layer that are always on; None if unclear."""
    asked: set[bytes] = set()
    sign = np.zeros(len(bias))
    for _ in range(ROUNDS):
        points = _points(survey, layers, weight, bias, sign, asked, rng)
        if not len(points):
            return None
        survey.add_points(points)
        cells = _cells(survey, layers, weight, bias, asked)
        found = _sides(cells, len(bias))
        if found is None:
            continue
        sign, hidden = found
        if (sign == 0).any():
            continue
        rows = _always_on(survey, layers, weight * sign[:, None], bias * sign, hidden, rng)
        if rows is not None:
            return LinearPart(rows, sign)
    return None


def _sides(cells: list[_Cell], neurons: int) -> tuple[Array, int] | None:
    """Signs [neurons], 0 where no cell tells, and how many neurons are always on; None if cells do not agree on it."""
    counts = np.array([cell.more for cell in cells if cell.inside.sum() >= FEWEST_INSIDE], int)
    if not len(counts) or not 0 <= counts.min() <= MOST_HIDDEN:
        return None
    hidden = int(counts.min())
    votes = np.zeros((2, neurons), bool)
    for cell in cells:
        if cell.more == hidden and cell.inside.sum() >= FEWEST_INSIDE:
            on = np.where(cell.inside, cell.side, -cell.side)
            votes[0] |= on > 0
            votes[1] |= on < 0
    return np.where(votes[0] == votes[1], 0.0, np.where(votes[0], 1.0, -1.0)), hidden


def _always_on(
    survey: Survey, layers: KnownLayers, weight: Array, bias: Array, hidden: int, rng: np.random.Generator
) -> Array | None:
    """The row [hidden, h] of the neuron that is always on, beside turned neurons; None if the samples do not tell it.

    What the neurons that are on leave of a gradient is parallel to what they leave of J^T v.
    """
    if not hidden:
        return np.zeros((0, layers.width))
    pick = rng.permutation(len(survey.data.Y))[:MOST_SAMPLES]
    activation, _, jacobian = layers.maps(survey.data.Y[pick])
    on = activation @ weight.T + bias > 0
    blocks = [
        _equations(slopes, rows, weight[active])
        for slopes, rows, active in zip(survey.data.gradient[pick], jacobian, on, strict=True)
    ]
    blocks = [block for block in blocks if len(block)]
    chosen = blocks
    for _ in range(TRIMMED):
        if not chosen:
            return None
        _, s, Vt = np.linalg.svd(np.concatenate([*chosen, np.zeros((layers.width, layers.width))]), full_matrices=False)
        off = np.array([np.linalg.norm(block @ Vt[-1]) for block in blocks])
        good = off <= max(CLEAR, 3 * float(np.median(off)))
        chosen = [block for block, agrees in zip(blocks, good.tolist(), strict=True) if agrees]
    return Vt[-1:] if s[-1] < CLEAR * s[-2] and good.mean() >= MOST_AGREE else None


def _equations(gradient: Array, jacobian: Array, active: Array) -> Array:
    """Equations [r, h] for the row v, zero if what gradients [k, d] leave beside the active rows is parallel to it."""
    _, s, visible = np.linalg.svd(jacobian, full_matrices=False)
    visible = visible[s > RANK * max(s[0], np.finfo(float).tiny)]
    own = active @ jacobian @ visible.T
    if len(visible) < len(own) + SPARE:
        return np.zeros((0, len(jacobian)))
    left = np.linalg.svd(own)[2][len(own) :] @ visible if len(own) else visible
    rest = gradient @ left.T  # [k, r]
    size = np.linalg.norm(rest, axis=1, keepdims=True)
    unit = rest[size[:, 0] > INSIDE * np.linalg.norm(gradient)]
    if not len(unit):
        return np.zeros((0, len(jacobian)))
    unit = np.linalg.svd(unit)[2][0]
    through = left @ jacobian.T
    return np.asarray((through - np.outer(unit, unit @ through)) / np.linalg.norm(through))


# -- cells ------------------------------------------------------------------------------------------------------------


def _patterns(layers: KnownLayers, weight: Array, bias: Array, Y: Array) -> list[bytes]:
    """Which units of all layers, and which sides of the neurons, each sample has: samples of one cell have the same."""
    parts = []
    for depth, (row, offset, linear) in enumerate([*layers.stack, (weight, bias, np.zeros(len(bias), bool))]):
        parts.append((layers.first(depth)(Y) @ row.T + offset > 0) | linear)
    return [row.tobytes() for row in np.concatenate(parts, axis=1)]


def _points(
    survey: Survey, layers: KnownLayers, weight: Array, bias: Array, sign: Array, asked: set[bytes],
    rng: np.random.Generator,
) -> Array:  # fmt: skip
    """Points of some further cells, those first in which most can be told; their patterns are noted as asked."""
    Y = survey.data.Y
    pattern = _patterns(layers, weight, bias, Y)
    before = layers(Y) @ weight.T + bias
    _, _, visible = layers.units(Y)
    on = np.where(sign == 0, 0.5, sign * before > 0).sum(axis=1)
    gradient = np.linalg.norm(survey.data.gradient, axis=(1, 2))
    score = visible - on + rng.random(len(Y)) - 1e3 * (gradient < 1e-6 * np.median(gradient))
    space, points = survey.space, []
    size = FARTHEST * float(np.median(np.linalg.norm(Y, axis=1)))
    for i in np.argsort(-score).tolist():
        if pattern[i] in asked or score[i] < SPARE:
            continue
        asked.add(pattern[i])
        points.append(_inside(space, layers, weight, bias, Y[i], int(visible[i]) + MORE_POINTS, size, rng))
        if len(points) == CELLS:
            break
    return np.concatenate([*points, np.zeros((0, space.dim))])


def _inside(
    space: QuerySpace, layers: KnownLayers, weight: Array, bias: Array, start: Array, count: int, size: float,
    rng: np.random.Generator,
) -> Array:  # fmt: skip
    """Random points [count, dim] of the cell of ``start``: hit and run within its hyperplanes."""
    slopes, offsets = [], []
    for depth, (row, offset, linear) in enumerate([*layers.stack, (weight, bias, np.zeros(len(bias), bool))]):
        a, _, jacobian = layers.first(depth).maps(start[None])
        before, slope = a[0] @ row.T + offset, row @ jacobian[0]
        side = np.sign(before)[~linear]
        slopes.append(side[:, None] * slope[~linear])
        offsets.append(side * (before - slope @ start)[~linear])
    if space.positive:
        slopes.append(np.eye(space.dim))
        offsets.append(np.zeros(space.dim))
    A, b = np.concatenate(slopes), np.concatenate(offsets)
    point, found = start, []
    for _ in range(count):
        for _ in range(MOVES):
            along = rng.normal(size=space.dim) * (np.abs(point) + 0.1 * np.abs(point).mean())
            room, pace = A @ point + b, A @ along
            with np.errstate(all="ignore"):
                reach = -room / pace
            farthest = 2 * size / float(np.linalg.norm(along))
            low = float(reach[pace > 0].max(initial=-farthest))
            high = float(reach[pace < 0].min(initial=farthest))
            move = point + rng.uniform(INSET * low, INSET * high) * along
            point = move if np.linalg.norm(move) < size else point
        found.append(point)
    return np.array(found)


def _cells(survey: Survey, layers: KnownLayers, weight: Array, bias: Array, asked: set[bytes]) -> list[_Cell]:
    """The cells that were asked, with all samples that lie in them, if their gradients leave enough out."""
    data = survey.data
    groups: dict[bytes, list[int]] = {}
    for i, pattern in enumerate(_patterns(layers, weight, bias, data.Y)):
        if pattern in asked:
            groups.setdefault(pattern, []).append(i)
    found = []
    for members in groups.values():
        a, _, jacobian = layers.maps(data.Y[members[:1]])
        cell = _cell(data.gradient[members], jacobian[0], weight, np.sign(a[0] @ weight.T + bias))
        if cell is not None:
            found.append(cell)
    return found


def _cell(gradient: Array, jacobian: Array, weight: Array, side: Array) -> _Cell | None:
    """What the gradients [n, k, d] of one cell tell; None if they span all that they can, or are not explained."""
    _, s, visible = np.linalg.svd(jacobian, full_matrices=False)
    visible = visible[s > RANK * s[0]]
    rows = gradient.reshape(-1, gradient.shape[2])
    size = np.linalg.norm(rows, axis=1)
    if not size.any():
        return None
    rows = rows[size > RANK * size.max()] / size[size > RANK * size.max(), None]
    short = rows @ visible.T
    if np.linalg.norm(rows - short @ visible, axis=1).max() > INSIDE:
        return None
    _, s, Vt = np.linalg.svd(short)
    rank = int((s > RANK * s[0]).sum())
    if rank > len(visible) - SPARE:
        return None
    left_out = Vt[rank:] @ visible @ jacobian.T  # [r, h]
    own = weight @ jacobian
    off = np.linalg.norm(weight @ left_out.T, axis=1)
    inside = off < INSIDE * np.maximum(np.linalg.norm(own, axis=1), np.finfo(float).tiny)
    return _Cell(side, inside & (np.linalg.norm(own, axis=1) > INSIDE), rank)
