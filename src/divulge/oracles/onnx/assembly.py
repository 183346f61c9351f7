"""Layers and their connections as the simplest torch module that computes the same.

Batch normalisation and scalings are folded into the layer before them. A chain becomes an nn.Sequential, and, where it
is one, divulge's own MLP or ReluNetwork, which every attack on weights knows; anything else becomes a ``Graph``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from divulge.models import ACTIVATIONS, MLP, ReluNetwork
from divulge.oracles.onnx.layers import Scale, linear


@dataclass
class Step:
    """A layer with the names of its inputs and of its output."""

    layer: nn.Module
    inputs: tuple[str, ...]
    output: str


class Graph(nn.Module):
    """Layers that are not a plain chain: each takes outputs of earlier ones."""

    def __init__(self, steps: Sequence[Step], entry: str, result: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(step.layer for step in steps)
        self.wiring = [(step.inputs, step.output) for step in steps]
        self.entry, self.result = entry, result

    def forward(self, X: Tensor) -> Tensor:
        made = {self.entry: X}
        for layer, (inputs, output) in zip(self.layers, self.wiring, strict=True):
            made[output] = layer(*(made[name] for name in inputs))
        return made[self.result]


class Sum(nn.Module):
    def forward(self, A: Tensor, B: Tensor) -> Tensor:
        return A + B


def folded(steps: list[Step]) -> list[Step]:
    """Scalings and batch normalisations folded into the linear or convolutional layer before them."""
    readers: dict[str, int] = {}
    for step in steps:
        for name in step.inputs:
            readers[name] = readers.get(name, 0) + 1
    kept: list[Step] = []
    for step in steps:
        before = next((k for k in kept if k.output == step.inputs[0]), None)
        if isinstance(step.layer, Scale) and before is not None and readers[before.output] == 1:
            merged = _merged(before.layer, step.layer)
            if merged is not None:
                kept[kept.index(before)] = Step(merged, before.inputs, step.output)
                continue
        kept.append(step)
    return kept


def _merged(layer: nn.Module, scale: Scale) -> nn.Module | None:
    """``scale`` after ``layer`` as one layer, or None where it is not the same for every position."""
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return None
    channels, spatial = layer.weight.shape[0], layer.weight.ndim - 2
    whole = (channels, *[1] * spatial)
    parts = []
    for part in (scale.factor.detach(), scale.shift.detach()):
        while part.ndim > len(whole) and part.shape[0] == 1:
            part = part[0]
        try:
            parts.append(part.expand(whole).reshape(channels))
        except RuntimeError:
            return None
    factor, shift = parts
    weight = layer.weight.detach() * factor.reshape(-1, *[1] * (layer.weight.ndim - 1))
    bias = shift if layer.bias is None else layer.bias.detach() * factor + shift
    if isinstance(layer, nn.Linear):
        return linear(weight, bias)
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias.clone())
    return layer


def assembled(steps: list[Step], entry: str, result: str) -> nn.Module:
    used, last = [], {result}
    for step in reversed(steps):
        if step.output in last:
            used.append(step)
            last |= set(step.inputs)
    steps = used[::-1]
    reads = [entry, *(step.output for step in steps)]
    if all(step.inputs == (name,) for step, name in zip(steps, reads, strict=False)):
        return _chain([step.layer for step in steps])
    return _relu_network(steps, entry) or Graph(steps, entry, result)


def _chain(layers: list[nn.Module]) -> nn.Module:
    flat = layers[1:] if len(layers) > 1 and isinstance(layers[0], nn.Flatten) else layers
    if not flat or not isinstance(flat[0], nn.Linear):
        return nn.Sequential(*layers)
    between = {type(layer) for layer in flat[1::2]}
    name = next((name for name, kind in ACTIVATIONS.items() if between <= {kind}), None)
    plain = all(layer.alpha == 1 for layer in flat if isinstance(layer, nn.ELU))
    linears = flat[::2]
    if name is None or not plain or len(flat) % 2 == 0 or not all(isinstance(layer, nn.Linear) for layer in linears):
        chain = nn.Sequential(*flat)
        chain.input_shape = (flat[0].in_features,)  # type: ignore[assignment]
        return chain
    return _mlp([layer for layer in linears if isinstance(layer, nn.Linear)], name)


def _mlp(layers: list[nn.Linear], activation: str) -> MLP:
    biased = [layer.bias is not None for layer in layers]
    bias = "none" if not any(biased) else "first" if biased[0] and not any(biased[1:]) and len(biased) > 1 else "all"
    mlp = MLP([layers[0].in_features, *(layer.out_features for layer in layers)], activation=activation, bias=bias)  # type: ignore[arg-type]
    mlp.to(layers[0].weight.dtype)
    with torch.no_grad():
        for own, layer in zip((m for m in mlp if isinstance(m, nn.Linear)), layers, strict=True):
            own.weight.copy_(layer.weight)
            if own.bias is not None:
                own.bias.zero_() if layer.bias is None else own.bias.copy_(layer.bias)
    return mlp


def _relu_network(steps: list[Step], entry: str) -> ReluNetwork | None:
    """W relu(A x + b) + P x + q, if that is what the steps compute."""
    if not steps or not isinstance(steps[-1].layer, Sum) or len(steps) != 5:
        return None
    made = {step.output: step for step in steps}
    for second, straight in (steps[-1].inputs, steps[-1].inputs[::-1]):
        W = made.get(second)
        relu = made.get(W.inputs[0]) if W is not None else None
        A = made.get(relu.inputs[0]) if relu is not None else None
        P = made.get(straight)
        if A is None or P is None or W is None or relu is None or not isinstance(relu.layer, nn.ReLU):
            continue
        layers = [A.layer, W.layer, P.layer]
        if A.inputs == P.inputs == (entry,) and all(isinstance(layer, nn.Linear) for layer in layers):
            a, w, p = (layer for layer in layers if isinstance(layer, nn.Linear))
            zeros = [
                layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in (a, w, p)
            ]
            return ReluNetwork(a.weight, zeros[0], w.weight, p.weight, zeros[1] + zeros[2])
    return None
