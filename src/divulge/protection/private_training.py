"""How a model is trained at an epsilon: a network by its recipe, a pipeline of scikit-learn, or a user's function.

Each kind says three things: how to train at an epsilon, what is proven there, and how the insider's reconstruction is
tried there. ``divulge.protection.price_study`` measures a curve with them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.core.progress import tick
from divulge.core.validation import checked_choice
from divulge.informed import private_attack, private_linear
from divulge.oracles.local.sklearn_estimator import refit
from divulge.protection import bounds, mechanisms
from divulge.protection.information import Units
from divulge.protection.recommend import Schedule, privacy_for
from divulge.training.private import accounting
from divulge.training.private.logistic import PrivateEstimator, private_logistic
from divulge.training.private.preprocessing import Scaling
from divulge.training.private.trainer import train_many

Array = NDArray[np.float64]
CLIP = 1.0


@dataclass(frozen=True)
class Sides:
    """Training records and unseen ones, with labels."""

    X: Tensor
    y: Tensor
    unseen: Tensor
    unseen_labels: Tensor


class PrivateTraining(Protocol):
    """How models of one kind are trained at an epsilon."""

    delta: float

    def train(self, X: Any, y: Any, epsilon: float, seed: int) -> Any:
        """A model at this epsilon; infinite for one without noise."""

    def noise(self, epsilon: float) -> float | None:
        """The noise multiplier of this epsilon, where there is one."""

    def proven(self, kappa: float, epsilon: float) -> float:
        """The largest chance at this epsilon of an event that has chance ``kappa`` without the record."""

    def rebuilt(self, epsilon: float, targets: int, seed: int) -> Array | None:
        """The squared errors [t, d] of the insider's reconstructions in units of the columns' spread; None if there is
        no attack for this kind."""

    @property
    def why_not_rebuilt(self) -> str:
        """Why there is no attack, in a sentence; empty if there is one."""


def spread(sides: Sides, units: Units) -> Array:
    """By what errors are divided [d]: each column's standard deviation, or the root of the mean variance for all."""
    checked_choice("units", units, ("data", "scaled"))
    deviation = torch.cat([sides.X, sides.unseen]).flatten(1).double().std(dim=0).numpy()
    if units == "data":
        return np.full_like(deviation, max(float(np.sqrt(np.square(deviation).mean())), 1e-300))
    return np.where(deviation > 0, deviation, 1.0)


