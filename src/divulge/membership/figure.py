"""The ROC curve of a membership attack on logarithmic axes, where low false positive rates can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from divulge.core.plots import new_axes
from divulge.core.roc import rate_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from divulge.membership.result import Membership


def roc_figure(result: Membership) -> Figure:
    """The curve, its 95 % band, and chance."""
    figure, axes = new_axes(5, 4)
    curve, m = result.roc(), len(result.non_member_scores)
    smallest = 1 / m
    axes.step(np.maximum(curve.fpr, smallest / 2), curve.tpr, where="post", label=f"AUC {result.auc:.3f}")
    levels = np.geomspace(smallest, 0.99, 25)
    limits = np.array([rate_at(result.scores, result.non_member_scores, float(level))[1:] for level in levels])
    axes.fill_between(levels, limits[:, 0], limits[:, 1], alpha=0.2, linewidth=0, label="95 % interval")
    axes.plot([smallest / 2, 1], [smallest / 2, 1], color="grey", linewidth=0.8, linestyle="--", label="chance")
    axes.set(xscale="log", yscale="log", xlim=(smallest / 2, 1), ylim=(smallest / 2, 1.05))
    axes.set(xlabel="false positive rate", ylabel="true positive rate", title=f"Membership, {result.method}")
    axes.legend(frameon=False, loc="lower right")
    return figure
