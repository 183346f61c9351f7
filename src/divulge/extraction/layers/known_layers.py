"""The hidden layers that are known so far, as functions on the space where queries are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class KnownLayers:
    """a(y) = relu(W_k ... relu(W_1 y + b_1) ... + b_k); without layers it is y itself.

    Units marked in ``linear`` pass their pre-activation on as it is: they stand for neurons that are always on.
    """

    inputs: int
    weights: tuple[Array, ...] = ()
    biases: tuple[Array, ...] = ()
    linear: tuple[Array, ...] = ()

    def __len__(self) -> int:
        return len(self.biases)

    @property
    def width(self) -> int:
        """Units of the last layer."""
        return len(self.biases[-1]) if self.biases else self.inputs

    @property
    def widths(self) -> list[int]:
        return [len(bias) for bias in self.biases]

    def with_layer(self, weight: Array, bias: Array, linear: Array | None = None) -> KnownLayers:
        mask = np.zeros(len(bias), bool) if linear is None else linear
        return KnownLayers(self.inputs, (*self.weights, weight), (*self.biases, bias), (*self.linear, mask))

    def first(self, count: int) -> KnownLayers:
        """The first ``count`` layers."""
        return KnownLayers(self.inputs, self.weights[:count], self.biases[:count], self.linear[:count])

    @property
    def stack(self) -> list[tuple[Array, Array, Array]]:
        """Weights, biases and linear units of each layer."""
        return list(zip(self.weights, self.biases, self.linear, strict=True))

    def __call__(self, Y: Array) -> Array:
        """Activations of the last layer [n, h]."""
        for weight, bias, linear in self.stack:
            Y = Y @ weight.T + bias
            Y = np.where(linear, Y, np.maximum(Y, 0))
        return Y

    def units(self, Y: Array) -> tuple[Array, Array, Array]:
        """Activations [n, h], which units of the last layer are on [n, h], the fewest units on in any layer [n]."""
        on, fewest = np.ones((len(Y), self.inputs), bool), np.full(len(Y), self.inputs)
        for weight, bias, linear in self.stack:
            Y = Y @ weight.T + bias
            on = (Y > 0) | linear
            fewest = np.minimum(fewest, on.sum(axis=1))
            Y = np.where(on, Y, 0)
        return Y, on, fewest

    def maps(self, Y: Array) -> tuple[Array, Array, Array]:
        """Activations [n, h], which units are on [n, h], and the Jacobians of the activations [n, h, inputs]."""
        jacobian = np.broadcast_to(np.eye(self.inputs), (len(Y), self.inputs, self.inputs))
        on = np.ones((len(Y), self.inputs), bool)
        for weight, bias, linear in self.stack:
            Y = Y @ weight.T + bias
            on = (Y > 0) | linear
            jacobian = np.matmul(weight, jacobian) * on[:, :, None]
            Y = np.where(on, Y, 0)
        return Y, on, jacobian

    def masks(self, Y: Array) -> tuple[Array, list[Array]]:
        """Activations of the last layer [n, h], and which units of each layer are on, for ``pulled_back``."""
        masks = []
        for weight, bias, linear in self.stack:
            Y = Y @ weight.T + bias
            masks.append((Y > 0) | linear)
            Y = np.where(masks[-1], Y, 0)
        return Y, masks

    def pulled_back(self, above: Array, masks: list[Array]) -> Array:
        """Derivatives [n, inputs] of ``above`` @ activations [n], without the Jacobians of the activations."""
        for weight, on in zip(reversed(self.weights), reversed(masks), strict=True):
            above = np.where(on, above, 0) @ weight
        return above

    def cross(self, A: Array, B: Array) -> Array:
        """Whether some unit of some layer is on at one of two points and off at the other [n]."""
        crossed = np.zeros(len(A), bool)
        for weight, bias, linear in self.stack:
            A, B = A @ weight.T + bias, B @ weight.T + bias
            crossed |= (((A > 0) != (B > 0)) & ~linear).any(axis=1)
            A, B = (np.where(linear, Z, np.maximum(Z, 0)) for Z in (A, B))
        return crossed
