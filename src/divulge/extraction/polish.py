"""Gauss-Newton on all parameters of a copy at once, against fresh values.

Once every neuron is found roughly, what is left is precision: an oracle that answers in float32, or to six decimals,
gives gradients good to three or four digits, but the values of a few thousand random inputs determine all parameters
together, to the last digit that the oracle shows. Steps are damped where they would not help (Levenberg-Marquardt).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from divulge.extraction.draft import Draft
from divulge.extraction.lines import Array
from divulge.progress import report

STEPS, FEW_STEPS = 15, 6
PRUNED = 8
"""Most neurons that a polished copy is tried without."""


@dataclass(frozen=True)
class Polished:
    draft: Draft
    before: float
    """Root mean square residual before."""
    after: float
    steps: int


def parameters(draft: Draft) -> int:
    """How many numbers a draft has: those of its weights count with those of its neurons where there is one output."""
    k, h = draft.W.shape
    d = draft.A.shape[1]
    return int(h * (d + 1) + (h * k if k > 1 else 0) + k * (d + 1))


def polish(draft: Draft, rows: Array, values: Array, *, steps: int = STEPS) -> Polished:
    """Fit all parameters of the draft to values [n, k] at rows [n, d]; never worse on them than before."""
    residual = values - draft(rows)
    before = cost = float((residual**2).mean())
    damping = 1e-6
    taken = 0
    for step in range(steps):
        report("polishing", step, steps)
        J, r = jacobian(draft, rows), residual.reshape(-1)
        normal = J.T @ J
        pull = J.T @ r
        diagonal = np.diag(normal).copy()
        diagonal[diagonal == 0.0] = 1.0
        improved = False
        for _ in range(4):
            try:
                factor = cho_factor(normal + np.diag(damping * diagonal), check_finite=False)
            except np.linalg.LinAlgError:
                damping *= 10.0
                continue
            candidate = shifted(draft, cho_solve(factor, pull, check_finite=False))
            left = values - candidate(rows)
            new = float((left**2).mean())
            if new < cost:
                improved = True
                break
            damping *= 10.0
        if not improved:
            break
        gain = 1.0 - new / cost
        draft, residual, cost = candidate, left, new
        damping = max(damping / 30.0, 1e-15)
        taken += 1
        if gain < 0.02:
            break
    return Polished(draft, float(np.sqrt(before)), float(np.sqrt(cost)), taken)


def pruned(draft: Draft, rows: Array, values: Array, noise: float) -> Draft:
    """Without the neurons that the fit does not need: the weakest, or one of two on all but the same hyperplane."""
    for _ in range(min(PRUNED, draft.width)):
        weakest = int(np.argmin(np.linalg.norm(draft.W, axis=0)))
        fits = (
            polish(fewer, rows, values, steps=FEW_STEPS) for fewer in (draft.without(weakest), draft.closest_merged())
        )
        enough = next((fit.draft for fit in fits if fit.after <= noise), None)
        if enough is None:
            break
        draft = enough
    return draft


def jacobian(draft: Draft, rows: Array) -> Array:
    """Derivatives [n k, p] of the outputs in the order A, b, W (where there are several outputs), P, q."""
    n, d = rows.shape
    k, h = draft.W.shape
    z = rows @ draft.A.T + draft.b
    on = (z > 0).astype(float)
    rows1 = np.concatenate([rows, np.ones((n, 1))], axis=1)
    J = np.zeros((n, k, parameters(draft)))
    for output in range(k):
        gate = on * draft.W[output]  # [n, h]
        J[:, output, : h * (d + 1)] = (gate[:, :, None] * rows1[:, None, :]).reshape(n, -1)
        start = h * (d + 1)
        if k > 1:
            J[:, output, start + output * h : start + (output + 1) * h] = np.maximum(z, 0.0)
            start += h * k
        J[:, output, start + output * (d + 1) : start + (output + 1) * (d + 1)] = rows1
    return J.reshape(n * k, -1)


def shifted(draft: Draft, change: Array) -> Draft:
    """The draft with its parameters changed, and its rows brought back to unit length."""
    k, h = draft.W.shape
    d = draft.A.shape[1]
    split = h * (d + 1)
    neurons = change[:split].reshape(h, d + 1)
    W = draft.W
    if k > 1:
        W = W + change[split : split + h * k].reshape(k, h)
        split += h * k
    affine = change[split:].reshape(k, d + 1)
    A, b = draft.A + neurons[:, :d], draft.b + neurons[:, d]
    length = np.linalg.norm(A, axis=1)
    length[length == 0.0] = 1.0
    return Draft(A / length[:, None], b / length, W * length, draft.P + affine[:, :d], draft.q + affine[:, d])
