"""Gauss-Newton for the equation theta(z) = theta*, where theta is a training run, for many unknown rows at once.

For the weights of a dense network, J = d theta / d z is close to a multiple of an isometry, except in some twenty
directions that it stretches and about a hundred that it shrinks (those that the known data span most). For
convolutions and for logits J is ill-conditioned. The inner solver is therefore conjugate gradients on the normal
equations. ``preconditioner`` supplies what earlier rounds explored and, for pictures, how pictures differ. Entries
that sit at a bound and would be pushed out are held there. A step is shortened until the misfit falls.

Cost is counted in training runs. A run costs one; a product with J or its transpose costs one, or the share of the
rows that it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from divulge.core.progress import report
from divulge.informed.inversion.preconditioner import ExploredDirections, Metric, Prior

Box = tuple[Tensor, Tensor]
"""The least and the largest value of each entry; both broadcast to [B, d]."""
SHRINK = 0.35
"""What a step that did not lower the objective is multiplied by."""
_TRIES = 4


class DifferentiableRun(Protocol):
    """A training run for each row of a group, and its derivatives."""

    theta: Tensor

    @property
    def share(self) -> float:
        """The cost of a product with J, in training runs."""

    def forward(self, dZ: Tensor) -> Tensor:
        """J dz."""

    def backward(self, residual: Tensor) -> Tensor:
        """J^T r."""

    def replace(self, rows: Tensor, other: Any, chosen: Tensor) -> None:
        """Put the chosen runs of another group into the given places of this one."""


Train = Callable[[Tensor, Tensor], DifferentiableRun]
"""(rows [b, d], their places in the group [b]) -> their runs."""


@dataclass
class Inversion:
    """Where the search ended."""

    z: Tensor
    """The rows [B, d]."""
    misfit: Tensor
    """|theta* - theta(z)| of each row [B]."""
    curvature: Tensor
    """The median squared stretch of J over the directions explored [B]."""
    weakest: Tensor
    """The smallest squared stretch of J over all combinations of the newest directions [B]."""
    runs: float
    """Training runs spent on each row."""
    steps: int
    """Conjugate gradient steps in all."""


def invert(
    train: Train,
    target: Tensor,
    z: Tensor,
    *,
    runs: float,
    bounds: Box | None,
    inner: int = 10,
    metric: Metric | None = None,
    prior: Prior | None = None,
    tolerance: float = 0.0,
) -> Inversion:
    """Search from ``z`` [B, d] for rows whose runs end at ``target`` [B, P], within ``runs`` training runs a row.

    The search also ends when the misfit of every row is below ``tolerance`` times the target's size. ``metric`` is
    used where there is no ``prior``.
    """
    places = torch.arange(len(z))
    run = train(z, places)
    used = 1.0
    explored = ExploredDirections(None if prior is not None else metric)
    size = target.norm(dim=1).clamp(min=torch.finfo(target.dtype).tiny)
    value = _objective(target - run.theta, z, prior)
    misfit = (target - run.theta).norm(dim=1)
    curvature, weakest, taken = torch.ones_like(size), torch.ones_like(size), 0
    while bool((misfit > tolerance * size).any()):
        steps = int(min(inner, (runs - used - 2) / (2 * run.share)))
        if steps < 1:
            break
        step, spent, curvature = _gauss_newton_step(run, target - run.theta, z, bounds, prior, explored, steps)
        used, taken, weakest = used + spent, taken + steps, explored.weakest(inner)
        z, value, gained, spent = _line_search(train, run, target, z, step, value, bounds, prior, runs - used)
        used += spent
        misfit = (target - run.theta).norm(dim=1)
        report("inverting training", used, runs, misfit=f"{float((misfit / size).median()):.1e}")
        if not gained:
            break
    return Inversion(z, misfit, curvature, weakest, used, taken)


def unrecovered_share(run: DifferentiableRun, difference: Tensor, steps: int, metric: Metric | None = None) -> Tensor:
    """The share of a squared difference between rows [B, d] that so many steps do not recover from its image."""
    origin = torch.zeros_like(difference)
    explored = ExploredDirections(metric)
    found, _, _ = _gauss_newton_step(run, run.forward(difference), origin, None, None, explored, steps)
    left: Tensor = (difference - found).square().sum(dim=1) / difference.square().sum(dim=1)
    return left


def _objective(residual: Tensor, z: Tensor, prior: Prior | None) -> Tensor:
    explained = residual.square().sum(dim=1)
    return explained if prior is None else explained + ((z - prior.mean) * prior.pull(z - prior.mean)).sum(dim=1)


def _gauss_newton_step(
    run: DifferentiableRun,
    residual: Tensor,
    z: Tensor,
    bounds: Box | None,
    prior: Prior | None,
    explored: ExploredDirections,
    steps: int,
) -> tuple[Tensor, float, Tensor]:
    """The step by preconditioned conjugate gradients, its cost, and the median curvature."""
    away = None if prior is None else z - prior.mean

    def descent(left: Tensor, step: Tensor) -> Tensor:
        """Minus half the objective's gradient after ``step``, where ``left`` is the residual that remains."""
        below = run.backward(left)
        return below if prior is None or away is None else below - prior.pull(away + step)

    step = torch.zeros_like(z)
    gradient = descent(residual, step)
    free = _free(z, gradient, bounds)
    gradient = gradient * free
    spent = run.share
    if prior is not None and not explored.directions:
        explored.add(gradient, run.forward(gradient))  # sets the scale of J^T J against the prior's
        spent += run.share
    precondition = explored.preconditioner(free, prior)
    tiny = torch.finfo(z.dtype).tiny
    turned = precondition(gradient)
    direction = turned.clone()
    power = (gradient * turned).sum(dim=1)
    for turn in range(steps):
        image = run.forward(direction)
        spent += run.share
        explored.add(direction, image)
        stretch = image.square().sum(dim=1)
        if prior is not None:
            stretch = stretch + (direction * prior.pull(direction)).sum(dim=1)
        length = (power / stretch.clamp(min=tiny))[:, None]
        step = step + length * direction
        residual = residual - length * image
        if turn == steps - 1:
            break
        gradient = descent(residual, step) * free
        spent += run.share
        turned = precondition(gradient)
        renewed = (gradient * turned).sum(dim=1)
        direction = turned + (renewed / power.clamp(min=tiny))[:, None] * direction
        power = renewed
    return step, spent, explored.scale


