"""Milli et al. 2019, figure 5: SmoothGrad's maps of the MNIST convolutional network, and what they tell of a picture.

The paper takes noise of 1,000 times the data's standard deviation because its maps are the sharpest. A map that tells
of its picture is more like another draw of the same picture's map than like another picture's for the same output;
where both are equally alike, it would be the same for any picture, and shows the noise and the network alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import divulge
from divulge.core import plots
from divulge.core.images import picture_shape
from divulge.oracles.guards import Smoothed
from divulge.reconstruction.matching import correlation

SIGMAS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""In units of the data's standard deviation."""
SAMPLES, SHOWN = 100, 10
"""Points of one map, as in figure 5, and pictures."""


def maps(model: nn.Module, X: Tensor, sigma: float, seed: int) -> Tensor:
    """The smoothed gradient of every output at every picture, [n, outputs, d]."""
    return Smoothed(divulge.oracle(model, access="gradient"), sigma, samples=SAMPLES, seed=seed).gradient(X)[1]


def alike(first: Tensor, second: Tensor) -> tuple[float, float]:
    """Mean correlation of two draws of maps, of the same picture and of different ones, for the same output."""
    tables = torch.stack([correlation(first[:, k], second[:, k]) for k in range(first.shape[1])])
    n = tables.shape[1]
    own = tables.diagonal(dim1=1, dim2=2)
    return float(own.mean()), float((tables.sum() - own.sum()) / (len(tables) * n * (n - 1)))


def draw(model: nn.Module, X: Tensor, spread: float, out: Path, seed: int = 0) -> list[dict[str, Any]]:
    """One row a sigma, and figure-5.png with the map of each picture's predicted class."""
    model.eval()
    with torch.no_grad():
        said = model(X.reshape(-1, *model.input_shape).float()).argmax(dim=1)  # type: ignore[operator]
    rows, pictures = [], [("picture", X)]
    for sigma in SIGMAS:
        first, second = (maps(model, X, sigma * spread, 2 * seed + draw) for draw in (0, 1))
        own, other = alike(first, second)
        rows.append({"sigma": sigma, "same picture": own, "other picture": other})
        pictures.append((f"{sigma:g} sigma", first[torch.arange(len(X)), said]))
    plots.save(plots.grid_of_pictures(pictures, picture_shape(X.shape[1]) or (1, 1, X.shape[1])), out / "figure-5.png")
    return rows
