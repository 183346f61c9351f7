"""Balle et al. 2022, Table III with unknown initial weights, and figure 11: reconstruction and membership beside it.

``divulge.informed`` refuses a released model whose initial weights are not the recipe's. The paper trains the
reconstructor on shadow models that each have initial weights of their own, and so do the rows here: the paper's network
on standardised weights, and a ridge regression on the same input. Figure 11 asks an easier question of such models:
whether the loss on a row tells that the row was trained on. Models are trained in groups, as the known rows are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import elu, one_hot

from divulge import informed
from divulge.informed.shadow_models import reconstructor_network
from divulge.training import Recipe

if TYPE_CHECKING:
    from experiments.papers.balle import Lab, Rows

GROUP = 50
"""Models trained at once."""
_FIRST_SEED = 1_000_000  # of the initial weights of shadow models; released models and figure 11 have others
_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)


def trained(recipe: Recipe, known: Rows, rows: Rows, seeds: Sequence[int], *, inside: bool = True) -> Tensor:
    """The weights [m, P] of a model for each row, from the initial weights of each seed; ``inside`` says whether the
    row is trained on."""
    parts = [slice(first, first + GROUP) for first in range(0, len(seeds), GROUP)]
    return torch.cat([_group(recipe, known, rows[0][part], rows[1][part], seeds[part], inside) for part in parts])


def _group(recipe: Recipe, known: Rows, Z: Tensor, y: Tensor, seeds: Sequence[int], inside: bool) -> Tensor:
    """Full-batch descent with momentum of one group of networks with one hidden ELU layer."""
    models = [Recipe(**{**_options(recipe), "seed": seed}).initial_model() for seed in seeds]
    each = [[part.detach().clone() for part in model.parameters()] for model in models]
    state = [torch.stack(parts) for parts in zip(*each, strict=True)]
    moments = [torch.zeros_like(part) for part in state]
    X, own = known[0].flatten(1), Z.flatten(1)[:, None, :]
    classes = state[3].shape[1]
    wanted, own_wanted = one_hot(known[1], classes).to(X), one_hot(y, classes).to(X)[:, None, :]
    count = len(X) + inside
    for _ in range(recipe.epochs):
        slopes = _slopes(state, X, wanted)
        if inside:
            slopes = [a + b for a, b in zip(slopes, _slopes(state, own, own_wanted), strict=True)]
        for part, moment, slope in zip(state, moments, slopes, strict=True):
            moment.mul_(float(recipe.momentum)).add_(slope, alpha=1 / count)
            part.sub_(moment, alpha=float(recipe.learning_rate))
    return torch.cat([part.flatten(1) for part in state], dim=1)


def _slopes(state: list[Tensor], X: Tensor, wanted: Tensor) -> list[Tensor]:
    """The gradients of the summed cross-entropy: for rows [n, d] that all models share, or [m, 1, d] of their own."""
    W, b, V, c = state
    if X.dim() == 2:
        before = (X @ W.flatten(0, 1).T).view(len(X), *b.shape).transpose(0, 1) + b[:, None, :]  # [m, n, h]
    else:
        before = X @ W.transpose(1, 2) + b[:, None, :]
    hidden = elu(before)
    away = (hidden @ V.transpose(1, 2) + c[:, None, :]).softmax(dim=2) - wanted
    delta = (away @ V) * torch.where(before > 0, 1.0, hidden + 1)
    if X.dim() == 2:
        first = (delta.transpose(1, 2).flatten(0, 1) @ X).view(W.shape)
    else:
        first = delta.transpose(1, 2) @ X
    return [first, delta.sum(dim=1), away.transpose(1, 2) @ hidden, away.sum(dim=1)]


def _options(recipe: Recipe) -> dict[str, Any]:
    names = ("widths", "activation", "loss", "learning_rate", "momentum", "epochs")
    return {name: getattr(recipe, name) for name in names}


def unknown_start(lab: Lab, shadows: int = 1000, epochs: int = 30, targets: int = 100) -> dict[str, Any]:
    """Table III with random initial weights, at the default rate and momentum."""
    recipe, fixed = lab.recipe(), lab.fixed()
    shadows, epochs = (38_000, 100) if lab.full else (shadows, epochs)
    pool, (X, y) = lab.pool(shadows), lab.targets(targets)
    seeds = range(_FIRST_SEED, _FIRST_SEED + len(X) + shadows)
    released = trained(recipe, fixed, (X, y), seeds[: len(X)])
    models = trained(recipe, fixed, pool, seeds[len(X) :])
    network = reconstructor_network.fit(models, pool[0], epochs=epochs, seed=lab.seed)
    mean = pool[0].flatten(1).mean(dim=0)
    found = {"RecoNN": network.rows(released), "ridge": _ridge(models, pool[0].flatten(1), released)}
    held = tuple(torch.cat([a, b]) for a, b in zip(fixed, pool, strict=True))
    nearest = informed.baseline_errors(X, y, *held).nearest
    result: dict[str, Any] = {
        "paper": 0.0695, "shadows": shadows, "epochs": epochs, "attacked": len(X), "nearest": float(nearest.mean()),
        "mean digit": _error(mean.expand(len(X), -1), X)["mean"],
    }  # fmt: skip
    for name, rows in found.items():
        closer = (rows.clamp(0, 1) - X.flatten(1)).square().mean(dim=1) < nearest
        result[name] = {**_error(rows.clamp(0, 1), X), "closer than the nearest": int(closer.sum())}
    return result


def _error(rows: Tensor, X: Tensor) -> dict[str, float]:
    errors = (rows - X.flatten(1)).square().mean(dim=1)
    half = 1.96 * float(errors.std()) / len(errors) ** 0.5
    return {"mean": float(errors.mean()), "low": float(errors.mean()) - half, "high": float(errors.mean()) + half}


def _ridge(models: Tensor, rows: Tensor, released: Tensor) -> Tensor:
    """Ridge regression from standardised weights to rows, its penalty chosen on a tenth of the shadow models."""
    mean, spread = reconstructor_network.standardisation(models)
    features, seen = ((part - mean) / spread / models.shape[1] ** 0.5 for part in (models, released))
    held = len(models) // 10
    usual = rows[held:].mean(dim=0)
    kernel = (features[held:] @ features[held:].T).double()
    best: tuple[float, Tensor] | None = None
    for penalty in _PENALTIES:
        damped = kernel + penalty * torch.eye(len(kernel), dtype=kernel.dtype)
        dual = torch.linalg.solve(damped, (rows[held:] - usual).double()).float()
        error = float((features[:held] @ features[held:].T @ dual + usual - rows[:held]).square().mean())
        if best is None or error < best[0]:
            best = (error, seen @ features[held:].T @ dual + usual)
    assert best is not None
    return best[1]


def membership_beside(lab: Lab, targets: int = 3, models: int = 100) -> dict[str, Any]:
    """Figure 11: the area under the curve of a membership test by the loss on a row, over random initial weights."""
    recipe, fixed = lab.recipe(), lab.fixed()
    X, y = lab.targets(targets)
    areas, rates = [], []
    for place, (x, label) in enumerate(zip(X, y, strict=True)):
        first = _FIRST_SEED * (2 + place)
        rows = x.expand(models, *x.shape), label.expand(models)
        scores = [
            _scores(recipe, trained(recipe, fixed, rows, range(start, start + models), inside=inside), x, label)
            for start, inside in ((first, True), (first + models, False))
        ]
        curve = informed.roc(*scores)
        areas.append(curve.auc)
        rates.append(curve.tpr_at[0.01])
    return {
        "models": 2 * models, "attacked": len(X), "auc": areas, "mean auc": float(np.mean(areas)),
        "true positives at 1 %": rates,
    }  # fmt: skip


def _scores(recipe: Recipe, weights: Tensor, x: Tensor, label: Tensor) -> list[float]:
    """Minus the loss on the row of each model."""
    model, scores = recipe.initial_model(), []
    for theta in weights:
        torch.nn.utils.vector_to_parameters(theta, model.parameters())
        with torch.no_grad():
            scores.append(-float(recipe.loss_of(model(x.flatten()[None]), label[None])))
    return scores
