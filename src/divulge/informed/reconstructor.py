"""A reconstructor learned from shadow models (Balle 2022, section IV): trained once, then it reads the unknown row off
any model released for the same known rows.

    attack = divulge.informed.reconstructor(recipe, known_X, known_y, shadow_X, shadow_y)
    record = attack(released)

``method="ridge"`` (the default) is our own, ``"paper"`` the paper's network as printed, and ``"network"`` a network
that starts from ridge's answer and learns what is left. ``access="logits"`` sees only the released model's answers on
probe rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge.core import workers as pool
from divulge.core.errors import InvalidInput
from divulge.core.validation import checked_choice, checked_seed
from divulge.informed import checks
from divulge.informed.inversion import gauss_newton
from divulge.informed.released_view import Access, ReleasedView, probe_rows, released_view
from divulge.informed.result import Record
from divulge.informed.shadow_models import picture_reconstructor, reconstructor_network, residual_network, ridge
from divulge.informed.shadow_models.training import Precision, Shadows, shadows
from divulge.training import Recipe
from divulge.training.batched.shared_setup import as_mlp

Method = Literal["ridge", "network", "paper"]


_CORRECTIONS = 3  # further training runs that may each improve a record read off by ridge
_UNSURE = 0.5  # difference of the scores of two labels below which both are tried
_HELD = 64  # shadow models, at most, that are held out to calibrate the error of a misfit
_OVERCONFIDENT = (
    "a mean squared error of {:.2g} is expected, and of a shadow model held out no more was, whose record came out no "
    "closer than the nearest row held"
)


@dataclass(frozen=True)
class ErrorCalibration:
    """The error that a misfit stands for, calibrated on held-out shadow models: the squared error over the
    record's squared length is a multiple of the squared misfit."""

    usual: float = 1.0
    """Median of the multiple."""
    worst: float = 1.0
    """Largest multiple, which is assumed for a misfit beyond those seen."""
    reach: float = 0.0
    """Largest misfit seen."""
    wrong: float = float("inf")
    """Smallest error expected of a held-out record that came out no closer than the nearest row held."""

    @classmethod
    def of(cls, rows: Tensor, truth: Tensor, misfit: Tensor, nearest: Tensor) -> ErrorCalibration:
        multiple = (rows - truth).square().sum(dim=1) / rows.square().sum(dim=1) / misfit.square()
        calibration = cls(float(multiple.median()), float(multiple.max()), float(misfit.max()))
        wrong = calibration.error(rows, misfit)[(rows - truth).square().mean(dim=1) >= nearest]
        return replace(calibration, wrong=float(wrong.min())) if len(wrong) else calibration

    def error(self, rows: Tensor, misfit: Tensor) -> Tensor:
        """The mean squared error to expect of each row."""
        multiple = torch.where(misfit <= self.reach, self.usual, self.worst)
        return multiple * misfit.square() * rows.square().mean(dim=1)


