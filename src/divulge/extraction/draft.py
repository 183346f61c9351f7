"""A copy in the making: neurons found so far and an affine part that is right in one cell."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from divulge.extraction.lines import Array
from divulge.extraction.network import Copy, Neurons
from divulge.models import ReluNetwork


@dataclass(frozen=True)
class Draft:
    """f(x) = W relu(A x + b) + P x + q, in float64."""

    A: Array  # [h, d] rows of unit length
    b: Array  # [h]
    W: Array  # [k, h]
    P: Array  # [k, d]
    q: Array  # [k]

    @classmethod
    def affine(cls, gradient: Array, point: Array, value: Array) -> Draft:
        """No neurons: the affine function with this gradient [k, d] and this value [k] at a point."""
        k, d = gradient.shape
        return cls(np.empty((0, d)), np.empty(0), np.empty((k, 0)), gradient, value - gradient @ point)

    @property
    def width(self) -> int:
        return len(self.b)

    def __call__(self, rows: Array) -> Array:
        hidden = rows @ self.A.T
        hidden += self.b
        np.maximum(hidden, 0.0, out=hidden)
        return np.asarray(hidden @ self.W.T + rows @ self.P.T + self.q)

    def with_neurons(self, A: Array, b: Array, W: Array) -> Draft:
        """The neurons added; they must be off where the affine part is already right."""
        return replace(
            self,
            A=np.concatenate([self.A, A]),
            b=np.concatenate([self.b, b]),
            W=np.concatenate([self.W, W], axis=1),
        )

    def without(self, index: int) -> Draft:
        """The same function as far as one neuron less can be: its mean part, half of it everywhere, stays."""
        rest = np.arange(self.width) != index
        half = 0.5 * self.W[:, index]
        return replace(
            self,
            A=self.A[rest],
            b=self.b[rest],
            W=self.W[:, rest],
            P=self.P + np.outer(half, self.A[index]),
            q=self.q + half * self.b[index],
        )

    def closest_merged(self) -> Draft:
        """The two neurons whose hyperplanes differ least as one, on the hyperplane of the stronger."""
        if self.width < 2:
            return self
        planes = np.column_stack([self.A, self.b])
        planes /= np.linalg.norm(planes, axis=1, keepdims=True)
        cosine = planes @ planes.T
        np.fill_diagonal(cosine, 0.0)
        i, j = np.unravel_index(int(np.argmax(np.abs(cosine))), cosine.shape)
        strength = np.linalg.norm(self.W, axis=0)
        kept, gone = (i, j) if strength[i] >= strength[j] else (j, i)
        W = self.W.copy()
        W[:, kept] += W[:, gone]
        rest = np.arange(self.width) != gone
        P, q = self.P, self.q
        if cosine[i, j] < 0:  # relu(-z) = relu(z) - z
            P = P + np.outer(self.W[:, gone], self.A[gone])
            q = q + self.W[:, gone] * self.b[gone]
        return Draft(self.A[rest], self.b[rest], W[:, rest], P, q)

    def gradient(self, point: Array) -> Array:
        on = self.A @ point + self.b > 0
        return self.W[:, on] @ self.A[on] + self.P

    def anchored(self, point: Array, gradient: Array, value: Array) -> Draft:
        """The same neurons with the affine part that gives this gradient [k, d] and value [k] at ``point``."""
        moved = replace(self, P=self.P + gradient - self.gradient(point))
        return replace(moved, q=moved.q + value - moved(point[None])[0])

    def turned(self, point: Array) -> Draft:
        """The same function with every neuron off at ``point``, by relu(z) = relu(-z) + z."""
        on = self.A @ point + self.b > 0
        sign = np.where(on, -1.0, 1.0)
        W = self.W[:, on]
        return replace(
            self, A=self.A * sign[:, None], b=self.b * sign, P=self.P + W @ self.A[on], q=self.q + W @ self.b[on]
        )

    def copy(self) -> Copy:
        """The same as tensors."""
        A, b, W, P, q = (
            torch.from_numpy(np.ascontiguousarray(part)) for part in (self.A, self.b, self.W, self.P, self.q)
        )
        return Copy(P, q, Neurons(A, b, W, torch.zeros_like(b)))

    def model(self) -> ReluNetwork:
        return self.copy().model()


@dataclass(frozen=True)
class Neuron:
    """w relu(a x + b), off on the near side of its hyperplane."""

    a: Array  # [d] unit length
    b: float
    w: Array  # [k]
    spoiled: float
    """Share of the difference that a single neuron does not explain (always 0 for one output)."""


def neuron_between(near: Array, far: Array, point: Array, direction: Array) -> Neuron:
    """The neuron that turns gradient ``near`` [k, d] into ``far`` where ``direction`` crosses its hyperplane."""
    jump = far - near
    if len(jump) == 1:
        length = float(np.linalg.norm(jump))
        a, spoiled = jump[0] / max(length, np.finfo(float).tiny), 0.0
    else:
        _, values, rows = np.linalg.svd(jump, full_matrices=False)
        a, spoiled = rows[0], float(values[1] / max(values[0], np.finfo(float).tiny))
    if a @ direction < 0:
        a = -a
    return Neuron(a, -float(a @ point), jump @ a, spoiled)


def stack(neurons: list[Neuron], inputs: int, outputs: int) -> tuple[Array, Array, Array]:
    """A [h, d], b [h], W [k, h] of the neurons."""
    if not neurons:
        return np.empty((0, inputs)), np.empty(0), np.empty((outputs, 0))
    return (
        np.stack([neuron.a for neuron in neurons]),
        np.array([neuron.b for neuron in neurons]),
        np.stack([neuron.w for neuron in neurons], axis=1),
    )
