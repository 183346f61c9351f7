"""The informed attack on privately trained models: one record from weights with noise of a known size.

Balle et al. 2022, section VI-D, learn a reconstructor network from noisy shadow models. Averaged over the noise, a fit
to noisy examples is a penalised fit to clean ones, so no noise need be drawn: the shadow models here are clipped as the
target is but noiseless, one set of them serves every epsilon, and the noise is modelled as Gaussian. For each class the
model is: a record moves the weights by s u; the direction u is Gaussian with the shadows' mean and covariance; the
length s has the distribution of the shadows' lengths; the release adds Gaussian noise. The reconstruction is the
posterior mean over classes and lengths. Of networks with convolutions the features of one layer are used instead of all
weights, and there is one class for all labels (``weight_readings``). Held-out shadow records, trained with noise,
measure the noise in those features and choose how far the model is trusted.

A recipe of mini-batches is attacked in the same way, which is a departure of our own. Its expected step is the step of
full batches, so the shadow models train on full batches, as often as the recipe takes steps. Which records were drawn
is secret, and moves the weights too: the held-out records are trained in mini-batches as the target is, so that their
distance to the shadow models contains both noises.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput
from divulge.core.workers import Workers
from divulge.informed.weight_readings import Features, reading_of
from divulge.training import Privacy, Recipe
from divulge.training.private.trainer import schedule, train_many

HELD = 40
"""Shadow records that are not learned from, to measure the noise on and to choose the trust."""
_LENGTHS = 15  # points of the grid of lengths
_LEAST = 0.1  # of a typical record's size: the model's own error where there is no noise
_TRUST = (1.0, 1.4, 2.0, 2.8, 4.0, 8.0)  # factors by which the noise may be assumed larger than it is


@dataclass(frozen=True)
class _Class:
    """The effect of one label's records on the weights, in the coordinates of their principal directions."""

    label: int | None
    """None where the class is all records."""
    share: float
    mean: Tensor
    """[P]: the mean direction."""
    basis: Tensor
    """[r, P]: orthonormal."""
    variances: Tensor
    """[r]"""
    row_mean: Tensor
    row_basis: Tensor
    """[r, d]: the row that goes with a unit step (of one deviation) along each principal direction."""
    lengths: Tensor
    log_prior: Tensor
    """[L]: log-probability of each length."""

    def posterior(self, away: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        """For each length the log evidence [L, B] of what was observed [B, P], and the mean row [L, B, d]."""
        along, middle = away @ self.basis.T, self.basis @ self.mean
        size, towards, own = away.square().sum(dim=1), away @ self.mean, float(self.mean.square().sum())
        total, rank = away.shape[1], len(self.variances)
        evidence, rows = [], []
        for length, prior in zip(self.lengths.tolist(), self.log_prior.tolist(), strict=True):
            noise = (sigma / length) ** 2
            spread = self.variances + noise
            p = along / length - middle  # [B, r]
            outside = (size / length**2 - 2 * towards / length + own - p.square().sum(dim=1)).clamp(min=0)
            inside = (p.square() / spread).sum(dim=1) + float(spread.log().sum())
            rest = outside / noise + (total - rank) * math.log(noise)
            evidence.append(prior - (inside + rest) / 2 - total * math.log(length))
            rows.append(self.row_mean + (p * self.variances.sqrt() / spread) @ self.row_basis)
        return torch.stack(evidence), torch.stack(rows)


@dataclass(frozen=True)
class ShadowStatistics:
    """Statistics of noiseless shadow models for a training set with one unknown record; see ``learn``."""

    recipe: Recipe
    known: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]
    held_weights: Tensor
    reference: Tensor
    """[P]: where the known records alone lead."""
    reading: Features | None
    classes: tuple[_Class, ...]
    typical: float
    """A typical record's effect, a weight (or whatever is read)."""
    bounds: tuple[float, float]

    def read(self, weights: Tensor) -> Tensor:
        """The part of released weights [B, P] that the attack uses."""
        away = weights.double() - self.reference
        return away if self.reading is None else self.reading.of(away)

    def against(
        self, noise_multiplier: float, *, seed: int = 0, workers: Workers = None, folder: str | Path | None = None
    ) -> PrivateAttack:
        """The attack on models released with this noise; measures the noise in the weights and chooses the trust.

        ``workers`` and ``folder`` are as in ``train_many``.
        """
        noise = 0.0
        weights = self.held_weights
        if noise_multiplier > 0 or averaged(self.recipe, len(self.known[0]) + 1) is not self.recipe:
            seeds = [seed + number for number in range(len(self.held[0]))]
            noisy = _with_noise(self.recipe, noise_multiplier)
            weights = train_many(noisy, *self.known, *self.held, seeds, workers=workers, folder=folder).double()
            noise = float((self.read(weights) - self.read(self.held_weights)).square().mean().sqrt())
        least = max(noise, _LEAST * self.typical)
        tried = [PrivateAttack(self, noise_multiplier, noise, trust * least) for trust in _TRUST]
        truth = self.held[0].flatten(1).double()
        return min(tried, key=lambda attack: float((attack(weights)[0] - truth).square().mean()))


