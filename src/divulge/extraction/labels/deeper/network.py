"""A copy with several hidden layers, and Gauss-Newton on all of its parameters.

The logits are those of a network with one hidden layer (``labels/network.py``) on the outputs of the layers below.
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

Layer = tuple[Array, Array]
"""Weights [h, d] and biases [h]."""


@dataclass(frozen=True, eq=False)
class DeepNetwork:
    """A copy in standardised coordinates."""

    lower: tuple[Layer, ...]
    """The hidden layers but the last, from the lowest on."""
    upper: LabelNetwork
    """Of the outputs of the layers below."""

    @property
    def widths(self) -> list[int]:
        """Neurons of each hidden layer."""
        return [*(len(b) for _, b in self.lower), *self.upper.widths]

    @property
    def classes(self) -> int:
        return self.upper.classes

    def outputs(self, x: Array) -> list[Array]:
        """The inputs and the outputs of each lower layer, [n, h] each."""
        found = [x]
        for W, b in self.lower:
            found.append(np.maximum(found[-1] @ W.T + b, 0))
        return found

    def labels(self, x: Array) -> Array:
        """[n]."""
        return self.upper.labels(self.outputs(x)[-1])

    def difference(self, x: Array, pairs: Array) -> tuple[Array, Array]:
        """Logit of pairs[:, 0] less that of pairs[:, 1] at each row [n], and its gradient [n, d]."""
        outputs = self.outputs(x)
        value, slope = self.upper.difference(outputs[-1], pairs)
        return value, self.slopes(outputs, slope)[0] @ self.lower[0][0]

    def slopes(self, outputs: list[Array], slope: Array) -> list[Array]:
        """The gradient with respect to what the neurons of each lower layer get, [n, h] each."""
        found = [slope * (outputs[-1] > 0)]
        for (W, _), output in zip(self.lower[:0:-1], outputs[-2:0:-1], strict=True):
            found.insert(0, (found[0] @ W) * (output > 0))
        return found

    def distance(self, x: Array, pairs: Array, spread: float) -> Array:
        """How far each row is from the boundary of its pair, by the slope there, relative to its size [n]."""
        return relative_distance(*self.difference(x, pairs), x, spread)

    def model(self, region: Region, outputs: int) -> MLP:
        """As a torch module of inputs in the target's own units; a linear part becomes neurons that are always on."""
        upper, kept = self.upper, np.nonzero(np.abs(self.upper.P).max(axis=0) > 0)[0]
        last = np.concatenate([upper.W, np.eye(len(self.lower[-1][1]))[kept]])
        V, c = np.concatenate([upper.V, upper.P[:, kept]], axis=1), upper.c
        if outputs > 1:
            V, c = np.concatenate([np.zeros((1, V.shape[1])), V]), np.append(0.0, c)
        (W, b), *others = self.lower
        W = W / region.scale.double().numpy()
        first = (W, b - W @ region.center.double().numpy())
        parts = [first, *others, (last, np.append(upper.b, np.zeros(len(kept)))), (V, c)]
        copy = MLP([W.shape[1], *(len(bias) for _, bias in parts[:-1]), outputs]).double().requires_grad_(False)
        layers = [layer for layer in copy if isinstance(layer, torch.nn.Linear)]
        for layer, (weight, bias) in zip(layers, parts, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
        return copy.eval()


def polish(network: DeepNetwork, points: Array, pairs: Array, spread: float, rounds: int) -> DeepNetwork:
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
    network: DeepNetwork, points: Array, pairs: Array, spread: float, distance: Array, norm: Array
) -> DeepNetwork:
    """One Gauss-Newton step, the shortest of all that do the same, which leaves free scales of neurons alone.

    A last row holds the scale of the output layer: all logits at zero would fit every point.
    """
    upper, n = network.upper, len(points)
    outputs, one = network.outputs(points), np.ones((n, 1))
    a = outputs[-1]
    _, slope = upper.difference(a, pairs)
    active, weight = upper.activity(a, pairs)
    linear = bool(np.abs(upper.P).max(initial=0.0) > 0)
    outer = np.concatenate([np.maximum(a @ upper.W.T + upper.b, 0), one, *([a] if linear else [])], axis=1)
    slopes = [*network.slopes(outputs, slope), weight * active]
    below = [points / spread, *outputs[1:]]
    inner = [s[:, :, None] * np.concatenate([z, one], axis=1)[:, None] for s, z in zip(slopes, below, strict=True)]
    blocks = [*(block.reshape(n, -1) for block in inner), equations(outer, pairs, upper.classes)]
    J = np.concatenate(blocks, axis=1) / norm[:, None]
    output = np.concatenate([upper.V, upper.c[:, None], *([upper.P] if linear else [])], axis=1).reshape(-1)
    gauge = np.concatenate([np.zeros(J.shape[1] - len(output)), output])
    J = np.concatenate([J, np.linalg.norm(J) / np.linalg.norm(output) * gauge[None]])
    size = np.linalg.norm(J, axis=0)
    size[size == 0] = 1
    delta = np.linalg.lstsq(J / size, -np.append(distance, 0.0), rcond=1e-10)[0] / size
    return _added(network, np.split(delta, np.cumsum([block.shape[1] for block in blocks[:-1]])), spread)


def _added(network: DeepNetwork, steps: list[Array], spread: float) -> DeepNetwork:
    """The network with a step for each layer, the output layer last."""
    upper, h = network.upper, len(network.upper.W)
    *inner, last = steps
    weights = [*(W for W, _ in network.lower), upper.W]
    rows = [step.reshape(len(W), W.shape[1] + 1) for step, W in zip(inner, weights, strict=True)]
    rows[0][:, :-1] /= spread
    lower = tuple((W + row[:, :-1], b + row[:, -1]) for (W, b), row in zip(network.lower, rows[:-1], strict=True))
    last = last.reshape(upper.classes - 1, -1)
    moved = replace(
        upper,
        W=upper.W + rows[-1][:, :-1],
        b=upper.b + rows[-1][:, -1],
        V=upper.V + last[:, :h],
        P=upper.P + last[:, h + 1 :] if last.shape[1] > h + 1 else upper.P,
        c=upper.c + last[:, h],
    )
    return DeepNetwork(lower, moved)
