"""Chen 2021, Algorithms 1 to 4, as printed: GetBias, GetGradient, GetNeurons and LearnFromQueries.

The print leaves constants open, which are filled in as follows. The half length of the line, equation (4), is the bound
of Lemma 4.3 with its constant worked out for a single neuron: a kink lies at sqrt(d) times a Cauchy variable, so
tau = 2 k sqrt(d) / (pi delta) misses any of k kinks with probability delta. The length r of an interval, equation (3),
is far too small for a computer whatever its constants, since it guards against the most unkind network; here it is
delta pi sqrt(d) / k^2, at which two of k random kinks share an interval with probability delta.

Departures, where the print cannot be meant. GetBias returns the intercept along the line, which contains <w, x0>; the
bias that GetNeurons needs is that of the neuron. Algorithm 3 sets alpha from tau before tau is defined; Lemma 4.10 has
r there. Algorithm 4's "- b" is "+ b", and it returns the fitted network. Intervals of one linear piece have the same
gradient and intercept, so the m (m - 1) pairs are those of the distinct pieces: nothing is lost, and the regression
stays small. The bounds (5) and (7) need the largest norm R of a neuron and the largest bias B, which the paper assumes
known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.values.line_scan import Array

MOST_INTERVALS = 200_000
MOST_FEATURES = 4_000
"""Pairs of pieces that enter the regression. Neighbouring pieces come first, then others at random."""
ROWS_AT_ONCE = 200_000
SAME = 10.0
"""Intervals are of one piece if their affine maps differ by less than this many rounding errors."""
USELESS = 100.0
"""Gradients from directions so much worse conditioned than most are left out."""

Ask = Callable[[Array], Array]


@dataclass(frozen=True)
class Printed:
    """The parameters of Algorithms 3 and 4."""

    width: int
    delta: float
    tau: float | None = None
    """Half the length of the line."""
    intervals: int | None = None
    bounds: tuple[float, float] | None = None
    """R and B: the largest norm and the largest bias of a neuron."""

    def line(self, d: int) -> tuple[float, int]:
        """Half the length of the line, equation (4), and the number of intervals, from equation (3)."""
        tau = 2.0 * self.width * np.sqrt(d) / (np.pi * self.delta) if self.tau is None else self.tau
        if self.intervals is not None:
            return float(tau), self.intervals
        r = self.delta * np.pi * np.sqrt(d) / self.width**2
        return float(tau), int(np.clip(np.ceil(2.0 * tau / r), 2, MOST_INTERVALS))

    def shared(self, d: int, r: float) -> float:
        """Probability, at most, that two of the kinks of a random network share an interval of length r."""
        return float(min(1.0, self.width**2 * r / (np.pi * np.sqrt(d))))


@dataclass(frozen=True)
class Learned:
    estimate: NetworkEstimate
    interval: float
    notes: tuple[str, ...]


def get_bias(ask: Ask, x0: Array, v: Array, low: Array, high: Array) -> Array:
    """Algorithm 1: the intercepts [m, k] along the line x0 + t v of the pieces that hold the intervals [m]."""
    middle = 0.5 * (low + high)
    at = [ask(x0 + t[:, None] * v) for t in (low, middle, high)]
    slope = (at[2] - at[0]) / (high - low)[:, None]
    return np.asarray(at[1] - slope * middle[:, None])


def get_gradient(ask: Ask, x: Array, alpha: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Algorithm 2: the gradients [m, k, d] at the rows x [m, d], each from d random unit directions.

    Beside them, by how much they magnify an error of the finite differences [m].
    """
    m, d = x.shape
    z = rng.normal(size=(m, d, d))
    z /= np.linalg.norm(z, axis=2, keepdims=True)
    rows = np.concatenate([x[:, None], x[:, None] + alpha * z], axis=1)  # [m, 1 + d, d]
    values = ask(rows.reshape(-1, d)).reshape(m, 1 + d, -1)
    inverse = np.linalg.inv(z)
    gradients = inverse @ ((values[:, 1:] - values[:, :1]) / alpha)
    return np.swapaxes(gradients, 1, 2), np.linalg.norm(inverse, axis=(1, 2))


