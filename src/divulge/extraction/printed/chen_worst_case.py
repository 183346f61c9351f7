"""Chen 2021, Algorithms 1 to 4, as printed: GetBias, GetGradient, GetNeurons and LearnFromQueries.

Departures, where the print cannot be meant. GetBias returns the intercept along the line, which contains <w, x0>; the
bias that GetNeurons needs is that of the neuron, so differences are of F(x) - <gradient, x> at the midpoints (negated).
Algorithm 3 sets alpha from tau before tau is defined; Lemma 4.10 has r there. Algorithm 4's "- b" is "+ b", and it
returns the fitted network. The constants of Theorem 4.8 are not given, and with any of them r is far too small for a
computer, so the number of intervals m is a parameter, over [-tau, tau] with tau = sqrt(d), and r = 2 tau / m.
All m (m - 1) pairs would be m^2 features, of which the regression keeps an independent set of columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr

from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.values.line_scan import Array

INTERVALS = 24
FEATURES = 3_000
"""Most pairs that are kept for the regression, drawn at random from all of them."""


@dataclass(frozen=True)
class Learned:
    estimate: NetworkEstimate
    interval: float
    notes: tuple[str, ...]


def get_bias(ask: Callable[[Array], Array], x0: Array, v: Array, low: float, high: float) -> Array:
    """Algorithm 1: the intercept [k] of the piece of F along the line x0 + t v that holds the interval."""
    ends = ask(np.stack([x0 + t * v for t in (low, 0.5 * (low + high), high)]))
    slope = (ends[2] - ends[0]) / (high - low)
    return np.asarray(ends[1] - slope * 0.5 * (low + high))


def get_gradient(ask: Callable[[Array], Array], x: Array, alpha: float, rng: np.random.Generator) -> Array:
    """Algorithm 2: the gradient [k, d] at x from d random unit directions."""
    z = rng.normal(size=(len(x), len(x)))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    values = ask(np.concatenate([x[None], x + alpha * z]))
    return np.linalg.solve(z, (values[1:] - values[0]) / alpha).T


def get_neurons(
    ask: Callable[[Array], Array], d: int, width: int, delta: float, intervals: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Algorithm 3: (w [n, d], b [n]) from all pairs of intervals, for each output."""
    x0, v = rng.normal(size=d), rng.normal(size=d)
    v /= np.linalg.norm(v)
    tau = np.sqrt(d)
    edges = np.linspace(-tau, tau, intervals + 1)
    r = edges[1] - edges[0]
    alpha = delta * r / (4.0 * width * np.sqrt(d) + width * np.sqrt(np.log(width / delta)))
    middles = x0 + 0.5 * (edges[:-1] + edges[1:])[:, None] * v
    gradients = np.stack([get_gradient(ask, x, alpha, rng) for x in middles])  # [m, k, d]
    along = np.stack([get_bias(ask, x0, v, a, b) for a, b in itertools.pairwise(edges)])  # [m, k]
    # from the intercept along the line to that of the affine map: less <w, x0>
    bias = -(along - gradients @ x0)
    first, second = np.triu_indices(intervals, 1)
    if len(first) > FEATURES:
        kept = rng.choice(len(first), FEATURES, replace=False)
        first, second = first[kept], second[kept]
    w = (gradients[first] - gradients[second]).reshape(-1, d)
    b = (bias[first] - bias[second]).reshape(-1)
    large = np.linalg.norm(w, axis=1) > 1e-6 * np.abs(gradients).max()
    return np.concatenate([w[large], -w[large]]), np.concatenate([b[large], -b[large]])


def learn_from_queries(
    ask: Callable[[Array], Array],
    d: int,
    outputs: int,
    width: int,
    delta: float,
    intervals: int | None,
    rng: np.random.Generator,
) -> Learned:
    """Algorithm 4: least squares on the ReLU features of the neurons that GetNeurons lists."""
    m = INTERVALS if intervals is None else intervals
    w, b = get_neurons(ask, d, width, delta, m, rng)
    samples = 4 * (min(len(w), 500) + d + 1)
    rows = rng.normal(size=(samples, d))
    values = ask(rows)
    hidden = np.maximum(rows @ w.T - b, 0.0)
    keep = _independent(hidden, samples // 2)
    w, b, hidden = w[keep], b[keep], hidden[:, keep]
    features = np.concatenate([hidden, rows, np.ones((samples, 1))], axis=1)
    v = np.linalg.lstsq(features, values, rcond=1e-10)[0]
    length = np.maximum(np.linalg.norm(w, axis=1), np.finfo(float).tiny)
    h = len(w)
    estimate = NetworkEstimate.of(
        w / length[:, None], -b / length, (v[:h] * length[:, None]).T, v[h : h + d].T, v[h + d]
    )
    note = f"As printed with {m} intervals: {h} features of {m * (m - 1)} pairs are linearly independent."
    return Learned(estimate, float(2 * np.sqrt(d) / m), (note,))


def _independent(hidden: Array, most: int) -> Array:
    """Columns that are not combinations of others, at most so many."""
    if not hidden.shape[1]:
        return np.empty(0, dtype=int)
    _, r, order = qr(hidden, mode="economic", pivoting=True)
    size = np.abs(np.diag(r))
    rank = int((size > 1e-8 * size[0]).sum())
    return np.asarray(order[: min(rank, most)])
