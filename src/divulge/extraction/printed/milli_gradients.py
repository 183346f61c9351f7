"""Milli 2019, Algorithm 1, as printed: hyperplanes by binary search (1a), then signs by a linear system (1b).

It learns f(x) = sum_i w_i relu(A_i x): no biases, no affine part, one output, linearly independent rows, and the width
must be known. Its resolution comes from Theorem 2's proof: l = h^2 and eps = c (delta + 2/(pi h))^(3/2) / (9 h^3).

Departures, all where the print cannot be meant: gradients that differ by rounding count as equal; the box of the
Chebyshev centre is [-1, 1]^d, because a cell need not meet [0, 1]^d; the ball's constraint is
sgn(z_i.v) z_i.y >= r |z_i|, because the rows z_i are not of length one; and the sum that should bound the probability
of failure is printed as a difference, so the true bound is delta + 4/(pi h). No gradient is asked twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import qr
from scipy.optimize import linprog
from torch import Tensor

from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.progress import report
from divulge.core.validation import checked_number
from divulge.extraction.gradients.affine_maps import TargetMaps
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.result import Extraction
from divulge.extraction.verification import fresh_points, spread
from divulge.oracles.base import Oracle

EXACT = 1e-9
SEPARATION = 0.5
"""The c of assumption 2: no two rows have an absolute cosine above 1 - c. Random rows in high dimension keep it."""


class Failure(Exception):
    """What the printed algorithm throws: it notices that it did not succeed."""


def resolution(width: int, delta: float, separation: float = SEPARATION) -> tuple[float, float]:
    """The step eps and the half length l of the search, from Theorem 2's proof."""
    margin = delta + 2 / (math.pi * width)
    return separation * margin**1.5 / (9 * width**3), float(width**2)


def learn_model(oracle: Oracle, *, seed: int, width: int | None, delta: float, checks: int) -> Extraction:
    """Algorithm 1: recoverZ, then recoverS; then our own verification on fresh points."""
    if width is None or width < 1:
        raise InvalidInput("The printed algorithm needs to know the width; give width=, or use the default method.")
    if oracle.output_dim != 1:
        raise InvalidInput(f"The printed algorithm reads one output, and this target has {oracle.output_dim}.")
    checked_number("delta", delta, above=0, below=1)
    began, before = time.perf_counter(), oracle.ledger.snapshot()
    generator = torch.Generator().manual_seed(seed)
    target = TargetMaps(oracle)
    Z: list[Tensor] = []
    copy = NetworkEstimate.zero(oracle.input_dim, 1)
    reason, worst, scale, points = "", math.inf, 1.0, 0

    def gathered() -> Extraction:
        return Extraction(
            model=copy.model(), width=copy.width, exact=not reason, worst_error=worst, scale=scale,
            ledger=oracle.ledger.snapshot() - before, seed=seed, seconds=time.perf_counter() - began, method="paper",
            reason=reason, verified_points=points, smallest_gap=resolution(width, delta)[0],
            facts={"hyperplanes": len(Z)},
        )  # fmt: skip

    try:
        recover_z(target, Z, width, delta, generator)
        copy = recover_s(target, torch.stack(Z), generator)
    except Failure as failure:
        reason = f"The printed algorithm noticed its failure: {failure}."
        return gathered()
    except DivulgeError as error:
        reason = str(error)
        error.partial = gathered()
        raise
    fresh, _ = fresh_points(copy, target.room(checks), generator)
    X = target.stored(fresh)
    truth = target.values(X)
    worst, scale, points = float((truth - copy.value(X)).abs().max()), spread(truth), len(X)
    if worst > EXACT * scale:
        reason = (
            f"The copy is off by up to {worst / scale:.1e} of the output's standard deviation on fresh points; the "
            "printed algorithm assumes no biases, one hidden layer and distinct hyperplanes."
        )
    return gathered()


# -- Algorithm 1a ---------------------------------------------------------------------------------------------------


