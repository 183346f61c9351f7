"""Attacks that compare the target with reference models, record by record: RMIA and LiRA.

RMIA (Zarifzadeh et al. 2024, section 3) asks how often p(x | target) / p(x) exceeds that ratio of a random record z by
a factor gamma, where p(x) is the mean probability over reference models. Its printed score is a share of the
population, so the most exposed members all score 1. The order by that share is the order by the ratio itself, which has
no ties: the ratio is the score here, and ``rmia_share`` gives the printed share. Online p(x) averages all models;
offline it averages the models that never saw x, moved towards what models that saw it would say (equation 10, a = 0.3).

LiRA (Carlini et al. 2022, Algorithm 1) fits Gaussians to the logit of the label over models with and without the
record. With fewer than ``OWN_VARIANCE`` models on a side the variance is shared by all records, as the authors do;
offline it asks how far the target lies above the models without the record.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from divulge.membership.reference_models import References

Array = NDArray[np.float64]
OWN_VARIANCE = 32
"""Models on a side from which a record has a variance of its own (Carlini et al. 2022, section VI-C use 64 in all)."""
OFFLINE = 0.3
"""Parameter a of RMIA's offline approximation for a classifier; the authors' value for CIFAR-10."""


def rmia(target: Array, references: References, *, online: bool) -> Array:
    """log p(x | target) - log p(x) for each record; arguments are log probabilities."""
    logs, inside = references.fits, references.inside
    if online:
        marginal = np.logaddexp(_log_mean(logs, inside), _log_mean(logs, ~inside)) - np.log(2.0)
        return np.asarray(target - marginal)
    outside = np.exp(_log_mean(logs, ~inside))
    approximated = ((1 + OFFLINE) * outside + (1 - OFFLINE)) / 2
    return np.asarray(target - np.log(np.maximum(approximated, np.finfo(float).tiny)))


def rmia_share(scores: Array, population: Array, gamma: float = 1.0) -> Array:
    """The printed score: the share of the population whose log ratio a record exceeds by log(gamma) or more."""
    ordered = np.sort(population)
    return np.asarray(np.searchsorted(ordered, scores - np.log(gamma), side="right") / len(ordered))


def lira(target: Array, references: References, *, online: bool) -> Array:
    """The log likelihood ratio of each record (online), or its distance above the models without it (offline)."""
    fits, inside = references.fits, references.inside
    mean_out, spread_out = _gaussian(fits, ~inside)
    if not online:
        return np.asarray((target - mean_out) / spread_out)
    mean_in, spread_in = _gaussian(fits, inside)
    return _log_density(target, mean_in, spread_in) - _log_density(target, mean_out, spread_out)


def _log_mean(logs: Array, taken: NDArray[np.bool_]) -> Array:
    """The logarithm of the mean probability over the models taken, or over all where none is."""
    taken = taken | ~taken.any(axis=0)
    return np.asarray(logsumexp(np.where(taken, logs, -np.inf), axis=0) - np.log(taken.sum(axis=0)))


def _gaussian(fits: Array, taken: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Mean and spread [records] of the models taken; the spread is shared where they are few."""
    count = taken.sum(axis=0)
    overall = float(fits.mean())
    mean = np.where(count > 0, (fits * taken).sum(axis=0) / np.maximum(count, 1), overall)
    squares = ((fits - mean) ** 2 * taken).sum(axis=0)
    floor = 1e-6 * (float(fits.std()) + 1e-12)
    if count.min() >= OWN_VARIANCE:
        return mean, np.maximum(np.sqrt(squares / (count - 1)), floor)
    degrees = max(1, int(np.maximum(count - 1, 0).sum()))
    shared = float(np.sqrt(squares.sum() / degrees)) if squares.sum() > 0 else float(fits.std())
    return mean, np.full(len(mean), max(shared, floor))


def _log_density(x: Array, mean: Array, spread: Array) -> Array:
    return np.asarray(-0.5 * ((x - mean) / spread) ** 2 - np.log(spread))
