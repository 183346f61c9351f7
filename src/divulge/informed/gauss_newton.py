"""Gauss-Newton for an equation theta(z) = theta*, many unknown rows at once, where theta is a training run.

For the weights of a dense network, J = d theta / d z is close to a multiple of an isometry (the multiple is the size of
the row's accumulated delta) but for some twenty directions it stretches and about a hundred, those that the known data
span most, it shrinks; for convolutions and for logits it is ill-conditioned. So the inner solver is conjugate gradients
on the normal equations, for pictures in coordinates in which likely differences are as long as one another
(``Metric``): what a few steps find first is then what pictures differ in most. The directions that earlier rounds
explored precondition the later ones: J moves little once z is near. Entries that sit at a bound and would be pushed out
are held there, which for digits removes most unknowns. A step is shortened until the misfit falls. Cost is counted in
training runs: one for a run, and for each product with J or its transpose one, or the share of the rows that it looks
at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from divulge.progress import report

SHRINK = 0.35
_TRIES = 4
_MEMORY = 60  # explored directions that are kept for preconditioning
_FLOOR = 1e-3  # the least curvature, of the bulk's, that a kept direction is believed to have


class Trained(Protocol):
    """A training run for each row of a group, and its derivatives."""

    theta: Tensor

    @property
    def share(self) -> float:
        """What a product with J costs, in training runs."""

    def forward(self, dZ: Tensor) -> Tensor:
        """J dz."""

    def backward(self, residual: Tensor) -> Tensor:
        """J^T r."""

    def replace(self, rows: Tensor, other: Any, chosen: Tensor) -> None:
        """Take over the chosen runs of another group at the given places."""


Train = Callable[[Tensor, Tensor], Trained]
"""(rows [b, d], their places in the group [b]) -> their runs."""


@dataclass(frozen=True)
class Metric:
    """Coordinates w of a difference dz = S w between rows, S^2 being the covariance of such differences, up to a
    multiple."""

    root: Tensor
    """S [d, d], symmetric,"""
    inverse: Tensor
    """and its inverse."""

    @classmethod
    def of(cls, values: Tensor, vectors: Tensor, floor: float) -> Metric:
        """From the eigenvalues of a covariance, raised by ``floor`` of their mean, and its eigenvectors."""
        scaled = (values.clamp(min=0) / values.mean().clamp(min=torch.finfo(values.dtype).tiny) + floor).sqrt()
        return cls((vectors * scaled) @ vectors.T, (vectors / scaled) @ vectors.T)


@dataclass(frozen=True)
class Prior:
    """A Gaussian belief about each row, and how large the noise on theta is: the search then minimises
    |theta* - theta(z)|^2 + noise^2 (z - mean)^T C^-1 (z - mean), which is the most probable row."""

    mean: Tensor
    """[B, d]"""
    values: Tensor
    """The eigenvalues of the covariance C [d],"""
    vectors: Tensor
    """and its eigenvectors [d, d]."""
    noise: float

    def pull(self, away: Tensor) -> Tensor:
        """noise^2 C^-1 times each row."""
        return self.noise**2 * ((away @ self.vectors) / self.values) @ self.vectors.T

    def condition(self, scale: Tensor, free: Tensor) -> Callable[[Tensor], Tensor]:
        """The inverse of J^T J + noise^2 C^-1 where J^T J is about ``scale`` [B] times one."""
        inverse = 1 / (scale[:, None] + self.noise**2 / self.values)
        return lambda vectors: (((vectors @ self.vectors) * inverse) @ self.vectors.T) * free


@dataclass
class Inversion:
    """Where the search ended: rows, what they leave unexplained, and what it cost."""

    z: Tensor
    misfit: Tensor
    """|theta* - theta(z)| for each row."""
    curvature: Tensor
    """The size of J on most directions, squared."""
    runs: float
    steps: int
    """Conjugate gradient steps in all."""


def invert(
    train: Train,
    target: Tensor,
    z: Tensor,
    *,
    runs: float,
    bounds: tuple[float, float] | None,
    inner: int = 10,
    metric: Metric | None = None,
    prior: Prior | None = None,
    tolerance: float = 0.0,
) -> Inversion:
    """Search from ``z`` [B, d] for rows whose runs end at ``target`` [B, P], within ``runs`` training runs a row.

    The search also ends when the misfit of every row is below ``tolerance`` of the target's size. ``metric`` serves
    where there is no ``prior``.
    """
    places = torch.arange(len(z))
    run = train(z, places)
    used = 1.0
    memory = _Memory(None if prior is not None else metric)
    size = target.norm(dim=1).clamp(min=torch.finfo(target.dtype).tiny)
    value = _objective(target - run.theta, z, prior)
    misfit = (target - run.theta).norm(dim=1)
    bulk, taken = torch.ones_like(size), 0
    while bool((misfit > tolerance * size).any()):
        steps = int(min(inner, (runs - used - 2) / (2 * run.share)))
        if steps < 1:
            break
        step, spent, bulk = _inner(run, target - run.theta, z, bounds, prior, memory, steps)
        used, taken = used + spent, taken + steps
        z, value, gained, spent = _move(train, run, target, z, step, value, bounds, prior, runs - used)
        used += spent
        misfit = (target - run.theta).norm(dim=1)
        report("inverting training", used, runs, misfit=f"{float((misfit / size).median()):.1e}")
        if not gained:
            break
    return Inversion(z, misfit, bulk, used, taken)


def unresolved(run: Trained, difference: Tensor, steps: int, metric: Metric | None = None) -> Tensor:
    """The share of a difference between rows [B, d], squared, that so many steps would not find from its image."""
    origin = torch.zeros_like(difference)
    found, _, _ = _inner(run, run.forward(difference), origin, None, None, _Memory(metric), steps)
    left: Tensor = (difference - found).square().sum(dim=1) / difference.square().sum(dim=1)
    return left


def _objective(residual: Tensor, z: Tensor, prior: Prior | None) -> Tensor:
    explained = residual.square().sum(dim=1)
    return explained if prior is None else explained + ((z - prior.mean) * prior.pull(z - prior.mean)).sum(dim=1)


def _inner(
    run: Trained,
    residual: Tensor,
    z: Tensor,
    bounds: tuple[float, float] | None,
    prior: Prior | None,
    memory: _Memory,
    steps: int,
) -> tuple[Tensor, float, Tensor]:
    """The Gauss-Newton step by preconditioned conjugate gradients, its cost, and the bulk of the curvature."""
    away = None if prior is None else z - prior.mean

    def slope(left: Tensor, step: Tensor) -> Tensor:
        """Minus half the objective's gradient after ``step``, which leaves ``left`` unexplained."""
        below = run.backward(left)
        return below if prior is None or away is None else below - prior.pull(away + step)

    step = torch.zeros_like(z)
    gradient = slope(residual, step)
    free = _free(z, gradient, bounds)
    gradient = gradient * free
    spent = run.share
    if prior is not None and not memory.directions:
        memory.add(gradient, run.forward(gradient))  # how the two terms weigh against each other
        spent += run.share
    condition = memory.preconditioner(free, prior)
    tiny = torch.finfo(z.dtype).tiny
    turned = condition(gradient)
    direction = turned.clone()
    power = (gradient * turned).sum(dim=1)
    for turn in range(steps):
        image = run.forward(direction)
        spent += run.share
        memory.add(direction, image)
        stretch = image.square().sum(dim=1)
        if prior is not None:
            stretch = stretch + (direction * prior.pull(direction)).sum(dim=1)
        length = (power / stretch.clamp(min=tiny))[:, None]
        step = step + length * direction
        residual = residual - length * image
        if turn == steps - 1:
            break
        gradient = slope(residual, step) * free
        spent += run.share
        turned = condition(gradient)
        renewed = (gradient * turned).sum(dim=1)
        direction = turned + (renewed / power.clamp(min=tiny))[:, None] * direction
        power = renewed
    return step, spent, memory.scale