@dataclass(frozen=True)
class OfRecipe:
    """A network, trained by DP-SGD: full batches, or Poisson samples where the recipe has batches."""

    recipe: Any
    sides: Sides
    delta: float
    units: Units

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule.of(self.recipe, len(self.sides.X))

    def noise(self, epsilon: float) -> float | None:
        if math.isinf(epsilon):
            return 0.0
        return privacy_for(self.recipe, len(self.sides.X), epsilon=epsilon, delta=self.delta).noise_multiplier

    def train(self, X: Any, y: Any, epsilon: float, seed: int) -> Any:
        tick()
        if math.isinf(epsilon):
            return dataclasses.replace(self.recipe, privacy=None, seed=seed).train(X, y)
        private = self._private(self.noise(epsilon) or 0.0, seed)
        return dataclasses.replace(private, seed=seed).train(X, y)

    def proven(self, kappa: float, epsilon: float) -> float:
        noise = self.noise(epsilon)
        if not noise:
            return 1.0
        if self.schedule.full_batch:
            return bounds.reconstruction_bound(kappa, gaussian=mechanisms.gaussian_mu(noise, self.schedule.steps))
        rate, steps = self.schedule.sampling_rate, self.schedule.steps
        return mechanisms.subsampled_bound(kappa, noise_multiplier=noise, sampling_rate=rate, steps=steps)

    @property
    def why_not_rebuilt(self) -> str:
        if len(self.sides.unseen) < 2 * private_attack.HELD:
            return f"it takes at least {2 * private_attack.HELD} unseen records."
        if self.sides.y.is_floating_point():
            return "the reconstruction attack is for classes."
        return ""

    @cached_property
    def _statistics(self) -> Any:
        """Shadow models of all records but 60; one set serves every epsilon."""
        kept = len(self.sides.X) - min(60, len(self.sides.X) // 4)
        low, high = float(self.sides.X.min()), float(self.sides.X.max())
        return private_attack.learn(
            self._private(1.0, 0), self.sides.X[:kept], self.sides.y[:kept], self.sides.unseen[:400],
            self.sides.unseen_labels[:400], bounds=(low, high),
        )  # fmt: skip

    def rebuilt(self, epsilon: float, targets: int, seed: int) -> Array | None:
        if self.why_not_rebuilt:
            return None
        kept = len(self._statistics.known[0])
        X, y = self.sides.X[kept : kept + targets], self.sides.y[kept : kept + targets]
        noise = self.noise(epsilon) or 0.0
        attack = self._statistics.against(noise, seed=seed)
        seeds = [seed + 1000 + number for number in range(len(X))]
        known_X, known_y = self._statistics.known
        released = train_many(self._private(noise, 0), known_X, known_y, X, y, seeds)
        rows, _ = attack(released)
        errors: Array = np.square((rows - X.flatten(1).double()).numpy() / spread(self.sides, self.units))
        return errors

    def _private(self, noise: float, seed: int) -> Any:
        from divulge.training import Privacy

        privacy = Privacy(noise_multiplier=noise, clip=CLIP, noise_seed=seed, delta=self.delta)
        return dataclasses.replace(self.recipe, privacy=privacy)


@dataclass(frozen=True)
class OfPipeline:
    """A logistic or softmax regression of scikit-learn, alone or after a scaler, by output perturbation."""

    estimator: Any
    sides: Sides
    delta: float
    ranges: Array
    scaling: Scaling
    units: Units

    def noise(self, epsilon: float) -> float | None:
        return 0.0 if math.isinf(epsilon) else accounting.noise_for(epsilon, delta=self.delta, steps=1)

    def train(self, X: Any, y: Any, epsilon: float, seed: int) -> Any:
        from sklearn.base import clone

        tick()
        rows, labels = np.asarray(X, dtype=np.float64), np.asarray(y)
        if math.isinf(epsilon):
            return refit(clone(self.estimator), rows, labels)
        return self._released(self._private(rows, labels, epsilon, seed))

    def proven(self, kappa: float, epsilon: float) -> float:
        noise = self.noise(epsilon)
        return bounds.reconstruction_bound(kappa, gaussian=1 / noise) if noise else 1.0

    why_not_rebuilt = ""

    def rebuilt(self, epsilon: float, targets: int, seed: int) -> Array | None:
        X, y = (part.numpy() for part in (self.sides.X, self.sides.y))
        scale, errors = spread(self.sides, self.units), []
        shadows = self._features(self.sides.unseen.numpy().astype(np.float64)), self.sides.unseen_labels.numpy()
        for record in range(min(targets, len(X))):
            known = np.delete(X, record, axis=0).astype(np.float64), np.delete(y, record)
            if math.isinf(epsilon):
                errors.append(self._exactly(record, known))
                continue
            released = self._private(X.astype(np.float64), y, epsilon, seed + 1000 + record)
            x, _ = private_linear.rebuild(released, self._features(known[0]), known[1], *shadows)
            errors.append((self._row(x) - X[record]) / scale)
        return np.square(np.array(errors))

    @cached_property
    def _plain(self) -> Any:
        """The model without any protection."""
        return self.train(self.sides.X, self.sides.y, math.inf, 0)

    def _exactly(self, record: int, known: tuple[Array, Array]) -> Array:
        """The insider's attack on the model as it is."""
        from divulge.core.errors import DivulgeError
        from divulge.informed import glm

        X = self.sides.X.numpy().astype(np.float64)
        try:
            found = glm(self._plain, *known, refits=0).x
        except DivulgeError:
            return np.full(X.shape[1], np.inf)
        return np.asarray((found - X[record]) / spread(self.sides, self.units), dtype=np.float64)

    def _private(self, X: Array, y: Array, epsilon: float, seed: int) -> PrivateEstimator:
        return private_logistic(
            self._features(X), y, epsilon=epsilon, delta=self.delta, ranges=self.ranges, scaling=self.scaling, seed=seed
        )

    def _features(self, X: Array) -> Array:
        """What the private model is trained on: the columns themselves."""
        return X

    def _row(self, features: Array) -> Array:
        """A record of its features."""
        return features

    def _released(self, private: PrivateEstimator) -> Any:
        """A model that takes records."""
        return private.estimator


@dataclass(frozen=True)
class OfFunction:
    """A user's own private training: a function from records, labels, an epsilon and a seed to a model."""

    function: Callable[[Any, Any, float, int], Any]
    delta: float

    def noise(self, epsilon: float) -> float | None:
        return None

    def train(self, X: Any, y: Any, epsilon: float, seed: int) -> Any:
        tick()
        return self.function(X, y, epsilon, seed)

    def proven(self, kappa: float, epsilon: float) -> float:
        return 1.0 if math.isinf(epsilon) else bounds.reconstruction_bound(kappa, epsilon=epsilon, delta=self.delta)

    why_not_rebuilt = "a reconstruction attack for a training function of your own is not known."

    def rebuilt(self, epsilon: float, targets: int, seed: int) -> Array | None:
        return None


def training_of(
    train: Any,
    sides: Sides,
    *,
    delta: float,
    ranges: Any = None,
    scaling: Scaling = "ranges",
    units: Units = "scaled",
) -> Any:
    """The kind of private training that fits a recipe, an estimator or a function.

    Parameters
    ----------
    train : Recipe, estimator or callable
        How the model is trained.
    sides : Sides
        The records.
    delta : float
        Of (epsilon, delta)-DP.
    ranges : array [d, 2], optional
        Declared ranges of the columns, for estimators; those of the unseen records by default.
    scaling : {"ranges", "moments", "quantiles"}, default "ranges"
        How a private pipeline scales its columns.
    units : {"scaled", "data"}, default "scaled"
        Of the errors of reconstructions.

    Returns
    -------
    PrivateTraining

    Raises
    ------
    UnsupportedModel
        There is no private training for this estimator here.
    """
    from divulge.training import Recipe

    if isinstance(train, Recipe):
        return OfRecipe(train, sides, delta, units)
    if hasattr(train, "fit"):
        from sklearn.linear_model import LogisticRegression

        view = getattr(train, "view", None)  # of a table of mixed columns
        own = train if view is None else train.estimator
        final = own[-1] if hasattr(own, "steps") else own
        if not isinstance(final, LogisticRegression):
            raise UnsupportedModel(
                f"There is no private training for a {type(final).__name__} here; a logistic regression, alone or in a "
                "pipeline, has one. Give a function (X, y, epsilon, seed) instead."
            )
        if view is not None:
            from divulge.protection.private_tables import table_training

            return table_training(train, sides, delta, scaling, units)
        return OfPipeline(train, sides, delta, _ranges(ranges, sides), scaling, units)
    if callable(train):
        return OfFunction(train, delta)
    raise InvalidInput("Say how the model is trained: a Recipe, a scikit-learn estimator or a function.")


def _ranges(declared: Any, sides: Sides) -> Array:
    if declared is not None:
        return np.asarray(declared, dtype=np.float64)
    low, high = (getattr(sides.unseen.double(), end)(dim=0).values.numpy() for end in ("min", "max"))
    return np.column_stack([low, np.where(high > low, high, low + 1)])
