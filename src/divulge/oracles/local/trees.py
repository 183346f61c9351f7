"""XGBoost, LightGBM and CatBoost models as oracles: boosters, their estimators, and their native files.

A classifier answers with its raw scores before the sigmoid or softmax ("logits"), or with probabilities where
``output`` asks for them. A regression answers with its predictions ("quantities"), and any other objective, such as
ranking, with its raw scores. Trees are piecewise constant, so there are no gradients to ask for.

XGBoost computes in float32, and so does its oracle. LightGBM and CatBoost compute in float64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.errors import AccessDenied, InvalidInput, MissingPackage, TargetError
from divulge.oracles.arguments import checked_batch_size
from divulge.oracles.base import Access, Oracle, OutputKind, check_access
from divulge.oracles.local.estimator_scores import fitted
from divulge.oracles.local.torch_module import OUTPUTS
from divulge.oracles.rows import in_batches

Booster = Any  # of xgboost, lightgbm or catboost; no package is imported unless a model of its own comes
Array = NDArray[Any]
LIGHTGBM_FILES = (".txt",)
CATBOOST_FILES = (".cbm",)


@dataclass(frozen=True)
class BoostedTrees:
    """A booster as functions of rows: raw scores, and predictions (probabilities or quantities)."""

    width: int
    task: str  # "classification", "regression" or "other"
    dtype: torch.dtype
    raw: Callable[[Array], Array]
    predicted: Callable[[Array], Array]


def is_boosted(source: Any) -> bool:
    """Whether this is an XGBoost, LightGBM or CatBoost model on numbers: a booster, or one of their estimators."""
    package = type(source).__module__.partition(".")[0]
    if package == "catboost":
        return hasattr(source, "get_all_params") and not (source.is_fitted() and source.get_cat_feature_indices())
    return package in ("xgboost", "lightgbm") and (
        type(source).__name__ == "Booster" or hasattr(source, "get_booster") or hasattr(source, "booster_")
    )


class TreeOracle(Oracle):
    """An XGBoost or LightGBM model: values and labels, no gradients.

    Parameters
    ----------
    model : xgboost or lightgbm Booster, or a fitted model of their scikit-learn classes
        The trees.
    access : {"label", "value"}, default "value"
        What may be asked.
    budget : int or None, default None
        The largest total number of rows.
    output : {"logits", "probabilities", "log-probabilities"} or None, default None
        What a classifier shows; its raw scores by default.
    batch_size : int or None, default None
        Rows computed at once.

    Raises
    ------
    AccessDenied
        If gradients or weights are asked for.
    InvalidInput
        If the model is not fitted, or ``output`` is given for a model that is no classifier.

    Examples
    --------
    >>> import numpy as np
    >>> from lightgbm import LGBMClassifier
    >>> from divulge.oracles.local.trees import TreeOracle
    >>> X = np.arange(40.0).reshape(-1, 1)
    >>> model = LGBMClassifier(n_estimators=5, min_child_samples=2, verbose=-1).fit(X, X[:, 0] > 19)
    >>> oracle = TreeOracle(model)
    >>> oracle.output_kind, oracle.label([[3.0], [35.0]]).tolist()
    ('logits', [0, 1])
    """

    def __init__(
        self,
        model: object,
        *,
        access: Access = "value",
        budget: int | None = None,
        output: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        check_access(access)
        if access in ("gradient", "weights"):
            raise AccessDenied(
                f"Trees are piecewise constant and have no {access} to show; choose label or value access."
            )
        self._trees = trees = _boosted_trees(model)
        if output is not None and trees.task != "classification":
            raise InvalidInput("This model is not a classifier, so it shows values as they are; leave output= out.")
        if output is not None and output not in OUTPUTS:
            raise InvalidInput(f'output is "logits", "probabilities" or "log-probabilities", not {output!r}.')
        self._output = output
        kinds: dict[str, OutputKind] = {"classification": "logits", "regression": "quantities", "other": "scores"}
        kind: OutputKind = kinds[trees.task] if output is None else output  # type: ignore[assignment]
        outputs = self._values(np.zeros((2, trees.width))).shape[1]
        super().__init__(
            input_dim=trees.width,
            output_dim=outputs,
            access=access,
            budget=budget,
            dtype=trees.dtype,
            output_kind=kind,
        )
        self._batch_size = checked_batch_size(batch_size)

    def _values(self, X: Array) -> Tensor:
        trees = self._trees
        score = trees.predicted if trees.task == "regression" or self._output in OUTPUTS[1:] else trees.raw
        try:
            values = np.asarray(score(X))
        except Exception as error:  # the packages raise classes of their own
            fault = next(iter(str(error).splitlines()), "")
            raise TargetError(f"The trees failed on {len(X)} rows: {type(error).__name__}: {fault}") from error
        values = values.reshape(len(X), -1)
        if self._output in OUTPUTS[1:]:
            values = values if values.shape[1] > 1 else np.concatenate([1 - values, values], axis=1)
            values = np.log(values) if self._output == "log-probabilities" else values
        return torch.from_numpy(np.ascontiguousarray(values)).to(trees.dtype)

    def _value(self, X: Tensor) -> Tensor:
        return in_batches(X, self._batch_size, lambda rows: (self._values(rows.numpy()),))[0]


def load_booster(path: Path) -> Booster:
    """The booster in a native file: .json or .ubj of XGBoost, .txt of LightGBM, .cbm of CatBoost."""
    suffix = path.suffix.lower()
    try:
        if suffix in CATBOOST_FILES:
            import catboost

            return catboost.CatBoost().load_model(str(path))
        if suffix in LIGHTGBM_FILES:
            import lightgbm

            return lightgbm.Booster(model_file=str(path))
        import xgboost

        return xgboost.Booster(model_file=str(path))
    except ImportError as error:
        package = {".txt": "lightgbm", ".cbm": "catboost"}.get(suffix, "xgboost")
        extra = "catboost" if package == "catboost" else "trees"
        raise MissingPackage(f"{path.name} is read by {package}; install divulge[{extra}].") from error
    except Exception as error:  # the packages raise classes of their own
        fault = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InvalidInput(f"{path} is not a readable model of trees: {fault[:200]}") from error


def is_booster_file(path: Path) -> bool:
    """Whether this file is a model of trees: by its ending, and for text and JSON by its first bytes."""
    starts = {".ubj": b"", ".cbm": b"", ".json": b'"learner"', ".txt": b"tree\n"}
    suffix = path.suffix.lower()
    if suffix not in starts:
        return False
    with path.open("rb") as file:
        return starts[suffix] in file.read(200)


# -- the two packages -------------------------------------------------------------------------------------------------


def _boosted_trees(model: object) -> BoostedTrees:
    if type(model).__module__.startswith("catboost"):
        return _catboost(model)
    model = model if type(model).__name__ == "Booster" else fitted(model)
    if type(model).__module__.startswith("xgboost"):
        return _xgboost(model)
    booster = getattr(model, "booster_", model)
    return _lightgbm(booster)


def _xgboost(model: Any) -> BoostedTrees:
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    objective = str(json.loads(booster.save_config())["learner"]["objective"]["name"])
    best = getattr(model, "best_iteration", None) if hasattr(model, "early_stopping_rounds") else None
    rounds = (0, 0) if best is None else (0, int(best) + 1)  # (0, 0) stands for all of them

    def score(kind: str) -> Callable[[Array], Array]:
        return lambda X: booster.inplace_predict(
            np.asarray(X, dtype=np.float32), predict_type=kind, iteration_range=rounds, validate_features=False
        )

    if objective.startswith(("binary:logi", "multi:")):
        raw = score("margin")
        return BoostedTrees(booster.num_features(), "classification", torch.float32, raw, _probabilities(raw))
    task = "regression" if objective.startswith(("reg:", "count:")) else "other"
    return BoostedTrees(booster.num_features(), task, torch.float32, score("margin"), score("value"))


def _lightgbm(booster: Any) -> BoostedTrees:
    header = booster.model_to_string(num_iteration=1).partition("\n\n")[0]
    objective = next((line.partition("=")[2] for line in header.splitlines() if line.startswith("objective=")), "")
    name = objective.split(" ")[0]

    def score(*, raw: bool) -> Callable[[Array], Array]:
        return lambda X: np.asarray(booster.predict(np.asarray(X, dtype=np.float64), raw_score=raw))

    regressions = {"regression", "regression_l1", "huber", "fair", "poisson", "quantile", "mape", "gamma", "tweedie"}
    classes = {"binary", "multiclass", "softmax", "multiclassova", "cross_entropy"}
    task = "classification" if name in classes else "regression" if name in regressions else "other"
    return BoostedTrees(booster.num_feature(), task, torch.float64, score(raw=True), score(raw=False))


def _catboost(model: Any) -> BoostedTrees:
    if not model.is_fitted():
        raise InvalidInput(f"{type(model).__name__} is not fitted; call its fit first.")
    loss = str(model.get_all_params().get("loss_function", "")).partition(":")[0]

    def score(kind: str) -> Callable[[Array], Array]:
        return lambda X: np.asarray(model.predict(np.asarray(X, dtype=np.float64), prediction_type=kind))

    width = len(model.feature_names_ or ())
    raw = score("RawFormulaVal")
    if loss in ("Logloss", "CrossEntropy", "MultiClass"):
        return BoostedTrees(width, "classification", torch.float64, raw, _probabilities(raw))
    regressions = ("RMSE", "MAE", "Quantile", "LogLinQuantile", "MAPE", "Huber", "Expectile", "Lq", "MultiRMSE")
    task = "regression" if loss in regressions else "other"
    return BoostedTrees(width, task, torch.float64, raw, raw)


def _probabilities(raw: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Probabilities from raw scores; XGBoost's own prediction for multi:softmax is the class alone."""

    def probabilities(X: Array) -> Array:
        scores = torch.from_numpy(np.asarray(raw(X)).reshape(len(X), -1))
        shown = torch.sigmoid(scores) if scores.shape[1] == 1 else torch.softmax(scores, dim=1)
        return np.asarray(shown.numpy())

    return probabilities
