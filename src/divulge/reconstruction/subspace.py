"""The row space of the first layer: where the training inputs must lie, and how many there are.

Gradient descent changes the first layer by a combination of the inputs it saw, W1 - W1(0) = A^T [X, 1], so the right
singular vectors of [W1 b1] that stand out from the initial noise span the training inputs. How many stand out is the
number of inputs, or a little less; Haim et al. 2022 assume a bound on it, we read it from the spectrum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.integrate import cumulative_trapezoid
from torch import Tensor

from divulge.errors import AttackFailed, InvalidInput
from divulge.reconstruction import denoising
from divulge.reconstruction.network import Network

FLUCTUATION = 1.03
"""How far the largest singular value of noise may lie above its edge."""


@dataclass(frozen=True)
class RowSpace:
    """x = (origin + basis a) V, a point of the row space whose bias coordinate is 1, for any coordinates a."""

    V: Tensor  # [r, d (+1)], orthonormal rows
    coordinates: Tensor  # [h, r], the first layer in the basis V
    singular: Tensor  # [r]
    noise: float
    """The largest singular value that the initial weights alone explain."""
    origin: Tensor  # [r]
    basis: Tensor  # [r, r - 1] with a first-layer bias, [r, r] without
    has_bias: bool
    standing: int
    """Directions that stand out from the noise; none in weights that were never trained."""
    level: float
    """The standard deviation of the initial weights' entries."""

    @property
    def rank(self) -> int:
        return len(self.singular)

    def to(self, dtype: torch.dtype, device: str | torch.device) -> RowSpace:
        moved = (
            t.to(dtype=dtype, device=device) for t in (self.V, self.coordinates, self.singular, self.origin, self.basis)
        )
        V, coordinates, singular, origin, basis = moved
        return replace(self, V=V, coordinates=coordinates, singular=singular, origin=origin, basis=basis)

    def points(self, a: Tensor) -> Tensor:
        """Row-space vectors z [..., r] for coordinates a."""
        return self.origin + a @ self.basis.T

    def inputs(self, z: Tensor) -> Tensor:
        """Inputs x [..., d] of row-space vectors z."""
        return z @ (self.V[:, :-1] if self.has_bias else self.V)

    def coordinates_of(self, X: Tensor) -> Tensor:
        """The coordinates a whose inputs are nearest to X [n, d]."""
        rows = torch.cat([X, X.new_ones(len(X), 1)], dim=1) if self.has_bias else X
        return (rows @ self.V.T - self.origin) @ self.basis

    def noise_in(self, X: Tensor) -> Tensor:
        """The standard deviation of the noise in inputs X [n, d] of the row space, [n]: they are combinations of the
        first layer's rows, and so is the noise in them."""
        z = self.points(self.coordinates_of(X))
        combination = torch.linalg.pinv(self.coordinates).T @ z.T  # [h, n]
        deviations: Tensor = self.level * combination.norm(dim=0)
        return deviations


def row_space(
    network: Network, *, n: int | None = None, whole: bool = False, shape: tuple[int, ...] | None = None
) -> RowSpace:  # fmt: skip
    """The row space of the network's first layer: n directions, or as many as stand out from the noise.

    With more inputs than dimensions it is the whole space. ``whole`` takes that too where nothing stands out. Where
    inputs are pictures of some ``shape``, noise is filtered out first, which shows more of them.
    """
    first = network.first().to(torch.float64)
    singular, right = _spectrum(first)
    edge = noise_edge(singular, *first.shape)
    standing = rank = int((singular > edge).sum())
    if n is not None:
        if n > len(first):
            raise InvalidInput(
                f"n = {n} inputs cannot be read from a first layer of {len(first)} units; give 1 to {len(first)}."
            )
        rank = min(n, len(singular))
    elif rank == 0 or rank > 0.8 * len(singular):
        if not whole:
            raise AttackFailed(
                "The first layer shows no gap in its singular values (the model looks untrained, started from large "
                "weights, or saw more inputs than they have dimensions), so the number of training inputs cannot be "
                "read from it; give n."
            )
        rank = len(singular)
    level = noise_level(singular, *first.shape)
    if shape is not None and level and 0 < rank < len(singular) / 2 and standing:
        singular, right, edge = _filtered(first, network.input_dim, shape, level)
        standing = int((singular > edge).sum())
        rank = max(standing, rank) if n is None else rank
    return _space(network, first, right[:, :rank].T, singular[:rank], edge, standing, level)


