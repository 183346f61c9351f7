"""The ridge reconstructor: the inverse of training as a linear map, one for each class, in seconds.

What makes it work is the input: u = (theta - theta_-) / |theta - theta_-|, the *direction* in which the unknown row
moved the weights. Their lengths differ by two orders of magnitude between easy and hard rows and say nothing about the
picture. There are far more weights than shadow models, so the regression is solved in its dual form, and the penalty of
each class is chosen by the leave-one-out error, which that form gives for free.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core.progress import report

_PENALTIES = 10.0 ** torch.arange(-7, 1, dtype=torch.float64)
_LABEL_PENALTY = 1e-3
_LABEL_MODELS = 10_000  # shadow models, at most, that the label is learned from: the kernel is square
_MEDIAN = 1000  # rows that the typical distance is taken of


@dataclass(frozen=True)
class RidgeMap:
    """Features [P] to rows [d]: a kernel ridge regression for each class, and one for the label."""

    features: Tensor
    telling: Tensor
    """The features from which the label is predicted [n, F]."""
    width: float
    """and the squared distance over which they count as alike."""
    classes: list[int | float]
    members: list[Tensor]
    dual: list[Tensor]
    means: list[Tensor]
    label_dual: Tensor
    left_out: Tensor
    """The reconstruction of each shadow row by a map that was learned without it [n, d]."""

    def scores(self, telling: Tensor) -> Tensor:
        """How well each label fits each row of features [n, labels]: about 1 for the right one and 0 for others."""
        return torch.exp(-_squares(telling, self.telling) / self.width) @ self.label_dual

    def label(self, telling: Tensor) -> Tensor:
        """The place of the best label of each row of features."""
        return self.scores(telling).argmax(dim=1)

    def rows(self, features: Tensor, places: Tensor) -> Tensor:
        """The reconstruction [n, d] of each row of features, as a member of the class at its place."""
        found = features.new_empty(len(features), self.dual[0].shape[1])
        for place in set(places.tolist()):
            chosen = places == place
            kernel = features[chosen] @ self.features[self.members[place]].T
            found[chosen] = (kernel @ self.dual[place] + self.means[place]).to(found)
        return found


def fit(features: Tensor, telling: Tensor, X: Tensor, y: Tensor) -> RidgeMap:
    """Learn the maps from normalised features [N, P] of shadow models (for the label, ``telling`` [N, F]) and the rows
    [N, d] that made them differ."""
    classes = sorted(set(y.tolist()))
    rows = X.flatten(1).to(torch.float64)
    members, duals, means, left_out = [], [], [], torch.empty_like(rows)
    for turn, label in enumerate(classes):
        report("fitting the reconstructor", turn, len(classes) + 1)
        chosen = torch.nonzero(y == label)[:, 0]
        dual, mean, left_out[chosen] = _one_class(features[chosen].to(torch.float64), rows[chosen])
        members.append(chosen)
        duals.append(dual.to(features.dtype))
        means.append(mean.to(features.dtype))
    telling = telling[:_LABEL_MODELS]
    onehot = torch.stack([(y[:_LABEL_MODELS] == label) for label in classes], dim=1).to(features.dtype)
    squares = _squares(telling, telling)
    width = 2 * float(squares[:_MEDIAN, :_MEDIAN].median()) + torch.finfo(telling.dtype).tiny
    kernel = torch.exp(-squares / width)
    kernel.diagonal().add_(_LABEL_PENALTY)
    label_dual = torch.cholesky_solve(onehot, torch.linalg.cholesky(kernel))
    return RidgeMap(features, telling, width, classes, members, duals, means, label_dual, left_out)


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances [n, m]."""
    return (a.square().sum(dim=1)[:, None] + b.square().sum(dim=1) - 2 * a @ b.T).clamp(min=0)


def _one_class(features: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Dual weights at the penalty that leaves the least error on rows left out, the mean row, and what each row left
    out is rebuilt as."""
    mean = rows.mean(dim=0)
    values, vectors = torch.linalg.eigh(features @ features.T)
    turned = vectors.T @ (rows - mean)
    squares = vectors.square()
    best: tuple[float, Tensor, Tensor] | None = None
    for penalty in _PENALTIES * max(float(values[-1]), 1e-300):
        inverse = 1 / (values.clamp(min=0) + penalty)
        dual = vectors @ (inverse[:, None] * turned)
        off = dual / (squares @ inverse)[:, None]
        error = float(off.square().mean())
        if best is None or error < best[0]:
            best = (error, dual, rows - off)
    assert best is not None
    return best[1], mean, best[2]
