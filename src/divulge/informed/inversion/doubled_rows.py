"""What training on a known row twice does to the weights: it tells the label of the unknown row, and where to start.

A network whose first layer has one unit shows a row's deltas as a single number, which ``similar_rows`` cannot compare.
Such a network is trained in little time. So it is trained again with each known row doubled, and the maps of the ridge
reconstructor are learned from these models as if they were shadow models. No row beyond the known ones is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from divulge.informed.inversion.training_function import MlpTraining
from divulge.informed.released_view import ReleasedView
from divulge.informed.shadow_models import ridge

_ROWS = 1000  # known rows that are doubled, at most
_NEAREST = 5  # rows that a second search starts from the mean of


@dataclass(frozen=True)
class DoubledRows:
    """The ridge reconstructor of models that were trained on one known row twice."""

    view: ReleasedView
    map: ridge.RidgeMap
    runs: int
    """Training runs that it took."""
    range: tuple[float, float]
    """The smallest and the largest value of a known row."""
    away: Tensor
    """What each doubled row did to the weights [rows, P]."""
    rows: Tensor
    """The rows [rows, d]."""
    owner: Tensor
    """The index of each row's label [rows]."""

    @classmethod
    def of(cls, training: MlpTraining, view: ReleasedView, X: Tensor, owner: Tensor, encoded: Tensor) -> DoubledRows:
        """From the known rows, the index of each one's label, and the encoded labels."""
        chosen = torch.linspace(0, len(X) - 1, min(len(X), _ROWS)).long()
        rows = X[chosen].reshape(len(chosen), -1).to(training.dtype)
        away = training.train(rows, encoded[owner[chosen]])
        learned = ridge.fit(_direction(away), view.by_layer(away), rows, owner[chosen])
        return cls(view, learned, len(chosen), (float(X.min()), float(X.max())), away, rows, owner[chosen])

    def similarity(self, target: Tensor) -> Tensor:
        """How well each label fits each target [B, labels]: about 1 for the right one and 0 for others."""
        return self.map.scores(self.view.by_layer(target))

    def start(self, target: Tensor, places: Tensor) -> Tensor:
        """The ridge reconstruction under the label at ``places``, for each target [B, d]."""
        return self.map.rows(_direction(target), places).clamp(*self.range)

    def nearest(self, target: Tensor, places: Tensor) -> Tensor:
        """The mean of the rows with the label at ``places`` whose effects are nearest, for each target [B, d]."""
        apart = torch.cdist(target, self.away).masked_fill(self.owner != places[:, None], torch.inf)
        near = apart.topk(min(_NEAREST, len(self.rows)), largest=False)
        there = near.values.isfinite().to(self.rows)
        return (self.rows[near.indices] * there[:, :, None]).sum(dim=1) / there.sum(dim=1, keepdim=True)


def _direction(away: Tensor) -> Tensor:
    return normalize(away, dim=1).to(torch.float32)
