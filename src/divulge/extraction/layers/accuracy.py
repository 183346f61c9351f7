"""How precise gradients are, and how wide tolerances are therefore.

Tolerances of the peeling are made for float64, with much room. Answers in float32, or of few decimals, are less precise
than some of them; there a tolerance is a multiple of the answers' relative error instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divulge.extraction.layers.known_layers import Array


@dataclass(frozen=True)
class Accuracy:
    """The relative error of gradients, where it is larger than that of float64."""

    error: float = 0.0

    def at_least(self, tolerance: float, times: float) -> float:
        """A tolerance, but never less than so many times the error."""
        return max(tolerance, times * self.error)


def gradient_accuracy(entry: float, gradient: Array, first: tuple[Array, Array] | None) -> Accuracy:
    """The accuracy of gradients [n, k, d] whose numbers have the error ``entry``, by inputs or activations of a layer.

    In activations a gradient is multiplied by the inverse of the layer's weights, and its error too.
    """
    if not entry:
        return Accuracy()
    inverse = np.eye(gradient.shape[2]) if first is None else np.linalg.pinv(first[0])
    size = float(np.median(np.linalg.norm(gradient @ inverse, axis=(1, 2))))
    error = entry * np.sqrt(gradient.shape[1]) * float(np.linalg.norm(inverse))
    return Accuracy(error / max(size, np.finfo(float).tiny))
