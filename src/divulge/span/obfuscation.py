"""Inputs that look like noise and are answered as before (Jayaram 2020, section 5): noise in the null space.

The paper adds unbounded noise. Where inputs have a range (pixels in [0, 1]) clipping such noise would change the
answer, so here the noisy input is brought to the nearest point that is both inside the range and seen as the original:
the projection onto {z : Q z = Q x, low <= z <= high}, found exactly by Newton's method on its dual, for all rows at
once. With ``scale=None`` the noise is as large as the range allows: a linear programme in a random direction, whose
solution has nearly every pixel at one end of its range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from divulge.errors import AttackFailed, InvalidInput, WrongShape
from divulge.oracles.base import Oracle, Spent, decide
from divulge.progress import report
from divulge.span.result import Span

_EXACT = 1e-12  # what the network sees must agree with the original to this, relative to the input's norm


@dataclass(frozen=True)
class Obfuscation:
    """What obfuscation did, row by row: did the answer stay, and how far is the input from the original?"""

    label_kept: Tensor
    """[n] booleans."""
    output_change: Tensor | None
    """[n] largest absolute change of any output; None with label access."""
    confidence_before: Tensor | None
    """[n] probability of the top label (softmax of outputs, or the outputs themselves where they are probabilities)."""
    confidence_after: Tensor | None
    distance: Tensor
    """[n] Euclidean norm of the noise."""
    relative_distance: Tensor
    """[n] the same over the norm of the original."""
    ledger: Spent

    @property
    def queries(self) -> int:
        return self.ledger.total

    def summary(self) -> dict[str, Any]:
        """The figures that matter, as plain numbers."""
        told: dict[str, Any] = {
            "rows": len(self.label_kept),
            "labels_kept": int(self.label_kept.sum()),
            "distance_median": float(self.distance.median()),
            "relative_distance_median": float(self.relative_distance.median()),
            "relative_distance_smallest": float(self.relative_distance.min()),
        }
        if self.output_change is not None and self.confidence_before is not None and self.confidence_after is not None:
            told["output_change_largest"] = float(self.output_change.max())
            told["confidence_before_mean"] = float(self.confidence_before.mean())
            told["confidence_after_mean"] = float(self.confidence_after.mean())
        return told


def relevant(x: Any, span: Span) -> Tensor:
    """What the network sees of ``x``: its projection onto the span. Same shape, same answer from the network."""
    rows, shape = _rows(x, span)
    return ((rows @ span.basis.T) @ span.basis).reshape(shape)


def obfuscate(
    x: Any, span: Span, scale: float | None = 10.0, *, bounds: tuple[float, float] | None = None, seed: int = 0
) -> Tensor:
    """``x`` (one input, or rows, or pictures) with noise that the network ignores, ``scale`` times the input's norm.

    With ``bounds=(low, high)`` every entry stays in that range and the answer stays the same; the noise is then as
    near to the unbounded noise as the range allows, and as large as it allows with ``scale=None``.
    """
    rows, shape = _rows(x, span)
    if span.rank == span.input_dim:
        raise InvalidInput(
            f"The span is the whole input space ({span.rank} of {span.input_dim} dimensions): every direction matters "
            "to this network, so there is no noise that it ignores."
        )
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        raise InvalidInput(f"scale is how many times the input's norm the noise has, a positive number; got {scale}.")
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
    basis = span.basis.cpu()
    for _ in range(2):
        noise = noise - (noise @ basis.T) @ basis
    if bounds is None:
        if scale is None:
            raise InvalidInput("Without bounds the noise has no largest size; give scale=, or bounds=(low, high).")
        size = rows.norm(dim=1, keepdim=True)
        size = torch.where(size > 0, size, torch.ones_like(size))
        unbounded: Tensor = rows + scale * size * noise / noise.norm(dim=1, keepdim=True)
        return unbounded.reshape(shape)
    low, high = _check_bounds(bounds, rows)
    if scale is None:
        return _extreme(rows, noise, basis, low, high).reshape(shape)
    size = rows.norm(dim=1, keepdim=True).clamp_min((high - low) / 2)
    wanted = rows + scale * size * noise / noise.norm(dim=1, keepdim=True)
    return _nearest(wanted, rows, basis, low, high).reshape(shape)


def measure(oracle: Oracle, x: Any, noisy: Any) -> Obfuscation:
    """Ask the oracle about originals and noisy versions, and compare."""
    before_rows, after_rows = _plain_rows(x, oracle.input_dim), _plain_rows(noisy, oracle.input_dim)
    if before_rows.shape != after_rows.shape:
        raise WrongShape(f"There are {len(before_rows)} originals and {len(after_rows)} noisy versions.")
    spent = oracle.ledger.snapshot()
    change = confident_before = confident_after = None
    if oracle.allows("value"):
        before, after = (oracle.value(rows).to(torch.float64).cpu() for rows in (before_rows, after_rows))
        kept = decide(before, oracle.threshold) == decide(after, oracle.threshold)
        change = (before - after).abs().amax(dim=1)
        confident_before, confident_after = (probabilities(values).amax(dim=1) for values in (before, after))
    else:
        kept = (oracle.label(before_rows) == oracle.label(after_rows)).cpu()
    distance = (after_rows - before_rows).norm(dim=1)
    return Obfuscation(
        label_kept=kept,
        output_change=change,
        confidence_before=confident_before,
        confidence_after=confident_after,
        distance=distance,
        relative_distance=distance / before_rows.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny),
        ledger=oracle.ledger.snapshot() - spent,
    )


def probabilities(values: Tensor) -> Tensor:
    """Outputs [n, k] as probabilities of labels: as they are if they already are that, by softmax or sigmoid if not."""
    if values.shape[1] == 1:
        already = bool(((values >= 0) & (values <= 1)).all())
        chance = values if already else torch.sigmoid(values)
        return torch.cat([1 - chance, chance], dim=1)
    if bool((values >= 0).all()) and bool(((values.sum(dim=1) - 1).abs() < 1e-3).all()):
        return values
    return torch.softmax(values, dim=1)


# -- inside a range ---------------------------------------------------------------------------------------------------


def _nearest(wanted: Tensor, seen: Tensor, basis: Tensor, low: float, high: float) -> Tensor:
    """The points in the box nearest to ``wanted`` that the network sees as ``seen``: rows [n, d], all at once.

    Its dual has one multiplier per direction of the span: z = clip(wanted + l Q), and l solves Q z = Q seen. That
    system is piecewise linear, and damped Newton steps end at its solution after a few pieces.
    """
    target = seen @ basis.T  # [n, k]
    multipliers = torch.zeros_like(target)
    done = torch.zeros(len(seen), dtype=torch.bool)
    tolerance = _EXACT * seen.norm(dim=1).clamp_min(1.0)
    z = (wanted + multipliers @ basis).clamp(low, high)
    for iteration in range(200):
        gap = target - z @ basis.T
        size = gap.norm(dim=1)
        done = size <= tolerance
        report("keeping the noise in range", int(done.sum()), len(done), iteration=iteration)
        if bool(done.all()):
            break
        todo = (~done).nonzero()[:, 0]
        for part in torch.split(todo, 64):
            multipliers[part] = _newton_step(multipliers[part], gap[part], wanted[part], target[part], basis, low, high)
        z[todo] = (wanted[todo] + multipliers[todo] @ basis).clamp(low, high)
    for row in (~done).nonzero()[:, 0].tolist():  # a face of the box where Newton's matrix is singular
        z[row] = _programme(wanted[row] - seen[row], seen[row], basis, low, high)
    return z


def _newton_step(
    multipliers: Tensor, gap: Tensor, wanted: Tensor, target: Tensor, basis: Tensor, low: float, high: float
) -> Tensor:
    """One damped step for each row; the dual objective never falls."""
    inner = wanted + multipliers @ basis
    free = ((inner > low) & (inner < high)).to(torch.float64)
    hessian = torch.einsum("kd,nd,ld->nkl", basis, free, basis)
    ridge = 1e-10 + 1e-3 * gap.norm(dim=1).clamp(max=1.0) * 1e-3
    hessian = hessian + ridge[:, None, None] * torch.eye(len(basis), dtype=torch.float64)
    step = torch.linalg.solve(hessian, gap)
    slope = (gap * step).sum(dim=1)
    start = _dual(multipliers, wanted, target, basis, low, high)
    length = torch.ones(len(gap), dtype=torch.float64)
    for _ in range(30):
        trial = multipliers + length[:, None] * step
        short = _dual(trial, wanted, target, basis, low, high) < start + 1e-4 * length * slope - 1e-13 * start.abs()
        if not bool(short.any()):
            break
        length = torch.where(short, length / 2, length)
    taken: Tensor = multipliers + length[:, None] * step
    return taken


def _dual(multipliers: Tensor, wanted: Tensor, target: Tensor, basis: Tensor, low: float, high: float) -> Tensor:
    inner = wanted + multipliers @ basis
    z = inner.clamp(low, high)
    primal = 0.5 * (z - wanted).square().sum(dim=1)
    value: Tensor = primal + (multipliers * (target - z @ basis.T)).sum(dim=1)
    return value


def _extreme(rows: Tensor, noise: Tensor, basis: Tensor, low: float, high: float) -> Tensor:
    """For each row, the farthest point of the box in the direction of its noise that the network sees as the row."""
    found = []
    for i, (row, push) in enumerate(zip(rows, noise, strict=True)):
        report("pushing the noise to the ends of its range", i, len(rows))
        found.append(_programme(push, row, basis, low, high))
    return torch.stack(found)


def _programme(push: Tensor, seen: Tensor, basis: Tensor, low: float, high: float) -> Tensor:
    """max push.z with Q z = Q seen in the box, by HiGHS; its vertex is then solved for again to full precision."""
    from scipy.optimize import linprog

    Q, b = basis.numpy(), (basis @ seen).numpy()
    outcome = linprog(-push.numpy(), A_eq=Q, b_eq=b, bounds=(low, high), method="highs")
    if outcome.x is None:
        raise AttackFailed(f"No input inside the range is seen as the original: {outcome.message}")
    z = np.clip(outcome.x, low, high)
    for _ in range(3):  # move only what is strictly inside, until what the network sees is exact
        free = (z > low + 1e-9) & (z < high - 1e-9)
        miss = b - Q @ z
        if np.linalg.norm(miss) <= _EXACT * max(1.0, float(seen.norm())) or not free.any():
            break
        z[free] += np.linalg.lstsq(Q[:, free], miss, rcond=None)[0]
        z = np.clip(z, low, high)
    return torch.from_numpy(z)


# -- checks -----------------------------------------------------------------------------------------------------------


def _plain_rows(x: Any, dim: int) -> Tensor:
    tensor = torch.as_tensor(np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)).to(torch.float64)
    if tensor.numel() == 0:
        raise InvalidInput("There is no input to work on; give at least one row.")
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidInput("The inputs hold NaN or infinity; every entry must be finite.")
    if tensor.numel() == dim:
        return tensor.reshape(1, dim)
    rows = tensor.reshape(len(tensor), -1)
    if rows.shape[1] != dim:
        raise WrongShape(f"The inputs have {rows.shape[1]} entries each, and the network takes {dim}.")
    return rows


def _rows(x: Any, span: Span) -> tuple[Tensor, tuple[int, ...]]:
    rows = _plain_rows(x, span.input_dim)
    shape = tuple(x.shape) if hasattr(x, "shape") else tuple(np.asarray(x).shape)
    return rows, shape


def _check_bounds(bounds: tuple[float, float], rows: Tensor) -> tuple[float, float]:
    low, high = (float(bound) for bound in bounds)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(f"bounds is (low, high) with low < high; got {bounds}.")
    if bool((rows < low).any()) or bool((rows > high).any()):
        raise InvalidInput(
            f"The inputs reach from {float(rows.min()):g} to {float(rows.max()):g}, beyond the bounds {low:g} to "
            f"{high:g}; give the range that they have."
        )
    return low, high
