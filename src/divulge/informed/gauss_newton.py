"""Gauss-Newton for an equation theta(z) = theta*, many unknown rows at once, where theta is a training run.

J = d theta / d z is close to a multiple of an isometry (the multiple is the size of the row's accumulated delta) but
for some twenty directions it stretches and about a hundred, those that the known data span most, it shrinks. So the
inner solver is conjugate gradients on the normal equations, and the directions that earlier rounds explored
precondition the later ones: J moves little once z is near. Entries that sit at a bound and would be pushed out are held
there, which for pictures removes most unknowns. A step is shortened until the misfit falls. Cost is counted in training
runs: one for a run, one for each product with J or its transpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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

    def forward(self, dZ: Tensor) -> Tensor:
        """J dz."""

    def backward(self, residual: Tensor) -> Tensor:
        """J^T r."""

    def replace(self, rows: Tensor, other: Any, chosen: Tensor) -> None:
        """Take over the chosen runs of another group at the given places."""


Train = Callable[[Tensor, Tensor], Trained]
"""(rows [b, d], their places in the group [b]) -> their runs."""


@dataclass(frozen=True)
class Prior:
    """A Gaussian belief about each row, and how large the noise on theta is: adds |L^-1 (z - mean)|^2 to the squared
    misfit divided by ``noise``^2."""

    mean: Tensor
    """[B, d]"""
    root: Tensor
    """L [d, d], the covariance being L L^T."""
    noise: float


@dataclass
class Inversion:
    """Where the search ended: rows, what they leave unexplained, and what it cost."""

    z: Tensor
    misfit: Tensor
    """|theta* - theta(z)| for each row."""
    curvature: Tensor
    """The size of J on most directions, squared."""
    runs: float
    history: list[tuple[float, Tensor]] = field(default_factory=list)
    """(training runs so far, misfit of each row)."""


def invert(
    train: Train,
    target: Tensor,
    z: Tensor,
    *,
    runs: float,
    bounds: tuple[float, float] | None,
    inner: int = 10,
    prior: Prior | None = None,
    tolerance: float = 0.0,
) -> Inversion:
    """Search from ``z`` [B, d] for rows whose runs end at ``target`` [B, P], within ``runs`` training runs a row.

    The search also ends when the misfit of every row is below ``tolerance`` of the target's size.
    """
    places = torch.arange(len(z))
    run = train(z, places)
    used = 1.0
    memory = _Memory()
    size = target.norm(dim=1).clamp(min=torch.finfo(target.dtype).tiny)
    value = _objective(target - run.theta, z, prior)
    history = [(used, (target - run.theta).norm(dim=1))]
    bulk = torch.ones_like(size)
    while used + 4 <= runs and bool((history[-1][1] > tolerance * size).any()):
        steps = int(min(inner, (runs - used - 2) // 2))
        if steps < 1:
            break
        step, spent, bulk = _inner(run, target - run.theta, z, bounds, prior, memory, steps)
        used += spent
        z, value, gained, spent = _move(train, run, target, z, step, value, bounds, prior, runs - used)
        used += spent
        misfit = (target - run.theta).norm(dim=1)
        history.append((used, misfit))
        report("inverting training", used, runs, misfit=f"{float((misfit / size).median()):.1e}")
        if not gained:
            break
    return Inversion(z, history[-1][1], bulk, used, history)


def _objective(residual: Tensor, z: Tensor, prior: Prior | None) -> Tensor:
    if prior is None:
        return residual.square().sum(dim=1)
    away: Tensor = torch.linalg.solve_triangular(prior.root, (z - prior.mean).T, upper=False)
    return residual.square().sum(dim=1) / prior.noise**2 + away.square().sum(dim=0)


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
    if prior is not None:
        return _inner_with_prior(run, residual, z, prior, steps)
    gradient = run.backward(residual)
    free = _free(z, gradient, bounds)
    gradient = gradient * free
    condition = memory.preconditioner(free)
    turned = condition(gradient)
    direction = turned.clone()
    power = (gradient * turned).sum(dim=1)
    step = torch.zeros_like(z)
    spent = 1.0
    for turn in range(steps):
        image = run.forward(direction)
        spent += 1
        memory.add(direction, image)
        stretch = image.square().sum(dim=1)
        length = (power / stretch.clamp(min=torch.finfo(z.dtype).tiny))[:, None]
        step += length * direction
        residual = residual - length * image
        if turn == steps - 1:
            break
        gradient = run.backward(residual) * free
        spent += 1
        turned = condition(gradient)
        renewed = (gradient * turned).sum(dim=1)
        direction = turned + (renewed / power.clamp(min=torch.finfo(z.dtype).tiny))[:, None] * direction
        power = renewed
    return step, spent, memory.scale


def _inner_with_prior(
    run: Trained, residual: Tensor, z: Tensor, prior: Prior, steps: int
) -> tuple[Tensor, float, Tensor]:
    """The maximum-a-posteriori step: z = mean + L w, |theta* - theta|^2 / noise^2 + |w|^2, conjugate gradients in w."""
    root, noise = prior.root, prior.noise
    w = torch.linalg.solve_triangular(root, (z - prior.mean).T, upper=False).T
    below = -w  # the residual of the prior's rows
    residual = residual / noise
    gradient = run.backward(residual) @ root / noise + below
    direction = gradient.clone()
    power = gradient.square().sum(dim=1)
    step = torch.zeros_like(w)
    spent = 1.0
    for turn in range(steps):
        image = run.forward(direction @ root.T) / noise
        spent += 1
        stretch = image.square().sum(dim=1) + direction.square().sum(dim=1)
        length = (power / stretch)[:, None]
        step += length * direction
        residual = residual - length * image
        below = below - length * direction
        if turn == steps - 1:
            break
        gradient = run.backward(residual) @ root / noise + below
        spent += 1
        renewed = gradient.square().sum(dim=1)
        direction = gradient + (renewed / power)[:, None] * direction
        power = renewed
    return step @ root.T, spent, torch.ones(len(z), dtype=z.dtype)


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
    return None if prior is None else Prior(prior.mean[rows], prior.root, prior.noise)


class _Memory:
    """Directions that were explored and their images, as a preconditioner for the next round."""

    def __init__(self) -> None:
        self.directions: list[Tensor] = []
        self.images: list[Tensor] = []
        self.scale: Tensor = torch.ones(1)

    def add(self, direction: Tensor, image: Tensor) -> None:
        size = direction.norm(dim=1, keepdim=True).clamp(min=torch.finfo(direction.dtype).tiny)
        most = min(_MEMORY, direction.shape[1])  # no more than the space has dimensions
        self.directions = [*self.directions, direction / size][-most:]
        self.images = [*self.images, image / size][-most:]
        curvatures = torch.stack([kept.square().sum(dim=1) for kept in self.images])
        self.scale = curvatures.median(dim=0).values

    def preconditioner(self, free: Tensor) -> Callable[[Tensor], Tensor]:
        """The inverse of J^T J as far as it is known: on the explored directions; elsewhere a multiple of one."""
        if not self.directions:
            return lambda vectors: vectors
        P = torch.stack(self.directions, dim=2) * free[:, :, None]  # [B, d, m]
        Q = torch.stack(self.images, dim=2)
        basis, R = torch.linalg.qr(P)
        diagonal = R.diagonal(dim1=1, dim2=2).abs()
        R = R + torch.diag_embed((diagonal < 1e-4) * 1.0)  # a direction that is held or repeated counts for nothing
        images = torch.linalg.solve_triangular(R.transpose(1, 2), Q.transpose(1, 2), upper=False).transpose(1, 2)
        images = images * (diagonal >= 1e-4)[:, None, :]
        curvature, turn = torch.linalg.eigh(images.transpose(1, 2) @ images)
        scale = self.scale[:, None]
        dead = curvature < _FLOOR * scale
        inverse = torch.where(dead, 1 / scale, 1 / curvature.clamp(min=torch.finfo(curvature.dtype).tiny))
        kept = basis @ turn

        def apply(vectors: Tensor) -> Tensor:
            along = (kept.transpose(1, 2) @ vectors[:, :, None])[:, :, 0]
            rest = vectors - (kept @ along[:, :, None])[:, :, 0]
            turned: Tensor = rest / scale + (kept @ (inverse * along)[:, :, None])[:, :, 0]
            return turned * free

        return apply
