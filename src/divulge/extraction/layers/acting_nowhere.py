"""Weights that act at no input within a box, by mixed-integer programming: they need not be known.

The entry w between a unit and a neuron above it acts where both are on. At a row with the unit on, where the target
answers like a copy whose neuron is off, the target's neuron is off too: w <= -z / a, where z is what the neuron gets
from all other units and a is the unit's activation. The program finds the row in the box at which z + w a is largest,
for the largest w that all answers allow. If that is not above zero, no w that they allow acts anywhere in the box. Else
the row is asked, which lowers the largest w: Dinkelbach's method for the least -z / a, a handful of programs.

The same with all signs turned shows that a neuron is on wherever the unit is on, whatever w the answers allow. In the
last layer w then acts in a sum with the entries of other such neurons at the unit, each times the neuron's weight in
the output. The sum is all that any answer shows, and all that a copy needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from divulge.core.progress import report
from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.polish import passes
from divulge.extraction.layers.relu_program import MOST_UNITS, ReluProgram, box_program, typical_size

BOX = 30.0
"""How many times as large as at typical inputs the rows of the box may be, coordinate by coordinate."""
PROGRAMS = 12
"""Most programs for one entry."""
ZERO = 1e-6
"""Pre-activations below this share of typical activations are zero: the solver's own tolerance."""
AROUND, NEAR = 16, 1e-3
"""Rows around each that a program finds, and how far from it they lie, as a share of typical coordinates."""
NOTICEABLE = 1e-3
"""A neuron shows in an answer that changes with it at least by this share of where answers change most."""

Agree = Callable[[Array], Array]
"""Whether the target answers like the copy at rows [n, dim] of the space where queries are made."""


def acting_nowhere(unseen: dict[int, Array], copy: DeepCopy, Y: Array, agree: Agree, rng: np.random.Generator) -> int:
    """Take the entries that act nowhere in the box from those that are ``unseen``; how many they are.

    The copy agrees with the target at rows Y [n, dim]. Layers are gone through from below, up to the first entry that
    may act: what it does to the layers above is not known.
    """
    count = 0
    for depth in sorted(depth for depth, entries in unseen.items() if 0 < depth < len(copy.layers) and entries.any()):
        layers = copy.refined_layers.first(depth)
        for neuron in np.flatnonzero(unseen[depth].any(axis=1)).tolist():
            entries = _Entries(copy, layers, depth, neuron, unseen[depth][neuron].copy(), Y, agree, rng)
            for unit in np.flatnonzero(entries.unseen).tolist():
                report("weights that were never seen", None, None)
                if not entries.act_nowhere(unit):
                    return count
                unseen[depth][neuron, unit] = False
                count += 1
    return count


def acting_in_sums(unseen: Array, copy: DeepCopy, Y: Array, agree: Agree, rng: np.random.Generator) -> Array:
    """Which ``unseen`` entries [neurons, units] of the last layer act only in sums, over neurons that are all on.

    At units where there is one such entry, it is the sum by itself, unless linear units have a part in it.
    """
    depth = len(copy.layers) - 1
    layers, summed = copy.refined_layers.first(depth), np.zeros(unseen.shape, bool)
    for neuron in np.flatnonzero(unseen.any(axis=1)).tolist():
        entries = _Entries(copy, layers, depth, neuron, unseen[neuron].copy(), Y, agree, rng, side=-1.0)
        for unit in np.flatnonzero(entries.unseen).tolist():
            report("weights that were never seen", None, None)
            summed[neuron, unit] = entries.act_nowhere(unit)
    return summed


def note(count: int) -> tuple[str, ...]:
    """What to say of a copy with so many entries that need not be known."""
    if not count:
        return ()
    return (
        f"Weights of the copy that need not be the target's: {count}. At inputs up to {BOX:.0f} times as large as "
        "typical ones they act nowhere, or only in sums that are right, as mixed-integer programs show.",
    )