@dataclass(frozen=True)
class PrivateAttack:
    """Call it with the weights of released models [B, P]: their unknown rows [B, d] and labels [B]."""

    statistics: ShadowStatistics
    noise_multiplier: float
    noise: float
    """Its deviation in a trained weight (or whatever is read), as measured."""
    assumed: float
    """What the model assumes, which did best on the records held back."""

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.statistics.read(weights)
        every = [known.posterior(seen, self.assumed) for known in self.statistics.classes]
        share = torch.softmax(torch.cat([evidence for evidence, _ in every]), dim=0)  # [classes x lengths, B]
        rows = (share[:, :, None] * torch.cat([rows for _, rows in every])).sum(dim=0)
        return rows.clamp(*self.statistics.bounds), self._labels(weights, share)

    def _labels(self, weights: Tensor, share: Tensor) -> Tensor:
        if self.statistics.reading is not None:
            return self.statistics.reading.labels(weights.double() - self.statistics.reference)
        labels = torch.tensor([known.label for known in self.statistics.classes])
        likely = share.view(len(labels), -1, len(weights)).sum(dim=1).argmax(dim=0)
        return labels[likely]


def learn(
    recipe: Recipe,
    known_X: Any,
    known_y: Any,
    shadow_X: Any,
    shadow_y: Any,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    workers: Workers = None,
    folder: str | Path | None = None,
) -> ShadowStatistics:
    """Train a noiseless shadow model for each shadow record and fit the effect of records on the weights.

    ``recipe`` trains with ``privacy``, whose clipping is kept; ``bounds`` are those of a feature.
    ``workers`` and ``folder`` are as in ``train_many``.
    """
    if recipe.privacy is None:
        raise InvalidInput(
            "This attack is for private recipes; give it privacy=Privacy(noise_multiplier=..., clip=...)."
        )
    rows, labels = recipe.prepare(shadow_X, shadow_y)
    known = recipe.prepare(known_X, known_y)
    if len(rows) < 2 * HELD:
        raise InvalidInput(f"The attack needs at least {2 * HELD} shadow records; got {len(rows)}.")
    noiseless = averaged(_with_noise(recipe, 0.0), len(known[0]) + 1)
    seeds = [0] * len(rows)
    weights = train_many(noiseless, *known, rows, labels, seeds, workers=workers, folder=folder).double()
    model = noiseless.train(*known)
    reference = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    away = weights[HELD:] - reference
    reading = reading_of(recipe, away)
    away = away if reading is None else reading.of(away)
    classes = _classes(away, rows[HELD:].flatten(1).double(), labels[HELD:], by_label=reading is None)
    typical = float(away.norm(dim=1).median()) / math.sqrt(away.shape[1])
    held = rows[:HELD], labels[:HELD]
    return ShadowStatistics(recipe, known, held, weights[:HELD], reference, reading, classes, typical, bounds)


def averaged(recipe: Recipe, records: int) -> Recipe:
    """The recipe itself if it trains on full batches; else the full-batch recipe whose steps are its expected steps."""
    steps, rate = schedule(recipe, records)
    return recipe if rate == 1 else dataclasses.replace(recipe, batch_size=None, epochs=steps)


def _classes(away: Tensor, rows: Tensor, labels: Tensor, *, by_label: bool) -> tuple[_Class, ...]:
    if not by_label:
        return (_class(None, 1.0, away, rows),)
    classes = []
    for label in sorted(set(labels.tolist())):
        chosen = labels == label
        if int(chosen.sum()) > 1:
            classes.append(_class(label, float(chosen.double().mean()), away[chosen], rows[chosen]))
    if not classes:
        raise InvalidInput("Every shadow record has a label of its own; the attack needs several of a class.")
    return tuple(classes)


def _class(label: int | None, share: float, away: Tensor, rows: Tensor) -> _Class:
    lengths = away.norm(dim=1).clamp(min=torch.finfo(away.dtype).tiny)
    directions = away / lengths[:, None]
    mean, row_mean = directions.mean(dim=0), rows.mean(dim=0)
    centred = (directions - mean) / math.sqrt(len(rows))
    variances, vectors = torch.linalg.eigh(centred @ centred.T)
    kept = variances > 1e-10 * variances[-1]
    variances, vectors = variances[kept], vectors[:, kept]
    basis = (vectors.T @ centred) / variances.sqrt()[:, None]
    logs = lengths.log()
    grid = torch.linspace(float(logs.min()), float(logs.max()), _LENGTHS, dtype=logs.dtype)
    width = max(float(logs.std()) * len(logs) ** -0.2, 1e-3)  # Scott's rule
    density = torch.exp(-((grid[:, None] - logs) / width).square() / 2).mean(dim=1)
    log_prior = torch.log(share * density / density.sum())
    return _Class(
        label, share, mean, basis, variances, row_mean, vectors.T @ (rows - row_mean) / math.sqrt(len(rows)),
        grid.exp(), log_prior,
    )  # fmt: skip


def _with_noise(recipe: Recipe, noise_multiplier: float) -> Recipe:
    assert recipe.privacy is not None
    return dataclasses.replace(
        recipe, privacy=Privacy(noise_multiplier=noise_multiplier, clip=recipe.privacy.clip, noise_seed=0)
    )