@dataclass(frozen=True)
class Reconstructor:
    """Call it with a released model (or, for logits, anything that answers the probes) to get a Record; with a list of
    them to get a list.

    A record that was read off is checked by training with it: what the model so trained lacks to the released one says
    how far off the record is. Ridge and ``"network"`` go on from there: the same map turns that lack into a correction.
    """

    recipe: Recipe
    """How released models are trained."""
    method: Method
    """Ridge regression or the network."""
    access: Access
    """What is seen: weights or logits."""
    shadows: Shadows
    """The shadow models that it was learned from."""
    known: Tensor
    """The known rows."""
    view: ReleasedView
    """What is looked at: weights, some layers, or logits."""
    largest: float
    """The longest difference that a shadow row made."""
    ridge: ridge.RidgeMap
    """Tells the label, and for ``method="ridge"`` the row."""
    network: reconstructor_network.NetworkMap | residual_network.ResidualMap | None
    """The reconstructor network, for ``method="network"`` and ``"paper"``."""
    calibration: ErrorCalibration
    """From what a record lacks to its expected error."""
    bounds: tuple[float, float] | None
    """The range of a feature."""
    seed: int
    """Fixes every random choice."""
    seconds: float
    """How long learning took."""

    def __call__(self, released: Any) -> Any:
        """The unknown row of each released model."""
        started = time.perf_counter()
        several = isinstance(released, Sequence) and not isinstance(released, Tensor)
        models = list(released) if isinstance(released, Sequence) else [released]
        if not models:
            raise InvalidInput("There is no released model to attack.")
        away = torch.stack([self.view.of(model) for model in models])
        self._check(away)
        rows, places, misfit = self.rebuild(away)
        predicted = self.calibration.error(rows, misfit)
        anyway = checks.nearest(torch.cat([self.known.flatten(1).to(self.shadows.X), self.shadows.X.flatten(1)]))
        seconds = (time.perf_counter() - started) / len(models)
        runs = float(len(self.shadows.X) + 1 + self._corrections)
        found = []
        for x, place, left, error, moved in zip(rows, places, misfit, predicted, away.norm(dim=1), strict=True):
            reason = checks.doubt(float(error), anyway, float(left))
            if not reason and float(error) >= self.calibration.wrong:
                reason = _OVERCONFIDENT.format(float(error))
            facts = {"moved": float(moved), "misfit": float(left)}
            found.append(
                Record(
                    x, self.ridge.classes[int(place)], float(error), not reason, method=self.method, seconds=seconds,
                    seed=self.seed, reason=reason, training_runs=runs, notes=checks.notes(self.known, x), facts=facts,
                )
            )  # fmt: skip
        return found if several else found[0]

    def rebuild(self, away: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From the effects of the unknown rows [N, F]: the rows, the indices of their labels, and the misfits: the
        shares of the effects that training with the rebuilt rows does not explain."""
        scores = self.ridge.scores(self.view.by_layer(away))
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
        return 0 if self.method == "paper" else _CORRECTIONS

    def _read(self, away: Tensor, places: Tensor) -> Tensor:
        if isinstance(self.network, reconstructor_network.NetworkMap):
            return self.network.rows(away.to(torch.float32)).to(torch.float64)
        rows = self.ridge.rows(_direction(away), places).to(torch.float64)
        return rows if self.network is None else self.network.rows(_direction(away), rows)

    def _inside(self, rows: Tensor) -> Tensor:
        return rows if self.bounds is None else rows.clamp(*self.bounds)

    def _retrain(self, rows: Tensor, places: Tensor) -> Tensor:
        """The effects of these rows, by training with them."""
        labels = torch.tensor([self.ridge.classes[place] for place in places.tolist()])
        like = self.shadows.X
        return self.view.image(self.shadows.train((rows.to(like).reshape(-1, *like.shape[1:]), labels))).double()

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
    epochs: int | None = None,
    precision: Precision | None = None,
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

    The attack is that of Balle 2022, section IV.

    Parameters
    ----------
    recipe : Recipe
        How the released model was trained.
    known_X : array [n, d]
        The training rows that the adversary knows.
    known_y : array [n]
        Their labels or targets.
    shadow_X : array [m, d]
        Rows of the unknown one's kind.
    shadow_y : array [m]
        Their labels or targets.
    method : {"ridge", "network", "paper"}, default "ridge"
        A ridge regression a class; a network that starts from it and learns what is left; the paper's reconstructor
        network as printed.
    access : {"weights", "logits"}, default "weights"
        What the adversary sees of the released model.
    layers : sequence of int, optional
        The layers that the attack may look at; all by default.
    probes : array [k, d] or int, default 200
        For ``access="logits"`` the rows whose logits are seen, or how many of the shadow rows to take.
    epochs : int, optional
        Of the reconstructor network; 100 as printed, 20 for ``method="network"``.
    precision : {"float64", "float32", "bfloat16"}, optional
        Of the shadow models; the recipe's own by default. "bfloat16" also makes the products of the paper's network in
        bfloat16, which is faster on processors that have it and slower on others.
    bounds : (float, float) or None, default (0.0, 1.0)
        The range of a feature.
    position : int, optional
        Where the unknown row stood in the training set; last by default.
    start : nn.Module, optional
        Replaces the recipe's initial model.
    folder : str or Path, optional
        Keeps the shadow models, and resumes.
    workers : int or str, optional
        A number of processes, or a Dask scheduler.
    models : Shadows, optional
        Shadow models trained before.
    tune : Reconstructor, optional
        A reconstructor of the same method, learned for another set of known rows, whose network goes on learning.
    seed : int, default 0
        Fixes every random choice.

    Returns
    -------
    Reconstructor
        A function from released models to records.

    Raises
    ------
    InvalidInput
        An option is not one of its choices.
    WrongShape
        Rows or labels do not fit the recipe.

    Examples
    --------
    >>> import divulge
    >>> X, y = divulge.datasets.load("iris").train
    >>> recipe = divulge.Recipe(widths=[4, 8, 3], epochs=30, learning_rate=0.5, precision="float64")
    >>> attack = divulge.informed.reconstructor(recipe, X[:30], y[:30], X[31:], y[31:])
    >>> record = attack(recipe.train(X[:31], y[:31]))
    >>> record.x.shape
    torch.Size([4])
    """
    started, seed = time.perf_counter(), checked_seed(seed)
    checked_choice("method", method, ("ridge", "network", "paper"))
    checked_choice("access", access, ("weights", "logits"))
    if models is None:
        models = shadows(
            recipe, known_X, known_y, shadow_X, shadow_y, precision=precision, position=position, start=start,
            folder=folder, workers=workers,
        )  # fmt: skip
    if len(models.X) < 2:
        raise InvalidInput("A reconstructor needs at least two shadow rows; a few hundred is where it starts to work.")
    queries = None if access == "weights" else probe_rows(probes, models.X)
    looked = released_view(recipe, models.reference, layers=layers, probes=queries)
    away = looked.image(models.differences)
    features, held = _direction(away), min(_HELD, max(1, len(away) // 20))
    label_map = ridge.fit(features[held:], looked.by_layer(away)[held:], models.X[held:], models.y[held:])
    learned = _learned(recipe, method, away[held:], models.X[held:], label_map, epochs, seed, precision, tune)
    attack = Reconstructor(
        recipe, method, access, models, torch.as_tensor(known_X), looked, float(away.norm(dim=1).max()), label_map,
        learned, ErrorCalibration(), bounds, seed, 0.0,
    )  # fmt: skip
    rows, _, misfit = attack.rebuild(away[:held].double())
    truth = models.X[:held].flatten(1).double()
    others = torch.cat([attack.known.flatten(1), models.X[held:].flatten(1)]).double()
    apart = torch.cdist(truth, others).square().min(dim=1).values / truth.shape[1]
    calibration = ErrorCalibration.of(rows, truth, misfit, apart)
    return replace(attack, calibration=calibration, seconds=time.perf_counter() - started)


def _apart(away: Tensor, seen: Tensor) -> Tensor:
    """Distance between the observed effects and those of the rows, relative to the latter [N]."""
    apart: Tensor = (away - seen).norm(dim=1) / away.norm(dim=1)
    return apart


def _direction(away: Tensor) -> Tensor:
    """Differences of features [P] or [N, P] as directions [N, P]."""
    return normalize(away.reshape(-1, away.shape[-1]), dim=1).to(torch.float32)


def _learned(
    recipe: Recipe, method: Method, away: Tensor, X: Tensor, first: ridge.RidgeMap, epochs: int | None, seed: int,
    precision: Precision | None, tune: Reconstructor | None,
) -> reconstructor_network.NetworkMap | residual_network.ResidualMap | None:  # fmt: skip
    """The network of a method: the paper's dense one for MNIST or transposed convolutions for CIFAR-10, or our own."""
    start = None if tune is None else tune.network
    if method == "ridge":
        return None
    if method == "network":
        start = start if isinstance(start, residual_network.ResidualMap) else None
        return residual_network.fit(
            _direction(away), first.left_out, X, epochs=epochs or residual_network.EPOCHS, seed=seed, start=start
        )
    start = start if isinstance(start, reconstructor_network.NetworkMap) else None
    inputs, epochs = away.to(torch.float32), epochs or reconstructor_network.EPOCHS
    half = precision == "bfloat16"
    shape = getattr(recipe.initial_model(), "input_shape", ())
    if as_mlp(recipe) is not None or len(shape) != 3 or any(side % 4 for side in shape[1:]):
        return reconstructor_network.fit(inputs, X, epochs=epochs, seed=seed, start=start, half=half)
    return picture_reconstructor.fit(inputs, X, shape=tuple(shape), epochs=epochs, seed=seed, start=start, half=half)
