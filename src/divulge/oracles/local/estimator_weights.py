"""The weights of fitted scikit-learn estimators: linear models and multi-layer perceptrons as torch MLPs in float64.

An estimator may stand alone or at the end of a pipeline of affine steps (scalers, PCA). The module is compared with the
estimator's own answers before it is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.models import MLP
from divulge.oracles.base import OutputKind
from divulge.oracles.local.estimator_scores import Estimator, EstimatorScorer, fitted, quietly
from divulge.oracles.local.torch_module import OUTPUTS, with_output

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


class ReadEstimator(NamedTuple):
    """An estimator as a float64 torch module, and what the module's outputs mean."""

    module: nn.Module
    kind: OutputKind


def as_module(estimator: Estimator, *, output: str | None = None) -> ReadEstimator:
    """The estimator as a float64 torch module, checked against the estimator's own answers."""
    estimator = fitted(estimator)
    final, steps = _unfolded(estimator)
    name = type(final).__name__
    if not type(final).__module__.startswith("sklearn.") or name not in _LINEAR | _PERCEPTRONS:
        raise UnsupportedModel(f"The weights of {name} cannot be read; only linear models and MLPs can. Ask values.")
    if output is not None and output not in OUTPUTS:
        raise InvalidInput(f'output is "logits", "probabilities" or "log-probabilities", not {output!r}.')
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
    return ReadEstimator(with_output(mlp, output), _checked_kind(mlp, estimator, output))


# -- reading an estimator ---------------------------------------------------------------------------------------------


def _unfolded(estimator: Estimator) -> tuple[Any, list[Any]]:
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
        A = np.asarray(_dense(quietly(step.transform, np.eye(width))), dtype=np.float64).T
        return A, np.zeros(len(A))
    raise UnsupportedModel(f"The pipeline step {name} cannot be read; scalers and PCA can. Ask values instead.")


def _checked_kind(mlp: MLP, estimator: Estimator, output: str | None) -> OutputKind:
    """What the module's outputs mean, once module and estimator answer a few rows alike.

    The comparison catches an option or a subclass of the estimator that changes its answers.
    """
    compared = output
    if output in (None, "logits") and hasattr(estimator, "classes_"):
        compared = "logits" if hasattr(estimator, "decision_function") else "probabilities"
    scorer = EstimatorScorer(estimator, compared)
    rows = scorer.probe()
    with torch.no_grad():
        logits = mlp(torch.from_numpy(rows))
        ours, theirs = with_output(mlp, compared)(torch.from_numpy(rows)), scorer.values(rows)
    tolerance = 1e-6 * (1 + float(theirs.abs().max()))
    if ours.shape != theirs.shape or float((ours - theirs).abs().max()) > tolerance:
        raise UnsupportedModel(
            f"The weights of {type(estimator).__name__} do not give its own {compared or 'values'}; ask for values."
        )
    if output in ("probabilities", "log-probabilities"):
        return "probabilities" if output == "probabilities" else "log-probabilities"
    return scorer.kind(logits)


def _dense(matrix: Any) -> Any:
    return matrix.toarray() if hasattr(matrix, "toarray") else matrix
