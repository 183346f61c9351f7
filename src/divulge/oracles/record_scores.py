"""How well a model's answer fits a record's own label or target, for any kind of answer, in one number a record.

A classifier's answer becomes the logit of the probability of the record's label, log p_y - log(1 - p_y), which is
close to Gaussian over models (Carlini et al. 2022, section IV-B). It is computed from logits where they are shown, so
that it keeps its precision where p_y rounds to 1. A regression's answer becomes minus the logarithm of the squared
error. Rows are asked in batches, so memory stays linear in the records and not in the classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.errors import InvalidInput, UnsupportedModel, WrongShape
from divulge.oracles.base import Access, Oracle
from divulge.oracles.factory import oracle
from divulge.oracles.outputs import Outputs, answer_precision, outputs_shown

Task = Literal["classification", "regression"]
ROWS_AT_ONCE = 16_384
"""Rows that are asked at once."""
EXACT = 1e-16
"""A squared error below this part of the targets' variance counts as none."""
SHOWN_BY = 2_048
"""Rows whose answers decide whether they are probabilities."""


@dataclass(frozen=True)
class Asked:
    """A model that is asked how well its answers fit records.

    Attributes
    ----------
    oracle : Oracle
        Through which it is asked.
    classes : array or None
        The labels in the order of the outputs, where the model names them.
    task : {"classification", "regression"}
        What it predicts.
    variance : float
        Of the targets that it was opened with. Errors are measured in units of it, the same for every set of records.
    """

    oracle: Oracle
    classes: NDArray[Any] | None
    task: Task
    variance: float = 0.0
    _shown: list[tuple[Outputs, float]] = field(default_factory=list, repr=False)
    """What the answers are and how precise, by the first records asked about: one rule for all that follow."""

    def indices(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Labels as indices of outputs; -1 for a label that this model does not know."""
        if self.classes is None:
            return np.asarray(y > 0, dtype=np.int64) if self.oracle.output_dim == 1 else y.astype(np.int64)
        place = np.searchsorted(self.classes, y).clip(0, len(self.classes) - 1)
        return np.where(self.classes[place] == y, place, -1).astype(np.int64)

    def fits(self, X: Tensor, y: NDArray[Any]) -> NDArray[np.float64]:
        """How well the answers fit the records [n]: logits of their labels, or minus log squared errors."""
        if self.task == "regression":
            targets = torch.as_tensor(np.asarray(y, dtype=np.float64)).reshape(len(y), -1)
            floor = EXACT * self.variance + torch.finfo(torch.float64).tiny
            return self._by_batches(X, lambda values, part: _squared_error_fit(values, targets[part], floor))
        labels = torch.as_tensor(self.indices(y))

        def fit(values: Tensor, part: slice) -> Tensor:
            if not self._shown:
                first = values[:SHOWN_BY]
                self._shown.append((outputs_shown(first, self.oracle.threshold), answer_precision(first)))
            return _label_logits(values, labels[part], *self._shown[0])

        return self._by_batches(X, fit)

    def agrees(self, X: Tensor, y: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether the model decides for each record's own label [n]."""
        own = self.indices(y)
        parts = [
            self.oracle.label(X[first : first + ROWS_AT_ONCE]).cpu().numpy() for first in range(0, len(X), ROWS_AT_ONCE)
        ]
        return np.asarray(np.concatenate(parts) == own)

    def _by_batches(self, X: Tensor, fit: Any) -> NDArray[np.float64]:
        out = np.empty(len(X))
        for first in range(0, len(X), ROWS_AT_ONCE):
            part = slice(first, min(len(X), first + ROWS_AT_ONCE))
            out[part] = fit(self.oracle.value(X[part]).detach().cpu().to(torch.float64), part).numpy()
        return out


def asked(model: object, y: NDArray[Any], *, access: Access | None = None, **options: Any) -> Asked:
    """Open a model for questions about records whose labels or targets are like ``y``.

    Parameters
    ----------
    model : object
        An oracle, or anything that ``divulge.oracle`` takes.
    y : array [n] or [n, k]
        Labels or targets: they decide whether this is a classification.
    access : {"label", "value", "gradient", "weights"}, optional
        What may be asked; by default values, or labels where the model has nothing else.
    **options
        Further options of ``divulge.oracle``.

    Returns
    -------
    Asked

    Raises
    ------
    InvalidInput
        If the labels do not fit the model.

    Examples
    --------
    >>> import numpy as np, torch
    >>> model = asked(torch.nn.Linear(2, 3), np.array([0, 2]))
    >>> model.task, model.fits(torch.zeros(2, 2), np.array([0, 2])).shape
    ('classification', (2,))
    """
    if isinstance(model, Oracle):
        view = model
    elif access is None:
        try:
            view = oracle(model, access="value", **options)
        except UnsupportedModel:
            view = oracle(model, access="label", **options)
    else:
        view = oracle(model, access=access, **options)
    known = getattr(model, "classes_", None)
    classes = None if known is None else np.asarray(known)
    task: Task = "regression" if classes is None and _is_quantity(view, y) else "classification"
    found = Asked(view, classes, task, float(np.var(y, axis=0).sum()) if y.dtype.kind in "fiub" else 0.0)
    _check_labels(found, y)
    return found


def _is_quantity(view: Oracle, y: NDArray[Any]) -> bool:
    if view.output_kind == "quantities" or y.ndim == 2:
        return True
    return y.dtype.kind == "f" and bool((y != np.round(y)).any())


def _check_labels(model: Asked, y: NDArray[Any]) -> None:
    outputs = model.oracle.output_dim
    if model.task == "regression":
        if y.dtype.kind not in "fiub":
            raise InvalidInput("The model predicts quantities; its targets must be numbers.")
        if y.size != len(y) * outputs:
            raise WrongShape(f"The model predicts {outputs} quantities a row; targets of shape {y.shape} do not fit.")
        return
    if model.classes is not None:
        if y.dtype.kind in "fiub" and model.classes.dtype.kind not in "fiub":
            raise InvalidInput(f"The model's labels are like {model.classes[0]!r}; these labels are numbers.")
        if y.dtype.kind not in "fiub" and model.classes.dtype.kind in "fiub":
            raise InvalidInput(f"The model's labels are like {model.classes[0]!r}; these labels are text.")
        unknown = y[model.indices(y) < 0]
        if len(unknown):
            raise InvalidInput(f"The model was not fitted with the label {unknown[0]!r}; drop such rows.")
        return
    if y.dtype.kind not in "fiub":
        raise InvalidInput("The model does not name its classes; give labels as the numbers of its outputs.")
    low, high = float(y.min()), float(y.max())
    if outputs == 1 and not set(np.unique(y).tolist()) <= {-1, 0, 1}:
        raise InvalidInput(f"A model with one output takes labels 0 and 1, or -1 and 1; got {low:g} to {high:g}.")
    if outputs > 1 and not (low >= 0 and high < outputs):
        raise InvalidInput(
            f"Labels go from 0 to {outputs - 1} for a model with {outputs} outputs; got {low:g} to {high:g}."
        )


def _squared_error_fit(values: Tensor, targets: Tensor, floor: float) -> Tensor:
    return -((values - targets).square().sum(dim=1) + floor).log()


def _label_logits(values: Tensor, labels: Tensor, shown: Outputs, precision: float) -> Tensor:
    """log p_y - log(1 - p_y) [n] from answers [n, k]; an unknown label (-1) has the smallest probability shown."""
    if values.shape[1] == 1:
        sign = torch.where(labels > 0, 1.0, -1.0).to(torch.float64)
        score = values[:, 0]
        return sign * (torch.logit(score.clamp(precision, 1 - precision)) if shown == "probabilities" else score)
    own = labels.clamp(min=0)[:, None]
    if shown == "probabilities":
        p = values.gather(1, own)[:, 0].where(labels >= 0, torch.zeros(()).to(values))
        rest = torch.where(labels >= 0, values.scatter(1, own, 0.0).sum(dim=1), values.sum(dim=1))
        return p.clamp(min=precision).log() - rest.clamp(min=precision).log()
    scores = values.log_softmax(dim=1)
    mine = scores.gather(1, own)[:, 0]
    rest = scores.scatter(1, own, -torch.inf).logsumexp(dim=1)
    return torch.where(labels >= 0, mine - rest, scores.amin(dim=1))
