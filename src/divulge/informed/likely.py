"""How rows of a kind differ from one another, as the known ones show: what a search should look for first."""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.cosines import cosines
from divulge.informed.gauss_newton import Metric, Prior

_FLOOR = 1e-3  # of the mean variance, added to every frequency's


def metric(X: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Metric | None:
    """Coordinates for a search for pictures; other rows are taken as they are."""
    if len(shape) != 3:
        return None
    values, vectors = spectrum(X, shape)
    return Metric.of(values.to(dtype), vectors.to(dtype), _FLOOR)


def prior(X: Tensor, y: Tensor, noise: float, dtype: torch.dtype) -> Prior:
    """The covariance within classes as a belief; the mean is each row's class mean, put in later."""
    values, vectors = within_classes(X, y)
    values = values.clamp(min=0) + 1e-3 * values.mean()
    return Prior(vectors[:0].to(dtype), values.to(dtype), vectors.to(dtype), noise)


def within_classes(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the covariance within classes, pooled over them."""
    rows = X.reshape(len(X), -1).to(torch.float64).clone()
    for label in set(y.tolist()):
        rows[y == label] -= rows[y == label].mean(dim=0)
    values, vectors = torch.linalg.eigh(rows.T @ rows / max(1, len(rows) - 1))
    return values, vectors


def spectrum(X: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The same for pictures of which there are few: what they show does not depend on where, so that the variance of
    each spatial frequency and principal colour is enough, the eigenvectors being cosines."""
    channels, height, width = shape
    pictures = X.reshape(len(X), *shape).to(torch.float64)
    pictures = pictures - pictures.mean(dim=0)
    _, colours = torch.linalg.eigh(torch.einsum("nchw,ndhw->cd", pictures, pictures))
    down, across = cosines(height), cosines(width)
    power = (down @ torch.einsum("nchw,cd->ndhw", pictures, colours) @ across.T).square().mean(dim=0)
    frequency = torch.hypot(*torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij"))
    ring = (frequency * max(height, width)).round().long().reshape(-1)
    count = torch.bincount(ring).clamp(min=1)
    mean = torch.stack([torch.bincount(ring, part.reshape(-1)) / count for part in power])[:, ring]
    vectors = torch.kron(colours.contiguous(), torch.kron(down.T.contiguous(), across.T.contiguous()))
    return mean.reshape(-1), vectors.reshape(channels * height * width, -1)
