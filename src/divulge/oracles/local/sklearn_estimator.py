"""Fitted scikit-learn estimators as oracles.

Linear models and multi-layer perceptrons, alone or behind affine steps, are read into a torch MLP
(``estimator_weights``): values, exact gradients and weights come from it. Every other estimator answers values or
labels through its own methods (``estimator_scores``).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from torch import Tensor

from divulge.core.errors import AccessDenied, UnsupportedModel
from divulge.oracles.arguments import checked_batch_size
from divulge.oracles.base import Access, Oracle, check_access
from divulge.oracles.local.estimator_scores import Estimator, EstimatorScorer, fitted
from divulge.oracles.local.estimator_weights import as_module
from divulge.oracles.local.sklearn_steps import coded_columns
from divulge.oracles.local.table_view import TableView
from divulge.oracles.local.torch_module import TorchOracle
from divulge.oracles.rows import in_batches

if TYPE_CHECKING:
    import pandas as pd


def is_estimator(source: object) -> TypeGuard[Estimator]:
    """Whether this looks like a scikit-learn estimator, or one that follows its conventions."""
    return hasattr(source, "fit") and hasattr(source, "get_params") and not isinstance(source, type)


def refit(estimator: Any, X: Any, y: Any) -> Any:
    """Fit a fresh estimator without the warnings about convergence, which its owner saw when fitting the first one.

    Where ``y`` has places among the classes, class weights by label are read as weights by place.
    """
    from sklearn.exceptions import ConvergenceWarning

    labels = set(np.unique(y).tolist())
    for name, weights in estimator.get_params().items():
        own = name.endswith("class_weight") and isinstance(weights, dict) and len(weights) == len(labels)
        if own and labels != set(weights):
            estimator.set_params(**{name: {place: weights[label] for place, label in enumerate(sorted(weights))}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(X, y)


def estimator_oracle(
    estimator: Estimator,
    *,
    access: Access = "value",
    budget: int | None = None,
    output: str | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    table: pd.DataFrame | None = None,
) -> Oracle:
    """The oracle of a fitted estimator, which answers in float64.

    ``output`` is what a classifier shows: "logits" (the decision function, or the values before an MLP's softmax; the
    default where there are any) or "probabilities". A binary classifier has one logit and two probabilities. ``table``
    holds example rows for an estimator that takes DataFrames of mixed columns.
    """
    oracle = _opened(estimator, access, budget, output, device, batch_size, table)
    oracle.class_names = tuple(_class_name(name) for name in getattr(fitted(estimator), "classes_", ()))
    return oracle


def _class_name(value: Any) -> str:
    """A class as a data file names it: whole numbers without a point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _opened(
    estimator: Estimator,
    access: Access,
    budget: int | None,
    output: str | None,
    device: str | None,
    batch_size: int | None,
    table: pd.DataFrame | None,
) -> Oracle:
    """The estimator as a network where it is one, otherwise through its own methods."""
    check_access(access)
    options = {"access": access, "budget": budget, "batch_size": batch_size}
    if table is not None:
        if access in ("gradient", "weights"):
            raise AccessDenied(f"A table of mixed columns has no {access} to show; choose label or value access.")
        return EstimatorOracle(estimator, output=output, table=table, **options)  # type: ignore[arg-type]
    try:
        module = as_module(estimator, output=output)
    except UnsupportedModel:
        if access in ("gradient", "weights"):
            raise
        return EstimatorOracle(estimator, output=output, **options)  # type: ignore[arg-type]
    oracle = TorchOracle(module.module, device=device, **options)  # type: ignore[arg-type]
    oracle.output_kind = module.kind
    return oracle


class EstimatorOracle(Oracle):
    """An estimator asked through its own methods: values and labels, or labels alone where it has no values.

    Parameters
    ----------
    estimator : fitted estimator
        Anything with scikit-learn's methods.
    access : {"label", "value"}, default "value"
        What may be asked.
    budget : int or None, default None
        The largest total number of rows.
    output : {"logits", "probabilities", "log-probabilities"} or None, default None
        What a classifier shows; by default its decision function, or its probabilities where it has none.
    batch_size : int or None, default None
        Rows computed at once.
    table : pandas.DataFrame or None, default None
        Example rows, for an estimator that takes a table of mixed columns. ``oracle.view`` then says which number
        stands for which value.

    Raises
    ------
    UnsupportedModel
        If the estimator has only labels and ``access`` asks for more.
    InvalidInput
        If it is not fitted, or does not have the output asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from divulge.oracles.local.sklearn_estimator import EstimatorOracle
    >>> model = KNeighborsClassifier(1).fit([[0.0], [1.0]], ["no", "yes"])
    >>> oracle = EstimatorOracle(model)
    >>> oracle.output_kind, oracle.label([[0.9]]).item()
    ('probabilities', 1)
    """

    def __init__(
        self,
        estimator: Estimator,
        *,
        access: Access = "value",
        budget: int | None = None,
        output: str | None = None,
        batch_size: int | None = None,
        table: pd.DataFrame | None = None,
    ) -> None:
        self.view = TableView(table, coded_columns(estimator)) if table is not None else None
        self._scorer = scorer = EstimatorScorer(estimator, output, self.view)
        if scorer.method is None and access != "label":
            raise UnsupportedModel(
                f'{type(scorer.estimator).__name__} tells only labels; build the oracle with access="label".'
            )
        outputs = 1 if scorer.method is None else scorer.values(np.zeros((2, scorer.width))).shape[1]
        super().__init__(
            input_dim=scorer.width,
            output_dim=outputs,
            access=access,
            budget=budget,
            threshold=0.0,
            output_kind="scores" if scorer.method is None else scorer.kind(),
        )
        self._batch_size = checked_batch_size(batch_size)

    def _value(self, X: Tensor) -> Tensor:
        return in_batches(X, self._batch_size, lambda rows: (self._scorer.values(rows.numpy()),))[0]

    def _label(self, X: Tensor) -> Tensor:
        if not self._scorer.decides_by_predict:  # a regressor decides by its sign
            return super()._label(X)
        return in_batches(X, self._batch_size, lambda rows: (self._scorer.labels(rows.numpy()),))[0]