def _free(z: Tensor, gradient: Tensor, bounds: tuple[float, float] | None) -> Tensor:
    """1 where an entry may move, 0 where it sits at a bound and the misfit would push it out."""
    if bounds is None:
        return torch.ones_like(z)
    low, high = bounds
    held = ((z <= low) & (gradient < 0)) | ((z >= high) & (gradient > 0))
    return (~held).to(z.dtype)


def _move(
    train: Train,
    run: Trained,
    target: Tensor,
    z: Tensor,
    step: Tensor,
    value: Tensor,
    bounds: tuple[float, float] | None,
    prior: Prior | None,
    budget: float,
) -> tuple[Tensor, Tensor, bool, float]:
    """Take each row's step, or a shortened one, if it lowers its objective; ``run`` is brought up to date."""
    z, value = z.clone(), value.clone()
    waiting = torch.arange(len(z))
    length, spent, gained = 1.0, 0.0, False
    for _ in range(_TRIES):
        if not len(waiting) or spent + 1 > budget:
            break
        proposal = z[waiting] + length * step[waiting]
        if bounds is not None:
            proposal = proposal.clamp(*bounds)
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


class _Memory:
    """Directions that were explored and their images, as a preconditioner for the next round."""

    def __init__(self, metric: Metric | None = None) -> None:
        self.metric = metric
        self.directions: list[Tensor] = []
        self.images: list[Tensor] = []
        self.curvatures: list[Tensor] = []
        self.scale: Tensor = torch.ones(1)

    def add(self, direction: Tensor, image: Tensor) -> None:
        size = direction.norm(dim=1, keepdim=True)
        moved = size > 0  # a row that is found already has nowhere to go
        size = torch.where(moved, size, 1.0)
        most = min(_MEMORY, direction.shape[1])  # no more than the space has dimensions
        self.directions = [*self.directions, direction / size][-most:]
        self.images = [*self.images, image / size][-most:]
        curvature = torch.where(moved, self.images[-1], torch.nan).square().sum(dim=1)
        self.curvatures = [*self.curvatures, curvature][-most:]
        self.scale = torch.stack(self.curvatures).nanmedian(dim=0).values.nan_to_num(nan=1.0)

    def preconditioner(self, free: Tensor, prior: Prior | None) -> Callable[[Tensor], Tensor]:
        """The inverse of J^T J as far as it is known: on the explored directions; elsewhere a multiple of the metric's
        covariance."""
        if prior is not None:
            return prior.condition(self.scale, free)
        turn = self._explored(free) if self.directions else lambda vectors: vectors
        if self.metric is None:
            return lambda vectors: turn(vectors * free) * free
        root = self.metric.root
        return lambda vectors: (turn((vectors * free) @ root) @ root) * free

    def _explored(self, free: Tensor) -> Callable[[Tensor], Tensor]:
        """The same in the metric's coordinates, where what is not explored is a multiple of one."""
        P = torch.stack(self.directions, dim=1) * free[:, None, :]  # [B, m, d]
        P = (P if self.metric is None else P @ self.metric.inverse).transpose(1, 2)
        Q = torch.stack(self.images, dim=2)
        length = P.norm(dim=1, keepdim=True)
        gone = length <= torch.finfo(P.dtype).tiny
        P, Q = P / torch.where(gone, 1.0, length), Q / torch.where(gone, torch.inf, length)
        scale = torch.where(gone[:, 0], torch.nan, Q.square().sum(dim=1)).nanmedian(dim=1).values
        scale = scale.nan_to_num(nan=1.0).clamp(min=torch.finfo(P.dtype).tiny)[:, None]
        basis, R = torch.linalg.qr(P)
        diagonal = R.diagonal(dim1=1, dim2=2).abs()
        R = R + torch.diag_embed((diagonal < 1e-4) * 1.0)  # a direction that is held or repeated counts for nothing
        images = torch.linalg.solve_triangular(R.transpose(1, 2), Q.transpose(1, 2), upper=False).transpose(1, 2)
        images = images * (diagonal >= 1e-4)[:, None, :]
        curvature, turn = torch.linalg.eigh(images.transpose(1, 2) @ images)
        dead = curvature < _FLOOR * scale
        inverse = torch.where(dead, 1 / scale, 1 / curvature.clamp(min=torch.finfo(curvature.dtype).tiny))
        kept = basis @ turn

        def apply(vectors: Tensor) -> Tensor:
            along = (kept.transpose(1, 2) @ vectors[:, :, None])[:, :, 0]
            rest = vectors - (kept @ along[:, :, None])[:, :, 0]
            turned: Tensor = rest / scale + (kept @ (inverse * along)[:, :, None])[:, :, 0]
            return turned

        return apply
