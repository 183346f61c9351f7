"""A reconstructor learned from shadow models (Balle 2022, section IV): trained once, then it reads the unknown row off
any model released for the same known rows.

    attack = divulge.informed.reconstructor(recipe, known_X, known_y, shadow_X, shadow_y)
    record = attack(released)

``method="ridge"`` (the default) is our own, ``"network"`` the paper's. ``access="logits"`` sees only the released
model's answers on probe rows.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge import workers as pool
from divulge.errors import InvalidInput
from divulge.informed import checks, gauss_newton, network, picture_network, ridge
from divulge.informed.record import Record
from divulge.informed.seen import Access, Sight, probe_rows, sight
from divulge.informed.setting import as_mlp
from divulge.informed.shadows import Shadows, shadows
from divulge.training import Recipe
from divulge.whole import checked_seed

Method = Literal["ridge", "network"]


_CORRECTIONS = 3  # further training runs that may each improve a record read off by ridge
_UNSURE = 0.5  # between the scores of two labels: where they are closer, both are tried
_HELD = 64  # shadow models, at most, that are kept out to learn what a misfit means
_OVERCONFIDENT = (
    "a mean squared error of {:.2g} is expected, and of a shadow model held out no more was, whose record came out no "
    "closer than the nearest row held"
)


@dataclass(frozen=True)
class Gauge:
    """What a misfit says about a record's error, learned from shadow models held out: the squared error over the
    record's squared length is a multiple of the squared misfit."""

    usual: float = 1.0
    """The multiple, at the median;"""
    worst: float = 1.0
    """at its largest, which is assumed of a misfit beyond those seen:"""
    reach: float = 0.0
    """the largest misfit."""
    wrong: float = float("inf")
    """The least error that was expected of one that was no closer than the nearest row that the adversary holds."""

    @classmethod
    def of(cls, rows: Tensor, truth: Tensor, misfit: Tensor, nearest: Tensor) -> Gauge:
        multiple = (rows - truth).square().sum(dim=1) / rows.square().sum(dim=1) / misfit.square()
        gauge = cls(float(multiple.median()), float(multiple.max()), float(misfit.max()))
        wrong = gauge.error(rows, misfit)[(rows - truth).square().mean(dim=1) >= nearest]
        return replace(gauge, wrong=float(wrong.min())) if len(wrong) else gauge

    def error(self, rows: Tensor, misfit: Tensor) -> Tensor:
        """The mean squared error to expect of each row."""
        multiple = torch.where(misfit <= self.reach, self.usual, self.worst)
        return multiple * misfit.square() * rows.square().mean(dim=1)


