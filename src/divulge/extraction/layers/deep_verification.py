"""Rows that a copy of several layers is compared on besides typical ones, and where it is wrong among them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.known_layers import Array
from divulge.extraction.layers.query_points import extreme_points
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.verification import Verification, row_size

EXTREMES = 0.06
"""Extreme rows for each layer, as a share of the fresh rows."""
FARTHER = (3.0, 5.0, 10.0, 30.0)
"""Distances of further fresh rows, in lengths of a typical input: far out other cells are reached."""
ALONE, OFF = (3.0, 10.0, 30.0, 100.0), 1e-3
"""Activations of a unit that is on alone, and how far below zero the others are, as a share of it."""
OUTSIDE_TYPICAL = 1.5
"""Rows at least so many times as long as a typical input lie outside the typical ones."""


def unusual_rows(copy: DeepCopy, checks: int, reach: float, rng: np.random.Generator) -> Tensor:
    """Rows farther out than typical ones, and rows at the ends of what each layer's activations can be.

    Where activations of the first layer can be chosen, each of its units is on alone, at several sizes. A neuron of the
    second layer with a positive weight switches there, however seldom it does elsewhere: one whose weights are nearly
    all negative was on at no typical row, and at one in 20,000 farther out.
    """
    distance = np.resize(np.minimum(FARTHER, reach), checks // 4)
    rows = [distance[:, None] * rng.normal(size=(checks // 4, copy.space.inputs))]
    count = max(1, int(EXTREMES * checks))
    for depth in range(len(copy.layers) + 1):
        extremes = extreme_points(copy.space, copy.layers.first(depth), count, rng)
        rows.append(copy.space.to_inputs(extremes * _sizes(count, reach)))
        rows.append(copy.space.to_inputs(_linear_extremes(copy, depth, count, reach, rng)))
    if copy.space.positive:
        alone = [size * (np.eye(copy.space.dim) - OFF) for size in np.minimum(ALONE, reach)]
        rows.append(copy.space.to_inputs(np.concatenate(alone)))
    return torch.from_numpy(np.concatenate(rows))


def _sizes(count: int, reach: float) -> Array:
    """How many times as far out extreme rows are moved [count, 1]: a neuron far from the origin switches far out."""
    return np.resize(np.minimum((1.0, 1.0, *FARTHER), reach), (count, 1))


def _linear_extremes(copy: DeepCopy, depth: int, count: int, reach: float, rng: np.random.Generator) -> Array:
    """Rows at the ends of what the linear units on the first ``depth`` layers pass on, near and far; maybe none.

    Such a unit stands for a neuron that was on at all samples, whose hyperplane is not known: it may be off there.
    """
    layers = copy.layers
    if depth == len(layers) or not layers.linear[depth].any():
        return np.zeros((0, copy.space.dim))
    rows = layers.weights[depth][layers.linear[depth]]
    toward = rng.normal(size=(count, len(rows))) @ rows
    Y = extreme_points(copy.space, layers.first(depth), count, rng, toward)
    return np.concatenate([Y, Y * np.exp(rng.normal(size=(count, 1))), Y * _sizes(count, reach)])


def first_hyperplanes(first: tuple[Array, Array], outputs: int) -> NetworkEstimate:
    """The first layer, rows of unit length, beside whose hyperplanes fresh rows are drawn."""
    weight, bias = first
    size = np.linalg.norm(weight, axis=1)
    return NetworkEstimate.of(
        weight / size[:, None], bias / size, np.zeros((outputs, len(bias))), np.zeros((outputs, weight.shape[1])),
        np.zeros(outputs),
    )  # fmt: skip


def where_wrong(verification: Verification) -> str:
    """Where the wrong rows lie, if all typical rows agree and the others lie farther out."""
    wrong = verification.off > verification.allowed
    if not bool(wrong.any()) or bool(wrong[: verification.typical].any()):
        return ""
    nearest = float(row_size(verification.X[wrong]).min())
    if nearest < OUTSIDE_TYPICAL:
        return ""
    return f"; typical inputs agree, the nearest of these lies {nearest:.1f} times as far out"
