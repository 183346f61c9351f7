"""Which part of the weights an attack on private models uses.

Of a perceptron it is all of them, label by label, because the label decides the direction of a record's effect. Of a
network with convolutions the change of all weights says little about the picture before tens of thousands of shadow
models are seen. But its widest dense layer changes by about e h^T, with e the record's errors there and h its
features, summed over the steps. Features have a usual direction u, so that the change times u is e up to its length,
and e^T times the change is the direction of h, whatever the label and even where the noise is larger than any single
weight. A few hundred shadow models of all labels then suffice to map features to pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge.core.errors import UnsupportedModel
from divulge.models import MLP
from divulge.training import Recipe


@dataclass(frozen=True)
class Features:
    """The features that reach the widest dense layer."""

    place: slice
    """The indices of its weights in the flat vector."""
    classes: int
    usual: Tensor
    """[features]: their usual direction."""

    def of(self, away: Tensor) -> Tensor:
        """The features [B, features] read off changes of the weights [B, P], with noise as large as the weights'."""
        change = away[:, self.place].reshape(len(away), -1, len(self.usual))
        errors = normalize(change @ self.usual.to(change), dim=1)
        features: Tensor = (errors[:, None] @ change)[:, 0]
        return features

    def labels(self, away: Tensor) -> Tensor:
        """The class whose last bias rose most: descent raises that of the record's label."""
        return away[:, -self.classes :].argmax(dim=1)


def reading_of(recipe: Recipe, away: Tensor) -> Features | None:
    """What to read off models of this recipe, from changes of the weights [N, P] without noise; None for all weights,
    label by label."""
    model = recipe.initial_model()
    if isinstance(model, MLP):
        return None
    layers, first = [], 0
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            layers.append((layer.in_features, layer.out_features, first))
        first += sum(parameter.numel() for parameter in layer.parameters(recurse=False))
    if not layers or layers[-1][1] < 2:
        raise UnsupportedModel("This attack reads dense layers with biases, the last with an output a class.")
    features, errors, first = max(layers)
    place = slice(first, first + errors * features)
    change = away[:, place].reshape(-1, errors, features)
    # without noise the first singular vectors are e and h, up to a sign that the bias, which changed by e, tells
    left = torch.linalg.eigh(change @ change.mT).eigenvectors[:, :, -1]
    left = left * (left * away[:, place.stop : place.stop + errors]).sum(dim=1, keepdim=True).sign()
    usual = normalize((left[:, None] @ change)[:, 0], dim=1).mean(dim=0)
    return Features(place, layers[-1][1], normalize(usual, dim=0))
