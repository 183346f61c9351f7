"""Which side of its hyperplane each neuron of a layer is on.

The gradient at a sample is a combination of the rows W J of the layer, and rows of units that are off take no part in
it. Where the rows are independent, the coefficients tell directly. Where they are dependent, some units are guessed to
be off: a right guess shows in further zeros. Milli 2019 (Algorithm 1b) finds signs by a linear programme.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from divulge.extraction.layers.accuracy import Accuracy
from divulge.extraction.layers.activation_slopes import Slopes
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.survey import Survey

MOST_SAMPLES = 600
MIXED = 4.0
"""Samples with so many more units on below are not preferred to others: many on below often are many on above."""
ROUNDS = 6
DEEPEST = 11
"""Most dependent rows among which units are guessed to be off."""
ZERO, NONZERO = 1e-7, 1e-5
"""Coefficients below the first share of the largest are zero; above the second they are not."""
FURTHER_ZEROS = 3
SPARE = 2
"""Equations that must be left over for a support to count: coefficients fit any gradient where rows span everything."""
VOTES = 3
"""Zero coefficients, without a non-zero one, that settle a sign."""
GUESSES = 1024


def orientation(
    survey: Survey, layers: KnownLayers, weight: Array, bias: Array, rng: np.random.Generator,
    unseen: Array | None = None, slopes: Sequence[Slopes] = (),
) -> Array:  # fmt: skip
    """Signs [h] that turn each neuron to its active side; 0 where the gradients do not tell.

    Rows are not known where units below are on whose entries are ``unseen``. ``slopes`` are derivatives by the
    activations below that several samples tell together; they come first.
    """
    data = survey.data
    _, on, fewest = layers.units(data.Y)
    size = np.linalg.norm(data.gradient.reshape(len(data.Y), -1), axis=1)
    if unseen is not None:
        size = np.where((on & unseen).any(axis=1), 0.0, size)
    order = np.argsort(-fewest - MIXED * rng.random(len(fewest)))
    order = order[size[order] > 1e-6 * np.median(size)][:MOST_SAMPLES]
    before, rows_here, gradient_here = _rows(data.Y[order], data.gradient[order], layers, weight, bias)
    pieced = [part for part in slopes if unseen is None or not np.abs(part.seen[:, unseen]).any()]
    if pieced:
        before = np.concatenate([layers(data.Y[[part.sample for part in pieced]]) @ weight.T + bias, before])
    rows = [*(weight @ part.seen.T for part in pieced), *rows_here]
    gradient = [*(part.told for part in pieced), *gradient_here]
    visible = [*(len(part.seen) for part in pieced), *fewest[order].tolist()]  # dimensions that gradients can have
    accuracy = survey.space.accuracy
    clear = np.abs(before) > accuracy.at_least(1e-7, 1e3) * (1 + np.abs(before).max(axis=1, keepdims=True))
    sign, votes = np.zeros(len(bias)), np.zeros(len(bias))
    for _ in range(ROUNDS):
        known = int((sign != 0).sum())
        for n in range(len(rows)):
            if (sign != 0).all():
                return sign
            possible = np.flatnonzero(sign * before[n] >= 0)
            open_ = np.flatnonzero((sign[possible] == 0) & clear[n][possible])
            if not len(open_):
                continue
            deepest = DEEPEST if sign.any() or n < 60 else 0
            on, off = _support(rows[n][possible], gradient[n], open_, visible[n], rng, deepest, accuracy)
            sign[possible[on]] = np.sign(before[n][possible[on]])
            votes[possible[off]] -= np.sign(before[n][possible[off]])
        if int((sign != 0).sum()) == known:
            break
    guess = (sign == 0) & (np.abs(votes) >= VOTES)
    sign[guess] = np.sign(votes[guess])
    return sign


def _rows(
    Y: Array, gradient: Array, layers: KnownLayers, weight: Array, bias: Array
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Pre-activations [n, h], the rows that gradients combine [n, h, d], and the gradients [n, k, d], maybe shorter."""
    if len(layers):
        activation, _, jacobian = layers.maps(Y)
        return activation @ weight.T + bias, np.matmul(weight, jacobian), gradient
    before = Y @ weight.T + bias
    if weight.shape[1] > 2 * len(weight):  # wide inputs: only the space of the rows matters
        basis = np.linalg.qr(weight.T)[0]
        return before, np.broadcast_to(weight @ basis, (len(Y), len(weight), len(weight))), gradient @ basis
    return before, np.broadcast_to(weight, (len(Y), *weight.shape)), gradient


def _support(
    rows: Array, gradient: Array, open_: Array, visible: int, rng: np.random.Generator, deepest: int,
    accuracy: Accuracy,
) -> tuple[Array, Array]:  # fmt: skip
    """Which of the rows ``open_`` take part in the gradients [k, d], and which certainly do not."""
    none = np.zeros(0, int)
    U, s, Vt = np.linalg.svd(rows.T, full_matrices=True)
    if not len(s) or s[0] == 0:
        return none, none
    rank = int((s > accuracy.at_least(1e-8, 100) * s[0]).sum())
    nothing, something = accuracy.at_least(ZERO, 1e3), accuracy.at_least(NONZERO, 1e4)
    dependent = len(rows) - rank
    inside = U[:, :rank].T @ gradient.T
    if np.linalg.norm(gradient.T - U[:, :rank] @ inside) > accuracy.at_least(1e-7, 1e3) * np.linalg.norm(gradient):
        return none, none
    coefficients = Vt[:rank].T @ (inside / s[:rank, None])  # [rows, k]
    if dependent == 0:
        size = np.linalg.norm(coefficients, axis=1)
        if visible - int((size > nothing * size.max()).sum()) < SPARE:
            return none, none
        return open_[size[open_] > something * size.max()], open_[size[open_] < nothing * size.max()]
    if dependent > min(deepest, len(open_) - FURTHER_ZEROS):
        return none, none
    one = coefficients @ rng.normal(size=coefficients.shape[1])  # a combination of the outputs
    return _guessed_support(one, Vt[rank:].T, open_, rng, nothing, something)


def _guessed_support(
    one: Array, null: Array, open_: Array, rng: np.random.Generator, nothing: float, something: float
) -> tuple[Array, Array]:  # fmt: skip
    """The support of ``one`` plus something in the null space, from guesses which of ``open_`` are zero."""
    none = np.zeros(0, int)
    dependent = null.shape[1]
    for _ in range(1 + 2**dependent // 256):
        guess = open_[np.argsort(rng.random((GUESSES, len(open_))), axis=1)[:, :dependent]]
        try:
            shift = np.linalg.solve(null[guess], -one[guess][:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            return none, none
        size = np.abs(one[None] + shift @ null.T)
        zero = size < nothing * size.max(axis=1, keepdims=True)
        count = zero[:, open_].sum(axis=1)
        best = int(np.argmax(count))
        if count[best] >= dependent + FURTHER_ZEROS:
            part = size[best][open_] > something * size[best].max()
            return open_[part], open_[zero[best][open_]]
    return none, none
