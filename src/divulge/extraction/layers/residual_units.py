"""Neurons of the last layer that almost never switch, from samples that the copy contradicts.

Where a single neuron w, b of the last layer is missing, the target minus the copy is v a + beta with v = c w and
beta = c b, where a are the activations of the layer below. Its value and gradient at a sample are linear equations for
(v, beta), the same ones at every sample where the neuron is on: unlike kinks (``partial_rows.py``), which tell rows up
to a scale of their own, samples in which few units are on add up. Samples of one neuron are told by equations that
follow from those of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.output_fit import OutputFit
from divulge.extraction.layers.survey import Survey

MOST_SAMPLES, A_PATTERN = 80, 3
"""Contradicting samples that are looked at, those in which most units are on first, and how many have the same on."""
MOST_UNITS = 6
WRONG, WRONG_ERRORS = 1e-7, 1e4
"""Residuals above this share of the gradients' size, and so many times their error, contradict the copy."""
RANK = 1e-9
TOLD = 1e-6
"""Directions in which all equations of a group are smaller than this share of the largest are open."""
CONSISTENT = 1e-5
"""Equations agree if they leave less than this share of their right sides."""
FREE = 1e-7
"""Entries that directions of unit length change by less are not changed."""
CONFIRMED = 2
"""Equations of a sample that must follow from those of the group it joins."""

LARGEST_ENTRY, MOST_ROWS = 3.0, 2_000
"""How large an entry may be that no sample tells, as a multiple of the largest of its row, and rows that bound it."""


@dataclass(frozen=True)
class ResidualUnit:
    """relu(row a + bias) with its weights in the output, and what the samples do not tell of the row and bias."""

    row: Array  # [h]
    bias: float
    output: Array  # [k]
    free: Array  # [q, h + 1] directions of (row, bias) that the samples leave open

    @property
    def known(self) -> Array:
        """Entries of the row that the samples tell [h]."""
        return np.asarray(np.abs(self.free[:, :-1]).max(axis=0, initial=0.0) < FREE)


def residual_units(survey: Survey, layers: KnownLayers, output: OutputFit) -> list[ResidualUnit]:
    """Units that explain samples which contradict the copy; each on a group of at least two of them."""
    below = layers.first(len(layers) - 1)
    equations = _equations(survey, layers, below, output)
    found: list[ResidualUnit] = []
    while len(equations) > 1 and len(found) < MOST_UNITS:
        group = _group(equations)
        if len(group) > 1:
            unit = _unit([equations[i] for i in group])
            if unit is not None:
                found.append(unit)
        equations = [equation for i, equation in enumerate(equations) if i not in group]
    return found


@dataclass(frozen=True)
class Explained:
    """Rows that the copy explains without further units: activations [n, h], and how far it may be off there [n]."""

    activation: Array
    room: Array


def largest(unit: ResidualUnit, goal: Array, explained: Explained) -> Array | None:
    """Row and bias [h + 1] that samples allow, with the largest ``goal`` @ (row, bias), off at explained rows.

    A neuron that is seldom on is on where certain units below are off: without their entries it would be on at many
    rows more. None if there is no such row and bias: what the samples show is no neuron of this layer.
    """
    own = np.append(unit.row, unit.bias)
    rows = np.c_[explained.activation, np.ones(len(explained.room))]
    slopes, height = rows @ unit.free.T, rows @ own
    off = 2 * explained.room / float(np.abs(unit.output).max())  # what counts as off
    settled = np.abs(slopes).max(axis=1, initial=0.0) <= FREE * np.linalg.norm(rows, axis=1)
    if (height > off)[settled].any():
        return None
    if not len(unit.free):
        return own
    telling = np.flatnonzero(~settled)
    order = telling[np.argsort(-height[telling] / np.linalg.norm(slopes[telling], axis=1))[:MOST_ROWS]]
    most = LARGEST_ENTRY * float(np.abs(unit.row).max())
    sides = np.concatenate([unit.free.T, -unit.free.T])  # no entry is larger than most, and no bias than its share
    room = np.concatenate([most - own, most + own])
    solved = linprog(
        -unit.free @ goal, A_ub=np.concatenate([slopes[order], sides]),
        b_ub=np.concatenate([off[order] - height[order], room]), bounds=(None, None),
    )  # fmt: skip
    return None if solved.x is None else own + solved.x @ unit.free


def with_units(
    layers: KnownLayers, output: OutputFit, units: list[ResidualUnit], place: int
) -> tuple[KnownLayers, OutputFit]:
    """The last layer and the output with further units, put in at index ``place``."""
    weight, bias, linear = layers.stack[-1]
    wider = layers.first(len(layers) - 1).with_layer(
        np.insert(weight, place, [unit.row for unit in units], axis=0),
        np.insert(bias, place, [unit.bias for unit in units]), np.insert(linear, place, [False] * len(units)),
    )  # fmt: skip
    above = np.insert(output.weight, place, np.array([unit.output for unit in units]), axis=1)
    return wider, OutputFit(above, output.bias, output.contradicting)


