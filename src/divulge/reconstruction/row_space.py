"""The row space of the first layer, which contains the training inputs, and the number of inputs.

Gradient descent changes the first layer by a combination of its inputs, W1 - W1(0) = A^T [X, 1]. So the right singular
vectors of [W1 b1] whose singular values exceed those of the initial noise span the training inputs. Their number is the
number of inputs, or a little less. Haim et al. 2022 assume a bound on it; we read it from the spectrum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.integrate import cumulative_trapezoid
from torch import Tensor

from divulge.core.errors import AttackFailed, InvalidInput
from divulge.models.weight_matrices import Network
from divulge.reconstruction import denoising

HIDDEN = 3.0
"""Contrast below which the initial weights hide most inputs. Of 10 pictures and of 50 digits, trained from larger and
larger first layers, none came out above a correlation of 0.9 at a contrast of 4 or 8, and 3 did at 16. From torch's
initial weights it is below 2, and 1 of 17 samples kept on three sets of 10 was a picture."""
FLUCTUATION = 1.03
"""Factor by which the largest singular value of noise may exceed the edge of its distribution."""


@dataclass(frozen=True)
class RowSpace:
    """The first layer's row space. For any coordinates a, x = (origin + basis a) V is an input in it.

    With a first-layer bias V has a last column for it, and every such x has 1 there.
    """

    V: Tensor
    """Orthonormal rows, [r, d] or [r, d + 1]."""
    coordinates: Tensor
    """The first layer in the basis V, [h, r]."""
    singular: Tensor
    """[r]."""
    noise_edge: float
    """The largest singular value that the initial weights alone explain."""
    origin: Tensor
    """[r]."""
    basis: Tensor
    """[r, r - 1] with a first-layer bias, [r, r] without."""
    has_bias: bool
    signal_rank: int
    """Number of singular values above the noise; 0 in weights that were never trained."""
    noise_std: float
    """The standard deviation of the initial weights' entries."""
    contrast: float
    """The largest singular value over the largest that the initial weights alone explain."""

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
        """The standard deviation of the initial noise in inputs X [n, d] of the row space, [n].

        An input is a combination of the first layer's rows, and so is the noise in it.
        """
        z = self.points(self.coordinates_of(X))
        combination = torch.linalg.pinv(self.coordinates).T @ z.T  # [h, n]
        deviations: Tensor = self.noise_std * combination.norm(dim=0)
        return deviations


def row_space(
    network: Network, *, n: int | None = None, whole: bool = False, shape: tuple[int, ...] | None = None
) -> RowSpace:  # fmt: skip
    """The row space of the network's first layer, of ``n`` directions or of as many as exceed the noise.

    With more inputs than dimensions it is the whole space. ``whole`` accepts that also where no direction exceeds the
    noise. For images of a given ``shape`` noise is filtered out first, so that more directions exceed it.
    """
    first = network.first().to(torch.float64)
    singular, right = _spectrum(first)
    edge = noise_edge(singular, *first.shape)
    signal_rank = rank = int((singular > edge).sum())
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
    noise_std = noise_deviation(singular, *first.shape)
    contrast = float(singular[0]) / edge if edge else math.inf
    if shape is not None and noise_std and 0 < rank < len(singular) / 2 and signal_rank:
        singular, right, edge = _filtered(first, network.input_dim, shape, noise_std)
        signal_rank = int((singular > edge).sum())
        rank = max(signal_rank, rank) if n is None else rank
    return _space(network, first, right[:, :rank].T, singular[:rank], edge, signal_rank, noise_std, contrast)


def _space(
    network: Network, first: Tensor, V: Tensor, singular: Tensor, edge: float, signal_rank: int, noise_std: float,
    contrast: float,
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
    return RowSpace(V, coordinates, singular, edge, origin, basis, has_bias, signal_rank, noise_std,
                    contrast)  # fmt: skip


def _filtered(first: Tensor, d: int, shape: tuple[int, ...], noise_std: float) -> tuple[Tensor, Tensor, float]:
    """Singular values and right singular vectors after a filter for images, and the edge of filtered noise."""
    clean = denoising.wiener_filter(first[:, :d], shape, noise_std)
    noise = clean(noise_std * torch.randn(first.shape, generator=torch.Generator().manual_seed(0), dtype=first.dtype))
    largest = torch.linalg.eigvalsh(noise @ noise.T if len(noise) < noise.shape[1] else noise.T @ noise)[-1]
    return *_spectrum(clean(first)), FLUCTUATION * math.sqrt(float(largest))


def _spectrum(first: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, largest first, and right singular vectors as columns, from the smaller Gram matrix.

    This takes a tenth of the time of an SVD. It loses values below 1e-8 of the largest, which single precision does not
    resolve either.
    """
    wide = len(first) < first.shape[1]
    values, vectors = torch.linalg.eigh(first @ first.T if wide else first.T @ first)
    singular, vectors = values.flip(0).clamp_min(0).sqrt(), vectors.flip(1)
    if not wide:
        return singular, vectors
    return singular, first.T @ vectors / singular.clamp_min(1e-300)


def noise_deviation(singular: Tensor, rows: int, columns: int) -> float:
    """The standard deviation of the entries of a rows x columns noise matrix; 0 where it is below rounding.

    The lower half of the spectrum is noise while fewer than half of the directions carry signal. The Marchenko-Pastur
    law relates its median to the standard deviation.
    """
    values = singular.double().numpy()
    lower = values[len(values) // 4 :]  # without the largest values, which are signal
    share = 1 - (len(values) // 4 + len(lower) / 2) / len(values)  # the quantile of the whole spectrum at its median
    short, long = min(rows, columns), max(rows, columns)
    size = float(np.median(lower)) / _noise_quantile(short / long, share)
    return size / math.sqrt(long) if size > _rounding(singular, rows, columns) else 0.0


def noise_edge(singular: Tensor, rows: int, columns: int) -> float:
    """The largest singular value that a rows x columns noise matrix may have."""
    edge = FLUCTUATION * noise_deviation(singular, rows, columns) * (math.sqrt(rows) + math.sqrt(columns))
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
