"""The losses that a recipe minimises, exactly, and how well a model does by them.

With outputs z [n, k], each row's loss is

- ``logistic`` (k = 1): log(1 + exp(-s z)) with s = +1 where the label is positive and -1 where it is 0 or -1;
- ``cross-entropy``: -log softmax(z)[y], y the class number (or a row of k probabilities, when y is float [n, k]);
- ``square``: |z - t|^2 / 2, t the float target ([n] or [n, k]), or the one-hot row of an integer label when k > 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from divulge.core.errors import InvalidInput, WrongShape

Loss = Literal["logistic", "cross-entropy", "square"]


@dataclass(frozen=True)
class Evaluation:
    """How a model does on some rows.

    Attributes
    ----------
    accuracy : float or None
        The share of right labels; None for float targets.
    loss : float
        The mean loss.
    rows : int
        How many rows.
    balanced_accuracy : float or None
        The mean over classes of the share of each class's rows that are labelled right. Unlike accuracy it is 1/k for
        a model that always answers the same of k classes.
    auc : float or None
        The area under the ROC curve of the scores; for several classes the mean over classes of one against the rest.
        0.5 is no information. None where only one class is present.
    """

    accuracy: float | None
    loss: float
    rows: int
    balanced_accuracy: float | None = None
    auc: float | None = None


def loss_of(loss: Loss, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """A loss by name, as the module describes it.

    Parameters
    ----------
    loss : {"logistic", "cross-entropy", "square"}
        The loss.
    outputs : Tensor [n, k]
        The model's outputs.
    targets : Tensor [n] or [n, k]
        Labels or targets.
    reduction : {"mean", "sum", "none"}, default "mean"
        Over rows.

    Returns
    -------
    Tensor
        A number, or [n] without a reduction.

    Examples
    --------
    >>> import torch
    >>> from divulge.training import loss_of
    >>> round(float(loss_of("square", torch.tensor([[3.0]]), torch.tensor([1.0]))), 3)
    2.0
    """
    if loss == "cross-entropy":
        return functional.cross_entropy(outputs, targets, reduction=reduction)
    if loss == "logistic":
        sign = torch.where(targets.reshape(outputs.shape) > 0, 1.0, -1.0).to(outputs.dtype)
        losses = functional.softplus(-sign * outputs, threshold=50.0).reshape(len(outputs))
    else:
        if outputs.ndim == 2 and outputs.shape[1] > 1 and targets.ndim == 1:
            targets = functional.one_hot(targets.long(), outputs.shape[1])
        losses = (outputs - targets.reshape(outputs.shape).to(outputs.dtype)).square().reshape(len(outputs), -1)
        losses = losses.sum(dim=1) / 2
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.mean()


def evaluate(model: nn.Module, X: Any, y: Any, *, loss: Loss | None = None, batch_size: int = 512) -> Evaluation:
    """How well a model does on some rows.

    Parameters
    ----------
    model : nn.Module
        The model; it is evaluated in evaluation mode.
    X : array [n, ...]
        Rows.
    y : array [n] or [n, k]
        Labels or targets.
    loss : {"logistic", "cross-entropy", "square"}, optional
        By default logistic for one output and cross-entropy for several.
    batch_size : int, default 512
        Rows that are evaluated at once.

    Returns
    -------
    Evaluation
        Accuracy, balanced accuracy, AUC and mean loss.

    Raises
    ------
    WrongShape
        There are no rows, or not as many targets as rows.

    Examples
    --------
    >>> import divulge
    >>> from divulge.training import evaluate
    >>> data = divulge.datasets.load("iris")
    >>> model = divulge.Recipe(widths=[4, 8, 3], learning_rate=0.5, epochs=200).train(*data.train)
    >>> evaluate(model, *data.test).accuracy > 0.9
    True
    """
    parameter = next(model.parameters())
    rows = torch.as_tensor(X, device=parameter.device).to(parameter.dtype)
    targets = torch.as_tensor(y, device=parameter.device)
    if len(rows) == 0 or len(rows) != len(targets):
        raise WrongShape(f"Evaluation needs as many targets as rows, at least one; got {len(targets)}, {len(rows)}.")
    was_training = model.training
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in torch.split(shaped(rows, model), batch_size)])
    model.train(was_training)
    outputs = outputs.reshape(len(rows), -1)
    loss = loss or ("logistic" if outputs.shape[1] == 1 else "cross-entropy")
    check_labels(loss, outputs, targets)
    labelled = not targets.is_floating_point() or (loss == "logistic" and targets.ndim == 1)
    mean_loss = float(loss_of(loss, outputs, targets))
    if not (labelled and (outputs.shape[1] > 1 or loss == "logistic")):
        return Evaluation(None, mean_loss, len(rows))
    labels = (targets.reshape(-1) > 0).long() if outputs.shape[1] == 1 else targets
    right = (labels_of(outputs) == labels).double()
    balanced = float(torch.stack([right[labels == label].mean() for label in torch.unique(labels)]).mean())
    return Evaluation(float(right.mean()), mean_loss, len(rows), balanced, _auc(outputs, labels))


def _auc(outputs: Tensor, labels: Tensor) -> float | None:
    """The area under the ROC curve by the rank statistic (ties count half), averaged over one class against the rest.

    Several outputs are compared as probabilities.
    """
    scores = outputs if outputs.shape[1] == 1 else outputs.softmax(dim=1)
    classes = [1] if outputs.shape[1] == 1 else torch.unique(labels).tolist()
    areas = []
    for label in classes:
        own = labels == label
        score = scores[:, 0 if outputs.shape[1] == 1 else label].double()
        positive, negative = score[own].sort().values, score[~own].sort().values
        if len(positive) == 0 or len(negative) == 0:
            return None
        below = torch.searchsorted(negative, positive) + torch.searchsorted(negative, positive, right=True)
        areas.append(float(below.double().mean()) / (2 * len(negative)))
    return sum(areas) / len(areas)


def labels_of(outputs: Tensor) -> Tensor:
    """The label of each row of outputs: the sign of one output (0 or 1), or the largest of several.

    Parameters
    ----------
    outputs : Tensor [n, k]
        A model's outputs.

    Returns
    -------
    Tensor [n]
        Labels.

    Examples
    --------
    >>> import torch
    >>> from divulge.training import labels_of
    >>> labels_of(torch.tensor([[1.0, 2.0], [3.0, 0.0]])).tolist()
    [1, 0]
    """
    return (outputs.reshape(-1) > 0).long() if outputs.shape[1] == 1 else outputs.argmax(dim=1)


def shaped(rows: Tensor, model: nn.Module) -> Tensor:
    """Flat rows in the shape that a model takes.

    Parameters
    ----------
    rows : Tensor [n, d]
        Rows.
    model : nn.Module
        Its ``input_shape``, where it has one, is the shape of a row.

    Returns
    -------
    Tensor [n, ...]
        The same rows.

    Raises
    ------
    WrongShape
        The rows have another number of features.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.training import shaped
    >>> shaped(torch.zeros(2, 64), divulge.models.build("two-conv", shape=(1, 8, 8), outputs=10)).shape
    torch.Size([2, 1, 8, 8])
    """
    shape = getattr(model, "input_shape", None)
    if shape is None or tuple(rows.shape[1:]) == tuple(shape):
        return rows
    if rows[0].numel() != math.prod(shape):
        raise WrongShape(f"The model takes inputs of shape {tuple(shape)}; these rows are {tuple(rows.shape[1:])}.")
    return rows.reshape(len(rows), *shape)


def check_labels(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Refuse targets that do not fit the outputs."""
    k = outputs.shape[1]
    if loss == "logistic" and k != 1:
        raise InvalidInput(f"The logistic loss needs one output; the model has {k}.")
    if loss == "cross-entropy" and k == 1:
        raise InvalidInput('The cross-entropy loss needs an output a class; the model has one (use loss="logistic").')
    if targets.ndim == 1 and (loss == "cross-entropy" or (loss == "square" and k > 1)):
        if targets.is_floating_point():
            raise InvalidInput(f"A model with {k} outputs takes whole-number labels, or one float target per output.")
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= k:
            raise InvalidInput(f"Labels go from 0 to {k - 1} for a model with {k} outputs; got {low} to {high}.")
    elif targets.numel() != len(targets) * k:
        raise WrongShape(f"Targets of shape {tuple(targets.shape)} do not fit {k} outputs a row.")
