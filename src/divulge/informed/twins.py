"""Known rows that would have done to the model what the unknown row did: its label and a first guess at it, without a
training run.

A row's own share in the first layer is q z^T, q being its deltas summed over training (each weighted by how much of a
gradient at that step is left in the end). The known rows' deltas are in the reference run, so that q_i x_i^T, what
known row i would have added had it been there twice, costs nothing. What the other rows answer is left out; they answer
in the directions that they span most, and those count little here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from divulge.informed.setting import Setting, unflat

_SPANNED = 0.03  # of the known rows' second moment along a direction: from there on it counts less and less
_TWINS = 5  # known rows of a label whose mean is taken


@dataclass(frozen=True)
class Twins:
    """What each known row would have added to the first layer's weights, once more in training."""

    setting: Setting
    rows: Tensor
    """The known rows [n, d]."""
    owner: Tensor
    """The place of each row's label among the labels [n]."""
    pull: Tensor
    """q_i of length one [n, h],"""
    along: Tensor
    """and x_i in the directions that count, likewise [n, r]."""
    directions: Tensor
    """Those directions, shortened by how much the known rows span them [d + 1, r]."""

    @classmethod
    def of(cls, setting: Setting, rows: Tensor, owner: Tensor) -> Twins:
        """``rows`` are the known ones of the setting, ``owner`` the places of their labels."""
        one = rows.new_full((len(rows), 1), float(setting.recipe.bias != "none"))
        flat = torch.cat([rows.reshape(len(rows), -1), one], dim=1).to(torch.float64)
        values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
        directions = vectors / (1 + values.clamp(min=0) / (_SPANNED * values.sum()))
        along = normalize(flat @ directions, dim=1)
        return cls(setting, flat[:, :-1], owner, normalize(_pull(setting), dim=1), along, directions)

    def likeness(self, target: Tensor) -> Tensor:
        """For each target and label, how much alike the most alike rows of that label are [B, labels]."""
        alike = self._alike(target)
        labels = range(int(self.owner.max()) + 1)
        return torch.stack([_best(alike[:, self.owner == label]).values.mean(dim=1) for label in labels], dim=1)

    def start(self, target: Tensor, places: Tensor) -> Tensor:
        """For each target the mean of the most alike rows of its label [B, d]."""
        alike = self._alike(target)
        rows = [
            self.rows[self.owner == place][_best(one[None, self.owner == place]).indices[0]].mean(dim=0)
            for one, place in zip(alike, places, strict=True)
        ]
        return torch.stack(rows)

    def _alike(self, target: Tensor) -> Tensor:
        """The cosine between what each target's row and each known row did [B, n]."""
        first = unflat(self.setting, target)[0].to(torch.float64) @ self.directions
        first = first / first.flatten(1).norm(dim=1).clamp(min=torch.finfo(first.dtype).tiny)[:, None, None]
        return torch.einsum("nh,bhr,nr->bn", self.pull, first, self.along)


def _best(alike: Tensor) -> torch.return_types.topk:
    return alike.topk(min(_TWINS, alike.shape[1]), dim=1)


def _pull(setting: Setting) -> Tensor:
    """Each known row's deltas, summed with the share of a step's gradient that is left after training [n, h]."""
    recipe = setting.recipe
    total = torch.zeros(setting.n, setting.widths[1], dtype=torch.float64)
    weight, moment = 1.0, 0.0
    for batch, delta in zip(reversed(setting.batches()), reversed(setting.deltas), strict=True):
        moment -= float(recipe.learning_rate) * weight
        known = slice(None) if batch.known is None else batch.known
        total[known] += moment / batch.size * delta.T.to(torch.float64)
        weight += float(recipe.weight_decay) * moment
        moment *= float(recipe.momentum)
    return total