def recover_z(target: TargetMaps, Z: list[Tensor], width: int, delta: float, generator: torch.Generator) -> None:
    """Append w_i A_i, each up to its sign, to ``Z``: the change of the gradient at each kink from -l to l."""
    u, v = torch.randn(2, target.inputs, generator=generator, dtype=torch.float64)
    step, end = resolution(width, delta)
    asked: dict[float, Tensor] = {}

    def gradient(t: float) -> Tensor:
        if t not in asked:
            asked[t] = target.maps((u + t * v)[None])[1][0, 0]
        return asked[t]

    left = -end
    tolerance = 1e-9 * max(float(gradient(-end).norm()), float(gradient(end).norm()))
    for found in range(width):
        report("binary search", found, width, neurons=found, queries=target.oracle.ledger.total)
        jump, left = _binary_search(gradient, left, end, step, tolerance)
        Z.append(jump)
        asked = {t: answer for t, answer in asked.items() if t >= left}


def _binary_search(
    gradient: Callable[[float], Tensor], left: float, right: float, step: float, tolerance: float
) -> tuple[Tensor, float]:
    """The first change of the gradient to the right of ``left``, and where it is."""
    while left <= right:
        middle = (left + right) / 2
        if right - left <= step or not left < middle < right:
            return gradient(right) - gradient(left), right
        if float((gradient(left) - gradient(middle)).norm()) > tolerance:
            right = middle
        elif float((gradient(middle) - gradient(right)).norm()) > tolerance:
            left = middle
        else:
            break
    raise Failure("the search line shows fewer kinks than the width says")


# -- Algorithm 1b and appendix B ------------------------------------------------------------------------------------


def recover_s(target: TargetMaps, Z: Tensor, generator: torch.Generator) -> NetworkEstimate:
    """The sign of every neuron, from f at h points of one cell and at their mirror images."""
    X = _points_of_one_cell(Z, generator)
    inner = (X @ Z.T).T  # [h, h], the paper's ZX
    on, off = inner.clamp_min(0).T, (-inner).clamp_min(0).T
    M = torch.cat([torch.cat([on, off], dim=1), torch.cat([off, on], dim=1)])
    values = target.values(torch.cat([X, -X]))[:, 0]
    try:
        s = torch.linalg.solve(M, values)
    except RuntimeError as error:
        raise Failure("the 2h-by-2h system is singular") from error
    return _copy(Z, s)


def _copy(Z: Tensor, s: Tensor) -> NetworkEstimate:
    """f(x) = [max(Zx, 0), max(-Zx, 0)] s, once every s_i is seen to be one of -1, 0 and 1."""
    rounded = s.round().clamp(-1, 1)
    if not bool(torch.isfinite(s).all()) or float((s - rounded).abs().max()) > 0.1:
        raise Failure("a sign came out as neither -1, 0 nor 1")
    straight, mirrored = rounded.chunk(2)
    if bool((straight.abs() + mirrored.abs() != 1).any()):
        raise Failure("a hyperplane came out with no neuron or with two")
    size = Z.norm(dim=1)
    sign = torch.where(straight != 0, 1.0, -1.0).to(Z)
    A, W = Z * (sign / size)[:, None], ((straight + mirrored) * size)[None]
    return NetworkEstimate.of(A, torch.zeros_like(size), W, torch.zeros(1, Z.shape[1]), torch.zeros(1))


def _points_of_one_cell(Z: Tensor, generator: torch.Generator) -> Tensor:
    """h points [h, d] of one cell for which ZX has full rank: around the cell's Chebyshev centre (appendix B)."""
    width, inputs = Z.shape
    side = torch.sign(Z @ torch.randn(inputs, generator=generator, dtype=torch.float64)).numpy()
    rows = Z.numpy()
    length = np.linalg.norm(rows, axis=1)
    if width > inputs or float(length.min()) == 0:
        raise Failure("the rows found are not linearly independent")
    facing = rows * side[:, None] / length[:, None]
    answer = linprog(
        np.r_[np.zeros(inputs), -1.0],
        A_ub=np.c_[-facing, np.ones(width)],
        b_ub=np.zeros(width),
        bounds=[(-1, 1)] * inputs + [(0, None)],
        method="highs",
    )
    if answer.status != 0 or answer.x[-1] <= 0:
        raise Failure("the linear programme found no ball inside the cell")
    centre, radius = answer.x[:-1], answer.x[-1]
    products = rows @ centre[:, None] + rows * (radius / 2)  # Z Y for the d points centre + radius/2 e_j
    order = qr(products, mode="r", pivoting=True)[1][:width]
    X = np.repeat(centre[None], width, axis=0)
    X[np.arange(width), order] += radius / 2
    return torch.from_numpy(X)
