"""How a group of models holds its weights, and the conversion from and to flat vectors in torch's order."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from divulge.core.errors import WrongShape
from divulge.training.batched.shared_setup import SharedSetup


def basis(rows: Tensor) -> Tensor:
    """Orthonormal columns that span the rows."""
    if rows.shape[1] > len(rows):
        columns: Tensor = torch.linalg.qr(rows.T).Q
        return columns
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    kept: Tensor = vectors[:, values > values[-1] * torch.finfo(values.dtype).eps * len(values)]
    return kept


def weights_of(linear: list[nn.Linear]) -> tuple[Tensor, ...]:
    """A model's weights in the layout of ``SharedSetup.start``."""
    first = linear[0]
    bias = first.bias if first.bias is not None else first.weight.new_zeros(len(first.weight))
    parts = [torch.cat([first.weight, bias[:, None]], dim=1)]
    for layer in linear[1:]:
        parts.append(layer.weight)
        if layer.bias is not None:
            parts.append(layer.bias[:, None])
    return tuple(part.detach().to(torch.float64).clone() for part in parts)


def flat(parts: list[Tensor], *, first_bias: bool) -> Tensor:
    """Batched weights in that layout as one row a model [B, P], in the order of ``model.parameters()``."""
    first = parts[0]
    pieces = [first[:, :, :-1].flatten(1)]
    if first_bias:
        pieces.append(first[:, :, -1])
    return torch.cat([*pieces, *(part.flatten(1) for part in parts[1:])], dim=1)


def unflat(setup: SharedSetup, theta: Tensor) -> list[Tensor]:
    """The inverse of ``flat``: weights [B, P] in the layout of ``SharedSetup.start``, batched."""
    pieces, place = [], 0
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(setup.widths)):
        weight = theta[:, place : place + fan_in * fan_out].view(-1, fan_out, fan_in)
        place += fan_in * fan_out
        biased = setup.biased(layer)
        bias = theta[:, place : place + fan_out, None] if biased else None
        place += fan_out if biased else 0
        if layer == 0:
            pieces.append(torch.cat([weight, weight.new_zeros(len(weight), fan_out, 1) if bias is None else bias], 2))
        else:
            pieces += [weight] if bias is None else [weight, bias]
    if place != theta.shape[1]:
        raise WrongShape(f"The recipe's model has {place} weights; this one has {theta.shape[1]}.")
    return pieces


def reference_weights(setup: SharedSetup) -> Tensor:
    """The reference run's final weights [P], as float64."""
    return flat([part[None] for part in setup.reference], first_bias=setup.recipe.bias != "none")[0]
