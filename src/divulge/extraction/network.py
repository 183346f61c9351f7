"""The copy while it grows: an affine part and the neurons found so far, exact in what it says of every point."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from divulge.models import ReluNetwork

ROWS_TO_MEET = 1500
"""Equations that polishing offsets solves at most."""


@dataclass(frozen=True)
class Neurons:
    """sum_i weight_i relu(normal_i.x + offset_i), with ``normal`` [h, d] of length one and ``weight`` [k, h]."""

    normal: Tensor
    offset: Tensor
    weight: Tensor
    doubt: Tensor
    """How far the offset, times the weight, may be off [h]."""

    def __len__(self) -> int:
        return len(self.offset)

    @staticmethod
    def none(inputs: int, outputs: int) -> Neurons:
        nothing = torch.zeros(0, dtype=torch.float64)
        return Neurons(nothing.reshape(0, inputs), nothing, nothing.reshape(outputs, 0), nothing)

    def keep(self, which: Tensor) -> Neurons:
        return Neurons(self.normal[which], self.offset[which], self.weight[:, which], self.doubt[which])

    def distinct(self, closeness: float) -> Neurons:
        """One neuron of each hyperplane, the most certain; those nearer than ``closeness`` count as one."""
        if not len(self):
            return self
        leader, _ = _leaders(self, closeness, torch.ones_like(self.offset))
        return self.keep(leader == torch.arange(len(leader)))

    def and_also(self, other: Neurons) -> Neurons:
        return Neurons(
            torch.cat([self.normal, other.normal]),
            torch.cat([self.offset, other.offset]),
            torch.cat([self.weight, other.weight], dim=1),
            torch.cat([self.doubt, other.doubt]),
        )


@dataclass(frozen=True)
class Copy:
    """f(x) = slope x + constant + neurons(x), with ``slope`` [k, d] and ``constant`` [k]; float64 throughout."""

    slope: Tensor
    constant: Tensor
    neurons: Neurons

    @staticmethod
    def nothing(inputs: int, outputs: int) -> Copy:
        return Copy(
            torch.zeros(outputs, inputs, dtype=torch.float64),
            torch.zeros(outputs, dtype=torch.float64),
            Neurons.none(inputs, outputs),
        )

    @property
    def width(self) -> int:
        return len(self.neurons)

    def value(self, X: Tensor) -> Tensor:
        """Outputs [n, k]."""
        hidden = torch.relu(X @ self.neurons.normal.T + self.neurons.offset)
        return hidden @ self.neurons.weight.T + X @ self.slope.T + self.constant

    def gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [n, k] and gradients [n, k, d]."""
        before = X @ self.neurons.normal.T + self.neurons.offset  # [n, h]
        active = (before > 0).to(X.dtype)
        columns = [
            (active * row) @ self.neurons.normal + slope
            for row, slope in zip(self.neurons.weight, self.slope, strict=True)
        ]
        value = (active * before) @ self.neurons.weight.T + X @ self.slope.T + self.constant
        return value, torch.stack(columns, dim=1)

    def plus(self, other: Copy, tolerance: float) -> Copy:
        """The sum of two copies: neurons on the same hyperplane become one, and what cancels goes."""
        both = Copy(self.slope + other.slope, self.constant + other.constant, self.neurons.and_also(other.neurons))
        return both.merged(tolerance)

    def merged(self, tolerance: float) -> Copy:
        """The same function with one neuron for each hyperplane, the most certain one, and none that cancel.

        Two neurons share a hyperplane if taking one for the other changes the affine map by no more than ``tolerance``.
        """
        neurons = self.neurons
        if not len(neurons):
            return self
        leader, sign = _leaders(neurons, tolerance, neurons.weight.norm(dim=0))
        weight = torch.zeros_like(neurons.weight).index_add_(1, leader, neurons.weight)
        # relu(-z) = relu(z) - z: a neuron that faces the other way leaves an affine part behind
        turned = sign < 0
        slope = self.slope - neurons.weight[:, turned] @ neurons.normal[leader[turned]]
        constant = self.constant - neurons.weight[:, turned] @ neurons.offset[leader[turned]]
        alive = weight.norm(dim=0) > tolerance
        return Copy(slope, constant, replace(neurons, weight=weight).keep(alive))

    def polished(self, X: Tensor, truth: Tensor, noise: float) -> Copy:
        """The same neurons with offsets and constant moved, each within its doubt, to meet the truth [n, k] at ``X``.

        That is linear least squares with a Gaussian prior, solved in the space of the rows, which are few.
        """
        copy, outputs = self, len(self.constant)
        rows = max(1, ROWS_TO_MEET // outputs)
        X, truth = X[:rows], truth[:rows]
        prior = torch.cat([self.neurons.doubt, self.neurons.doubt.sum() + 1e3 * noise + torch.zeros(outputs)])
        for _ in range(2):
            before = X @ copy.neurons.normal.T + copy.neurons.offset
            weight = copy.neurons.weight
            unit = weight / weight.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
            moved = torch.einsum("nh,kh->nkh", (before > 0).to(X), unit)
            constant = torch.eye(outputs, dtype=X.dtype).expand(len(X), -1, -1)
            design = (torch.cat([moved, constant], dim=2) * prior).flatten(0, 1)  # [n k, h + k]
            off = (truth - copy.value(X)).flatten()
            if not bool(off.any()):
                break
            system = design @ design.T
            system.diagonal().add_(noise**2)
            change = prior * (design.T @ torch.linalg.solve(system, off))
            shift = change[: len(unit.T)] / weight.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
            neurons = replace(copy.neurons, offset=copy.neurons.offset + shift)
            copy = Copy(copy.slope, copy.constant + change[len(unit.T) :], neurons)
        return copy

    def model(self) -> ReluNetwork:
        neurons = self.neurons
        return ReluNetwork(neurons.normal, neurons.offset, neurons.weight, self.slope, self.constant).eval()


def _leaders(neurons: Neurons, tolerance: float, size: Tensor) -> tuple[Tensor, Tensor]:
    """For each neuron the most certain one on its hyperplane, and whether the two face the same way (1) or not (-1).

    Neurons are sorted along a random direction, in which those of one hyperplane are neighbours. Distances between
    hyperplanes count times ``size`` [h].
    """
    rows = torch.cat([neurons.normal, neurons.offset[:, None]], dim=1)
    key = rows @ torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0), dtype=rows.dtype)
    facing = torch.where(key >= 0, 1.0, -1.0).to(rows)
    order = (key * facing).argsort()
    sorted_rows = (rows * facing[:, None])[order]
    apart = sorted_rows.diff(dim=0).norm(dim=1) * torch.minimum(size[order][1:], size[order][:-1])
    group = torch.cat([torch.zeros(1, dtype=torch.long), (apart > tolerance).long().cumsum(0)])
    leader = torch.empty_like(order)
    best = torch.full((int(group[-1]) + 1,), torch.inf, dtype=rows.dtype).scatter_reduce(
        0, group, neurons.doubt[order], "amin"
    )
    chosen = torch.empty(len(best), dtype=torch.long)
    certain = neurons.doubt[order] == best[group]
    chosen[group[certain]] = order[certain]
    leader[order] = chosen[group]
    return leader, facing * facing[leader]


