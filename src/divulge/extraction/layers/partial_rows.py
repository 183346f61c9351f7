"""What each kink tells about the row of the neuron that it belongs to, if that neuron is of the next layer.

At a kink of the next layer the normal is n = J^T w, up to scale, where J holds the Jacobians of the known activations.
The equation gives the entries of w at the units that are on, and the bias, because w a + b = 0 there. Two kinks belong
to the same neuron if their entries agree where both know them.
"""

from __future__ import annotations

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.survey import Survey

SAME_ANGLE = 1e-6
"""Partial rows at a smaller angle than this are parallel."""
SHARED = 3
"""Entries, besides the bias, that two kinks must share to be compared."""
RANK, WELL_POSED = 1e-9, 1e-7
"""Singular values below these shares of the largest are zero, or too small to divide by."""
LOCATED = 1e-5
"""A kink is on a hyperplane if the pre-activation there is below this share of its terms."""
ERRORS, SURE_ERRORS = 10.0, 300.0
"""Imprecise answers: entries are off by so many times the error of normals, rows of merged kinks by so many times that
of the answers."""
LARGEST_ANGLE, MANY_SHARED = (1e-2, 0.1), 8
"""Rows that may be off by more are not compared: by the first, or by the second if they share many entries."""
MISFIT, MISFIT_ERRORS = 1e-6, 1e3
"""Equations of kinks that are merged contradict each other by at most this much, or so many times their error."""
MOST_COMPARED = 3000
"""Of more open kinks an even share is taken: what comparing them all takes grows with their square, to gigabytes."""
MOST_EXTENDING = 150
"""Kinks where rows show only in part that are compared with a neuron, at most."""
OUTSIDE = 1e-5
"""A normal that leaves the row space of J by more than this is not of the next layer."""


