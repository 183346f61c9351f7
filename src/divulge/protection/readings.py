"""What an attack on private models reads off the weights that a record moved.

Of a perceptron all of them, label by label, since the label decides which way a record pushes. Of a network with
convolutions the change of all weights tells little about the picture before tens of thousands of shadow models are
seen; but its widest dense layer changed by about e h^T, with e the record's errors there and h its features, summed
over the steps. The first right singular vector of that change is the direction of h, whatever the label, and the bias,
which changed by e, tells its sign. So a few hundred shadow models of all labels teach how pictures look that have such
features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from divulge.errors import UnsupportedModel
from divulge.models import MLP
from divulge.training import Recipe


@dataclass(frozen=True)
class Features:
    """The features that reach the widest dense layer, whose weights lie at ``first`` and its bias behind them."""

    first: int
    errors: int
    features: int
    classes: int

    def of(self, away: Tensor) -> Tensor:
        """The features [B, features] read off changes of the weights [B, P], with noise as large as the weights'."""
        end = self.first + self.errors * self.features
        change = away[:, self.first : end].reshape(-1, self.errors, self.features)
        left = torch.linalg.eigh(change @ change.mT).eigenvectors[:, :, -1]  # the first left singular vector
        bias = away[:, end : end + self.errors]
        sign = torch.where((left * bias).sum(dim=1) < 0, -1.0, 1.0).to(left)
        features: Tensor = ((sign[:, None] * left)[:, None] @ change)[:, 0]
        return features

    def labels(self, away: Tensor) -> Tensor:
        """The class whose last bias rose most: descent raises that of a record's own."""
        return away[:, -self.classes :].argmax(dim=1)


def reading_of(recipe: Recipe) -> Features | None:
    """What to read off models of this recipe; None for all weights, label by label."""
    model = recipe.initial_model()
    if isinstance(model, MLP):
        return None
    places, first, classes = [], 0, 0
    for layer in model.modules():
        own = [parameter.numel() for parameter in layer.parameters(recurse=False)]
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            places.append((layer.in_features, first, layer.out_features))
            classes = layer.out_features
        first += sum(own)
    if not places or classes < 2:
        raise UnsupportedModel("This attack reads dense layers with biases, the last with an output a class.")
    features, first, errors = max(places)
    return Features(first, errors, features, classes)
