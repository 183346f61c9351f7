"""The evidence as pictures: originals above their noisy versions (Jayaram 2020, figure 3), and rank against samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
import torch
from torch import Tensor

from divulge.errors import InvalidInput
from divulge.oracles.base import Oracle, decide
from divulge.span.obfuscation import probabilities
from divulge.span.result import Span


def picture_shape(dim: int, declared: Sequence[int] | None = None) -> tuple[int, int, int]:
    """Channels, height and width of inputs that are pictures: as declared, or square, in grey or in colour."""
    shape = tuple(declared or ())
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape
    if len(shape) == 2:
        return (1, *shape)
    for channels in (1, 3):
        side = round((dim / channels) ** 0.5)
        if channels * side * side == dim:
            return (channels, side, side)
    raise InvalidInput(f"Inputs of {dim} entries are not square pictures; give their shape as channels,height,width.")


def before_and_after(
    oracle: Oracle, rows: Tensor, versions: Mapping[str, Tensor], path: str | Path, *, shape: Sequence[int]
) -> Path:
    """A picture with the originals in the first line and each noisy version below, the prediction above each."""
    lines = {"original": rows, **versions}
    titles = {name: _predictions(oracle, line) for name, line in lines.items()}
    figure = _figure(1.25 * len(rows) + 0.6, 1.55 * len(lines))
    axes = figure.subplots(len(lines), len(rows), squeeze=False)
    for line, (name, inputs) in zip(axes, lines.items(), strict=True):
        for axis, pixels, title in zip(line, inputs, titles[name], strict=True):
            axis.imshow(_image(pixels, shape), cmap="gray", interpolation="nearest")
            axis.set_title(title, fontsize=7)
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(fill(name, 17), fontsize=7)
    figure.tight_layout()
    return _save(figure, path)


def curves(lines: Mapping[str, Sequence[int]], path: str | Path, *, title: str, full: int | None = None) -> Path:
    """Rank against samples, one line a network; ``full`` marks the rank of the first layer."""
    figure = _figure(6.4, 4.2)
    axes = figure.subplots()
    for name, ranks in lines.items():
        axes.plot(range(1, len(ranks) + 1), ranks, label=name, linewidth=1.5)
    if full is not None:
        axes.axhline(full, color="grey", linestyle=":", linewidth=1, label=f"rank of the first layer, {full}")
    axes.set_xlabel("gradients")
    axes.set_ylabel("rank recovered")
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=7)
    figure.tight_layout()
    return _save(figure, path)


def evidence(span: Span, path: str | Path) -> Path:
    """Why this rank: the curve against samples, and the singular values with the line drawn between them."""
    figure = _figure(9.0, 3.6)
    left, right = figure.subplots(1, 2)
    left.plot(range(1, len(span.curve) + 1), span.curve, drawstyle="steps-post")
    left.set_xlabel("samples")
    left.set_ylabel("rank")
    left.set_ylim(bottom=0)
    values = span.singular_values.cpu().numpy()
    right.semilogy(range(1, len(values) + 1), np.maximum(values, np.finfo(float).tiny), ".", markersize=4)
    if span.threshold > 0:
        right.axhline(span.threshold, color="tab:red", linewidth=1, label=f"threshold {span.threshold:.1e}")
        right.legend(fontsize=7)
    right.set_xlabel(f"singular values; gap {span.gap:.2g} after {span.rank}")
    figure.tight_layout()
    return _save(figure, path)


def _predictions(oracle: Oracle, rows: Tensor) -> list[str]:
    if not oracle.allows("value"):
        return [f"Pred {int(label)}" for label in oracle.label(rows)]
    values = oracle.value(rows).to(torch.float64).cpu()
    labels, chances = decide(values, oracle.threshold), probabilities(values).amax(dim=1)
    return [f"Pred {int(k)} at {float(p):.0%}" for k, p in zip(labels, chances, strict=True)]


def _image(pixels: Tensor, shape: Sequence[int]) -> np.ndarray:
    """Pixels stretched to the whole grey scale; colours channel last."""
    image = pixels.detach().cpu().reshape(*shape).permute(1, 2, 0).numpy().astype(float)
    low, high = image.min(), image.max()
    stretched: np.ndarray = (image - low) / (high - low if high > low else 1.0)
    return stretched[..., 0] if shape[0] == 1 else stretched


def _figure(width: float, height: float):  # type: ignore[no-untyped-def]
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    return Figure(figsize=(width, height), dpi=140)


def _save(figure, path: str | Path) -> Path:  # type: ignore[no-untyped-def]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
