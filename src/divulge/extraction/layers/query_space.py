"""Where queries are made: in inputs, or in activations of the first layer.

If the rows of the first layer W, b are linearly independent, every vector u > 0 of activations is reached by the input
W^+ (u - b). The rest of the network depends on u alone, so that the first layer is gone in these coordinates, and all
its units are on. If the rows are dependent (a layer wider than its input), queries stay in inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from divulge.extraction.gradients.affine_maps import TargetMaps
from divulge.extraction.layers.accuracy import Accuracy
from divulge.extraction.layers.known_layers import Array

SMALL = 0.01
"""Half of the activations of a random point are smaller by this factor."""
HEAVY_TAILED = 0.4
"""Share of random points whose activations are log-normal, so that few of them dominate."""
TAIL = 1.5
BESIDE = (0.2, 2.0)
"""How much the coordinates of points around others differ from theirs, as shares of them: least and most."""


BESIDE_ERROR = 3e3
"""How far from a hyperplane to ask at least, in multiples of the gradients' relative error."""


class QuerySpace(ABC):
    """Coordinates y of queries; ``first`` is the layer that they are activations of, None if they are inputs."""

    beside = 1e-5
    """How far from a hyperplane to ask whether it is a kink, as a share of the coordinates."""

    def __init__(
        self, inputs: int, first: tuple[Array, Array] | None = None, accuracy: Accuracy | None = None
    ) -> None:  # fmt: skip
        self.inputs, self.first = inputs, first
        self.accuracy = accuracy or Accuracy()
        self.dim = inputs
        if first is not None:
            self.dim = len(first[1])
            self._inverse, self._offset = np.linalg.pinv(first[0]), first[1]

    @property
    def positive(self) -> bool:
        """Whether the coordinates are activations, which are never negative."""
        return self.first is not None

    @abstractmethod
    def maps(self, Y: Array) -> tuple[Array, Array]:
        """Values [n, k] and gradients with respect to y [n, k, dim]."""

    def to_inputs(self, Y: Array) -> Array:
        return Y if self.first is None else np.asarray((Y - self._offset) @ self._inverse.T)

    def from_inputs(self, X: Array) -> Array:
        return X if self.first is None else np.maximum(X @ self.first[0].T + self.first[1], 0)

    def kept_inside(self, Y: Array, rng: np.random.Generator, size: float) -> Array:
        """The points with coordinates below zero moved to small positive ones, where coordinates are activations."""
        return np.maximum(Y, size * rng.random(Y.shape)) if self.positive else Y

    def clear_of_zero(self, Y: Array) -> Array:
        """The points with activations raised to where an imprecise first layer leaves no doubt that they are on."""
        doubt = BESIDE_ERROR * self.accuracy.error
        if not self.positive or not doubt:
            return Y
        return np.asarray(np.maximum(Y, doubt * np.linalg.norm(Y, axis=1, keepdims=True) / np.sqrt(self.dim)))

    def around(self, Y: Array, rng: np.random.Generator) -> Array:
        """Points near and less near to others, in cells beside theirs: coordinates change by shares of themselves."""
        share = np.exp(rng.uniform(np.log(BESIDE[0]), np.log(BESIDE[1]), size=(len(Y), 1)))
        typical = np.linalg.norm(Y, axis=1, keepdims=True) / np.sqrt(self.dim)
        if not self.positive:
            return np.asarray(Y + share * typical * rng.normal(size=Y.shape))
        Y = np.where(Y > 0, Y, SMALL * typical * rng.random(Y.shape))
        return np.asarray(Y * np.exp(share * rng.normal(size=Y.shape)))

    def points(self, count: int, rng: np.random.Generator) -> Array:
        """Random points [count, dim] that switch many units: N(0, I), or sparse and heavy-tailed activations."""
        if self.first is None:
            return rng.normal(size=(count, self.dim))
        scale = np.exp(rng.uniform(np.log(0.5), np.log(4.0), size=(count, 1)))
        Y = np.abs(rng.normal(size=(count, self.dim))) * scale
        Y = np.where(rng.random(size=Y.shape) < 0.5, SMALL * Y, Y)
        heavy = rng.random(count) < HEAVY_TAILED
        Y[heavy] = np.exp(TAIL * rng.normal(size=Y[heavy].shape))
        return Y


class GradientSpace(QuerySpace):
    """Coordinates in which gradients are asked."""

    def __init__(
        self, target: TargetMaps, first: tuple[Array, Array] | None = None, accuracy: Accuracy | None = None
    ) -> None:  # fmt: skip
        super().__init__(target.inputs, first, accuracy)
        self.beside = self.accuracy.at_least(self.beside, BESIDE_ERROR)
        self._target = target

    def maps(self, Y: Array) -> tuple[Array, Array]:
        value, gradient = self._target.maps(torch.from_numpy(np.ascontiguousarray(self.to_inputs(Y))))
        return value.numpy(), gradient.numpy() if self.first is None else gradient.numpy() @ self._inverse
