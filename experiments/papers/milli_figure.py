"""Milli et al. 2019, figure 1: the cells of a network of two inputs, and the hyperplanes that were rebuilt.

The copy comes from gradients alone (``extraction.from_gradients``). Cells are coloured by the gradient, which is
constant in each; grey lines are the target's hyperplanes, dashed ones the copy's, and dots where a random line crosses
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import divulge
from divulge.core.plots import new_axes, save

HIDDEN, REACH, GRID = 6, 4.0, 400


def draw(out: Path, seed: int = 0) -> dict[str, Any]:
    """Rebuild a network of two inputs, draw both, and say how far the hyperplanes are apart."""
    model = divulge.models.initialise(divulge.models.MLP([2, HIDDEN, 1]), seed=seed).double()
    with torch.no_grad():
        model[0].bias.mul_(2)  # hyperplanes that do not meet in one place
    copy = divulge.extraction.from_gradients(divulge.oracle(model, access="gradient"), seed=seed)
    true, found = _lines(model[0].weight, model[0].bias), _lines(copy.model.A, copy.model.b)
    apart = np.minimum(*(np.abs(true[:, None] - side * found[None]).max(axis=2) for side in (1, -1)))
    figure, axes = new_axes(4.5, 4.5)
    axis = np.linspace(-REACH, REACH, GRID)
    points = torch.from_numpy(np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2))
    slope = divulge.oracle(model, access="gradient").gradient(points)[1][:, 0].reshape(GRID, GRID, 2).numpy()
    axes.imshow(np.arctan2(slope[..., 1], slope[..., 0]), extent=(-REACH, REACH, -REACH, REACH), origin="lower",
                cmap="twilight", alpha=0.35)  # fmt: skip
    for lines, style in ((true, {"color": "0.35", "linewidth": 2.5}), (found, {"color": "tab:orange", "ls": "--"})):
        for line in lines:
            axes.plot(*_ends(line), **style)
    start, step = np.random.default_rng(seed).normal(size=(2, 2))
    crossings = np.array([start - (line[:2] @ start + line[2]) / (line[:2] @ step) * step for line in true])
    axes.axline(start, start + step, color="0.2", linewidth=0.8)
    axes.plot(*crossings.T, "k.", markersize=7)
    axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xlabel="input 1", ylabel="input 2")
    save(figure, out / "figure-1-cells.png")
    return {
        "exact": copy.exact, "hyperplanes": len(true), "rebuilt": len(found), "gradients": copy.queries,
        "farthest": float(apart.min(axis=1).max()),
    }  # fmt: skip


def _lines(weight: torch.Tensor, bias: torch.Tensor) -> Any:
    """Rows (a, b, c) of a x + b y + c = 0 with a^2 + b^2 = 1, one for each hidden neuron."""
    rows = torch.cat([weight, bias[:, None]], dim=1).detach().numpy()
    return rows / np.linalg.norm(rows[:, :2], axis=1, keepdims=True)


def _ends(line: Any) -> Any:
    """Two points of the line, far outside the picture."""
    foot, along = -line[2] * line[:2], np.array([-line[1], line[0]])
    return np.stack([foot - 20 * along, foot + 20 * along], axis=1)
