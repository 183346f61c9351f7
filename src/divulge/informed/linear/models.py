"""Generalised linear models in one form, whatever library or formula they came from.

Every model here minimises sum_i s_i loss(x_i . W + b, y_i) + penalty/2 |W|^2 + intercept_penalty/2 |b|^2, where the
slope of the loss in its linear predictor eta is weight(eta) * (mean(eta) - Y), Y the encoded target. scikit-learn's
estimators divide that objective by C, by n or by nothing at all; ``read`` undoes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from divulge.core.errors import InvalidInput, UnsupportedModel

Array = NDArray[np.float64]
Family = Literal["linear", "logistic", "softmax", "poisson", "gamma", "tweedie"]
FAMILIES: tuple[str, ...] = ("linear", "logistic", "softmax", "poisson", "gamma", "tweedie")


@dataclass(frozen=True)
class LinearModel:
    """Raw coefficients of a generalised linear model, for ``divulge.informed.glm`` where there is no estimator.

    ``penalty`` and ``intercept_penalty`` multiply theta in the gradient of the *summed* loss (lambda, not lambda/n);
    ``mean_penalty=True`` says that they were given for the mean loss instead.
    """

    family: Family
    """The loss: linear, logistic, softmax or Tweedie."""
    coef: Any
    """[d], or [k, d] for several outputs or classes."""
    intercept: Any = None
    """A number or [k]; None for a model without one."""
    penalty: float = 0.0
    """Of the coefficients."""
    intercept_penalty: float = 0.0
    """Of the intercept."""
    mean_penalty: bool = False
    """Whether the penalties were given for the mean loss."""
    classes: Any = None
    """The label of each class, for logistic (two) and softmax; 0, 1, ... by default."""
    power: float = 1.0
    """The variance power of the Tweedie family (1 Poisson, 2 gamma)."""
    class_weight: Any = None
    """"balanced", or a weight for each label, as scikit-learn has them."""
    targets: Literal["given", "signs"] = "given"
    """"signs": a linear classifier fitted to -1 and 1 (ridge classification)."""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise InvalidInput(f"There is no family {self.family!r}; choose one of {', '.join(FAMILIES)}.")
        coef = np.atleast_2d(np.asarray(self.coef, dtype=np.float64))
        if coef.ndim != 2 or not np.isfinite(coef).all():
            raise InvalidInput("Coefficients come as finite numbers [d] or [k, d].")
        if self.family == "softmax" and len(coef) < 2:
            raise InvalidInput("A softmax model has a row of coefficients for each class; got one row (use logistic).")
        if self.family not in ("softmax", "linear") and len(coef) != 1:
            raise InvalidInput(f"A {self.family} model has one row of coefficients; got {len(coef)}.")
        for name in ("penalty", "intercept_penalty"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidInput(f"{name} is a number of at least 0; got {value!r}.")
        object.__setattr__(self, "coef", coef)
        if self.intercept is not None:
            intercept = np.broadcast_to(np.asarray(self.intercept, dtype=np.float64), (len(coef),))
            object.__setattr__(self, "intercept", intercept)
        if self.family in ("logistic", "softmax"):
            classes = np.arange(max(2, len(coef))) if self.classes is None else np.asarray(self.classes)
            if len(classes) != max(2, len(coef)):
                raise InvalidInput(f"{len(coef)} rows of coefficients do not go with {len(classes)} classes.")
            object.__setattr__(self, "classes", classes)

    @property
    def theta(self) -> Array:
        """[d, k], with the intercepts as a last row where there are any."""
        parts = [self.coef.T] if self.intercept is None else [self.coef.T, self.intercept[None]]
        return np.concatenate(parts)

    def penalties(self, total_weight: float) -> Array:
        """The penalty of each row of theta, for a summed loss of that total weight."""
        factor = total_weight if self.mean_penalty else 1.0
        rows = np.full((len(self.theta), 1), self.penalty * factor)
        if self.intercept is not None:
            rows[-1] = self.intercept_penalty * factor
        return rows

    def mean(self, eta: Array) -> Array:
        """g^-1(eta)."""
        if self.family == "linear":
            return eta
        if self.family == "logistic":
            mean: Array = expit(eta)
            return mean
        if self.family == "softmax":
            powers = np.exp(eta - eta.max(axis=1, keepdims=True))
            shares: Array = powers / powers.sum(axis=1, keepdims=True)
            return shares
        rate: Array = np.exp(eta)
        return rate

    def weight(self, eta: Array) -> Array:
        """What multiplies mean - Y in the slope: 1 for a canonical link, mean^(1 - power) for Tweedie."""
        power = {"gamma": 2.0, "tweedie": self.power}.get(self.family, 1.0)
        weight: Array = np.exp((1 - power) * eta)
        return weight if power != 1 else np.ones_like(eta)

    def slope(self, eta: Array, Y: Array) -> Array:
        """The loss's derivative in the linear predictor."""
        return self.weight(eta) * (self.mean(eta) - Y)

    @property
    def discrete(self) -> bool:
        """Whether the target is one of a few labels, so that a reconstruction can be checked against them."""
        return self.classes is not None

    def encode(self, y: Any) -> Array:
        """Targets as [n, k]: one-hot for softmax, 0 and 1 for logistic, -1 and 1 for ridge classification."""
        if not self.discrete:
            Y = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
            if Y.shape[1] != len(self.coef):
                raise InvalidInput(f"The model has {len(self.coef)} outputs; the known targets have {Y.shape[1]}.")
            return Y
        y = np.asarray(y).reshape(-1)
        unknown = ~np.isin(y, self.classes)
        if unknown.any():
            raise InvalidInput(f"The known labels hold {y[unknown][0]!r}, which is none of the model's classes.")
        index = np.searchsorted(self.classes, y) if _sorted(self.classes) else _positions(self.classes, y)
        Y = np.eye(len(self.classes))[index] if len(self.coef) > 1 else index[:, None].astype(np.float64)
        signs: Array = 2 * Y - 1
        return signs if self.targets == "signs" else Y

    def decode(self, Y: Array) -> Any:
        """The target that an encoded row [k] stands for."""
        if not self.discrete:
            return float(Y[0]) if len(Y) == 1 else Y.tolist()
        middle = 0.0 if self.targets == "signs" else 0.5
        index = int(Y[0] > middle) if len(Y) == 1 else int(np.argmax(Y))
        return self.classes.tolist()[index]

    def class_weights(self, y: Any, guess: Any) -> tuple[Array, float]:
        """The class weight of each known row and of the unknown one, if its label is ``guess``."""
        if self.class_weight is None:
            return np.ones(len(y)), 1.0
        known = np.asarray(y).reshape(-1)
        labels = known if guess is None else np.append(known, guess)
        if isinstance(self.class_weight, dict):
            table = {label: float(self.class_weight.get(label, 1.0)) for label in self.classes.tolist()}
        else:
            counts = {label: int((labels == label).sum()) for label in self.classes.tolist()}
            table = {label: len(labels) / (len(counts) * max(1, count)) for label, count in counts.items()}
        weights = np.array([table[label] for label in labels.tolist()])
        return weights[: len(known)], (1.0 if guess is None else float(weights[-1]))