def _space(
    network: Network, first: Tensor, V: Tensor, singular: Tensor, edge: float, standing: int, level: float
) -> RowSpace:  # fmt: skip
    """The row space that the rows of V span."""
    rank = len(V)
    has_bias = network.biases[0] is not None and bool(V[:, -1].any())
    if has_bias:
        last = V[:, -1]
        origin = last / last.square().sum()
        basis = torch.linalg.qr(torch.cat([last[:, None], torch.eye(rank, dtype=V.dtype)], dim=1))[0][:, 1:rank]
    else:
        V = V[:, : network.input_dim]
        origin, basis = torch.zeros(rank, dtype=V.dtype), torch.eye(rank, dtype=V.dtype)
    coordinates = first[:, : V.shape[1]] @ V.T
    return RowSpace(V, coordinates, singular, edge, origin, basis, has_bias, standing, level)


def _filtered(first: Tensor, d: int, shape: tuple[int, ...], level: float) -> tuple[Tensor, Tensor, float]:
    """Singular values and right singular vectors after a filter for pictures, and where those of filtered noise end."""
    clean = denoising.filter_for(first[:, :d], shape, level)
    noise = clean(level * torch.randn(first.shape, generator=torch.Generator().manual_seed(0), dtype=first.dtype))
    largest = torch.linalg.eigvalsh(noise @ noise.T if len(noise) < noise.shape[1] else noise.T @ noise)[-1]
    return *_spectrum(clean(first)), FLUCTUATION * math.sqrt(float(largest))


def _spectrum(first: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, largest first, and right singular vectors as columns, by the smaller Gram matrix.

    A tenth of the work of an SVD. Values below 1e-8 of the largest drown, and lie below single precision anyway.
    """
    wide = len(first) < first.shape[1]
    values, vectors = torch.linalg.eigh(first @ first.T if wide else first.T @ first)
    singular, vectors = values.flip(0).clamp_min(0).sqrt(), vectors.flip(1)
    if not wide:
        return singular, vectors
    return singular, first.T @ vectors / singular.clamp_min(1e-300)


def noise_level(singular: Tensor, rows: int, columns: int) -> float:
    """The standard deviation of the entries of a rows x columns noise matrix, read from the median of the spectrum; 0
    where there is none beyond rounding.

    The spectrum's lower half is noise while fewer than half of the directions carry signal; the Marchenko-Pastur law
    ties its median to its level.
    """
    values = singular.double().numpy()
    quiet = values[len(values) // 4 :]  # signal sits on top; medians of a lower part still know the level
    share = 1 - (len(values) // 4 + len(quiet) / 2) / len(values)  # the spectrum's quantile that its median is
    short, long = min(rows, columns), max(rows, columns)
    size = float(np.median(quiet)) / _noise_quantile(short / long, share)
    return size / math.sqrt(long) if size > _rounding(singular, rows, columns) else 0.0


def noise_edge(singular: Tensor, rows: int, columns: int) -> float:
    """Where the singular values of a rows x columns noise matrix end."""
    edge = FLUCTUATION * noise_level(singular, rows, columns) * (math.sqrt(rows) + math.sqrt(columns))
    return max(edge, _rounding(singular, rows, columns))


def _rounding(singular: Tensor, rows: int, columns: int) -> float:
    return float(singular.max()) * max(rows, columns) * float(np.finfo(np.float32).eps)


def _noise_quantile(ratio: float, share: float) -> float:
    """The quantile of the singular values of a p x q Gaussian matrix with p/q = ratio, over sqrt(q)."""
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    grid = np.linspace(low, high, 20_001)[1:-1]
    density = np.sqrt((high - grid) * (grid - low)) / (2 * math.pi * ratio * grid)
    mass = cumulative_trapezoid(density, grid, initial=0.0)
    return math.sqrt(float(np.interp(share * mass[-1], mass, grid)))
