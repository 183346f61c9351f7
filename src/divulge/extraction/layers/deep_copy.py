"""The copy of a network of several hidden layers, as a function and as an MLP of ReLU units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.output_fit import OutputFit
from divulge.extraction.layers.query_space import QuerySpace
from divulge.models import MLP

ROOM = 2.0
"""Biases of neurons that are always on are so many times what keeps them on at all rows."""


@dataclass(frozen=True)
class DeepCopy:
    """A first layer, the layers on it, and the output; ``stack`` are the weights and biases of all of them."""

    space: QuerySpace
    layers: KnownLayers
    output: OutputFit
    stack: list[tuple[Array, Array]]

    @classmethod
    def of(cls, space: QuerySpace, layers: KnownLayers, output: OutputFit, Y: Array) -> DeepCopy:
        """The copy; linear units become ReLU units that are on at all rows Y [n, dim], given in ``space``."""
        first = [] if space.first is None else [space.first]
        return cls(space, layers, output, [*first, *_relu_stack(layers, output, Y)])

    def value(self, X: Tensor) -> Tensor:
        """Outputs [n, k] at rows in the attack's coordinates."""
        return torch.from_numpy(self(X.numpy()))

    def __call__(self, X: Array) -> Array:
        for weight, bias in self.stack[:-1]:
            X = np.maximum(X @ weight.T + bias, 0)
        weight, bias = self.stack[-1]
        return np.asarray(X @ weight.T + bias)

    @property
    def widths(self) -> list[int]:
        return [len(bias) for _, bias in self.stack[:-1]]

    @property
    def refined_layers(self) -> KnownLayers:
        """The layers on the coordinates of the space, with the weights that the stack has now."""
        layers, below = KnownLayers(self.layers.inputs), len(self.stack) - 1 - len(self.layers)
        for (weight, bias), linear in zip(self.stack[below:-1], self.layers.linear, strict=True):
            layers = layers.with_layer(weight, bias, linear)
        return layers

    def model(self) -> MLP:
        """The copy as an MLP."""
        model = MLP([self.space.inputs, *self.widths, len(self.output.bias)]).to(torch.float64)
        linear = [layer for layer in model if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer, (weight, bias) in zip(linear, self.stack, strict=True):
                layer.weight.copy_(torch.from_numpy(weight))
                layer.bias.copy_(torch.from_numpy(bias))
        return model.eval()


def _relu_stack(layers: KnownLayers, output: OutputFit, Y: Array) -> list[tuple[Array, Array]]:
    """Weights and biases of layers and output, in which linear units have biases that keep them on at rows Y."""
    stack: list[tuple[Array, Array]] = []
    shift, turn = np.zeros(layers.inputs), np.ones(layers.inputs)  # what units give: turn * (unit) + shift
    for weight, bias, linear in layers.stack:
        before = Y @ weight.T + bias
        weight, bias = weight * turn, bias - (weight * turn) @ shift
        turn = np.where(linear & (np.median(before, axis=0) < 0), -1.0, 1.0)
        shift = np.where(linear, ROOM * np.maximum(0, -(turn * before).min(axis=0)), 0.0)
        stack.append((weight * turn[:, None], bias * turn + shift))
        Y = np.where(linear, before, np.maximum(before, 0))
    weight = output.weight * turn
    return [*stack, (weight, output.bias - weight @ shift)]