def _sorted(classes: Any) -> bool:
    return bool(np.all(classes[:-1] <= classes[1:]))


def _positions(classes: Any, y: Any) -> Any:
    places = {label: place for place, label in enumerate(classes.tolist())}
    return np.array([places[label] for label in y.tolist()], dtype=int)


# -- scikit-learn's estimators ----------------------------------------------------------------------------------------


def read(estimator: Any) -> LinearModel:
    """The model inside a fitted scikit-learn estimator; a LinearModel is handed through."""
    if isinstance(estimator, LinearModel):
        return estimator
    name = type(estimator).__name__
    for base in type(estimator).__mro__:
        if base.__name__ in _READERS:
            if not hasattr(estimator, "coef_"):
                raise InvalidInput(f"This {name} is not fitted; give the estimator after its fit.")
            return _READERS[base.__name__](estimator)
    known = ", ".join(sorted(_READERS))
    raise UnsupportedModel(
        f"{name} has no closed form here; give one of {known}, or its coefficients as a divulge.informed.LinearModel."
    )


def _intercept(estimator: Any) -> Any:
    return estimator.intercept_ if estimator.fit_intercept else None


def _linear(estimator: Any) -> LinearModel:
    if getattr(estimator, "positive", False):
        raise UnsupportedModel("Coefficients held positive leave no gradient to solve; refit without positive=True.")
    alpha = getattr(estimator, "alpha_", getattr(estimator, "alpha", 0.0))
    if np.ndim(alpha) > 0:
        raise UnsupportedModel("A penalty of its own for each output is not supported; give one output at a time.")
    options: dict[str, Any] = {}
    if hasattr(estimator, "classes_"):
        options = {"classes": estimator.classes_, "targets": "signs", "class_weight": estimator.class_weight}
    return LinearModel("linear", estimator.coef_, _intercept(estimator), penalty=float(alpha), **options)