@dataclass(frozen=True)
class Reconstructor:
    """Call it with a released model (or, for logits, anything that answers the probes) to get a Record; with a list of
    them to get a list.

    A record that was read off is checked by training with it: what the model so trained lacks to the released one says
    how far off the record is. Ridge goes on from there, as the same map turns that lack into a correction.
    """

    recipe: Recipe
    method: Method
    access: Access
    shadows: Shadows
    known: Tensor
    sight: Sight
    """What is looked at: weights, some layers, or logits."""
    largest: float
    """The longest difference that a shadow row made."""
    ridge: ridge.RidgeMap
    """Tells the label, and for ``method="ridge"`` the row."""
    network: network.NetworkMap | None
    gauge: Gauge
    bounds: tuple[float, float] | None
    seed: int
    seconds: float

    def __call__(self, released: Any) -> Any:
        """The unknown row of each released model."""
        started = time.perf_counter()
        several = isinstance(released, Sequence) and not isinstance(released, Tensor)
        models = list(released) if isinstance(released, Sequence) else [released]
        if not models:
            raise InvalidInput("There is no released model to attack.")
        away = torch.stack([self.sight.of(model) for model in models])
        self._check(away)
        rows, places, misfit = self.rebuild(away)
        predicted = self.gauge.error(rows, misfit)
        anyway = checks.nearest(torch.cat([self.known.flatten(1).to(self.shadows.X), self.shadows.X.flatten(1)]))
        seconds = (time.perf_counter() - started) / len(models)
        runs = float(len(self.shadows.X) + 1 + self._corrections)
        found = []
        for x, place, left, error, moved in zip(rows, places, misfit, predicted, away.norm(dim=1), strict=True):
            reason = checks.doubt(float(error), anyway, float(left))
            if not reason and float(error) >= self.gauge.wrong:
                reason = _OVERCONFIDENT.format(float(error))
            facts = {"moved": float(moved), "misfit": float(left)}
            found.append(
                Record(
                    x, self.ridge.classes[int(place)], float(error), self.method, seconds, self.seed, not reason,
                    reason, training_runs=runs, notes=checks.notes(self.known, x), facts=facts,
                )
            )  # fmt: skip
        return found if several else found[0]

    def rebuild(self, away: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From what the unknown rows did [N, F]: the rows, the places of their labels, and the share of what they did
        that training with the rebuilt rows does not explain."""
        scores = self.ridge.scores(self.sight.by_layer(away))
        best = scores.topk(min(2, scores.shape[1]), dim=1)
        places = best.indices[:, 0].clone()
        rows, misfit = self._under(away, places)
        unsure = torch.nonzero(best.values[:, 0] - best.values[:, -1] < _UNSURE)[:, 0]
        if len(unsure) and scores.shape[1] > 1:  # training tells which of the two labels it is
            second = best.indices[unsure, 1]
            others, apart = self._under(away[unsure], second)
            better = apart < misfit[unsure]
            places[unsure[better]], misfit[unsure[better]] = second[better], apart[better]
            rows[unsure[better]] = others[better]
        return rows, places, misfit

    def _under(self, away: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and misfits under given labels."""
        read = self._read(away, places)
        rows = self._inside(read)
        seen = self._retrain(rows, places)
        misfit = _apart(away, seen)
        step = read - self._read(seen, places)
        for _ in range(self._corrections):
            proposal = self._inside(rows + step)
            seen = self._retrain(proposal, places)
            apart = _apart(away, seen)
            better = apart < misfit
            rows, misfit = torch.where(better[:, None], proposal, rows), torch.where(better, apart, misfit)
            step = torch.where(better[:, None], read - self._read(seen, places), gauss_newton.SHRINK * step)
        return rows, misfit

    @property
    def _corrections(self) -> int:
        return _CORRECTIONS if self.network is None else 0

    def _read(self, away: Tensor, places: Tensor) -> Tensor:
        if self.network is not None:
            return self.network.rows(_direction(away)).to(torch.float64)
        return self.ridge.rows(_direction(away), places).to(torch.float64)

    def _inside(self, rows: Tensor) -> Tensor:
        return rows if self.bounds is None else rows.clamp(*self.bounds)

    def _retrain(self, rows: Tensor, places: Tensor) -> Tensor:
        """What these rows would have done."""
        labels = torch.tensor([self.ridge.classes[place] for place in places.tolist()])
        like = self.shadows.X
        return self.sight.image(self.shadows.train((rows.to(like).reshape(-1, *like.shape[1:]), labels))).double()

    def _check(self, away: Tensor) -> None:
        """Refuse a model that was trained in another way."""
        sizes = away.norm(dim=1)
        alike = (_direction(away) @ self.ridge.features.T).max(dim=1).values
        strange = (sizes > 3 * self.largest) | ((alike < 0.1) & (sizes > self.largest))
        if bool(strange.any()):
            raise checks.NotReproduced(
                f"The released model is {float(sizes[strange].max()):.3g} from where this recipe leads with the known "
                f"rows, and no shadow row moved it by more than {self.largest:.3g} or in a like direction: the recipe, "
                "its seed (initial weights) or the known rows are not this model's. Without the initial weights this "
                "attack is not possible."
            )


def reconstructor(
    recipe: Recipe,
    known_X: Any,
    known_y: Any,
    shadow_X: Any,
    shadow_y: Any,
    *,
    method: Method = "ridge",
    access: Access = "weights",
    layers: Sequence[int] | None = None,
    probes: Any = 200,
    epochs: int = 100,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    position: int | None = None,
    start: nn.Module | None = None,
    folder: str | Path | None = None,
    workers: pool.Workers = None,
    models: Shadows | None = None,
    tune: Reconstructor | None = None,
    seed: int = 0,
) -> Reconstructor:
    """Train shadow models on the known rows plus each shadow row, and learn to read the row off the model.

    ``layers`` are the numbers of the layers that the attack may look at (all by default). ``probes`` are the rows whose
    answers a black-box attack sees, or how many of the shadow rows to take. ``models`` are shadow models trained
    before; ``tune`` continues from a network learned for another fixed set. ``epochs`` are the network's.
    """
    started, seed = time.perf_counter(), checked_seed(seed)
    if method not in ("ridge", "network") or access not in ("weights", "logits"):
        raise InvalidInput(f'method is "ridge" or "network" and access "weights" or "logits"; got {method}, {access}.')
    if models is None:
        models = shadows(
            recipe, known_X, known_y, shadow_X, shadow_y, position=position, start=start, folder=folder, workers=workers
        )
    if len(models.X) < 2:
        raise InvalidInput("A reconstructor needs at least two shadow rows; a few hundred is where it starts to work.")
    queries = None if access == "weights" else probe_rows(probes, models.X)
    looked = sight(recipe, models.reference, layers=layers, probes=queries)
    away = looked.image(models.differences)
    features, held = _direction(away), min(_HELD, max(1, len(away) // 20))
    told = ridge.fit(features[held:], looked.by_layer(away)[held:], models.X[held:], models.y[held:])
    learned = None
    if method == "network":
        previous = None if tune is None else tune.network
        learned = _fit_network(recipe)(features[held:], models.X[held:], epochs=epochs, seed=seed, start=previous)
    attack = Reconstructor(
        recipe, method, access, models, torch.as_tensor(known_X), looked, float(away.norm(dim=1).max()), told, learned,
        Gauge(), bounds, seed, 0.0,
    )  # fmt: skip
    rows, _, misfit = attack.rebuild(away[:held].double())
    truth = models.X[:held].flatten(1).double()
    others = torch.cat([attack.known.flatten(1), models.X[held:].flatten(1)]).double()
    apart = torch.cdist(truth, others).square().min(dim=1).values / truth.shape[1]
    gauge = Gauge.of(rows, truth, misfit, apart)
    return replace(attack, gauge=gauge, seconds=time.perf_counter() - started)


def _apart(away: Tensor, seen: Tensor) -> Tensor:
    """How far what was seen is from what a row did, over the size of that [N]."""
    apart: Tensor = (away - seen).norm(dim=1) / away.norm(dim=1)
    return apart


def _direction(away: Tensor) -> Tensor:
    """Differences of features [P] or [N, P] as directions [N, P]."""
    return normalize(away.reshape(-1, away.shape[-1]), dim=1).to(torch.float32)


def _fit_network(recipe: Recipe) -> Callable[..., network.NetworkMap]:
    """The paper's network for the recipe's kind of model: dense for MNIST, transposed convolutions for CIFAR-10."""
    shape = getattr(recipe.initial_model(), "input_shape", ())
    if as_mlp(recipe) is not None or len(shape) != 3 or any(side % 4 for side in shape[1:]):
        return network.fit
    return functools.partial(picture_network.fit, shape=tuple(shape))
