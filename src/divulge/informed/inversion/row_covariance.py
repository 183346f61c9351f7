"""How rows of a kind differ from one another, estimated from the known rows: the metric and the prior of a search."""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.core.images import cosine_transform
from divulge.informed.inversion.preconditioner import Metric, Prior

_FLOOR = 1e-3  # share of the mean variance that is added to every variance


def metric(X: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Metric | None:
    """The metric of a search for pictures; None for other rows."""
    if len(shape) != 3:
        return None
    values, vectors = picture_covariance(X, shape)
    return Metric.of(values.to(dtype), vectors.to(dtype), _FLOOR)


def prior(X: Tensor, y: Tensor, noise: float, dtype: torch.dtype) -> Prior:
    """The prior with the covariance within classes; its mean is empty and is set to each row's class mean later."""
    values, vectors = covariance_within_classes(X, y)
    values = values.clamp(min=0) + 1e-3 * values.mean()
    return Prior(vectors[:0].to(dtype), values.to(dtype), vectors.to(dtype), noise)


def covariance_within_classes(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the covariance within classes, pooled over the classes."""
    rows = X.reshape(len(X), -1).to(torch.float64).clone()
    for label in set(y.tolist()):
        rows[y == label] -= rows[y == label].mean(dim=0)
    values, vectors = torch.linalg.eigh(rows.T @ rows / max(1, len(rows) - 1))
    return values, vectors


def picture_covariance(X: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the covariance of pictures, estimated from few of them.

    The statistics are assumed not to depend on the place in the picture. The eigenvectors are then cosines, and each
    variance is that of one spatial frequency and principal colour.
    """
    channels, height, width = shape
    pictures = X.reshape(len(X), *shape).to(torch.float64)
    pictures = pictures - pictures.mean(dim=0)
    _, colours = torch.linalg.eigh(torch.einsum("nchw,ndhw->cd", pictures, pictures))
    down, across = cosine_transform(height), cosine_transform(width)
    power = (down @ torch.einsum("nchw,cd->ndhw", pictures, colours) @ across.T).square().mean(dim=0)
    frequency = torch.hypot(*torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij"))
    ring = (frequency * max(height, width)).round().long().reshape(-1)
    count = torch.bincount(ring).clamp(min=1)
    mean = torch.stack([torch.bincount(ring, part.reshape(-1)) / count for part in power])[:, ring]
    vectors = torch.kron(colours.contiguous(), torch.kron(down.T.contiguous(), across.T.contiguous()))
    return mean.reshape(-1), vectors.reshape(channels * height * width, -1)