def _free(z: Tensor, gradient: Tensor, bounds: Box | None) -> Tensor:
    """1 where an entry may move, 0 where it sits at a bound and the step would push it out."""
    if bounds is None:
        return torch.ones_like(z)
    low, high = bounds
    held = ((z <= low) & (gradient < 0)) | ((z >= high) & (gradient > 0))
    return (~held).to(z.dtype)


def _line_search(
    train: Train,
    run: DifferentiableRun,
    target: Tensor,
    z: Tensor,
    step: Tensor,
    value: Tensor,
    bounds: Box | None,
    prior: Prior | None,
    budget: float,
) -> tuple[Tensor, Tensor, bool, float]:
    """Take each row's step, or a shortened one, if it lowers the row's objective; ``run`` is updated in place."""
    z, value = z.clone(), value.clone()
    waiting = torch.arange(len(z))
    length, spent, gained = 1.0, 0.0, False
    for _ in range(_TRIES):
        if not len(waiting) or spent + 1 > budget:
            break
        proposal = z[waiting] + length * step[waiting]
        if bounds is not None:
            proposal = proposal.clamp(*(side.expand_as(z)[waiting] for side in bounds))
        trial = train(proposal, waiting)
        spent += len(waiting) / len(z)
        new = _objective(target[waiting] - trial.theta, proposal, _rows_of(prior, waiting))
        better = new < value[waiting]
        if bool(better.any()):
            run.replace(waiting[better], trial, better)
        z[waiting[better]], value[waiting[better]] = proposal[better], new[better]
        gained = gained or bool(better.any())
        waiting = waiting[~better]
        length *= SHRINK
    return z, value, gained, spent


def _rows_of(prior: Prior | None, rows: Tensor) -> Prior | None:
    return None if prior is None else replace(prior, mean=prior.mean[rows])