def get_neurons(ask: Ask, d: int, printed: Printed, rng: np.random.Generator) -> tuple[Array, Array, int]:
    """Algorithm 3: (w [n, d], b [n]) of all pairs of distinct pieces, for each output; and the number of pieces."""
    x0, v = rng.normal(size=d), rng.normal(size=d)
    v /= np.linalg.norm(v)
    tau, m = printed.line(d)
    k, delta = printed.width, printed.delta
    edges = np.linspace(-tau, tau, m + 1)
    r = edges[1] - edges[0]
    alpha = delta * r / (4.0 * k * np.sqrt(d) + k * np.sqrt(np.log(k / delta)))
    maps, errors, largest = [], [], 0.0
    for part in np.array_split(np.arange(m), -(-m * (d + 4) // ROWS_AT_ONCE)):
        low, high = edges[part], edges[part + 1]
        gradients, magnified = get_gradient(ask, x0 + 0.5 * (low + high)[:, None] * v, alpha, rng)
        along = get_bias(ask, x0, v, low, high)  # [m, k]; less <w, x0> it is the intercept of the affine map
        maps.append(np.concatenate([gradients, (along - gradients @ x0)[..., None]], axis=2))
        errors.append(np.stack([magnified / alpha, magnified * np.linalg.norm(x0) / alpha + tau / r], axis=1))
        largest = max(largest, float(np.abs(along).max()) + float(np.abs(gradients).max()) * tau)
    pieces = _distinct(np.concatenate(maps), SAME * np.finfo(float).eps * largest * np.concatenate(errors))
    w, b = _pairs(pieces, rng)
    keep = np.linalg.norm(w, axis=1) > 0
    if printed.bounds is not None:  # (5); its Delta is below what arithmetic sees
        R, B = printed.bounds
        keep &= (np.linalg.norm(w, axis=1) <= k * R) & (np.abs(b) <= k * B)
    return w[keep], b[keep], len(pieces)


def _distinct(maps: Array, errors: Array) -> Array:
    """The affine maps [p, k, d + 1] of consecutive intervals that differ by more than their errors [m, 2].

    An error is one of the gradient and one of the intercept; of each piece the interval with the smallest stands for
    it.
    """
    useful = errors[:, 0] < USELESS * np.median(errors[:, 0])
    maps, errors = maps[useful], errors[useful]
    steps = np.abs(np.diff(maps, axis=0)).max(axis=1)  # [m - 1, d + 1]
    allowed = errors[1:] + errors[:-1]
    changes = (steps[:, :-1].max(axis=1) > allowed[:, 0]) | (steps[:, -1] > allowed[:, 1])
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(maps))))
    order = np.lexsort((errors[:, 0], group))
    return np.asarray(maps[order[starts]])


def _pairs(pieces: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Differences of ordered pairs of pieces: weights [n, d], and biases [n] of relu(<w, x> - b)."""
    p = len(pieces)
    pairs = [(i, i + 1) for i in range(p - 1)]
    others = [pair for pair in itertools.combinations(range(p), 2) if pair[1] - pair[0] > 1]
    room = max(0, MOST_FEATURES // (2 * pieces.shape[1]) - len(pairs))
    chosen = range(len(others)) if len(others) <= room else rng.choice(len(others), room, replace=False)
    first, second = np.array(pairs + [others[i] for i in chosen], dtype=int).reshape(-1, 2).T
    difference = (pieces[first] - pieces[second]).reshape(-1, pieces.shape[2])
    both = np.concatenate([difference, -difference])
    return both[:, :-1], -both[:, -1]


def learn_from_queries(ask: Ask, d: int, outputs: int, printed: Printed, rng: np.random.Generator) -> Learned:
    """Algorithm 4: least squares on the ReLU features of the neurons that GetNeurons lists."""
    tau, m = printed.line(d)
    w, b, pieces = get_neurons(ask, d, printed, rng)
    rows = _truncated(2 * (len(w) + d + 1), d, printed.delta, rng)
    features = np.concatenate([np.maximum(rows @ w.T - b, 0.0), rows, np.ones((len(rows), 1))], axis=1)
    limit = np.inf
    if printed.bounds is not None:
        limit = np.sqrt(m / 2) + printed.width * sum(printed.bounds)  # (7): sqrt(tau / r) + k (R + B)
    v = bounded_least_squares(features, ask(rows), limit)
    length = np.maximum(np.linalg.norm(w, axis=1), np.finfo(float).tiny)
    h, r = len(w), 2.0 * tau / m
    estimate = NetworkEstimate.of(
        w / length[:, None], -b / length, (v[:h] * length[:, None]).T, v[h : h + d].T, v[h + d]
    )
    note = (
        f"As printed: {m:,} intervals of length {r:.2g} over [-{tau:.3g}, {tau:.3g}], {pieces} distinct pieces, "
        f"{h:,} features. Two kinks of a random network share an interval with probability "
        f"{printed.shared(d, r):.2g} at most."
    )
    return Learned(estimate, r, (note,))


def _truncated(count: int, d: int, delta: float, rng: np.random.Generator) -> Array:
    """Gaussian rows [count, d] of norm at most sqrt(d) + sqrt(2 log(1 / delta)), Definition 4.12."""
    rows = rng.normal(size=(2 * count + 16, d))
    return np.asarray(rows[np.linalg.norm(rows, axis=1) <= np.sqrt(d) + np.sqrt(2 * np.log(1 / delta))][:count])


def bounded_least_squares(features: Array, values: Array, limit: float) -> Array:
    """The least-squares weights [n, k] of norm at most ``limit`` for each output, equation (7)."""
    U, s, Vt = np.linalg.svd(features, full_matrices=False)
    rank = int((s > 1e-12 * s[0]).sum())
    U, s, Vt = U[:, :rank], s[:rank], Vt[:rank]
    target = U.T @ values  # [rank, k]

    def weights(ridge: float, column: int) -> Array:
        return np.asarray(s * target[:, column] / (s**2 + ridge))

    solved = []
    for j in range(values.shape[1]):
        ridge = 0.0
        if np.linalg.norm(weights(0.0, j)) > limit:
            top = float(s[0] * np.linalg.norm(target[:, j]) / limit)  # there the norm is below the limit
            ridge = brentq(lambda x, j=j: np.linalg.norm(weights(x, j)) - limit, 0.0, top)
        solved.append(Vt.T @ weights(ridge, j))
    return np.stack(solved, axis=1)
