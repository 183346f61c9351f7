"""The output layer: weights and bias that most samples agree on, by least squares on values and gradients.

Samples where a neuron that was never found is active do not agree, and would spoil a plain fit. So the fit is made on
random parts of the samples until most agree with one, and then on all of those.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr

from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.survey import Survey

MOST_SAMPLES, FIRST_SAMPLES = 1200, 400
TRIALS = 80
AGREE, SAME_GRADIENT = 1e-8, 1e-6
"""Values and gradients within these shares of the gradient's size agree; gradients beside a kink may be its other
side's."""
MOST_AGREE = 0.9
CARRIED = 1e-8
"""What identity units carry is zero below this share of it, if answers are in float64."""
MOST_GUESSED = 8
"""Most neurons of a layer whose side is guessed."""
EQUATIONS = 4000
"""Equations from gradients in one fit."""


@dataclass(frozen=True)
class OutputFit:
    """f = a W^T + c, and the samples of the survey that contradict it."""

    weight: Array  # [k, h]
    bias: Array  # [k]
    contradicting: Array  # [m] indices of samples


def fit_output(survey: Survey, layers: KnownLayers, rng: np.random.Generator) -> OutputFit:
    """The output layer on top of ``layers``."""
    fit = _Fit(survey, layers, rng)
    best, agreed, smooth = np.zeros((layers.width + 1, 0)), np.zeros(len(fit.pick), bool), np.zeros(0, bool)
    columns = layers.width + 1
    need = max(6, 3 * columns // layers.inputs + 2)
    for trial in range(TRIALS):
        chosen = np.arange(len(fit.pick))[:FIRST_SAMPLES]
        sloped = chosen[: max(need, EQUATIONS // layers.inputs)]
        if trial:
            chosen = rng.permutation(len(fit.pick))[: max(need, columns // 3)]
            sloped = chosen[:need]
        solution = fit.solve(chosen, sloped)
        agree, flat = fit.agreement(solution)
        if not trial or agree.sum() > agreed.sum():
            best, agreed, smooth = solution, agree, flat
        if agreed.mean() > MOST_AGREE:
            break
    if agreed.sum() > columns:
        sloped = np.flatnonzero(agreed & smooth)[: max(20, EQUATIONS // layers.inputs)]
        best = fit.solve(np.flatnonzero(agreed), sloped)
    return OutputFit(best[:-1].T, best[-1], fit.pick[~agreed])


def with_fewest_units(
    layers: KnownLayers, output: OutputFit, unseen: Array, carries: float = CARRIED
) -> tuple[KnownLayers, OutputFit, Array]:  # fmt: skip
    """The same function without identity units in the last layer: c relu(-z) = c relu(z) - c z.

    What they carry is due to neurons turned the wrong way, which are turned; or else as few linear units as its rank
    carry it. A neuron that is turned shows in what was carried for it all its entries, also those that no kink has
    shown, marked in ``unseen`` [neurons, inputs]; what is left of these marks is the last answer. What is below the
    share ``carries`` of all that is carried counts as zero.
    """
    weight, bias, linear = layers.stack[-1]
    inputs = weight.shape[1]
    units = len(bias) - inputs
    carried, above = output.weight[:, units:], output.weight[:, :units]  # [k, inputs], [k, units]
    hidden = np.zeros((units, inputs), bool)
    hidden[: len(unseen)] = unseen
    rows, size = weight[:units], np.linalg.norm(carried)
    turned = _turned(carried, above, rows, np.flatnonzero(~hidden.any(axis=0)))
    rows, hidden = _filled(carried, above, rows, turned, hidden)
    rest = carried + np.einsum("ku,ui->ki", above * turned, rows)
    out_bias = output.bias + (above * turned) @ bias[:units]
    if np.linalg.norm(rest) > carries * size:
        turned, rest, out_bias, rows = np.zeros(units, bool), carried, output.bias, weight[:units]
        hidden[: len(unseen)] = unseen
    U, s, Vt = np.linalg.svd(rest, full_matrices=False)
    keep = s > carries * max(size, np.finfo(float).tiny)
    sign = np.where(turned, -1.0, 1.0)
    fewer = layers.first(len(layers) - 1).with_layer(
        np.concatenate([rows * sign[:, None], Vt[keep]]),
        np.append(bias[:units] * sign, np.zeros(keep.sum())), np.append(linear[:units], np.ones(keep.sum(), bool)),
    )  # fmt: skip
    fit = OutputFit(np.concatenate([above, U[:, keep] * s[keep]], axis=1), out_bias, output.contradicting)
    return fewer, fit, hidden[: len(unseen)]


def _turned(carried: Array, above: Array, rows: Array, seen: Array) -> Array:
    """Which neurons [units] are turned the wrong way, told by the inputs ``seen`` at which all of them are known.

    Each share is 0 or -1. Where there are fewer equations than neurons, some are guessed, and the others tell.
    """
    units = len(rows)
    products = np.einsum("ku,ui->kiu", above, rows[:, seen]).reshape(-1, units)
    U, s, Vt = np.linalg.svd(products, full_matrices=True)
    rank = int((s > 1e-10 * s.max(initial=0.0)).sum())
    share = Vt[:rank].T @ ((U[:, :rank].T @ carried[:, seen].reshape(-1)) / s[:rank])
    null = Vt[rank:].T  # [units, f]
    if not 0 < null.shape[1] <= MOST_GUESSED:
        return np.asarray(share < -0.5)
    guessed = qr(null.T, pivoting=True, mode="economic")[2][: null.shape[1]]
    choices = -np.array(list(itertools.product((0.0, 1.0), repeat=len(guessed))))
    shares = share + np.linalg.solve(null[guessed], (choices - share[guessed]).T).T @ null.T
    off = np.abs(shares - np.clip(np.round(shares), -1, 0)).max(axis=1)
    return np.asarray(shares[int(off.argmin())] < -0.5)


def _filled(carried: Array, above: Array, rows: Array, turned: Array, hidden: Array) -> tuple[Array, Array]:
    """The rows with entries that only one neuron lacks, which is turned, and what stays hidden."""
    rows, hidden = rows.copy(), hidden.copy()
    rest = carried + np.einsum("ku,ui->ki", above * turned, rows)
    alone = (hidden.sum(axis=0) == 1) & (hidden & turned[:, None]).any(axis=0)
    for unit in np.flatnonzero(alone).tolist():
        neuron = int(np.flatnonzero(hidden[:, unit])[0])
        strength = float((above[:, neuron] ** 2).sum())
        if strength > 0:
            rows[neuron, unit] = -(above[:, neuron] @ rest[:, unit]) / strength
            hidden[neuron, unit] = False
    return rows, hidden


class _Fit:
    """A part of the samples, with their activations, values and gradients."""

    def __init__(self, survey: Survey, layers: KnownLayers, rng: np.random.Generator) -> None:
        data = survey.data
        self.pick = rng.permutation(len(data.Y))[:MOST_SAMPLES]
        activation, _, self.jacobian = layers.maps(data.Y[self.pick])
        self.gradient = data.gradient[self.pick]
        scale = 1 / (1 + np.linalg.norm(activation, axis=1, keepdims=True))
        self.rows = np.concatenate([activation, np.ones((len(activation), 1))], axis=1) * scale
        self.goal = data.value[self.pick] * scale
        self.size = np.abs(self.gradient).max()
        accuracy = survey.space.accuracy
        self.same_value, self.same_gradient = accuracy.at_least(AGREE, 1e3), accuracy.at_least(SAME_GRADIENT, 1e4)

    def solve(self, chosen: Array, sloped: Array) -> Array:
        """Weights and bias [h + 1, k] from the values at some samples and the gradients at some."""
        jacobian = self.jacobian[sloped]
        slopes = np.concatenate([jacobian, np.zeros((len(sloped), 1, jacobian.shape[2]))], axis=1)
        slopes = slopes.transpose(0, 2, 1).reshape(-1, self.rows.shape[1])
        goals = self.gradient[sloped].transpose(0, 2, 1).reshape(-1, self.goal.shape[1])
        system = np.concatenate([self.rows[chosen], slopes])
        return np.asarray(np.linalg.lstsq(system, np.concatenate([self.goal[chosen], goals]), rcond=1e-13)[0])

    def agreement(self, solution: Array) -> tuple[Array, Array]:
        """Which samples agree in value [n], and which in gradient [n]."""
        off = np.abs(self.rows @ solution - self.goal).max(axis=1)
        slope = np.einsum("nhd,hk->nkd", self.jacobian, solution[:-1])
        same = np.abs(slope - self.gradient).max(axis=(1, 2)) < self.same_gradient * self.size
        return off < self.same_value * self.size, same
