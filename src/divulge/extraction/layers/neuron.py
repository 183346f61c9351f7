"""One neuron of the next layer, as far as its kinks tell it."""

from __future__ import annotations

from dataclasses import dataclass

from divulge.extraction.layers.known_layers import Array


@dataclass(frozen=True)
class Neuron:
    """A row of unit length and a bias, up to a common sign, and what they rest on."""

    row: Array  # [h]
    bias: float
    known: Array  # [h] entries that were seen: the unit was on at some kink
    kinks: Array  # [intervals] kinks that lie on its hyperplane
    share: float
    """Share of the crossings it predicts that are kinks."""
    doubtful: bool = False
    """Whether no other neuron of the layer changes sides among its kinks: it may be of a deeper layer."""

    @property
    def unseen(self) -> int:
        """Entries that were never seen."""
        return int((~self.known).sum())

    @property
    def count(self) -> int:
        return int(self.kinks.sum())
