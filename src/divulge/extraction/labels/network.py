"""The network as far as labels show it: logits V relu(W x + b) + P x + c, with the logit of class 0 held at 0.

Labels do not show a common positive factor of all logits, nor a term that all of them share. The affine part P is zero
where the orientation of every neuron is known, because relu(z) = relu(-z) + z.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from divulge.extraction.labels.asking import Array
from divulge.models import ReluNetwork
from divulge.oracles.region import Region


@dataclass(frozen=True, eq=False)
class LabelNetwork:
    """A copy in standardised coordinates."""

    W: Array  # [h, d]
    b: Array  # [h]
    V: Array  # [k - 1, h]
    P: Array  # [k - 1, d]
    c: Array  # [k - 1]

    @property
    def classes(self) -> int:
        return len(self.c) + 1

    @property
    def widths(self) -> list[int]:
        """Neurons of each hidden layer; empty for a linear model."""
        return [len(self.W)] if len(self.W) else []

    def logits(self, x: Array) -> Array:
        """[n, k]."""
        z = np.maximum(x @ self.W.T + self.b, 0) @ self.V.T + x @ self.P.T + self.c
        return np.concatenate([np.zeros((len(x), 1)), z], axis=1)

    def labels(self, x: Array) -> Array:
        """[n]."""
        return np.asarray(self.logits(x).argmax(axis=1))

    def difference(self, x: Array, pairs: Array) -> tuple[Array, Array]:
        """Logit of pairs[:, 0] less that of pairs[:, 1] at each row [n], and its gradient [n, d]."""
        active, weight = self.activity(x, pairs)
        P = np.concatenate([np.zeros((1, x.shape[1])), self.P])
        c = np.append(0.0, self.c)
        slope = P[pairs[:, 0]] - P[pairs[:, 1]]
        z = np.maximum(x @ self.W.T + self.b, 0)
        value = (weight * z).sum(axis=1) + (slope * x).sum(axis=1) + c[pairs[:, 0]] - c[pairs[:, 1]]
        return value, (weight * active) @ self.W + slope

    def activity(self, x: Array, pairs: Array) -> tuple[Array, Array]:
        """Which neurons are on at each row [n, h], and the difference of the pair's output weights [n, h]."""
        V = np.concatenate([np.zeros((1, len(self.W))), self.V])
        return x @ self.W.T + self.b > 0, V[pairs[:, 0]] - V[pairs[:, 1]]

    def distance(self, x: Array, pairs: Array, spread: float) -> Array:
        """How far each row is from the boundary of its pair, by the slope there, relative to its size [n]."""
        return relative_distance(*self.difference(x, pairs), x, spread)

    def signed(self, sign: float) -> LabelNetwork:
        """All logits times a sign."""
        return replace(self, V=sign * self.V, P=sign * self.P, c=sign * self.c)

    def without_rounding(self, share: float) -> LabelNetwork:
        """Output biases and linear parts below this share of what the neurons add are zero.

        Where no neuron is on they alone decide, and a target that has none decides for the first class there.
        """
        size = np.abs(self.V) @ np.linalg.norm(np.column_stack([self.W, self.b]), axis=1) if len(self.W) else self.c * 0
        linear = np.linalg.norm(self.P, axis=1, keepdims=True) < share * size[:, None]
        return replace(self, P=np.where(linear, 0.0, self.P), c=np.where(np.abs(self.c) < share * size, 0.0, self.c))

    def model(self, region: Region, outputs: int) -> ReluNetwork:
        """As a torch module of inputs in the target's own units, with one output (a logit) or one for each class."""
        scale, center = region.scale.double(), region.center.double()
        A = torch.from_numpy(self.W.copy()) / scale
        P = torch.from_numpy(self.P.copy()) / scale
        V, c = torch.from_numpy(self.V.copy()), torch.from_numpy(self.c.copy())
        b = torch.from_numpy(self.b.copy()) - A @ center
        q = c - P @ center
        if outputs == 1:
            return ReluNetwork(A, b, V, P, q).eval()
        return ReluNetwork(A, b, _with_zero(V), _with_zero(P), _with_zero(q)).eval()


def steepness(gradient: Array) -> Array:
    """The length of each gradient [n]; where logits are flat it counts as a millionth of the largest."""
    size = np.linalg.norm(gradient, axis=1)
    return np.asarray(np.maximum(size, max(1e-6 * float(size.max(initial=0.0)), 1e-300)))


def relative_distance(value: Array, gradient: Array, x: Array, spread: float) -> Array:
    """|value| / |gradient| relative to the size of each row [n]."""
    return np.asarray(np.abs(value) / steepness(gradient) / (spread + np.linalg.norm(x, axis=1)))


def _with_zero(rows: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(rows[:1]), rows])
