"""Fitted scikit-learn estimators behind the counter.

Linear models and multi-layer perceptrons, alone or at the end of a pipeline of affine steps (scalers, PCA), are read
into an equivalent torch MLP in float64: values, exact gradients and weights come from it, once it has been seen to
agree with the estimator itself. Every other estimator answers values or labels through its own methods.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput, TargetError, UnsupportedModel
from divulge.models import MLP
from divulge.oracles.base import Access, Oracle, check_access, in_batches
from divulge.oracles.torch_model import TorchOracle, checked_batch_size, with_output

Affine = tuple[np.ndarray, np.ndarray]
"""A [k, d] and b [k] of a step x -> A x + b."""

_LINEAR = {
    "ARDRegression", "BayesianRidge", "ElasticNet", "ElasticNetCV", "HuberRegressor", "Lars", "LarsCV", "Lasso",
    "LassoCV", "LassoLars", "LassoLarsCV", "LassoLarsIC", "LinearDiscriminantAnalysis", "LinearRegression", "LinearSVC",
    "LinearSVR", "LogisticRegression", "LogisticRegressionCV", "OrthogonalMatchingPursuit", "Perceptron",
    "OrthogonalMatchingPursuitCV", "PassiveAggressiveClassifier", "PassiveAggressiveRegressor", "QuantileRegressor",
    "Ridge", "RidgeCV", "RidgeClassifier", "RidgeClassifierCV", "SGDClassifier", "SGDRegressor", "TheilSenRegressor",
}  # fmt: skip
_PERCEPTRONS = {"MLPClassifier", "MLPRegressor"}
_ACTIVATIONS = {"relu": "relu", "tanh": "tanh", "logistic": "sigmoid"}
_OUTPUTS = {"logits", "probabilities", "log-probabilities"}


def is_estimator(source: Any) -> bool:
    """Whether this looks like a scikit-learn estimator (a class with fit and predict, or one that keeps to its API)."""
    return hasattr(source, "fit") and hasattr(source, "get_params") and not isinstance(source, type)


def estimator_oracle(
    estimator: Any,
    *,
    access: Access = "value",
    budget: int | None = None,
    output: str | None = None,
    device: str | None = None,
    batch_size: int | None = None,
) -> Oracle:
    """The oracle of a fitted estimator, which answers in float64.

    ``output`` is what a classifier shows: "logits" (the decision function, or what an MLP has before its softmax; the
    default where there are any) or "probabilities". A binary classifier has one logit and two probabilities.
    """
    check_access(access)
    if output is not None and output not in _OUTPUTS:
        raise InvalidInput(f'output is "logits", "probabilities" or "log-probabilities", not {output!r}.')
    estimator = _fitted(estimator)
    try:
        module = as_module(estimator, output=output)
    except UnsupportedModel:
        if access in ("gradient", "weights"):
            raise
        return EstimatorOracle(estimator, access=access, budget=budget, output=output, batch_size=batch_size)
    return TorchOracle(module, access=access, budget=budget, device=device, batch_size=batch_size)


def as_module(estimator: Any, *, output: str | None = None) -> nn.Module:
    """The estimator as a float64 torch module, checked against the estimator's own answers."""
    estimator = _fitted(estimator)
    final, steps = _unfolded(estimator)
    name = type(final).__name__
    if not type(final).__module__.startswith("sklearn.") or name not in _LINEAR | _PERCEPTRONS:
        raise UnsupportedModel(f"The weights of {name} cannot be read; only linear models and MLPs can. Ask values.")
    if output is not None and not hasattr(final, "classes_"):
        raise InvalidInput(f"{name} is not a classifier, so it shows values as they are; leave output= out.")
    layers, activation = _perceptron(final) if name in _PERCEPTRONS else ([_linear(final)], "relu")
    for scale, shift in reversed([_affine(step) for step in steps]):
        A, b = layers[0]
        layers[0] = (A @ scale, A @ shift + b)
    mlp = MLP([layers[0][0].shape[1], *(len(b) for _, b in layers)], activation=activation).double().eval()
    with torch.no_grad():
        for linear, (A, b) in zip((m for m in mlp if isinstance(m, nn.Linear)), layers, strict=True):
            linear.weight.copy_(torch.from_numpy(A))
            linear.bias.copy_(torch.from_numpy(b))
    _check_agreement(mlp, estimator, output)
    return with_output(mlp, output)


