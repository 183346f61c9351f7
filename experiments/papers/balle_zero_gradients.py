"""Balle et al. 2022, figure 22: how much of a target's own gradient is zero, layer by layer, along training.

A parameter whose gradient for the target is zero at every step shows nothing of the target. The paper has more than
80 % zeros in the convolutions of the ReLU network, and sees in that why ReLU is harder to attack than ELU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core import plots
from divulge.training import Recipe, shaped
from divulge.training.batched.shared_setup import with_row

Rows = tuple[Tensor, Tensor]
ACTIVATIONS = ("relu", "elu")


def zero_gradients(recipe: Recipe, known: Rows, targets: Rows, out: Path) -> dict[str, Any]:
    """The share of zeros in the targets' gradients, by activation and layer, and a drawing of it along training."""
    result: dict[str, Any] = {"pictures": len(targets[0]), "known": len(known[0]), "epochs": recipe.epochs}
    figure = plots.new_figure(9.0, 3.5)
    for place, activation in enumerate(ACTIVATIONS):
        own = replace(recipe, architecture={**recipe.spec, "activation": activation})
        shares = torch.stack([_along_training(own, known, x, y) for x, y in zip(*targets, strict=True)])
        layers = [name for name, part in own.initial_model().named_parameters() if part.dim() > 1]
        over_all = dict(zip(layers, _mean(shares.mean(dim=1)), strict=True))
        result[activation] = {
            "zeros": over_all,
            "in the last epoch": dict(zip(layers, _mean(shares[:, -1]), strict=True)),
        }
        axes = figure.add_subplot(1, 2, 1 + place)
        for layer, line in zip(layers, shares.mean(dim=0).T.tolist(), strict=True):
            axes.plot(line, label=layer)
        axes.set(title=activation, xlabel="epoch", ylabel="share of zeros", ylim=(-0.02, 1.02))
        axes.legend(fontsize=7)
    plots.save(figure, out / "figure22.png")
    return result


def _mean(shares: Tensor) -> list[float]:
    means: list[float] = shares.mean(dim=0).tolist()
    return means


def _along_training(recipe: Recipe, known: Rows, x: Tensor, y: Tensor) -> Tensor:
    """The share of zeros in the target's gradient [epochs, layers] while a model is trained on it and what is known."""
    X, labels = with_row(*known, x, y, len(known[0]))
    model = recipe.initial_model().train()
    descent = recipe.descent(model.parameters())
    weights = [part for part in model.parameters() if part.dim() > 1]
    rows = []
    for _ in range(recipe.epochs):
        own = torch.autograd.grad(_loss(recipe, model, X[-1:], labels[-1:]), weights)
        rows.append(torch.tensor([float((part == 0).double().mean()) for part in own]))
        descent.clear()
        _loss(recipe, model, X, labels).backward()  # type: ignore[no-untyped-call]
        descent.step()
    return torch.stack(rows)


def _loss(recipe: Recipe, model: nn.Module, X: Tensor, y: Tensor) -> Tensor:
    return recipe.loss_of(model(shaped(X, model)), y)
