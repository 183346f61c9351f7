"""What every attack on a trained network checks before it starts: that the known rows, the recipe and the released
weights belong together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge.errors import AttackFailed, InvalidInput, WrongShape
from divulge.informed.program import Program
from divulge.informed.seen import Sight, flat_weights
from divulge.informed.setting import encode
from divulge.informed.shadows import checked_rows
from divulge.training import Recipe

_SAMPLE = 500  # known rows whose nearest others are looked for
_OUTLIERS = 8  # known rows that are tried under wrong labels
_SHARE = 0.3  # of the way from the initial weights: what one row could not do
TRUST = 0.5  # of the distance to the nearest known row: what a reconstruction is at most expected to be off


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
    program: Program,
    sight: Sight,
    X: Tensor,
    y: Tensor,
    target: Tensor,
    guesses: Tensor,
    initial: nn.Module | None,
    noise: float,
) -> None:
    """Refuse a released model that the known rows and one more could not have led to.

    ``guesses`` are the differences that plausible rows make, and hard rows make far larger ones; but one row is no
    match for all others. A released model that is further off than a third of the way that training went, and three
    times further than nearly all guesses (and known rows under wrong labels) or in an unlike direction, was trained in
    another way; unless ``noise`` of that standard deviation explains it.
    """
    sizes = target.to(torch.float64).norm(dim=1)
    likely = guesses.to(torch.float64).norm(dim=1)
    first = flat_weights(program.recipe.initial_model() if initial is None else initial)
    way = float(sight.image(first - program.reference).norm())
    far = float(sizes.max())
    if far > _SHARE * way:
        hard = _hard(program, sight, X, y)
        swing = float(hard.to(torch.float64).norm(dim=1).max())
        most = max(float(likely.quantile(0.9)) + noise * target.shape[1] ** 0.5, swing)
        plausible = torch.cat([guesses, hard]).to(target)
        alike = (normalize(target, dim=1) @ normalize(plausible, dim=1).T).max(dim=1).values
        strange = (sizes > _SHARE * way) & (alike < 0.1) & (sizes > 0.5 * most)
        if far > 3 * most or (noise == 0 and bool(strange.any())):
            raise NotReproduced(
                f"The released model is {far:.3g} from where this recipe leads with the known rows, and one more row "
                f"moves it by about {float(likely.median()):.2g}: the recipe, its seed (initial weights, shuffling), "
                "the known rows or their order are not this model's. Without those this attack is not possible."
            )
    if len(target) == 1 and noise == 0:
        alone = flat_weights(program.recipe.train(X, y, start=initial)) - program.reference
        close = float((target[0].to(torch.float64) - sight.image(alone)).norm())
        if close <= 1e3 * torch.finfo(program.recipe.dtype).eps * float(program.reference.norm()):
            raise AttackFailed(
                "The known rows alone lead to exactly these weights: the known set already contains the target."
            )


def _hard(program: Program, sight: Sight, X: Tensor, y: Tensor) -> Tensor:
    """What hard rows would do to the weights: known ones under the labels of others, where there are any."""
    labels = sorted(set(y.tolist()))
    rows = X.reshape(len(X), -1)[:_OUTLIERS]
    wrong = torch.tensor([labels[(labels.index(label) + 1) % len(labels)] for label in y[:_OUTLIERS].tolist()])
    return sight.image(program.train(rows.to(program.dtype), encode(program.recipe, wrong, program.outputs).T))


def nearest(X: Tensor) -> float:
    """The mean squared distance between a known row and the nearest other, at the median: how close to the unknown row
    an adversary comes who does nothing."""
    flat = X.reshape(len(X), -1).to(torch.float64)
    apart = torch.cdist(flat[:_SAMPLE], flat).square() / flat.shape[1]
    apart[apart <= torch.finfo(torch.float32).eps * flat.square().mean()] = torch.inf  # itself, and copies
    return float(apart.min(dim=1).values.median())


def doubt(predicted: float, anyway: float, left: float) -> str:
    """Why a record of this predicted error is no reconstruction, beside what the adversary holds ``anyway`` and what
    training with the record has ``left`` unexplained; empty where it is one."""
    if predicted <= TRUST * anyway:
        return ""
    return (
        f"{left:.0%} of what the unknown row did to the model is left unexplained, which stands for a mean squared "
        f"error of {predicted:.2g}; the nearest known row is typically at {anyway:.2g}: this is no reconstruction"
    )


def notes(X: Tensor, x: Tensor) -> tuple[str, ...]:
    """What is odd about the known rows: copies of one another, or of the row that was found."""
    flat = X.reshape(len(X), -1).to(torch.float64)
    found = []
    copies = len(flat) - len(torch.unique(flat, dim=0))
    if copies:
        found.append(f"{copies} of the known rows are copies of others; they are used as given")
    twin = int((flat - x).square().mean(dim=1).argmin())
    if float((flat[twin] - x).square().mean()) < 1e-6 * float(flat.var()):
        found.append(f"the record equals known row {twin}: the known set holds the target, or a copy of it")
    return tuple(found)
