"""Gauss-Newton on all parameters of a copy at once, against fresh values.

Once every neuron is found roughly, what is left is precision: an oracle that answers in float32, or to six decimals,
gives gradients good to three or four digits, but the values of a few thousand random inputs determine all parameters
together, to the last digit that the oracle shows. Steps are damped where they would not help (Levenberg-Marquardt).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from divulge.core.optim import levenberg_marquardt
from divulge.core.progress import report
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.values.line_scan import Array

STEPS, FEW_STEPS = 15, 6
PRUNED = 8
"""Most neurons that a polished copy is tried without."""


@dataclass(frozen=True)
class Polished:
    estimate: NetworkEstimate
    before: float
    """Root mean square residual before."""
    after: float
    steps: int


def parameters(estimate: NetworkEstimate) -> int:
    """Number of free parameters; with one output a neuron's weight is the length of its row, and not counted."""
    k, h, d = estimate.outputs, estimate.width, estimate.inputs
    return int(h * (d + 1) + (h * k if k > 1 else 0) + k * (d + 1))


def polish(estimate: NetworkEstimate, rows: Array, values: Array, *, steps: int = STEPS) -> Polished:
    """Fit all parameters of the estimate to values [n, k] at rows [n, d]; never worse on them than before."""

    def evaluate(trial: NetworkEstimate) -> tuple[float, _Normal]:
        residual = values - trial(rows)
        return float((residual**2).mean()), _Normal(trial, rows, residual)

    def propose(trial: NetworkEstimate, normal: _Normal, damping: float) -> NetworkEstimate | None:
        change = normal.solve(damping)
        return None if change is None else shifted(trial, change)

    fit = levenberg_marquardt(
        estimate, evaluate, propose, damping=1e-6, eased=lambda damping: max(damping / 30.0, 1e-15),
        raised=lambda damping: 10.0 * damping, steps=steps, tries=4, settled=0.02,
    )  # fmt: skip
    return Polished(fit.point, float(np.sqrt(fit.start_cost)), float(np.sqrt(fit.cost)), fit.steps)


class _Normal:
    """The normal equations at an estimate, which are set up when a step is first asked for."""

    def __init__(self, estimate: NetworkEstimate, rows: Array, residual: Array) -> None:
        self._at = estimate, rows, residual
        self._made: tuple[Array, Array, Array] | None = None

    def solve(self, damping: float) -> Array | None:
        """The damped step, or None where rounding makes the matrix indefinite."""
        report("polishing")
        if self._made is None:
            estimate, rows, residual = self._at
            J = jacobian(estimate, rows)
            normal = J.T @ J
            diagonal = np.diag(normal).copy()
            diagonal[diagonal == 0.0] = 1.0
            self._made = normal, J.T @ residual.reshape(-1), diagonal
        normal, pull, diagonal = self._made
        try:
            factor = cho_factor(normal + np.diag(damping * diagonal), check_finite=False)
        except np.linalg.LinAlgError:
            return None
        change: Array = cho_solve(factor, pull, check_finite=False)
        return change


def pruned(estimate: NetworkEstimate, rows: Array, values: Array, noise: float) -> NetworkEstimate:
    """Without the neurons that the fit does not need: the weakest, or one of two on all but the same hyperplane."""
    for _ in range(min(PRUNED, estimate.width)):
        weakest = int(estimate.strength.argmin())
        fits = (
            polish(fewer, rows, values, steps=FEW_STEPS)
            for fewer in (estimate.without(weakest), estimate.closest_merged())
        )
        within = next((fit.estimate for fit in fits if fit.after <= noise), None)
        if within is None:
            break
        estimate = within
    return estimate


def jacobian(estimate: NetworkEstimate, rows: Array) -> Array:
    """Derivatives [n k, p] of the outputs in the order A, b, W (where there are several outputs), P, q."""
    n, d = rows.shape
    A, b, W, _, _ = estimate.arrays()
    k, h = W.shape
    z = rows @ A.T + b
    on = (z > 0).astype(float)
    rows1 = np.concatenate([rows, np.ones((n, 1))], axis=1)
    J = np.zeros((n, k, parameters(estimate)))
    for output in range(k):
        gate = on * W[output]  # [n, h]
        J[:, output, : h * (d + 1)] = (gate[:, :, None] * rows1[:, None, :]).reshape(n, -1)
        start = h * (d + 1)
        if k > 1:
            J[:, output, start + output * h : start + (output + 1) * h] = np.maximum(z, 0.0)
            start += h * k
        J[:, output, start + output * (d + 1) : start + (output + 1) * (d + 1)] = rows1
    return J.reshape(n * k, -1)


def shifted(estimate: NetworkEstimate, change: Array) -> NetworkEstimate:
    """The estimate with its parameters changed, and its rows brought back to unit length."""
    A, b, W, P, q = estimate.arrays()
    k, h, d = estimate.outputs, estimate.width, estimate.inputs
    split = h * (d + 1)
    neurons = change[:split].reshape(h, d + 1)
    if k > 1:
        W = W + change[split : split + h * k].reshape(k, h)
        split += h * k
    affine = change[split:].reshape(k, d + 1)
    A, b = A + neurons[:, :d], b + neurons[:, d]
    length = np.linalg.norm(A, axis=1)
    length[length == 0.0] = 1.0
    return NetworkEstimate.of(A / length[:, None], b / length, W * length, P + affine[:, :d], q + affine[:, d])