@dataclass
class _Rows:
    """What a neuron gets from the units whose entries are known [n], the units [n, h], and whether it shows [n]."""

    known: Array
    activation: Array
    shows: Array


class _Entries:
    """The unseen entries of one neuron, and the largest that the answers so far allow each of them to be.

    With ``side`` -1 the neuron is turned over, so that it is taken to be off where it is on.
    """

    def __init__(
        self, copy: DeepCopy, layers: KnownLayers, depth: int, neuron: int, unseen: Array, Y: Array, agree: Agree,
        rng: np.random.Generator, side: float = 1.0,
    ) -> None:  # fmt: skip
        self.copy, self.layers, self.neuron = copy, layers, neuron
        self.place = place = len(copy.stack) - 1 - len(copy.layers) + depth
        self.unseen, self.agree, self.rng = unseen, agree, rng
        self.typical = typical_size(Y)
        self.row, self.bias = side * copy.stack[place][0][neuron], side * float(copy.stack[place][1][neuron])
        self.most = np.where(unseen, np.inf, self.row)
        self.slope = 0.0
        self._lower(Y, agreed=True)

    def act_nowhere(self, unit: int) -> bool:
        """Whether the entry of this unit acts nowhere in the box, whatever the answers allow it to be."""
        if sum(self.layers.widths) > MOST_UNITS:
            return False
        for other in np.flatnonzero(self.unseen & np.isinf(self.most)).tolist():
            best = self._program(other).maximum(np.eye(len(self.most))[other])  # no row asked has it on
            if best.bound <= ZERO:
                self.most[other] = 0.0
            elif best.row is None or not self._lower(self._around(best.row), agreed=False):
                return False
        for _ in range(PROGRAMS):
            best = self._program(unit).maximum(self.most)
            if best.bound + self.bias / self.typical <= ZERO * np.linalg.norm(self.row):
                return True
            if best.row is None or not self._lower(self._around(best.row), agreed=False):
                return False
        return False

    def _program(self, unit: int) -> ReluProgram:
        """The box with this unit on, in units of typical coordinates."""
        program = box_program(self.copy.space, self.layers, self.typical, BOX)
        program.keep_on(unit)
        return program

    def _around(self, row: Array) -> Array:
        """A row of the program and some beside it, in coordinates of the space."""
        Y = self.typical * (row + NEAR * np.r_[np.zeros((1, len(row))), self.rng.normal(size=(AROUND, len(row)))])
        return np.asarray(np.maximum(Y, 0) if self.copy.space.positive else Y)

    def _lower(self, Y: Array, *, agreed: bool) -> bool:
        """Lower the largest entries by rows Y, which are asked unless the copy is known to agree there; whether any is.

        A row with several of the unseen units on tells none of their entries.
        """
        rows = self._rows(Y)
        on = (rows.activation > 0) & self.unseen
        useful = (on.sum(axis=1) == 1) & rows.shows & (rows.known + rows.activation @ self._own <= 0)
        unit = on.argmax(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            most = -rows.known / rows.activation[np.arange(len(Y)), unit]
        useful &= most < self.most[unit]
        if not useful.any():
            return False
        if not agreed:
            useful[useful] = self.agree(Y[useful])
        before = self.most.copy()
        np.minimum.at(self.most, unit[useful], most[useful])
        return bool((self.most < before).any())

    @property
    def _own(self) -> Array:
        """The unseen entries as the copy has them."""
        return np.where(self.unseen, self.row, 0.0)

    def _rows(self, Y: Array) -> _Rows:
        activation = self.layers(Y)
        known = activation @ np.where(self.unseen, 0.0, self.row) + self.bias
        above = passes(self.copy.stack, self.copy.space.to_inputs(Y))[1][self.place + 1]  # [n, k, h] of the next layer
        slope = np.abs(above @ self.copy.stack[self.place + 1][0][:, self.neuron]).max(axis=1)
        self.slope = max(self.slope, float(slope.max(initial=0.0)))
        return _Rows(known, activation, slope > NOTICEABLE * self.slope)
