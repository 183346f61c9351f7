"""Training points of models with two inputs: the points where many units' kinks meet.

A unit's kink is the line where it switches on. Training moves kinks towards training points: on the circle of Haim et
al. 2022, section 4, nearly every active unit's line passes within a thousandth of one. So training points are points
where more lines meet than chance explains. This needs neither the number of inputs nor a converged model.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn

from divulge.core.errors import AttackFailed, UnsupportedModel
from divulge.models.weight_matrices import Network, read
from divulge.reconstruction.result import Reconstruction
from divulge.training.kkt_diagnosis import solve_multipliers

NEAR = 0.004
"""Distance below which a line passes through a point, in units of the lines' median distance from the origin."""
SAME = 0.005
"""Two lines whose coefficients differ by less are one."""
ACTIVE = 0.02
"""Units smaller than this share of the largest were not trained."""


def meeting_points(model: nn.Module, *, seed: int = 0) -> Reconstruction:
    """The points where the first layer's kinks meet, those with the most lines first."""
    started = time.perf_counter()
    network = read(model)
    if network.input_dim != 2 or network.biases[0] is None:
        raise UnsupportedModel(
            f"Kinks meet in points in the plane: this needs two inputs and a first-layer bias, and the model takes "
            f"{network.input_dim} inputs{'' if network.biases[0] is not None else ' without a bias'}."
        )
    lines = lines_of(network)
    points, votes = _points_by_lines(lines)
    if not len(points):
        raise AttackFailed(
            f"The kinks of {len(lines)} units meet nowhere more often than by chance; the model looks untrained."
        )
    labels, multipliers, residual = _explained(network, points)
    return Reconstruction(
        samples=points, labels=labels, multipliers=multipliers, confidence=1 - 1 / votes.double(), residual=residual,
        rank=len(points), method="kinks", seed=seed, seconds=time.perf_counter() - started, restarts=1,
        mean_known=False, votes=votes, everything=points,
    )  # fmt: skip


def lines_of(network: Network) -> Tensor:
    """Coefficients [k, 3] of the lines a x + b y + c = 0 of active units, with a^2 + b^2 = 1 and without duplicates."""
    first = network.first()
    size = first.norm(dim=1)
    first = first[(size > ACTIVE * size.max()) & (first[:, :2].norm(dim=1) > 1e-6 * size)]
    lines = first / first[:, :2].norm(dim=1, keepdim=True)
    lines = lines * torch.where(lines[:, :1] < 0, -1.0, 1.0)
    kept: list[Tensor] = []
    for line in lines:
        if (
            not kept
            or float(torch.stack([line - torch.stack(kept), line + torch.stack(kept)]).norm(dim=2).min()) > SAME
        ):
            kept.append(line)
    return torch.stack(kept) if kept else lines


def _points_by_lines(lines: Tensor) -> tuple[Tensor, Tensor]:
    """The points where most lines meet, [p, 2], and the number of lines through each, [p].

    The best point is taken first, then the next best, until no point has more lines than chance explains. Each line
    counts for at most two points.
    """
    extent = float(lines[:, 2].abs().median()) if len(lines) else 0.0
    near = NEAR * extent
    free = torch.full((len(lines),), 2)
    crossings = crossings_of(lines, extent)
    meets = _distance(crossings, lines) < near  # [crossings, lines]
    chance = len(lines) * near / extent if extent else 0.0  # lines that pass a random point as near
    points: list[Tensor] = []
    votes: list[int] = []
    while len(crossings):
        counts = meets[:, free > 0].sum(dim=1)
        count, best = counts.max(dim=0)
        if int(count) - 2 <= max(1.0, chance + 4 * math.sqrt(chance)):
            break
        through = meets[best]
        point = torch.linalg.lstsq(lines[through, :2], -lines[through, 2:], driver="gelsd").solution[:, 0]
        points.append(point)
        votes.append(int(count))
        free = free - (_distance(point[None], lines)[0] < 2 * near).long()
        away = (crossings - point).norm(dim=1) > 5 * near
        crossings, meets = crossings[away], meets[away]
    found = torch.stack(points) if points else torch.zeros(0, 2, dtype=lines.dtype)
    return found, torch.tensor(votes)


def crossings_of(lines: Tensor, extent: float) -> Tensor:
    """Intersections [p, 2] of pairs of lines that are not nearly parallel, within five times ``extent``."""
    first, second = torch.triu_indices(len(lines), len(lines), offset=1)
    P, Q = lines[first], lines[second]
    turn = P[:, 0] * Q[:, 1] - P[:, 1] * Q[:, 0]
    steep = turn.abs() > 0.1
    P, Q, turn = P[steep], Q[steep], turn[steep]
    x = (P[:, 1] * Q[:, 2] - P[:, 2] * Q[:, 1]) / turn
    y = (P[:, 2] * Q[:, 0] - P[:, 0] * Q[:, 2]) / turn
    crossings = torch.stack([x, y], dim=1)
    kept: Tensor = crossings[crossings.norm(dim=1) < 5 * extent]
    return kept


def _distance(points: Tensor, lines: Tensor) -> Tensor:
    """Distances [points, lines]."""
    return (points @ lines[:, :2].T + lines[:, 2]).abs()


def _explained(network: Network, points: Tensor) -> tuple[Tensor, Tensor, float]:
    """The model's classes at the points, the multipliers that best explain the first layer, and the residual."""
    hidden, out = network.forward(points)
    labels = (out[:, 0] > 0).long() if network.output_dim == 1 else out.argmax(dim=1)
    if network.output_dim == 1:
        signal = (2.0 * labels - 1).to(out)[:, None]
    else:
        signal = 2.0 * nn.functional.one_hot(labels, network.output_dim).to(out) - 1
    D = network.backward(hidden, signal)[0]
    rows = torch.cat([points, torch.ones_like(points[:, :1])], dim=1)
    first = network.first()
    multipliers, residual = solve_multipliers(
        (rows @ rows.T) * (D @ D.T), ((D @ first) * rows).sum(dim=1), float(first.square().sum())
    )
    return labels, multipliers, residual