class EstimatorOracle(Oracle):
    """An estimator asked through its own methods: values and labels, or labels alone where it has no scores."""

    def __init__(
        self,
        estimator: Any,
        *,
        access: Access = "value",
        budget: int | None = None,
        output: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        self._estimator = estimator = _fitted(estimator)
        self._classes = getattr(estimator, "classes_", None)
        self._method = _score_method(estimator, output)
        self._log = output == "log-probabilities"
        width = _input_width(estimator)
        if self._method is None and access != "label":
            raise UnsupportedModel(
                f'{type(estimator).__name__} tells only labels; build the oracle with access="label".'
            )
        self._names = getattr(estimator, "feature_names_in_", None)
        outputs = 1 if self._method is None else _columns(self._call(self._method, np.zeros((2, width)))).shape[1]
        super().__init__(input_dim=width, output_dim=outputs, access=access, budget=budget)
        self._batch_size = checked_batch_size(batch_size)

    def _call(self, method: str, X: np.ndarray) -> Any:
        rows = X if self._names is None else _named(X, self._names)
        try:
            return _quietly(getattr(self._estimator, method), rows)
        except Exception as error:
            name = type(self._estimator).__name__
            raise TargetError(f"{name}.{method} failed: {type(error).__name__}: {error}") from error

    def _value(self, X: Tensor) -> Tensor:
        method = self._method
        assert method is not None  # settled when the oracle was built
        (values,) = in_batches(X, self._batch_size, lambda rows: (_columns(self._call(method, rows.numpy())),))
        return values.log() if self._log else values

    def _label(self, X: Tensor) -> Tensor:
        if self._classes is None:  # a regressor decides by its sign
            return super()._label(X)
        classes = np.asarray(self._classes)
        return in_batches(X, self._batch_size, lambda rows: (_indices(self._call("predict", rows.numpy()), classes),))[
            0
        ]


# -- reading an estimator ---------------------------------------------------------------------------------------------


def _fitted(estimator: Any) -> Any:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise InvalidInput(f"{type(estimator).__name__} is not fitted; call its fit first.") from error
    except (AttributeError, TypeError):
        pass  # not derived from scikit-learn's classes; its first answer will tell
    estimator = getattr(estimator, "best_estimator_", estimator)  # a finished search stands for what it found
    if not hasattr(estimator, "predict"):
        raise UnsupportedModel(f"{type(estimator).__name__} does not predict; give an estimator that does.")
    return estimator


def _unfolded(estimator: Any) -> tuple[Any, list[Any]]:
    """The last estimator of a pipeline, and the steps before it, nested pipelines flattened."""
    if not hasattr(estimator, "steps"):
        return getattr(estimator, "best_estimator_", estimator), []
    steps: list[Any] = []
    for _, step in estimator.steps[:-1]:
        inner, before = _unfolded(step)
        steps += [*before, inner]
    final, before = _unfolded(estimator.steps[-1][1])
    return final, [step for step in [*steps, *before] if step is not None and not isinstance(step, str)]


def _linear(model: Any) -> Affine:
    coef = np.atleast_2d(np.asarray(_dense(model.coef_), dtype=np.float64))
    return coef, np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64), (len(coef),)).copy()


def _perceptron(model: Any) -> tuple[list[Affine], str]:
    if model.out_activation_ not in ("identity", "logistic", "softmax"):
        raise UnsupportedModel(f"An MLP with the output {model.out_activation_!r} cannot be read.")
    if model.out_activation_ == "logistic" and model.n_outputs_ > 1:
        raise UnsupportedModel("A multi-label MLPClassifier cannot be read; ask for its probabilities.")
    layers = [
        (np.asarray(coef, dtype=np.float64).T, np.asarray(intercept, dtype=np.float64))
        for coef, intercept in zip(model.coefs_, model.intercepts_, strict=True)
    ]
    if model.activation == "identity":  # a linear map in several factors
        A, b = layers[0]
        for B, c in layers[1:]:
            A, b = B @ A, B @ b + c
        return [(A, b)], "relu"
    if model.activation not in _ACTIVATIONS:
        raise UnsupportedModel(f"An MLP with the activation {model.activation!r} cannot be read.")
    return layers, _ACTIVATIONS[model.activation]


