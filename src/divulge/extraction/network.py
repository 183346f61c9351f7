"""The copy while it grows: an affine part and the neurons found so far, exact in what it says of every point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.models import ReluNetwork


@dataclass(frozen=True)
class Neurons:
    """sum_i weight_i relu(normal_i.x + offset_i), with ``normal`` [h, d] of length one and ``weight`` [k, h]."""

    normal: Tensor
    offset: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.offset)

    @staticmethod
    def none(inputs: int, outputs: int) -> Neurons:
        zeros = torch.zeros
        return Neurons(
            zeros(0, inputs, dtype=torch.float64), zeros(0, dtype=torch.float64), zeros(outputs, 0, dtype=torch.float64)
        )

    def keep(self, which: Tensor) -> Neurons:
        return Neurons(self.normal[which], self.offset[which], self.weight[:, which])

    def and_also(self, other: Neurons) -> Neurons:
        return Neurons(
            torch.cat([self.normal, other.normal]),
            torch.cat([self.offset, other.offset]),
            torch.cat([self.weight, other.weight], dim=1),
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
        slope, constant = self.slope + other.slope, self.constant + other.constant
        old, new = self.neurons, other.neurons
        if not len(old) or not len(new):
            return Copy(slope, constant, old.and_also(new))
        nearest, sign = _nearest(new, old)
        apart = (new.normal - sign[:, None] * old.normal[nearest]).norm(dim=1)
        apart = apart + (new.offset - sign * old.offset[nearest]).abs()
        same = apart * new.weight.norm(dim=0) <= tolerance
        weight = old.weight.clone()
        weight.index_add_(1, nearest[same], new.weight[:, same])
        # relu(-z) = relu(z) - z: a neuron that faces the other way leaves an affine part behind
        flipped = same & (sign < 0)
        slope = slope - new.weight[:, flipped] @ old.normal[nearest[flipped]]
        constant = constant - new.weight[:, flipped] @ old.offset[nearest[flipped]]
        merged = Neurons(old.normal, old.offset, weight)
        alive = weight.norm(dim=0) > tolerance
        return Copy(slope, constant, merged.keep(alive).and_also(new.keep(~same)))

    def model(self) -> ReluNetwork:
        neurons = self.neurons
        return ReluNetwork(neurons.normal, neurons.offset, neurons.weight, self.slope, self.constant).eval()


def _nearest(new: Neurons, old: Neurons) -> tuple[Tensor, Tensor]:
    """For each new neuron the old one whose hyperplane is nearest, and whether it faces the same way (1) or not (-1)."""
    rows, others = (torch.cat([part.normal, part.offset[:, None]], dim=1) for part in (new, old))
    inner = rows @ others.T
    distance = others.square().sum(dim=1) - 2 * inner.abs()
    nearest = distance.argmin(dim=1)
    return nearest, torch.where(inner.gather(1, nearest[:, None])[:, 0] >= 0, 1.0, -1.0).to(rows)


def from_jumps(gradient: Tensor, constant: Tensor, along: Tensor, smallest: float) -> tuple[Neurons, Tensor]:
    """Neurons from the jumps of the affine map across kinks on one line, and which jumps [h] gave one.

    ``gradient`` [h, k, d] and ``constant`` [h, k] are each a weight times (normal, offset), a matrix of rank one. The
    line runs along ``along`` [d]; each neuron is turned so that it switches on in that direction, which makes the
    affine map at the line's left end the affine part of the whole: orientation costs nothing.
    """
    if gradient.shape[1] == 1:
        direction = gradient.new_ones(len(gradient), 1)
    else:
        direction = torch.linalg.eigh(gradient @ gradient.transpose(1, 2)).eigenvectors[:, :, -1]  # [h, k]
    normal = torch.einsum("hk,hkd->hd", direction, gradient)
    offset = (direction * constant).sum(dim=1)
    size = normal.norm(dim=1)
    real = size > smallest
    normal, offset, size, direction = normal[real], offset[real], size[real], direction[real]
    sign = torch.where(normal @ along >= 0, 1.0, -1.0).to(size)
    scale = sign / size
    return Neurons(normal * scale[:, None], offset * scale, (direction * (size * sign)[:, None]).T), real
