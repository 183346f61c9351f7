"""The hidden layers that are known so far, as functions on the space where queries are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class KnownLayers:
    """a(y) = relu(W_k ... relu(W_1 y + b_1) ... + b_k); without layers it is y itself."""

    inputs: int
    weights: tuple[Array, ...] = ()
    biases: tuple[Array, ...] = ()

    def __len__(self) -> int:
        return len(self.biases)

    @property
    def width(self) -> int:
        """Units of the last layer."""
        return len(self.biases[-1]) if self.biases else self.inputs

    @property
    def widths(self) -> list[int]:
        return [len(bias) for bias in self.biases]

    def with_layer(self, weight: Array, bias: Array) -> KnownLayers:
        return KnownLayers(self.inputs, (*self.weights, weight), (*self.biases, bias))

    def first(self, count: int) -> KnownLayers:
        """The first ``count`` layers."""
        return KnownLayers(self.inputs, self.weights[:count], self.biases[:count])

    def __call__(self, Y: Array) -> Array:
        """Activations of the last layer [n, h]."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            Y = np.maximum(Y @ weight.T + bias, 0)
        return Y

    def units(self, Y: Array) -> tuple[Array, Array, Array]:
        """Activations [n, h], which units of the last layer are on [n, h], the fewest units on in any layer [n]."""
        on, fewest = np.ones((len(Y), self.inputs), bool), np.full(len(Y), self.inputs)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            Y = Y @ weight.T + bias
            on = Y > 0
            fewest = np.minimum(fewest, on.sum(axis=1))
            Y = np.maximum(Y, 0)
        return Y, on, fewest

    def maps(self, Y: Array) -> tuple[Array, Array, Array]:
        """Activations [n, h], which units are on [n, h], and the Jacobians of the activations [n, h, inputs]."""
        jacobian = np.broadcast_to(np.eye(self.inputs), (len(Y), self.inputs, self.inputs))
        on = np.ones((len(Y), self.inputs), bool)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            Y = Y @ weight.T + bias
            on = Y > 0
            jacobian = np.matmul(weight, jacobian) * on[:, :, None]
            Y = np.maximum(Y, 0)
        return Y, on, jacobian

    def cross(self, A: Array, B: Array) -> Array:
        """Whether some unit of some layer is on at one of two points and off at the other [n]."""
        crossed = np.zeros(len(A), bool)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            A, B = A @ weight.T + bias, B @ weight.T + bias
            crossed |= ((A > 0) != (B > 0)).any(axis=1)
            A, B = np.maximum(A, 0), np.maximum(B, 0)
        return crossed
