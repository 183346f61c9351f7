"""What every attack on a trained network checks: that the known rows, the recipe and the released weights fit together,
and that a rebuilt record is closer than the nearest known row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge.core.errors import AttackFailed, InvalidInput, WrongShape
from divulge.informed.inversion.training_function import TrainingFunction
from divulge.informed.released_view import ReleasedView, flat_weights
from divulge.informed.shadow_models.training import checked_rows
from divulge.training import Recipe
from divulge.training.batched.shared_setup import encode

_SAMPLE = 500  # known rows whose nearest neighbour is looked for
_MISLABELLED = 8  # known rows that are trained on under wrong labels
_SHARE = 0.3  # of the distance from the initial weights: more than one row can move the model
TRUST = 0.5
"""A record is trusted when its predicted error is at most this share of the error of the nearest known row."""


class NotReproduced(InvalidInput):
    """The recipe does not lead from the known rows to anywhere near the released weights."""


def known(recipe: Recipe, X: Any, y: Any) -> tuple[Tensor, Tensor]:
    """The known rows and labels, checked and in the recipe's precision."""
    return checked_rows(recipe, X, y, "known")


def same_size(released: Tensor, own: Tensor) -> None:
    """Refuse weights of another architecture."""
    if released.shape != own.shape:
        raise WrongShape(
            f"The released model has {len(released)} weights; this recipe's has {len(own)}: another architecture."
        )


def reproduces(
    training: TrainingFunction,
    view: ReleasedView,
    X: Tensor,
    y: Tensor,
    target: Tensor,
    guesses: Tensor,
    initial: nn.Module | None,
    noise: float,
) -> None:
    """Refuse a released model that the known rows and one more row cannot have led to.

    ``guesses`` are the differences that class means make. A released model is refused when it is further off than a
    third of the distance that training covered, and either three times further than nearly all guesses and mislabelled
    rows, or in a direction unlike all of them. ``noise`` of that standard deviation on the weights is allowed for.
    """
    sizes = target.to(torch.float64).norm(dim=1)
    typical = guesses.to(torch.float64).norm(dim=1)
    first = flat_weights(training.recipe.initial_model() if initial is None else initial)
    covered = float(view.image(first - training.reference).norm())
    far = float(sizes.max())
    if far > _SHARE * covered:
        mislabelled = _mislabelled(training, view, X, y)
        swing = float(mislabelled.to(torch.float64).norm(dim=1).max())
        most = max(float(typical.quantile(0.9)) + noise * target.shape[1] ** 0.5, swing)
        plausible = torch.cat([guesses, mislabelled]).to(target)
        cosine = (normalize(target, dim=1) @ normalize(plausible, dim=1).T).max(dim=1).values
        strange = (sizes > _SHARE * covered) & (cosine < 0.1) & (sizes > 0.5 * most)
        if far > 3 * most or (noise == 0 and bool(strange.any())):
            raise NotReproduced(
                f"The released model is {far:.3g} from where this recipe leads with the known rows, and one more row "
                f"moves it by about {float(typical.median()):.2g}: the recipe, its seed (initial weights, shuffling), "
                "the known rows or their order are not this model's. Without those this attack is not possible."
            )
    if len(target) == 1 and noise == 0:
        alone = flat_weights(training.recipe.train(X, y, start=initial)) - training.reference
        close = float((target[0].to(torch.float64) - view.image(alone)).norm())
        if close <= 1e3 * torch.finfo(training.recipe.dtype).eps * float(training.reference.norm()):
            raise AttackFailed(
                "The known rows alone lead to exactly these weights: the known set already contains the target."
            )


def _mislabelled(training: TrainingFunction, view: ReleasedView, X: Tensor, y: Tensor) -> Tensor:
    """What a few known rows do to the view of the model under the next label: larger effects than usual rows have."""
    labels = sorted(set(y.tolist()))
    rows = X.reshape(len(X), -1)[:_MISLABELLED]
    wrong = torch.tensor([labels[(labels.index(label) + 1) % len(labels)] for label in y[:_MISLABELLED].tolist()])
    return view.image(training.train(rows.to(training.dtype), encode(training.recipe, wrong, training.outputs).T))


def nearest(X: Tensor) -> float:
    """The median over known rows of the mean squared distance to the nearest other one.

    An adversary who runs no attack comes about this close to the unknown row.
    """
    flat = X.reshape(len(X), -1).to(torch.float64)
    apart = torch.cdist(flat[:_SAMPLE], flat).square() / flat.shape[1]
    apart[apart <= torch.finfo(torch.float32).eps * flat.square().mean()] = torch.inf  # the row itself, and copies
    return float(apart.min(dim=1).values.median())


def doubt(predicted: float, anyway: float, left: float) -> str:
    """Why a record with this predicted error is no reconstruction; empty where it is one.

    ``anyway`` is the error of the nearest known row, ``left`` the share of the unknown row's effect that training with
    the record does not explain.
    """
    if predicted <= TRUST * anyway:
        return ""
    return (
        f"{left:.0%} of what the unknown row did to the model is left unexplained, which stands for a mean squared "
        f"error of {predicted:.2g}; the nearest known row is typically at {anyway:.2g}: this is no reconstruction"
    )


def notes(X: Tensor, x: Tensor) -> tuple[str, ...]:
    """Notes about copies: known rows that repeat, and a known row that equals the rebuilt one."""
    flat = X.reshape(len(X), -1).to(torch.float64)
    found = []
    copies = len(flat) - len(torch.unique(flat, dim=0))
    if copies:
        found.append(f"{copies} of the known rows are copies of others; they are used as given")
    closest = int((flat - x).square().mean(dim=1).argmin())
    if float((flat[closest] - x).square().mean()) < 1e-6 * float(flat.var()):
        found.append(f"the record equals known row {closest}: the known set holds the target, or a copy of it")
    return tuple(found)
