"""What Gauss-Newton knows about the curvature of its problem before it starts a round.

``Metric`` holds how rows of a kind differ from one another. ``Prior`` is a Gaussian prior over the unknown row, for
released weights that carry noise. ``ExploredDirections`` keeps the directions that earlier rounds multiplied by J, so
that they precondition the later rounds: J moves little once the search is near its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_KEPT = 60  # explored directions that are kept
_FLOOR = 1e-3  # the smallest curvature, as a share of the median one, that a kept direction may have
_DEPENDENT = 1e-4  # diagonal entries of R below this mark a direction as repeated or held at a bound

Preconditioner = Callable[[Tensor], Tensor]
"""Vectors [B, d] to the approximate inverse of J^T J times each."""


@dataclass(frozen=True)
class Metric:
    """Coordinates w of a difference dz = S w between rows; S^2 is proportional to the covariance of differences."""

    root: Tensor
    """S [d, d], symmetric."""
    inverse: Tensor
    """The inverse of S [d, d]."""

    @classmethod
    def of(cls, values: Tensor, vectors: Tensor, floor: float) -> Metric:
        """The metric of a covariance, from its eigenvalues (raised by ``floor`` times their mean) and eigenvectors."""
        scaled = (values.clamp(min=0) / values.mean().clamp(min=torch.finfo(values.dtype).tiny) + floor).sqrt()
        return cls((vectors * scaled) @ vectors.T, (vectors / scaled) @ vectors.T)


@dataclass(frozen=True)
class Prior:
    """A Gaussian prior over each unknown row, and the size of the noise on theta.

    With a prior the search minimises |theta* - theta(z)|^2 + noise^2 (z - mean)^T C^-1 (z - mean). Its minimum is the
    most probable row.
    """

    mean: Tensor
    """[B, d]."""
    values: Tensor
    """Eigenvalues of the covariance C [d]."""
    vectors: Tensor
    """Eigenvectors of C [d, d]."""
    noise: float
    """Standard deviation of the noise on each released weight."""

    def pull(self, away: Tensor) -> Tensor:
        """noise^2 C^-1 times each row of ``away``."""
        return self.noise**2 * ((away @ self.vectors) / self.values) @ self.vectors.T

    def preconditioner(self, scale: Tensor, free: Tensor) -> Preconditioner:
        """The inverse of J^T J + noise^2 C^-1, with J^T J approximated by ``scale`` [B] times the identity."""
        inverse = 1 / (scale[:, None] + self.noise**2 / self.values)
        return lambda vectors: (((vectors @ self.vectors) * inverse) @ self.vectors.T) * free


class ExploredDirections:
    """Directions of earlier conjugate gradient steps and their images under J."""

    def __init__(self, metric: Metric | None = None) -> None:
        self.metric = metric
        self.directions: list[Tensor] = []
        self.images: list[Tensor] = []
        self.curvatures: list[Tensor] = []
        self.scale: Tensor = torch.ones(1)
        """The median curvature of each row's directions [B]."""

    def add(self, direction: Tensor, image: Tensor) -> None:
        """Keep one direction [B, d] and its image [B, P]."""
        size = direction.norm(dim=1, keepdim=True)
        moved = size > 0  # the direction of a row that is solved already is zero
        size = torch.where(moved, size, 1.0)
        most = min(_KEPT, direction.shape[1])  # no more than the space has dimensions
        self.directions = [*self.directions, direction / size][-most:]
        self.images = [*self.images, image / size][-most:]
        curvature = torch.where(moved, self.images[-1], torch.nan).square().sum(dim=1)
        self.curvatures = [*self.curvatures, curvature][-most:]
        self.scale = torch.stack(self.curvatures).nanmedian(dim=0).values.nan_to_num(nan=1.0)

    def weakest(self, newest: int) -> Tensor:
        """The smallest curvature of J^T J on the span of the newest directions [B]: its smallest Ritz value."""
        P = torch.stack(self.directions[-newest:], dim=2).to(torch.float64)
        Q = torch.stack(self.images[-newest:], dim=2).to(torch.float64)
        _, images, dependent = _orthogonal(P, Q)
        square = images.transpose(1, 2) @ images + torch.diag_embed(dependent * Q.square().sum(dim=(1, 2))[:, None])
        smallest: Tensor = torch.linalg.eigvalsh(square)[:, 0]
        return smallest.clamp(min=0).to(self.scale)

    def preconditioner(self, free: Tensor, prior: Prior | None) -> Preconditioner:
        """An approximate inverse of J^T J on the entries that are ``free`` to move.

        It is exact on the explored directions. Elsewhere it is a multiple of the metric's covariance.
        """
        if prior is not None:
            return prior.preconditioner(self.scale, free)
        invert = self._inverse_on_explored(free) if self.directions else lambda vectors: vectors
        if self.metric is None:
            return lambda vectors: invert(vectors * free) * free
        root = self.metric.root
        return lambda vectors: (invert((vectors * free) @ root) @ root) * free

    def _inverse_on_explored(self, free: Tensor) -> Preconditioner:
        """The same in the metric's coordinates, in which the unexplored part is a multiple of the identity."""
        P = torch.stack(self.directions, dim=1) * free[:, None, :]  # [B, m, d]
        P = (P if self.metric is None else P @ self.metric.inverse).transpose(1, 2)
        Q = torch.stack(self.images, dim=2)
        length = P.norm(dim=1, keepdim=True)
        gone = length <= torch.finfo(P.dtype).tiny
        P, Q = P / torch.where(gone, 1.0, length), Q / torch.where(gone, torch.inf, length)
        scale = torch.where(gone[:, 0], torch.nan, Q.square().sum(dim=1)).nanmedian(dim=1).values
        scale = scale.nan_to_num(nan=1.0).clamp(min=torch.finfo(P.dtype).tiny)[:, None]
        basis, images, _ = _orthogonal(P, Q)
        curvature, turn = torch.linalg.eigh(images.transpose(1, 2) @ images)
        flat = curvature < _FLOOR * scale
        inverse = torch.where(flat, 1 / scale, 1 / curvature.clamp(min=torch.finfo(curvature.dtype).tiny))
        explored = basis @ turn

        def apply(vectors: Tensor) -> Tensor:
            along = (explored.transpose(1, 2) @ vectors[:, :, None])[:, :, 0]
            rest = vectors - (explored @ along[:, :, None])[:, :, 0]
            product: Tensor = rest / scale + (explored @ (inverse * along)[:, :, None])[:, :, 0]
            return product

        return apply


def _orthogonal(P: Tensor, Q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An orthonormal basis of directions P [B, d, m], its images by those of P, Q, and which columns depend on others;
    the images of those are zero."""
    basis, R = torch.linalg.qr(P)
    diagonal = R.diagonal(dim1=1, dim2=2).abs()
    dependent = diagonal < _DEPENDENT
    R = R + torch.diag_embed(dependent * 1.0)
    images = torch.linalg.solve_triangular(R.transpose(1, 2), Q.transpose(1, 2), upper=False).transpose(1, 2)
    return basis, images * ~dependent[:, None, :], dependent
