"""The figures of Haim et al. 2022: reconstructions beside training inputs, and scores against the model's output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from divulge.errors import InvalidInput

if TYPE_CHECKING:
    from divulge.reconstruction.matching import Match
    from divulge.reconstruction.result import Reconstruction


def pair_grid(match: Match, path: str | Path, *, columns: int = 15, most: int = 45) -> Path:
    """Best reconstructions first, each above its training input, titled with its SSIM or correlation."""
    if match.shape is None:
        raise InvalidInput("These inputs are not pictures; pass shape=(channels, height, width) if they are.")
    score = match.correlation if match.ssim is None else match.ssim
    order = score.argsort(descending=True)[:most]
    rebuilt = [match.rebuilt[i] for i in order]
    truth = [match.truth[i] for i in order]
    titles = [f"{float(score[i]):.2f}" for i in order]
    return _grid([("rebuilt", rebuilt, titles), ("training", truth, None)], match.shape, path, columns)


def sample_grid(found: Reconstruction, path: str | Path, *, columns: int = 15, most: int = 90) -> Path:
    """The samples as pictures, most trusted first, titled with their confidence."""
    if found.shape is None:
        raise InvalidInput("These inputs are not pictures; pass shape=(channels, height, width) if they are.")
    pictures = list(found.pictures[:most])
    titles = [f"{float(c):.2f}" for c in found.confidence[:most]]
    return _grid([("", pictures, titles)], found.shape, path, columns)


def margin_plot(match: Match, outputs: Tensor, path: str | Path) -> Path:
    """Each training input's score against the model's output for it: what is on the margin is what can be read."""
    figure, axes = _axes(4.2, 3.2)
    score = match.correlation if match.ssim is None else match.ssim
    axes.scatter(outputs.detach().reshape(-1).cpu().numpy(), score.numpy(), s=10, color="#24617f", linewidths=0)
    if match.control is not None:
        control = match.control.correlation if match.ssim is None else match.control.ssim
        if control is not None:
            axes.axhline(float(np.quantile(control.numpy(), 0.99)), color="#a33", lw=0.8, ls="--",
                         label="99 % of unseen inputs lie below")  # fmt: skip
            axes.legend(frameon=False, fontsize=7)
    axes.set_xlabel("model output")
    axes.set_ylabel("correlation" if match.ssim is None else f"SSIM (window {match.window})")
    axes.set_ylim(min(0.0, float(score.min())), 1.02)
    return _write(figure, path)


def _grid(
    bands: list[tuple[str, list[Tensor], list[str] | None]], shape: tuple[int, ...], path: str | Path, columns: int
) -> Path:
    """Bands of pictures: each block of ``columns`` shows one line of every band."""
    count = len(bands[0][1])
    columns = max(1, min(columns, count))
    blocks = max(1, -(-count // columns))
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.62 * columns + 0.1, (0.78 * len(bands)) * blocks + 0.1), dpi=110)
    lines = blocks * len(bands)
    for block in range(blocks):
        for band, (_, pictures, titles) in enumerate(bands):
            for column in range(columns):
                place = block * columns + column
                if place >= count:
                    continue
                axes = figure.add_subplot(lines, columns, (block * len(bands) + band) * columns + column + 1)
                axes.imshow(_image(pictures[place], shape), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                axes.axis("off")
                if titles is not None:
                    axes.set_title(titles[place], fontsize=6, pad=1)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.95, 0.06, 0.12)
    return _write(figure, path)


def _image(x: Tensor, shape: tuple[int, ...]) -> Any:
    """One input as height x width (x 3) in [0, 1]; values outside that range are stretched into it."""
    array = x.detach().cpu().double().numpy().reshape(shape)
    low, high = float(array.min()), float(array.max())
    if low < -1e-6 or high > 1 + 1e-6:
        array = (array - low) / max(high - low, 1e-30)
    if array.ndim == 2:
        return array
    return array[0] if shape[0] == 1 else array.transpose(1, 2, 0)


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _write(figure: Any, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
