"""The figures of Haim et al. 2022: reconstructions beside training inputs, and scores against the model's output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from divulge.core import plots
from divulge.core.errors import InvalidInput

if TYPE_CHECKING:
    from divulge.reconstruction.matching import Match
    from divulge.reconstruction.result import Reconstruction

SIDE = 0.57  # inches a picture


def pair_grid(match: Match, path: str | Path, *, columns: int = 15, most: int = 45) -> Path:
    """Best reconstructions first, each above its training input, titled with its SSIM or correlation."""
    if match.shape is None:
        raise InvalidInput("These inputs are not pictures; pass shape=(channels, height, width) if they are.")
    score = match.correlation if match.ssim is None else match.ssim
    order = score.argsort(descending=True)[:most]
    rebuilt = [match.rebuilt[i] for i in order]
    truth = [match.truth[i] for i in order]
    titles = [f"{float(score[i]):.2f}" for i in order]
    figure = plots.grid_of_pictures(
        [("rebuilt", rebuilt), ("training", truth)], match.shape, captions=[titles, []], columns=columns, side=SIDE,
        scaling="fit",
    )  # fmt: skip
    return plots.save(figure, path)


def sample_grid(found: Reconstruction, path: str | Path, *, columns: int = 15, most: int = 90) -> Path:
    """The samples as images, most trusted first, titled with their confidence."""
    if found.shape is None:
        raise InvalidInput("These inputs are not pictures; pass shape=(channels, height, width) if they are.")
    pictures = list(found.pictures[:most])
    titles = [f"{float(c):.2f}" for c in found.confidence[:most]]
    figure = plots.grid_of_pictures(
        [("", pictures)], found.shape, captions=[titles], columns=columns, side=SIDE, scaling="fit"
    )
    return plots.save(figure, path)


def margin_plot(match: Match, outputs: Tensor, path: str | Path) -> Path:
    """Each training input's score against the model's output for it; of several, the largest less the second."""
    figure, axes = plots.new_axes(4.2, 3.2)
    outputs = outputs.detach().reshape(len(match.correlation), -1)
    several = outputs.shape[1] > 1
    outputs = -outputs.topk(2, dim=1).values.diff(dim=1) if several else outputs
    score = match.correlation if match.ssim is None else match.ssim
    axes.scatter(outputs.reshape(-1).cpu().numpy(), score.numpy(), s=10, color="#24617f", linewidths=0)
    if match.control is not None:
        control = match.control.correlation if match.ssim is None else match.control.ssim
        if control is not None:
            axes.axhline(float(np.quantile(control.numpy(), 0.99)), color="#a33", lw=0.8, ls="--",
                         label="99 % of unseen inputs lie below")  # fmt: skip
            axes.legend(frameon=False, fontsize=7)
    axes.set_xlabel("largest output less the second" if several else "model output")
    axes.set_ylabel("correlation" if match.ssim is None else f"SSIM (window {match.window})")
    axes.set_ylim(min(0.0, float(score.min())), 1.02)
    return plots.save(figure, path)