def _logistic(estimator: Any) -> LinearModel:
    C = np.unique(np.asarray(estimator.C_ if hasattr(estimator, "C_") else estimator.C, dtype=np.float64))
    ratio = getattr(estimator, "l1_ratio_", getattr(estimator, "l1_ratio", None))
    penalty = getattr(estimator, "penalty", "deprecated")
    mixed = any(one not in (None, 0.0) for one in np.asarray(ratio, dtype=object).ravel())
    lasso = penalty in ("l1", "elasticnet") or (penalty == "deprecated" and mixed)
    if lasso or len(C) != 1:
        raise UnsupportedModel(
            "The closed form needs one squared (l2) penalty for all classes; this model has an l1 part or several C."
        )
    strength = 0.0 if penalty is None or not np.isfinite(C[0]) else 1 / float(C[0])
    inner = 0.0
    if estimator.solver == "liblinear":  # its intercept is one more feature, of the value intercept_scaling
        if len(estimator.coef_) > 1:
            raise UnsupportedModel("liblinear fits one model a class; use a solver that fits them together.")
        inner = strength / float(estimator.intercept_scaling) ** 2
    family: Family = "softmax" if len(estimator.coef_) > 1 else "logistic"
    return LinearModel(
        family, estimator.coef_, _intercept(estimator), penalty=strength, intercept_penalty=inner,
        classes=estimator.classes_, class_weight=estimator.class_weight,
    )  # fmt: skip


def _tweedie(estimator: Any) -> LinearModel:
    name = type(estimator).__name__
    power = {"PoissonRegressor": 1.0, "GammaRegressor": 2.0}.get(name, float(getattr(estimator, "power", 0.0)))
    link = getattr(estimator, "link", "log")
    if link == "identity" or (link == "auto" and power <= 0):
        if power != 0:
            raise UnsupportedModel("A Tweedie model with an identity link is supported for power 0 only.")
        return LinearModel("linear", estimator.coef_, _intercept(estimator), float(estimator.alpha), mean_penalty=True)
    families: dict[float, Family] = {1.0: "poisson", 2.0: "gamma"}
    return LinearModel(
        families.get(power, "tweedie"), estimator.coef_, _intercept(estimator), penalty=float(estimator.alpha),
        mean_penalty=True, power=power,
    )  # fmt: skip


_READERS: dict[str, Callable[[Any], LinearModel]] = {
    "LinearRegression": _linear,
    "Ridge": _linear,
    "RidgeCV": _linear,
    "RidgeClassifier": _linear,
    "RidgeClassifierCV": _linear,
    "LogisticRegression": _logistic,
    "LogisticRegressionCV": _logistic,
    "PoissonRegressor": _tweedie,
    "GammaRegressor": _tweedie,
    "TweedieRegressor": _tweedie,
}