def _affine(step: Any) -> Affine:
    """A preprocessing step as x -> A x + b; the steps that are not affine are refused by name."""
    name = type(step).__name__ if type(step).__module__.startswith("sklearn.") else "of your own"
    width: Any = getattr(step, "n_features_in_", None)
    if name == "StandardScaler":
        scale = np.ones(width) if step.scale_ is None else step.scale_
        return np.diag(1 / scale), -(step.mean_ if step.with_mean else np.zeros(width)) / scale
    if name == "MinMaxScaler" and not step.clip:
        return np.diag(step.scale_), step.min_
    if name == "RobustScaler":
        scale = np.ones(width) if step.scale_ is None else step.scale_
        return np.diag(1 / scale), -(np.zeros(width) if step.center_ is None else step.center_) / scale
    if name == "PCA":
        A = step.components_.astype(np.float64)
        if step.whiten:
            deviation = np.sqrt(step.explained_variance_)
            A = A / np.maximum(deviation, np.finfo(deviation.dtype).eps)[:, None]
        return A, -A @ step.mean_
    linear = {"MaxAbsScaler", "SelectKBest", "SelectPercentile", "TruncatedSVD", "VarianceThreshold"}
    if name in linear or (name == "FunctionTransformer" and step.func is None and width is not None):
        A = np.asarray(_dense(_quietly(step.transform, np.eye(width))), dtype=np.float64).T
        return A, np.zeros(len(A))
    raise UnsupportedModel(f"The pipeline step {name} cannot be read; scalers and PCA can. Ask values instead.")


def _check_agreement(mlp: MLP, estimator: Any, output: str | None) -> None:
    """Ask module and estimator the same few rows, so that an option or a subclass we do not know cannot mislead."""
    if output in (None, "logits") and hasattr(estimator, "classes_"):
        output = "logits" if hasattr(estimator, "decision_function") else "probabilities"
    own = EstimatorOracle(estimator, output=output)
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((16, own.input_dim)))
    with torch.no_grad():
        ours, theirs = with_output(mlp, output)(rows), own.value(rows)
    tolerance = 1e-6 * (1 + float(theirs.abs().max()))
    if ours.shape != theirs.shape or float((ours - theirs).abs().max()) > tolerance:
        raise UnsupportedModel(
            f"The weights of {type(estimator).__name__} do not give its own {output or 'values'}; ask for values."
        )


# -- asking an estimator ----------------------------------------------------------------------------------------------


def _score_method(estimator: Any, output: str | None) -> str | None:
    """The method that answers values, or None where there are only labels."""
    name = type(estimator).__name__
    if not hasattr(estimator, "classes_"):
        if getattr(estimator, "_estimator_type", None) == "clusterer" or hasattr(estimator, "labels_"):
            raise UnsupportedModel(f"{name} finds clusters; only classifiers and regressors can be asked.")
        if output is not None:
            raise InvalidInput(f"{name} is not a classifier, so it shows values as they are; leave output= out.")
        return "predict"
    has_logits, has_probabilities = hasattr(estimator, "decision_function"), hasattr(estimator, "predict_proba")
    if output is None:
        return "decision_function" if has_logits else "predict_proba" if has_probabilities else None
    if output == "logits":
        if not has_logits:
            raise InvalidInput(f'{name} has no decision function; use output="probabilities".')
        return "decision_function"
    if not has_probabilities:
        raise InvalidInput(f'{name} gives no probabilities; use output="logits".')
    return "predict_proba"


def _columns(answer: Any) -> Tensor:
    if isinstance(answer, list):
        raise UnsupportedModel("An estimator with several outputs, each with its own classes, cannot be asked.")
    values = torch.from_numpy(np.asarray(answer, dtype=np.float64))
    return values.reshape(len(values), -1)


def _indices(predicted: Any, classes: np.ndarray) -> Tensor:
    labels = np.asarray(predicted)
    if labels.ndim > 1 and labels.shape[1] > 1:
        raise UnsupportedModel("An estimator that gives one row several labels cannot be asked for the label.")
    order = np.argsort(classes)
    return torch.from_numpy(order[np.searchsorted(classes, labels.ravel(), sorter=order)])


def _input_width(estimator: Any) -> int:
    width = getattr(estimator, "n_features_in_", None)
    if width is None:
        raise UnsupportedModel(f"{type(estimator).__name__} does not say how many features it takes (n_features_in_).")
    return int(width)


def _named(X: np.ndarray, names: Any) -> Any:
    """Rows under the column names that the estimator was fitted with, where pandas is there to hold them."""
    try:
        import pandas as pd
    except ImportError:
        return X
    return pd.DataFrame(X, columns=list(names))


def _dense(matrix: Any) -> Any:
    return matrix.toarray() if hasattr(matrix, "toarray") else matrix


def _quietly(method: Callable[[Any], Any], X: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*valid feature names.*")
        return method(X)
