"""Entries of a neuron that no kink can show, because the neuron is on wherever the unit of the entry is.

Such an entry acts like a linear function. The entry is made so large that the neuron is on wherever the unit m is, and
a unit that passes m on carries what is too much: in row k of the next layer it has the weight V_kj (w - w0), where w is
the entry, w0 the one that was put in, and V_kj the weight of the neuron. The rows of the next layer thus tell w, and
the unit is taken out again. Where a neuron is off wherever the unit is, its entry does not matter: one that keeps it
off is put in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.neuron import Neuron

LARGE = 2.0
"""Entries that are put in, as multiples of the largest of their row."""
MOST_UNITS = 4
"""Units with such entries, at most."""
FITS = 1e-5
"""The rows of the next layer tell entries up to this share of what the units that pass others on have there."""


@dataclass(frozen=True)
class LinearEntry:
    """A unit that passes the unit ``below`` on, and the neurons whose entries it carries."""

    below: int
    neurons: Array


@dataclass(frozen=True)
class Passing:
    """Layers, the last of them with a unit at its end for each of the ``entries``."""

    layers: KnownLayers
    entries: tuple[LinearEntry, ...] = ()

    @classmethod
    def of(cls, layers: KnownLayers, unseen: Array, Y: Array) -> Passing:
        """The layers with the unseen entries [neurons, units] of the last put in, and units for those that act.

        Y are samples. Layers that lack entries at many units stay as they are.
        """
        weight, bias, linear = layers.stack[-1]
        units = np.flatnonzero(unseen.any(axis=0)).tolist()
        if len(units) > MOST_UNITS:
            return cls(layers)
        below = layers.first(len(layers) - 1)
        activation = below(Y)
        changed, entries = weight.copy(), []
        for unit in units:
            neurons = np.flatnonzero(unseen[:, unit])
            here = activation[activation[:, unit] > 0]
            on = (here @ weight[neurons].T + bias[neurons] > 0).mean(axis=0) > 0.5 if len(here) else neurons < 0
            size = LARGE * np.abs(weight[neurons]).max(axis=1)
            changed[neurons, unit] = np.where(on, size, -size)
            if on.any():
                entries.append(LinearEntry(unit, neurons[on]))
        passing = np.eye(below.width)[[entry.below for entry in entries]]
        none = np.zeros(len(entries))
        wider = below.with_layer(
            np.concatenate([changed, passing]), np.append(bias, none), np.append(linear, none.astype(bool))
        )
        return cls(wider, tuple(entries))

    def told(self, found: list[Neuron]) -> tuple[KnownLayers, list[Neuron]] | None:
        """The layers with the entries that neurons above tell, and these neurons, without the units at the end.

        None if the neurons contradict each other, or are too few.
        """
        if not self.entries:
            return self.layers, found
        weight, bias, linear = self.layers.stack[-1]
        units = len(bias) - len(self.entries)
        changed = weight[:units].copy()
        for place, entry in enumerate(self.entries, start=units):
            telling = [neuron for neuron in found if neuron.known[place] and neuron.known[entry.neurons].all()]
            if len(telling) <= len(entry.neurons):
                return None
            left = np.array([neuron.row[entry.neurons] for neuron in telling])
            right = np.array([neuron.row[place] for neuron in telling])
            more = np.linalg.lstsq(left, right, rcond=None)[0]
            off = np.linalg.norm(left @ more - right)
            if np.linalg.matrix_rank(left, tol=FITS) < len(more) or off > FITS * np.linalg.norm(right):
                return None
            changed[entry.neurons, entry.below] += more
        narrow = self.layers.first(len(self.layers) - 1).with_layer(changed, bias[:units], linear[:units])
        return narrow, [replace(neuron, row=neuron.row[:units], known=neuron.known[:units]) for neuron in found]
