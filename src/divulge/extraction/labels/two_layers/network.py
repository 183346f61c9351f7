"""A copy with two hidden layers, and Gauss-Newton on all of its parameters.

The decision is the sign of v relu(W2 relu(W1 x + b1) + b2) + s relu(W1 x + b1) + c. The part s is zero where the
orientation of every neuron of the second layer is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from divulge.extraction.labels.asking import Array
from divulge.models import MLP
from divulge.oracles.region import Region

SAME = 1e-3
"""How near to 0 or 1 the share of a neuron in the linear part must be, to say how it is oriented."""


@dataclass(frozen=True, eq=False)
class TwoLayerNetwork:
    """A copy in standardised coordinates."""

    W1: Array  # [h1, d]
    b1: Array  # [h1]
    W2: Array  # [h2, h1]
    b2: Array  # [h2]
    v: Array  # [h2]
    s: Array  # [h1]
    c: float

    @property
    def widths(self) -> list[int]:
        """Neurons of each hidden layer."""
        return [len(self.W1), len(self.W2)]

    @property
    def classes(self) -> int:
        return 2

    def value(self, x: Array) -> Array:
        """The logit of class 1 [n]."""
        a1 = np.maximum(x @ self.W1.T + self.b1, 0)
        return np.asarray(np.maximum(a1 @ self.W2.T + self.b2, 0) @ self.v + a1 @ self.s + self.c)

    def labels(self, x: Array) -> Array:
        """[n]."""
        return np.asarray((self.value(x) > 0).astype(int))

    def difference(self, x: Array, pairs: Array) -> tuple[Array, Array]:
        """Logit of pairs[:, 0] less that of pairs[:, 1] at each row [n], and its gradient [n, d]."""
        sign = pairs[:, 0] - pairs[:, 1]
        on1, _, upper, _ = self._activity(x)
        return sign * self.value(x), sign[:, None] * ((upper * on1) @ self.W1)

    def distance(self, x: Array, pairs: Array, spread: float) -> Array:
        """How far each row is from the boundary, by the slope there, relative to its size [n]."""
        value, gradient = self.difference(x, pairs)
        size = np.linalg.norm(gradient, axis=1)
        floor = 1e-6 * float(size.max(initial=1e-300))
        return np.asarray(np.abs(value) / np.maximum(size, floor) / (spread + np.linalg.norm(x, axis=1)))

    def _activity(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Which neurons of the first layer are on, their outputs, the derivative by them, and that by the second's."""
        z1 = x @ self.W1.T + self.b1
        a1 = np.maximum(z1, 0)
        second = np.where(a1 @ self.W2.T + self.b2 > 0, self.v, 0.0)
        return z1 > 0, a1, second @ self.W2 + self.s, second

    def oriented(self) -> TwoLayerNetwork:
        """Without the linear part, where turning some neurons of the second layer round takes it away."""
        share = np.linalg.lstsq((self.v[:, None] * self.W2).T, -self.s, rcond=None)[0]
        turned: Array = np.asarray(np.round(share))
        rest = self.s + (turned * self.v) @ self.W2
        scale = float(np.abs(self.v[:, None] * self.W2).max(initial=1e-300))
        if not np.isin(turned, (0, 1)).all() or np.abs(rest).max(initial=0.0) > SAME * scale:
            return self
        sign = 1 - 2 * turned
        c = self.c + float((turned * self.v) @ self.b2)
        return replace(self, W2=sign[:, None] * self.W2, b2=sign * self.b2, s=np.zeros(len(self.s)), c=c)

    def model(self, region: Region, outputs: int) -> MLP:
        """As a torch module of inputs in the target's own units; a linear part becomes neurons that are always on."""
        kept = np.nonzero(np.abs(self.s) > 0)[0]
        W2 = np.concatenate([self.W2, np.eye(len(self.W1))[kept]])
        b2, v = np.concatenate([self.b2, np.zeros(len(kept))]), np.concatenate([self.v, self.s[kept]])
        W1 = self.W1 / region.scale.double().numpy()
        copy = MLP([W1.shape[1], len(W1), len(W2), outputs]).double().requires_grad_(False)
        parts = [(W1, self.b1 - W1 @ region.center.double().numpy()), (W2, b2)]
        last = (v[None], np.array([self.c]))
        parts.append(last if outputs == 1 else (np.stack([0 * v, v]), np.array([0.0, self.c])))
        layers = [layer for layer in copy if isinstance(layer, torch.nn.Linear)]
        for layer, (weight, bias) in zip(layers, parts, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
        return copy.eval()


def polish(network: TwoLayerNetwork, points: Array, spread: float, rounds: int) -> TwoLayerNetwork:
    """The network with the least distances to the boundary points; the best of all rounds."""
    best, least = network, np.inf
    for step in range(rounds + 1):
        value = network.value(points)
        on1, _, upper, _ = network._activity(points)
        norm = np.maximum(np.linalg.norm((upper * on1) @ network.W1, axis=1), 1e-300)
        error = float(np.sqrt(np.mean((value / norm) ** 2)))
        if not error < least:
            break
        best, least = network, error
        if step < rounds:
            network = _moved(network, points, spread, value / norm, norm)
    return best


def _moved(network: TwoLayerNetwork, points: Array, spread: float, distance: Array, norm: Array) -> TwoLayerNetwork:
    """One Gauss-Newton step; of all steps that do the same the shortest, which leaves the free scales alone."""
    (h1, d), h2 = network.W1.shape, len(network.W2)
    on1, a1, upper, second = network._activity(points)
    a2 = np.maximum(a1 @ network.W2.T + network.b2, 0)
    one = np.ones((len(points), 1))
    linear = bool(np.abs(network.s).max(initial=0.0) > 0)
    blocks = [
        ((upper * on1)[:, :, None] * np.concatenate([points / spread, one], axis=1)[:, None]).reshape(len(points), -1),
        (second[:, :, None] * np.concatenate([a1, one], axis=1)[:, None]).reshape(len(points), -1),
        a2, one, *([a1] if linear else []),
    ]  # fmt: skip
    J = np.concatenate(blocks, axis=1) / norm[:, None]
    size = np.maximum(np.linalg.norm(J, axis=0), 1e-300)
    delta = np.linalg.lstsq(J / size, -distance, rcond=1e-10)[0] / size
    first, delta = delta[: h1 * (d + 1)].reshape(h1, d + 1), delta[h1 * (d + 1) :]
    middle, delta = delta[: h2 * (h1 + 1)].reshape(h2, h1 + 1), delta[h2 * (h1 + 1) :]
    return TwoLayerNetwork(
        W1=network.W1 + first[:, :-1] / spread,
        b1=network.b1 + first[:, -1],
        W2=network.W2 + middle[:, :-1],
        b2=network.b2 + middle[:, -1],
        v=network.v + delta[:h2],
        s=network.s + (delta[h2 + 1 :] if linear else 0.0),
        c=network.c + float(delta[h2]),
    )
