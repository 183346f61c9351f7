"""Gauss-Newton on the weights of all layers of a copy at once, against values that were asked already.

Once every neuron is found, what is left is precision: rows that rest on weak kinks, entries that no kink has shown but
values do, and answers in float32 or of six decimals. Values at random rows determine all weights together. Steps are
damped where they would not help (Levenberg-Marquardt). Weights that no row depends on stay as they are.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from divulge.core.optim import levenberg_marquardt
from divulge.extraction.layers.known_layers import Array

STEPS = 12
MOST_PARAMETERS = 3_000
"""Copies with more weights keep their first layer as it is, or are not polished."""
ROWS_AT_ONCE = 2_048
SMALLEST = 1e-14

Stack = list[tuple[Array, Array]]


def parameters(stack: Stack) -> int:
    """Weights and biases of all layers."""
    return sum(weight.size + bias.size for weight, bias in stack)


def polish(stack: Stack, X: Array, truth: Array, *, keep_first: bool = False, steps: int = STEPS) -> Stack:
    """Fit the weights of all layers to values [n, k] at rows [n, d]; never worse on them than before.

    The first layer is kept if ``keep_first`` says so or there are too many weights, and the whole copy where there
    still are.
    """
    kept: Stack = []
    if len(stack) > 2 and (keep_first or parameters(stack) > MOST_PARAMETERS):
        (weight, bias), stack = stack[0], stack[1:]
        kept, X = [(weight, bias)], np.maximum(X @ weight.T + bias, 0)
    if parameters(stack) > MOST_PARAMETERS or len(stack) < 2 or not len(X):
        return [*kept, *stack]
    scale = 1 / (1 + np.linalg.norm(X, axis=1) / np.sqrt(X.shape[1]))

    def evaluate(trial: Stack) -> tuple[float, Stack]:
        residual = (outputs(trial, X) - truth) * scale[:, None]
        return float((residual**2).mean()), trial

    def propose(trial: Stack, _: Stack, damping: float) -> Stack | None:
        return _step(trial, X, truth, scale, damping)

    fit = levenberg_marquardt(
        stack, evaluate, propose, damping=1e-9, eased=lambda damping: max(damping / 30.0, SMALLEST),
        raised=lambda damping: 30.0 * damping, steps=steps, tries=4, settled=0.02,
    )  # fmt: skip
    return [*kept, *fit.point]


def outputs(stack: Stack, X: Array) -> Array:
    """Values [n, k] of the copy."""
    for weight, bias in stack[:-1]:
        X = np.maximum(X @ weight.T + bias, 0)
    return np.asarray(X @ stack[-1][0].T + stack[-1][1])


def _step(stack: Stack, X: Array, truth: Array, scale: Array, damping: float) -> Stack | None:
    """The stack after one damped Gauss-Newton step; None if the equations cannot be solved."""
    count = parameters(stack)
    normal, right = np.zeros((count, count)), np.zeros(count)
    for start in range(0, len(X), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        jacobian, value = _jacobian(stack, X[rows])
        jacobian *= scale[rows, None, None]
        residual = ((truth[rows] - value) * scale[rows, None]).reshape(-1)
        flat = jacobian.reshape(-1, count)
        normal += flat.T @ flat
        right += flat.T @ residual
    size = np.sqrt(np.diag(normal))
    used = size > 1e-12 * size.max()
    size = np.where(used, size, 1.0)
    normal /= np.outer(size, size)
    normal[np.diag_indices(count)] += damping
    normal[~used, ~used] = 1.0
    try:
        change = cho_solve(cho_factor(normal), right / size) / size
    except LinAlgError:
        return None
    return _shifted(stack, np.where(used, change, 0.0)) if np.isfinite(change).all() else None


def _jacobian(stack: Stack, X: Array) -> tuple[Array, Array]:
    """Derivatives of the outputs by all weights and biases [n, k, p], and the outputs [n, k]."""
    activations, slopes = passes(stack, X)
    parts: list[Array] = []
    for below, above in zip(activations, slopes, strict=True):
        by_weight = above[:, :, :, None] * below[:, None, None, :]
        parts.append(np.concatenate([by_weight.reshape(len(X), above.shape[1], -1), above], axis=2))
    weight, bias = stack[-1]
    return np.concatenate(parts, axis=2), activations[-1] @ weight.T + bias


def passes(stack: Stack, X: Array) -> tuple[list[Array], list[Array]]:
    """What each layer takes [n, h], and the derivatives of the outputs by its pre-activations [n, k, h]."""
    activations, on = [X], []
    for weight, bias in stack[:-1]:
        before = activations[-1] @ weight.T + bias
        on.append(before > 0)
        activations.append(np.maximum(before, 0))
    outputs_ = len(stack[-1][1])
    slopes = [np.broadcast_to(np.eye(outputs_), (len(X), outputs_, outputs_))]
    for (weight, _), mask in zip(reversed(stack[1:]), reversed(on), strict=True):
        slopes.append((slopes[-1] @ weight) * mask[:, None, :])
    return activations, slopes[::-1]


def _shifted(stack: Stack, change: Array) -> Stack:
    new, start = [], 0
    for weight, bias in stack:
        middle, end = start + weight.size, start + weight.size + bias.size
        new.append((weight + change[start:middle].reshape(weight.shape), bias + change[middle:end]))
        start = end
    return new