_Equation = tuple[Array, Array, Array, Array]
"""Left side [r, h + 1] of full row rank, right side [r, k], activations [h], and which units are on [h]."""


def _equations(survey: Survey, layers: KnownLayers, below: KnownLayers, output: OutputFit) -> list[_Equation]:
    """Equations for (v, beta) at the samples that contradict the copy, and have a solution of their own."""
    data = survey.data
    above, _, slopes = layers.maps(data.Y)
    off = data.value - above @ output.weight.T - output.bias
    gradient = data.gradient - np.einsum("kh,nhd->nkd", output.weight, slopes)
    size = np.abs(data.gradient).max()
    scale = 1 / (1 + np.linalg.norm(data.Y, axis=1))
    least = survey.space.accuracy.at_least(WRONG, WRONG_ERRORS) * size
    wrong = (np.abs(off).max(axis=1) * scale > least) & (np.abs(gradient).max(axis=(1, 2)) > least)
    index = np.flatnonzero(wrong)
    activation, on, jacobian = below.maps(data.Y[index])
    found: list[_Equation] = []
    for i in _different(on, np.abs(off[index]).max(axis=1)):
        value = scale[index[i]]
        left = np.concatenate([jacobian[i].T, activation[i][None] * value])
        left = np.c_[left, np.append(np.zeros(len(left) - 1), value)]
        right = np.concatenate([gradient[index[i]].T, off[index[i]][None] * value])
        U, s, Vt = np.linalg.svd(left, full_matrices=False)
        rank = int((s > RANK * s[0]).sum())
        inside = U[:, :rank].T @ right
        if np.linalg.norm(right - U[:, :rank] @ inside) < CONSISTENT * np.linalg.norm(right):
            found.append((s[:rank, None] * Vt[:rank], inside, activation[i], on[i]))
    return found


def _different(on: Array, size: Array) -> list[int]:
    """Samples with many units on first, and in each set of units on those with the largest residuals [n]."""
    order = np.lexsort((-size, -on.sum(axis=1)))
    seen: dict[bytes, int] = {}
    kept: list[int] = []
    for i in order.tolist():
        pattern = on[i].tobytes()
        seen[pattern] = seen.get(pattern, 0) + 1
        if seen[pattern] <= A_PATTERN and len(kept) < MOST_SAMPLES:
            kept.append(i)
    return kept


def _group(equations: list[_Equation]) -> list[int]:
    """The first sample and all that agree with it, each confirmed by some of its equations."""
    group, (left, right, _, _) = [0], equations[0]
    rank, grown = len(left), True
    while grown:
        grown = False
        for i in range(1, len(equations)):
            if i in group:
                continue
            A, B = np.concatenate([left, equations[i][0]]), np.concatenate([right, equations[i][1]])
            solution, _, together, _ = np.linalg.lstsq(A, B, rcond=RANK)
            if together > rank + len(equations[i][0]) - CONFIRMED:
                continue
            if np.linalg.norm(A @ solution - B) < CONSISTENT * np.linalg.norm(equations[i][1]):
                group.append(i)
                left, right, rank, grown = A, B, int(together), True
    return group


def _unit(group: list[_Equation]) -> ResidualUnit | None:
    """The neuron of a group, turned so that it is on at its samples; None if they do not determine a single one."""
    left, right = (np.concatenate([part[side] for part in group]) for side in (0, 1))
    columns = np.append(np.any([on for *_, on in group], axis=0), True)
    solution = np.zeros((left.shape[1], right.shape[1]))
    solution[columns], _, rank, _ = np.linalg.lstsq(left[:, columns], right, rcond=TOLD)
    free = np.eye(len(columns))
    free[np.ix_(columns, columns)] = np.linalg.svd(left[:, columns])[2]
    free = np.concatenate([free[~columns], free[columns][rank:]])
    U, s, Vt = np.linalg.svd(solution, full_matrices=False)
    if len(s) > 1 and s[1] > CONSISTENT * s[0]:
        return None
    both, weights = U[:, 0], s[0] * Vt[0]
    side = np.sign([activation @ both[:-1] + both[-1] for _, _, activation, _ in group])
    length = float(np.linalg.norm(both[:-1]))
    if abs(side.sum()) < len(side) or length < RANK:
        return None
    turn = side[0] / length
    return ResidualUnit(turn * both[:-1], float(turn * both[-1]), weights / turn, free)
