"""A copy with two hidden layers, and Gauss-Newton on all of its parameters.

The logits are those of a network with one hidden layer (``labels/network.py``) on the outputs of another layer below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.network import LabelNetwork, relative_distance, steepness
from divulge.extraction.labels.output_layer import equations
from divulge.models import MLP
from divulge.oracles.region import Region


@dataclass(frozen=True, eq=False)
class TwoLayerNetwork:
    """A copy in standardised coordinates."""

    W: Array  # [h1, d]
    b: Array  # [h1]
    upper: LabelNetwork
    """Of the first layer's outputs."""

    @property
    def widths(self) -> list[int]:
        """Neurons of each hidden layer."""
        return [len(self.W), *self.upper.widths]

    @property
    def classes(self) -> int:
        return self.upper.classes

    def features(self, x: Array) -> Array:
        """Outputs of the first layer [n, h1]."""
        return np.asarray(np.maximum(x @ self.W.T + self.b, 0))

    def labels(self, x: Array) -> Array:
        """[n]."""
        return self.upper.labels(self.features(x))

    def difference(self, x: Array, pairs: Array) -> tuple[Array, Array]:
        """Logit of pairs[:, 0] less that of pairs[:, 1] at each row [n], and its gradient [n, d]."""
        a = self.features(x)
        value, slope = self.upper.difference(a, pairs)
        return value, (slope * (a > 0)) @ self.W

    def distance(self, x: Array, pairs: Array, spread: float) -> Array:
        """How far each row is from the boundary of its pair, by the slope there, relative to its size [n]."""
        return relative_distance(*self.difference(x, pairs), x, spread)

    def model(self, region: Region, outputs: int) -> MLP:
        """As a torch module of inputs in the target's own units; a linear part becomes neurons that are always on."""
        upper, kept = self.upper, np.nonzero(np.abs(self.upper.P).max(axis=0) > 0)[0]
        W2 = np.concatenate([upper.W, np.eye(len(self.W))[kept]])
        b2, V = np.append(upper.b, np.zeros(len(kept))), np.concatenate([upper.V, upper.P[:, kept]], axis=1)
        W1 = self.W / region.scale.double().numpy()
        c = upper.c
        if outputs > 1:
            V, c = np.concatenate([np.zeros((1, V.shape[1])), V]), np.append(0.0, c)
        copy = MLP([W1.shape[1], len(W1), len(W2), outputs]).double().requires_grad_(False)
        parts = [(W1, self.b - W1 @ region.center.double().numpy()), (W2, b2), (V, c)]
        layers = [layer for layer in copy if isinstance(layer, torch.nn.Linear)]
        for layer, (weight, bias) in zip(layers, parts, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
        return copy.eval()


def polish(network: TwoLayerNetwork, points: Array, pairs: Array, spread: float, rounds: int) -> TwoLayerNetwork:
    """The network with the least distances to the boundary points; the best of all rounds."""
    best, least = network, np.inf
    for step in range(rounds + 1):
        value, gradient = network.difference(points, pairs)
        norm = steepness(gradient)
        error = float(np.sqrt(np.mean((value / norm) ** 2)))
        if not error < least:
            break
        best, least = network, error
        if step < rounds:
            network = _moved(network, points, pairs, spread, value / norm, norm)
    return best


def _moved(
    network: TwoLayerNetwork, points: Array, pairs: Array, spread: float, distance: Array, norm: Array
) -> TwoLayerNetwork:
    """One Gauss-Newton step, the shortest of all that do the same, which leaves free scales of neurons alone.

    A last row holds the scale of the output layer: all logits at zero would fit every point.
    """
    upper, n = network.upper, len(points)
    a, one = network.features(points), np.ones((n, 1))
    _, slope = upper.difference(a, pairs)
    active, weight = upper.activity(a, pairs)
    linear = bool(np.abs(upper.P).max(initial=0.0) > 0)
    outer = np.concatenate([np.maximum(a @ upper.W.T + upper.b, 0), one, *([a] if linear else [])], axis=1)
    below = (slope * (a > 0))[:, :, None] * np.concatenate([points / spread, one], axis=1)[:, None]
    above = (weight * active)[:, :, None] * np.concatenate([a, one], axis=1)[:, None]
    blocks = [below.reshape(n, -1), above.reshape(n, -1), equations(outer, pairs, upper.classes)]
    J = np.concatenate(blocks, axis=1) / norm[:, None]
    output = np.concatenate([upper.V, upper.c[:, None], *([upper.P] if linear else [])], axis=1).reshape(-1)
    gauge = np.concatenate([np.zeros(J.shape[1] - len(output)), output])
    J = np.concatenate([J, np.linalg.norm(J) / np.linalg.norm(output) * gauge[None]])
    size = np.linalg.norm(J, axis=0)
    size[size == 0] = 1
    delta = np.linalg.lstsq(J / size, -np.append(distance, 0.0), rcond=1e-10)[0] / size
    first, second, last = np.split(delta, np.cumsum([block.shape[1] for block in blocks[:2]]))
    return _added(network, first, second, last.reshape(upper.classes - 1, -1), spread)


def _added(network: TwoLayerNetwork, first: Array, second: Array, last: Array, spread: float) -> TwoLayerNetwork:
    upper, h2 = network.upper, len(network.upper.W)
    h1, d = network.W.shape
    first, second = first.reshape(h1, d + 1), second.reshape(h2, h1 + 1)
    moved = replace(
        upper,
        W=upper.W + second[:, :-1],
        b=upper.b + second[:, -1],
        V=upper.V + last[:, :h2],
        P=upper.P + last[:, h2 + 1 :] if last.shape[1] > h2 + 1 else upper.P,
        c=upper.c + last[:, h2],
    )
    return TwoLayerNetwork(network.W + first[:, :-1] / spread, network.b + first[:, -1], moved)
