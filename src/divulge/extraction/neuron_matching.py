"""Neurons of a copy beside those of the network it was taken from, up to order, scale and sign."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from divulge.core.errors import UnsupportedModel
from divulge.models import ReluNetwork


@dataclass(frozen=True)
class NeuronMatch:
    """Which neuron of the copy is which of the reference, and how far apart they are."""

    pairs: Tensor
    """[m, 2]: index in the copy, index in the reference."""
    error: Tensor
    """[m]: distance between the two neurons' jumps, relative to the reference's."""
    missing: tuple[int, ...]
    """Reference neurons that have no partner."""
    extra: tuple[int, ...]
    """Neurons of the copy that have no partner."""

    def found(self, tolerance: float = 1e-6) -> int:
        """How many reference neurons came out right to this relative error."""
        return int((self.error <= tolerance).sum())

    @property
    def worst(self) -> float:
        return float(self.error.max()) if len(self.error) else 0.0


def match_neurons(copy: nn.Module, reference: nn.Module) -> NeuronMatch:
    """Pair the hidden neurons of two one-hidden-layer ReLU networks so that they differ least.

    A neuron is what it adds to the affine map where it is on, W_i (A_i, b_i). That does not change when its incoming
    weights grow and its outgoing ones shrink. Its sign is free, because relu(z) - relu(-z) = z is affine.

    Parameters
    ----------
    copy : nn.Module
        The copy.
    reference : nn.Module
        The network that it was taken from.

    Returns
    -------
    NeuronMatch
        The pairs and how far the neurons of each pair differ.

    Raises
    ------
    UnsupportedModel
        One of the two has no single hidden layer of ReLU units.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.models import MLP
    >>> model = MLP([10, 4, 1]).double()
    >>> stolen = divulge.extraction.from_gradients(divulge.oracle(model, access="gradient"))
    >>> divulge.extraction.match_neurons(stolen.model, model).found(1e-6)
    4
    """
    ours, theirs = _jumps(copy), _jumps(reference)
    if not len(ours) or not len(theirs):
        return NeuronMatch(
            torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, dtype=torch.float64),
            tuple(range(len(theirs))), tuple(range(len(ours))),
        )  # fmt: skip
    squares = (ours**2).sum(dim=1)[:, None] + (theirs**2).sum(dim=1)[None]
    cost = (squares - 2 * (ours @ theirs.T).abs()).clamp_min(0).numpy()
    rows, columns = linear_sum_assignment(cost)
    mine, other = ours[rows], theirs[columns]
    sign = torch.sign((mine * other).sum(dim=1, keepdim=True))
    error = (mine * sign - other).norm(dim=1) / other.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    return NeuronMatch(
        pairs=torch.from_numpy(np.stack([rows, columns], axis=1)),
        error=error,
        missing=tuple(sorted(set(range(len(theirs))) - set(columns.tolist()))),
        extra=tuple(sorted(set(range(len(ours))) - set(rows.tolist()))),
    )


def _jumps(model: nn.Module) -> Tensor:
    """What each neuron adds to the affine map of all outputs where it is on [h, k (d + 1)]."""
    A, b, W = _hidden_layer(model)
    rows = torch.cat([A, b[:, None]], dim=1)
    return torch.einsum("kh,he->hke", W, rows).flatten(1)


def _hidden_layer(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    parts: tuple[Tensor, Tensor, Tensor]
    if isinstance(model, ReluNetwork):
        parts = (model.A, model.b, model.W)
    else:
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        relus = [layer for layer in model.modules() if isinstance(layer, nn.ReLU)]
        if len(layers) != 2 or len(relus) != 1:
            raise UnsupportedModel(
                "Neurons are matched between networks of one hidden ReLU layer, and this "
                f"{type(model).__name__} is not one."
            )
        first, second = layers
        bias = first.bias if first.bias is not None else first.weight.new_zeros(first.out_features)
        parts = (first.weight, bias, second.weight)
    A, b, W = (part.detach().cpu().to(torch.float64) for part in parts)
    return A, b, W