def from_jumps(gradient: Tensor, constant: Tensor, along: Tensor, smallest: float, doubt: Tensor) -> Neurons:
    """Neurons from the jumps of the affine map across kinks on one line; jumps that are next to nothing give none.

    ``gradient`` [h, k, d] and ``constant`` [h, k] are each a weight times (normal, offset), a matrix of rank one. The
    line runs along ``along`` [d]; each neuron is turned so that it switches on in that direction, which makes the
    affine map at the line's left end the affine part of the whole: orientation costs nothing. ``doubt`` [h] is how far
    the constants may be off.
    """
    if gradient.shape[1] == 1:
        direction = gradient.new_ones(len(gradient), 1)
    else:
        direction = torch.linalg.eigh(gradient @ gradient.transpose(1, 2)).eigenvectors[:, :, -1]  # [h, k]
    normal = torch.einsum("hk,hkd->hd", direction, gradient)
    offset = (direction * constant).sum(dim=1)
    size = normal.norm(dim=1)
    real = size > smallest
    normal, offset, size, direction, doubt = normal[real], offset[real], size[real], direction[real], doubt[real]
    sign = torch.where(normal @ along >= 0, 1.0, -1.0).to(size)
    scale = sign / size
    return Neurons(normal * scale[:, None], offset * scale, (direction * (size * sign)[:, None]).T, doubt)
