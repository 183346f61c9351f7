"""Entries of a copy that no kink has shown, asked for until answers determine them or they are shown to act nowhere.

Rows are asked where such an entry would matter most (``unseen_entries.py``), where its neuron and its unit are both on
(``both_on.py``), and, if answers still leave it open, where one of the neurons with open entries at the same unit is on
and another is off. If the copy is wrong there, it is refined, and all begins again. What stays open after that may act
nowhere, or only in sums that answers determine (``acting_nowhere.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from divulge.extraction.layers.acting_nowhere import Agree, acting_in_sums, acting_nowhere
from divulge.extraction.layers.both_on import rows_with_both_on, rows_with_one_on
from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.known_layers import Array
from divulge.extraction.layers.unseen_entries import telling_rows

MOST_OPEN = 60
"""Entries are asked about one by one only if no more than this are open."""
ROUNDS = 4
"""How often they are asked about, each time with a copy that was refined by the answers."""


def withheld(unseen: int) -> str:
    """Why a copy with so many entries that were never seen is not exact; nothing if there are none."""
    were = "was" if unseen == 1 else "were"
    return f"the copy agrees on all rows, but {unseen} of its weights {were} never seen" if unseen else ""


@dataclass(frozen=True)
class OpenEntries:
    """What settling the open entries of a copy takes."""

    unseen: dict[int, Array]
    """By layer, which entries [neurons, units below] are open; those that are settled are taken out."""
    samples: Array  # [n, dim] points that were asked on the way
    copy: Callable[[], DeepCopy]
    """The copy as it is now."""
    asked: Callable[[], Array]
    """All rows asked so far [n, dim]."""
    agree: Agree
    undetermined: Callable[[Array | None], int]
    """Takes out the entries that answers so far determine; how many are left. Entries of the last layer that act only
    in sums may be given [neurons, units]."""
    refine: Callable[[], bool]
    """Refines the copy by all answers; whether it then agrees with them."""
    rng: np.random.Generator

    def settle(self) -> int:
        """Ask about all open entries; how many of them need not be known."""
        for _ in range(ROUNDS):
            if not 0 < self.undetermined(None) <= MOST_OPEN:
                return 0
            agrees = self._right_at(self._where_they_act())
            if agrees and self.undetermined(None):
                agrees = self._right_at(self._where_one_acts())
            if agrees:
                return self._without_effect() if self.undetermined(None) else 0
            if not self.refine():
                return 0
        return 0

    def _without_effect(self) -> int:
        """How many entries act only in sums that answers determine, or nowhere."""
        last, count = len(self.copy().layers) - 1, 0
        if last in self._open():
            before = self.unseen[last].copy()
            summed = acting_in_sums(before, self.copy(), self.asked(), self.agree, self.rng)
            if summed.any():
                self.undetermined(summed)
                count = int((before & summed & ~self.unseen[last]).sum())
        return count + acting_nowhere(self.unseen, self.copy(), self.asked(), self.agree, self.rng)

    def _right_at(self, rows: Iterator[Array]) -> bool:
        Y = np.concatenate([*rows, np.zeros((0, self.copy().space.dim))])
        return not len(Y) or bool(self.agree(Y).all())

    def _open(self) -> dict[int, Array]:
        layers = len(self.copy().layers)
        return {depth: entries for depth, entries in self.unseen.items() if 0 < depth < layers and entries.any()}

    def _where_they_act(self) -> Iterator[Array]:
        copy = self.copy()
        for find in (telling_rows, rows_with_both_on):
            for depth, entries in self._open().items():
                for neuron, unit in np.argwhere(entries).tolist():
                    yield find(copy.space, copy.layers, depth, neuron, unit, self.samples, self.rng)

    def _where_one_acts(self) -> Iterator[Array]:
        copy = self.copy()
        for depth, entries in self._open().items():
            yield rows_with_one_on(copy.space, copy.refined_layers, depth, entries, self.samples, self.rng)
