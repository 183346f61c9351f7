"""The known rows whose effect on the model is most similar to the unknown row's: they give its label and a first guess.

A row's own share in the first layer is q z^T, where q sums its deltas over training (each weighted by how much of a
gradient at that step remains at the end). The reference run holds the known rows' deltas, so q_i x_i^T, which known row
i would have added if it had been in the training set twice, needs no training run. The response of the other rows is
left out. It lies in the directions that the known rows span most, and those are down-weighted here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from divulge.training.batched.parameter_layout import unflat
from divulge.training.batched.shared_setup import SharedSetup

_SPANNED = 0.03  # share of the known rows' second moment from which on a direction is down-weighted
_SIMILAR = 5  # known rows of a label that are averaged


@dataclass(frozen=True)
class SimilarRows:
    """What each known row would have added to the first layer's weights if it had been in the training set twice."""

    setup: SharedSetup
    rows: Tensor
    """The known rows [n, d]."""
    owner: Tensor
    """The index of each row's label [n]."""
    pull: Tensor
    """q_i, normalised [n, h]."""
    along: Tensor
    """x_i in the down-weighted directions, normalised [n, r]."""
    directions: Tensor
    """The directions, each scaled down by how much the known rows span it [d + 1, r]."""

    @classmethod
    def of(cls, setup: SharedSetup, rows: Tensor, owner: Tensor) -> SimilarRows:
        """From the known rows of the setup and the index of each one's label."""
        one = rows.new_full((len(rows), 1), float(setup.recipe.bias != "none"))
        flat = torch.cat([rows.reshape(len(rows), -1), one], dim=1).to(torch.float64)
        values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
        directions = vectors / (1 + values.clamp(min=0) / (_SPANNED * values.sum()))
        along = normalize(flat @ directions, dim=1)
        return cls(setup, flat[:, :-1], owner, normalize(_pull(setup), dim=1), along, directions)

    def similarity(self, target: Tensor) -> Tensor:
        """The mean cosine of each label's most similar rows with each target [B, labels]."""
        cosine = self._cosine(target)
        labels = range(int(self.owner.max()) + 1)
        return torch.stack([_best(cosine[:, self.owner == label]).values.mean(dim=1) for label in labels], dim=1)

    def start(self, target: Tensor, places: Tensor) -> Tensor:
        """The mean of the most similar rows with the label at ``places``, for each target [B, d]."""
        cosine = self._cosine(target)
        rows = [
            self.rows[self.owner == place][_best(one[None, self.owner == place]).indices[0]].mean(dim=0)
            for one, place in zip(cosine, places, strict=True)
        ]
        return torch.stack(rows)

    def _cosine(self, target: Tensor) -> Tensor:
        """The cosine between the effects of each target's row and each known row [B, n]."""
        first = unflat(self.setup, target)[0].to(torch.float64) @ self.directions
        first = first / first.flatten(1).norm(dim=1).clamp(min=torch.finfo(first.dtype).tiny)[:, None, None]
        return torch.einsum("nh,bhr,nr->bn", self.pull, first, self.along)


def _best(cosine: Tensor) -> torch.return_types.topk:
    return cosine.topk(min(_SIMILAR, cosine.shape[1]), dim=1)


def _pull(setup: SharedSetup) -> Tensor:
    """Each known row's deltas, summed with the share of a step's gradient that remains after training [n, h]."""
    recipe = setup.recipe
    total = torch.zeros(setup.n, setup.widths[1], dtype=torch.float64)
    weight, moment = 1.0, 0.0
    for batch, delta in zip(reversed(setup.batches()), reversed(setup.deltas), strict=True):
        moment -= float(recipe.learning_rate) * weight
        known = slice(None) if batch.known is None else batch.known
        total[known] += moment / batch.size * delta.T.to(torch.float64)
        weight += float(recipe.weight_decay) * moment
        moment *= float(recipe.momentum)
    return total
