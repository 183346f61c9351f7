"""The distance of a trained model from a KKT point of the margin problem (Haim et al. 2022, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from divulge.core.errors import InvalidInput
from divulge.models.weight_matrices import read, step
from divulge.training.margin import check_data, loss_gradient, margin_directions, margins

MOST_ROWS = 2000
"""Training rows that ``diagnose`` takes; so many take seconds."""


@dataclass(frozen=True)
class Diagnosis:
    """The distance of a model from a KKT point on its training set. ``diagnose`` returns it.

    The closer a model is, the more of its training set can be reconstructed.
    """

    margin: float
    """Smallest y Phi(x) over the training set; with several classes, smallest lead of the true class."""
    loss: float
    """Mean logistic or cross-entropy loss."""
    accuracy: float
    """Share of the training set that is classified correctly."""
    residual: float
    """|theta - sum lambda y grad Phi| / |theta| for the best lambda >= 0, all layers together."""
    layers: tuple[float, ...]
    """The residual of each layer with its own best lambda. Inputs are reconstructed from the first layer."""
    multipliers: Tensor
    """The lambda of the first layer, [n]."""
    on_margin: int
    """Number of samples with a multiplier above 1 % of the largest."""

    def sentence(self) -> str:
        """The diagnosis in words."""
        if self.accuracy < 1:
            return f"The model misreads {1 - self.accuracy:.1%} of the data, so no margin exists yet; little to find."
        level = "close to" if self.layers[0] < 0.25 else "on the way to" if self.layers[0] < 0.6 else "far from"
        return (
            f"The model is {level} a KKT point (first-layer residual {self.layers[0]:.2f}, loss {self.loss:.1e}); "
            f"{self.on_margin} of {len(self.multipliers)} samples hold its weights up and may be read from them."
        )

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "margin": self.margin, "loss": self.loss, "accuracy": self.accuracy, "residual": self.residual,
            "layers": list(self.layers), "on_margin": self.on_margin, "sentence": self.sentence(),
        }  # fmt: skip


def diagnose(model: nn.Module, X: Tensor, y: Tensor) -> Diagnosis:
    """Measure how close a model is to a KKT point on its training set.

    The stationarity residual comes from a non-negative least-squares fit of the multipliers.

    Parameters
    ----------
    model : nn.Module
        A ReLU network of linear layers.
    X : Tensor
        Training inputs [n, d], at most 2,000.
    y : Tensor
        Labels [n], as ``to_margin`` takes them.

    Returns
    -------
    Diagnosis
        Margin, loss and residuals; ``sentence()`` says it in words.

    Raises
    ------
    InvalidInput
        The data does not fit the network, or has too many rows.
    UnsupportedModel
        The model is not a plain ReLU network.

    Examples
    --------
    >>> import torch
    >>> from divulge.training import diagnose, margin
    >>> X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> y = torch.tensor([0, 1, 0, 1])
    >>> model = margin.to_margin(margin.network([6, 20, 1]), X, y, loss=1e-3).model
    >>> diagnose(model, X, y).accuracy
    1.0
    """
    net = read(model)
    X, y = check_data(net, X, y)
    if len(X) > MOST_ROWS:
        raise InvalidInput(f"A diagnosis solves for every row at once, {MOST_ROWS:,} at most; got {len(X):,}.")
    hidden, out = net.forward(X)
    log_loss, _ = loss_gradient(out, y)
    inputs = [X, *(torch.relu(Z) for Z in hidden)]
    deltas = net.backward(hidden, margin_directions(out, y), step)
    grams, links, sizes = [], [], []
    for W, b, H, D in zip(net.weights, net.biases, inputs, deltas, strict=True):
        products = H @ H.T + (b is not None)
        grams.append(products * (D @ D.T))
        links.append(((D @ W) * H).sum(1) + (0 if b is None else D @ b))
        sizes.append(float(W.square().sum()) + (0.0 if b is None else float(b.square().sum())))
    layers = [solve_multipliers(g, c, s) for g, c, s in zip(grams, links, sizes, strict=True)]
    _, whole = solve_multipliers(sum(grams[1:], grams[0]), sum(links[1:], links[0]), sum(sizes))
    first = layers[0][0]
    leads = margins(out, y)
    return Diagnosis(
        margin=float(leads.min()),
        loss=math.exp(max(log_loss, -700)),
        accuracy=float((leads > 0).double().mean()),
        residual=whole,
        layers=tuple(residual for _, residual in layers),
        multipliers=first,
        on_margin=int((first > 0.01 * first.max()).sum()) if bool(first.any()) else 0,
    )


def solve_multipliers(gram: Tensor, link: Tensor, size: float) -> tuple[Tensor, float]:
    """Minimise |theta - sum lambda_i g_i| over lambda >= 0.

    Parameters
    ----------
    gram : Tensor
        <g_i, g_j>, [n, n].
    link : Tensor
        <theta, g_i>, [n].
    size : float
        |theta|^2.

    Returns
    -------
    (Tensor, float)
        lambda [n], and the residual over |theta|.

    Examples
    --------
    >>> import torch
    >>> from divulge.training.kkt_diagnosis import solve_multipliers
    >>> multipliers, residual = solve_multipliers(torch.eye(2), torch.tensor([3.0, -4.0]), 25.0)
    >>> multipliers.tolist(), round(residual, 3)
    ([3.0, 0.0], 0.8)
    """
    values, vectors = torch.linalg.eigh(gram.double())
    keep = values > values.max().clamp_min(1e-300) * 1e-12
    root = (values[keep].sqrt()[:, None] * vectors[:, keep].T).numpy()
    right = ((vectors[:, keep].T @ link.double()) / values[keep].sqrt()).numpy()
    if root.size == 0:
        return torch.zeros(len(link), dtype=torch.float64), 1.0
    solution, short = nnls(root, right, maxiter=30 * len(link))
    squared = size - float(np.square(right).sum()) + float(short) ** 2
    return torch.from_numpy(solution), math.sqrt(max(squared, 0.0) / max(size, 1e-300))
