"""Noise in the null space, which changes an input but not the model's answer (Jayaram 2020, section 5).

The paper adds unbounded noise. Where inputs have a range (pixels in [0, 1]), clipping the noise would change the
answer. So we take the nearest point inside the range that has the same part in the span: the projection onto
{z : Q z = Q x, low <= z <= high}. Newton's method on the dual finds it for all rows at once. With ``scale=None`` the
noise is as large as the range allows: a linear programme in a random direction, which puts nearly every pixel at one
end of its range.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from divulge.core.errors import AttackFailed, InvalidInput, WrongShape
from divulge.core.progress import report
from divulge.core.result import AttackResult
from divulge.core.validation import checked_interval, checked_number, checked_rows
from divulge.oracles.base import Oracle, decide
from divulge.oracles.outputs import label_probabilities
from divulge.span.result import Span

_EXACT = 1e-12  # tolerance of the part in the span, relative to the input's norm


@dataclass(frozen=True)
class Obfuscation(AttackResult):
    """The effect of noise on the answers, row by row. ``measure`` returns it."""

    label_kept: Tensor
    """Whether the label stayed the same, [n] booleans."""
    output_change: Tensor | None
    """Largest absolute change of any output, [n]; None with label access."""
    confidence_before: Tensor | None
    """Probability of the top label, [n]: the softmax of the outputs, or the outputs where they are probabilities."""
    confidence_after: Tensor | None
    """The same for the noisy inputs."""
    distance: Tensor
    """Euclidean norm of the noise, [n]."""
    relative_distance: Tensor
    """Norm of the noise over the norm of the original, [n]."""

    @property
    def success(self) -> bool:
        """Whether every label stayed the same."""
        return bool(self.label_kept.all())

    def as_dict(self) -> dict[str, Any]:
        """The main figures, what they cost, and nothing of each row."""
        return super().as_dict() | self.summary()

    def summary(self) -> dict[str, Any]:
        """The main figures as plain numbers."""
        figures: dict[str, Any] = {
            "rows": len(self.label_kept),
            "labels_kept": int(self.label_kept.sum()),
            "distance_median": float(self.distance.median()),
            "relative_distance_median": float(self.relative_distance.median()),
            "relative_distance_smallest": float(self.relative_distance.min()),
        }
        if self.output_change is not None and self.confidence_before is not None and self.confidence_after is not None:
            figures["output_change_largest"] = float(self.output_change.max())
            figures["confidence_before_mean"] = float(self.confidence_before.mean())
            figures["confidence_after_mean"] = float(self.confidence_after.mean())
        return figures


def relevant(x: Any, span: Span) -> Tensor:
    """The projection of inputs onto the span, which has the same answer.

    Parameters
    ----------
    x : array-like
        One input, rows [n, d] or images.
    span : Span
        The recovered span.

    Returns
    -------
    Tensor
        The projection, in the shape of ``x`` and in float64.

    Raises
    ------
    WrongShape
        The inputs have another number of entries than the span.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.training import margin
    >>> model = margin.network([6, 2, 1], first_scale=1.0)
    >>> span = divulge.span.from_gradients(divulge.oracle(model, access="gradient"))
    >>> x = torch.ones(3, 6, dtype=torch.float64)
    >>> torch.allclose(model(divulge.span.relevant(x, span)), model(x))
    True
    """
    rows, shape = _rows(x, span)
    return ((rows @ span.basis.T) @ span.basis).reshape(shape)


def obfuscate(
    x: Any, span: Span, scale: float | None = 10.0, *, bounds: tuple[float, float] | None = None, seed: int = 0
) -> Tensor:
    """Inputs with noise that the network ignores.

    Parameters
    ----------
    x : array-like
        One input, rows [n, d] or images.
    span : Span
        The recovered span. The noise is orthogonal to it.
    scale : float or None, default 10.0
        Norm of the noise over the norm of the input. None, with ``bounds``, takes as much as the range allows.
    bounds : (float, float), optional
        Keep every entry in this range. The noise is then as close to the unbounded noise as the range allows.
    seed : int, default 0
        Fixes the noise.

    Returns
    -------
    Tensor
        The noisy inputs, in the shape of ``x`` and in float64.

    Raises
    ------
    InvalidInput
        The span is the whole space, the inputs exceed the bounds, or a parameter makes no sense.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.training import margin
    >>> model = margin.network([6, 2, 1], first_scale=1.0)
    >>> span = divulge.span.from_gradients(divulge.oracle(model, access="gradient"))
    >>> x = torch.ones(3, 6, dtype=torch.float64)
    >>> noisy = divulge.span.obfuscate(x, span, scale=10.0)
    >>> torch.allclose(model(noisy), model(x)), round(float((noisy - x)[0].norm() / x[0].norm()), 6)
    (True, 10.0)
    """
    rows, shape = _rows(x, span)
    if span.rank == span.input_dim:
        raise InvalidInput(
            f"The span is the whole input space ({span.rank} of {span.input_dim} dimensions): every direction matters "
            "to this network, so there is no noise that it ignores."
        )
    if scale is not None:
        checked_number("scale", scale, above=0)
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
    """Ask the oracle about originals and noisy versions, and compare the answers.

    Parameters
    ----------
    oracle : Oracle
        The target.
    x : array-like
        The originals.
    noisy : array-like
        The noisy versions, in the same order.

    Returns
    -------
    Obfuscation
        Labels kept, output changes and distances, row by row.

    Raises
    ------
    WrongShape
        The two have different shapes.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.training import margin
    >>> oracle = divulge.oracle(margin.network([6, 2, 1], first_scale=1.0), access="gradient")
    >>> x = torch.ones(3, 6, dtype=torch.float64)
    >>> noisy = divulge.span.obfuscate(x, divulge.span.from_gradients(oracle))
    >>> divulge.span.measure(oracle, x, noisy).summary()["labels_kept"]
    3
    """
    before_rows, after_rows = (checked_rows(rows, what="inputs", width=oracle.input_dim) for rows in (x, noisy))
    if before_rows.shape != after_rows.shape:
        raise WrongShape(f"There are {len(before_rows)} originals and {len(after_rows)} noisy versions.")
    started, spent = time.perf_counter(), oracle.ledger.snapshot()
    change = confident_before = confident_after = None
    if oracle.allows("value"):
        before, after = (oracle.value(rows).to(torch.float64).cpu() for rows in (before_rows, after_rows))
        kept = decide(before, oracle.threshold) == decide(after, oracle.threshold)
        change = (before - after).abs().amax(dim=1)
        confident_before, confident_after = (
            label_probabilities(values, oracle.threshold).amax(dim=1) for values in (before, after)
        )
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
        method="obfuscation",
        seconds=time.perf_counter() - started,
        reason="" if bool(kept.all()) else f"{int((~kept).sum())} of {len(kept)} labels changed.",
    )


# -- inside a range ---------------------------------------------------------------------------------------------------


def _nearest(wanted: Tensor, original: Tensor, basis: Tensor, low: float, high: float) -> Tensor:
    """The points in the box nearest to ``wanted`` that have the part of ``original`` in the span: rows [n, d].

    The dual has one multiplier for each direction of the span: z = clip(wanted + l Q), and l solves Q z = Q original.
    That system is piecewise linear, and damped Newton steps solve it.
    """
    target = original @ basis.T  # [n, k]
    multipliers = torch.zeros_like(target)
    done = torch.zeros(len(original), dtype=torch.bool)
    tolerance = _EXACT * original.norm(dim=1).clamp_min(1.0)
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
    for row in (~done).nonzero()[:, 0].tolist():  # where Newton's matrix is singular
        z[row] = _programme(wanted[row] - original[row], original[row], basis, low, high)
    return z


def _newton_step(
    multipliers: Tensor, gap: Tensor, wanted: Tensor, target: Tensor, basis: Tensor, low: float, high: float
) -> Tensor:
    """One damped Newton step for each row. It never decreases the dual objective."""
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
    """For each row, the farthest point of the box in the direction of its noise with the same part in the span."""
    found = []
    for i, (row, push) in enumerate(zip(rows, noise, strict=True)):
        report("pushing the noise to the ends of its range", i, len(rows))
        found.append(_programme(push, row, basis, low, high))
    return torch.stack(found)


def _programme(push: Tensor, original: Tensor, basis: Tensor, low: float, high: float) -> Tensor:
    """Maximise push.z with Q z = Q original in the box, by HiGHS, then correct the solution to full precision."""
    from scipy.optimize import linprog

    Q, b = basis.numpy(), (basis @ original).numpy()
    outcome = linprog(-push.numpy(), A_eq=Q, b_eq=b, bounds=(low, high), method="highs")
    if outcome.x is None:
        raise AttackFailed(f"No input inside the range is seen as the original: {outcome.message}")
    z = np.clip(outcome.x, low, high)
    for _ in range(3):  # correct only entries strictly inside, until the part in the span is exact
        free = (z > low + 1e-9) & (z < high - 1e-9)
        miss = b - Q @ z
        if np.linalg.norm(miss) <= _EXACT * max(1.0, float(original.norm())) or not free.any():
            break
        z[free] += np.linalg.lstsq(Q[:, free], miss, rcond=None)[0]
        z = np.clip(z, low, high)
    return torch.from_numpy(z)


# -- checks -----------------------------------------------------------------------------------------------------------


def _rows(x: Any, span: Span) -> tuple[Tensor, tuple[int, ...]]:
    rows = checked_rows(x, what="inputs", width=span.input_dim)
    shape = tuple(x.shape) if hasattr(x, "shape") else tuple(np.asarray(x).shape)
    return rows, shape


def _check_bounds(bounds: tuple[float, float], rows: Tensor) -> tuple[float, float]:
    low, high = checked_interval("bounds", bounds)
    if bool((rows < low).any()) or bool((rows > high).any()):
        raise InvalidInput(
            f"The inputs reach from {float(rows.min()):g} to {float(rows.max()):g}, beyond the bounds {low:g} to "
            f"{high:g}; give the range that they have."
        )
    return low, high
