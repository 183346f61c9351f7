"""Figures: originals above their noisy versions (Jayaram 2020, figure 3), and rank against samples (figures 1, 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from divulge.core import images, plots
from divulge.core.errors import InvalidInput
from divulge.oracles.base import Oracle, decide
from divulge.oracles.outputs import label_probabilities
from divulge.span.result import Span


def picture_shape(dim: int, declared: Sequence[int] | None = None) -> tuple[int, int, int]:
    """Channels, height and width of inputs that are pictures: as declared, or square, in grey or in colour."""
    shape = images.picture_shape(dim, declared)
    if shape is None or shape[0] not in (1, 3):
        raise InvalidInput(
            f"Inputs of {dim} entries are not square pictures; give their shape as channels,height,width."
        )
    return shape


def before_and_after(
    oracle: Oracle, rows: Tensor, versions: Mapping[str, Tensor], path: str | Path, *, shape: Sequence[int]
) -> Path:
    """The originals in the first line and each noisy version below, with the prediction above each image."""
    lines = [("original", rows), *versions.items()]
    captions = [_predictions(oracle, line) for _, line in lines]
    return plots.save(plots.grid_of_pictures(lines, shape, captions=captions, side=1.2), path)


def curves(lines: Mapping[str, Sequence[int]], path: str | Path, *, title: str, full: int | None = None) -> Path:
    """Rank against samples, one line for each network. ``full`` marks the rank of the first layer."""
    figure = plots.new_figure(6.4, 4.2)
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
    return plots.save(figure, path)


def evidence(span: Span, path: str | Path) -> Path:
    """The evidence for the rank: rank against samples, and the singular values with the threshold."""
    figure = plots.new_figure(9.0, 3.6)
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
    return plots.save(figure, path)


def _predictions(oracle: Oracle, rows: Tensor) -> list[str]:
    if not oracle.allows("value"):
        return [f"Pred {int(label)}" for label in oracle.label(rows)]
    values = oracle.value(rows).to(torch.float64).cpu()
    labels, chances = decide(values, oracle.threshold), label_probabilities(values, oracle.threshold).amax(dim=1)
    return [f"Pred {int(k)} at {float(p):.0%}" for k, p in zip(labels, chances, strict=True)]