class PartialRows:
    """The open kinks of a survey, and the entries of a row that each of them shows."""

    def __init__(self, survey: Survey, layers: KnownLayers, open_: Array) -> None:
        self.survey, self.layers = survey, layers
        self._compact: dict[int, Array] = {}
        index = np.flatnonzero(open_)
        self.index = index[:: 1 + len(index) // (MOST_COMPARED + 1)]
        self.normal = survey.data.normal[self.index]
        self.weight = survey.data.weight[self.index]
        self.accuracy = survey.space.accuracy
        self.error = survey.data.error[self.index]  # of a row's entries, as a share of the normal's length
        self.sample_activation, self.sample_on, _ = layers.units(survey.data.Y)
        self.kink_activation = layers(survey.data.kink[survey.data.kinked])  # of all kinks, not only open ones
        size = np.abs(survey.data.gradient).max(axis=(1, 2))
        self.sample_flat = size < 1e-9 * np.median(size)  # all is off above: nothing shows there
        count = len(self.index)
        self.plain = not len(layers)  # activations are the coordinates themselves, and normals are rows
        self.misfit, self.condition = np.zeros(count), np.ones(count)
        if self.plain:
            self.activation, self.on, _ = layers.units(survey.data.kink[self.index])
            self.jacobian = np.zeros((count, 0, 0))
            self.row, self.bias = self.normal, -(self.normal * self.activation).sum(axis=1)
            self.full, self.rank = np.ones(count, bool), np.full(count, layers.width)
        else:
            self.activation, self.on, self.jacobian = layers.maps(survey.data.kink[self.index])
            self._solve()
        self.shown = self.on.copy()
        """Entries that each kink tells [m, h]: those of the units on, or more where the kink was followed."""
        self._rows_of_followed: dict[int, Array] = {}
        if not self.plain:
            self._take_followed()

    def _solve(self) -> None:
        """Entries at the units that are on, where the Jacobian determines them."""
        U, s, Vt = np.linalg.svd(self.jacobian, full_matrices=False)  # rows of units that are off are zero
        largest = np.maximum(s[:, :1], np.finfo(float).tiny)
        keep = s > self.accuracy.at_least(RANK, 10) * largest
        units = self.on.sum(axis=1)
        self.rank = keep.sum(axis=1)
        inside = np.where(keep, np.einsum("nrd,nd->nr", Vt, self.normal), 0.0)
        self.misfit = np.linalg.norm(self.normal - np.einsum("nrd,nr->nd", Vt, inside), axis=1)
        smallest = np.take_along_axis(s, np.maximum(self.rank - 1, 0)[:, None], axis=1)[:, 0]
        self.full = (self.rank == units) & (units > 0) & (smallest >= WELL_POSED * largest[:, 0])
        self.error = ERRORS * self.error / np.maximum(smallest, np.finfo(float).tiny)
        self.condition = np.where(self.full, largest[:, 0] / np.maximum(smallest, np.finfo(float).tiny), np.inf)
        with np.errstate(all="ignore"):
            row = np.einsum("nhr,nr->nh", U, np.where(keep, inside / s, 0.0))
        self.row = np.where(self.full[:, None] & self.on, row, 0.0)
        self.bias = -(self.row * self.activation).sum(axis=1)

    def _take_followed(self) -> None:
        """Rows of kinks that were followed into neighbouring cells, which tell more entries."""
        for k in np.flatnonzero(np.isin(self.index, list(self.survey.followed))).tolist():
            told = self.survey.followed[int(self.index[k])].row(self.layers)
            if told is not None and told[2].sum() >= self.on[k].sum() * self.full[k]:
                self.row[k], self.bias[k], self.shown[k] = told
                self.full[k], self.error[k], self.condition[k] = True, ERRORS * self.accuracy.error, 1.0
                self._rows_of_followed[k] = np.append(told[0], told[1])

    @property
    def followed(self) -> list[int]:
        """Kinks that were followed and tell a row, those that tell most entries first."""
        return sorted(self._rows_of_followed, key=lambda k: -int(self.shown[k].sum()))

    @property
    def outside(self) -> Array:
        """Kinks [m] that cannot be of the next layer: their normals leave the row space of J."""
        return np.asarray(self.misfit > OUTSIDE + ERRORS * self.survey.data.error[self.index])

    # -- which kinks agree --------------------------------------------------------------------------------------------

    def agreeing(self) -> Array:
        """Which pairs of kinks [m, m] agree, in direction and bias, on the entries that both know."""
        row, known = self.row, self.shown * self.full[:, None].astype(float)
        dot = row @ row.T
        mine, theirs = (row**2) @ known.T, known @ (row**2).T
        with np.errstate(all="ignore"):
            sine = 1 - dot**2 / (mine * theirs)
            angle = SAME_ANGLE + self.error[:, None] / np.sqrt(mine) + self.error[None] / np.sqrt(theirs)
            scale = dot / theirs
            gap = np.abs(self.bias[:, None] - scale * self.bias[None])
            size = np.linalg.norm(self.activation, axis=1) * np.linalg.norm(row, axis=1)
            room = size[:, None] + np.abs(scale) * size[None] + np.abs(self.bias)[:, None]
            agree = (sine < angle**2) & (gap < angle * room)
        shared = known @ known.T
        agree &= (angle < np.where(shared < MANY_SHARED, *LARGEST_ANGLE)) & (mine > 0) & (theirs > 0)
        agree &= shared >= min(SHARED, self.layers.width)
        np.fill_diagonal(agree, False)
        return np.asarray(agree)

    def on_hyperplane(self, row: Array, bias: float, known: Array) -> Array:
        """Kinks [m] that a neuron explains: on its hyperplane, with its normal, all units that are on known."""
        seen = ~(self.on & ~known).any(axis=1)
        before = self.activation @ row + bias
        gradient = np.broadcast_to(row, self.row.shape) if self.plain else row @ self.jacobian
        along = np.abs((gradient * self.normal).sum(axis=1))
        with np.errstate(all="ignore"):
            sine = np.sqrt(np.maximum(0, 1 - (along / np.linalg.norm(gradient, axis=1)) ** 2))
        size = abs(bias) + np.linalg.norm(self.activation, axis=1)
        near = np.abs(before) < (self.accuracy.at_least(1e-6, SURE_ERRORS) + self._misplaced(self.index)) * size
        return np.asarray(seen & near & (sine < 1e-4 + ERRORS * self.survey.data.error[self.index]))

    def _misplaced(self, kinks: Array) -> Array:
        """How far kinks may lie beside their hyperplane, as a share of the activations."""
        return np.minimum(LARGEST_ANGLE[1], ERRORS * self.survey.data.error[kinks])

    def overlapping(self, row: Array, bias: float, known: Array) -> Array:
        """Kinks [m] that agree with a neuron on its known entries, and may know further ones."""
        shared = self.shown & known
        part = np.where(shared, self.row, 0.0)
        dot = part @ row
        mine, theirs = (part**2).sum(axis=1), (shared * row**2).sum(axis=1)
        with np.errstate(all="ignore"):
            sine = 1 - dot**2 / (mine * theirs)
            angle = self.accuracy.at_least(SAME_ANGLE, SURE_ERRORS) + self.error / np.sqrt(mine)
            gap = np.abs(self.bias - dot / theirs * bias)
            size = np.linalg.norm(self.activation, axis=1) * np.linalg.norm(self.row, axis=1) + np.abs(self.bias)
            good = (sine < angle**2) & (gap < angle * size)
        count = shared.sum(axis=1)
        good &= angle < np.where(count < MANY_SHARED, *LARGEST_ANGLE)
        return np.asarray(self.full & good & (count >= min(SHARED, self.layers.width)))

    def extending(self, row: Array, bias: float, known: Array, used: Array) -> Array:
        """Kinks [m] where rows show only in part that agree with a neuron for some choice of its unknown entries."""
        good = np.zeros(len(self.index), bool)
        mixed = (self.on & ~known).any(axis=1) & (self.on & known).any(axis=1)
        for k in np.flatnonzero(~self.full & ~used & mixed)[:MOST_EXTENDING]:
            old, new = self.on[k] & known, self.on[k] & ~known
            jacobian, activation = self.jacobian[k], self.activation[k]
            # columns: the unknown entries' rows and the known part, each with its share of the pre-activation
            unknown = np.c_[jacobian[new], activation[new]]
            whole = np.append(row[old] @ jacobian[old], row[old] @ activation[old] + bias)
            system = np.concatenate([unknown, [whole]]).T
            system[-1] /= 1 + np.linalg.norm(activation)
            goal = np.append(self.normal[k], 0.0)
            solution, _, rank, _ = np.linalg.lstsq(system, goal, rcond=RANK)
            off = np.linalg.norm(system @ solution - goal)
            close = self.accuracy.at_least(SAME_ANGLE, SURE_ERRORS)
            good[k] = self.rank[k] >= rank + 2 and abs(solution[-1]) > 1e-6 and off < close
        return good

    # -- a neuron from its kinks --------------------------------------------------------------------------------------

    def merged(self, members: list[int]) -> tuple[Array, float, Array, float, float] | None:
        """Row, bias and known entries that fit these kinks best, their misfit, and how well they are determined."""
        known = np.asarray(self.shown[members].any(axis=0))
        if self.plain:
            return self._mean(members, known)
        columns = np.flatnonzero(known)
        blocks = [self.equations(k, columns) * self.weight[k] for k in members]
        _, s, Vt = np.linalg.svd(np.concatenate(blocks), full_matrices=False)
        solution, row = Vt[-1], np.zeros(self.layers.width)
        row[columns] = solution[:-1]
        size = float(np.linalg.norm(row))
        if size < 1e-12:
            return None
        determined = s[-2] / s[0] if len(s) > 1 else 1.0
        return row / size, float(solution[-1] / size), known, float(s[-1] / s[0]), float(determined)

    def misfit_allowed(self, members: list[int]) -> float:
        """How much the equations of kinks that are merged may contradict each other."""
        allowed = self.accuracy.at_least(MISFIT, MISFIT_ERRORS)
        return allowed + ERRORS * float(self.error[members].max()) if self.plain else allowed

    def equations(self, k: int, columns: Array) -> Array:
        """Homogeneous equations for (w[columns], b): J^T w is parallel to the normal, and w a + b is zero."""
        compact = self._compact.get(k)
        if compact is None:
            compact = self._compact[k] = self._compact_equations(k)
        place = np.searchsorted(columns, np.flatnonzero(self.shown[k]))
        block = np.zeros((len(compact), len(columns) + 1))
        block[:, np.append(place, len(columns))] = compact
        return block

    def _compact_equations(self, k: int) -> Array:
        """The equations of one kink, for the entries that it tells and the bias."""
        if k in self._rows_of_followed:
            own = self._rows_of_followed[k][np.append(self.shown[k], True)]
            own = own / np.linalg.norm(own)
            return np.asarray(np.eye(len(own)) - np.outer(own, own))
        visible = self.jacobian[k][self.on[k]]
        Q, R = np.linalg.qr(visible.T)
        inside = Q.T @ self.normal[k]
        inside /= np.linalg.norm(inside)
        R = (R - np.outer(inside, inside @ R)) / np.linalg.norm(visible)
        block = np.zeros((len(R) + 1, len(visible) + 1))
        block[:-1, :-1] = R
        block[-1] = np.append(self.activation[k][self.on[k]], 1.0)
        block[-1] /= np.linalg.norm(block[-1])
        return block

    def _mean(self, members: list[int], known: Array) -> tuple[Array, float, Array, float, float]:
        """Where normals are rows: their mean, turned alike and weighted."""
        rows, weight = self.row[members], self.weight[members] + 1e-12
        rows = rows * np.sign(rows @ rows[int(np.argmax(weight))])[:, None]
        row = (weight[:, None] ** 2 * rows).sum(axis=0)
        row /= np.linalg.norm(row)
        size = 1 + np.linalg.norm(self.activation[members], axis=1)
        bias = -self.activation[members] @ row
        trust = (weight / size) ** 2
        mean = float((trust * bias).sum() / trust.sum())
        misfit = max(np.linalg.norm(rows - row, axis=1).max(), np.abs((bias - mean) / size).max())
        return row, mean, known, float(misfit), 1.0

    def crossings(self, row: Array, bias: float, known: Array) -> tuple[Array, Array]:
        """Intervals of the survey [n] where a neuron has a kink, and those where it should have one and there is none.

        An interval with a kink elsewhere, in which the neuron changes sides too, counts for neither.
        """
        before = self.sample_activation @ row + bias
        side, doubt = before > 0, SURE_ERRORS * self.accuracy.error
        clear = np.abs(before) >= doubt * (abs(bias) + np.linalg.norm(self.sample_activation, axis=1))
        seen = np.asarray(~(self.sample_on & ~known).any(axis=1))
        data, flat = self.survey.data, self.sample_flat
        left, right = data.left, data.right
        visible = seen[left] & seen[right] & ~(flat[left] & flat[right])
        crossed = visible & (side[left] != side[right])
        located = np.zeros(len(left), bool)
        size = abs(bias) + np.linalg.norm(self.kink_activation, axis=1)
        near = self.accuracy.at_least(LOCATED, SURE_ERRORS) + self._misplaced(np.flatnonzero(data.kinked))
        located[data.kinked] = np.abs(self.kink_activation @ row + bias) < near * size
        there = crossed if not doubt else visible  # imprecise samples may lie on the wrong side of the hyperplane
        return there & data.kinked & located, crossed & ~data.kinked & clear[left] & clear[right]
