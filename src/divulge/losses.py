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

from divulge.errors import InvalidInput, WrongShape

Loss = Literal["logistic", "cross-entropy", "square"]


@dataclass(frozen=True)
class Evaluation:
    """How a model does on some rows: the share of right labels (None for float targets) and the mean loss."""

    accuracy: float | None
    loss: float
    rows: int


def loss_of(loss: Loss, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """A loss by name, as the module describes it."""
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
    """Accuracy and mean loss. ``loss`` is by default logistic for one output and cross-entropy for several."""
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
    accuracy = None
    if labelled and (outputs.shape[1] > 1 or loss == "logistic"):
        right = labels_of(outputs) == (targets.reshape(-1) > 0 if outputs.shape[1] == 1 else targets)
        accuracy = float(right.double().mean())
    return Evaluation(accuracy, float(loss_of(loss, outputs, targets)), len(rows))


def labels_of(outputs: Tensor) -> Tensor:
    """The label each row of outputs speaks for: the sign of one output (0 or 1), or the largest of several."""
    return (outputs.reshape(-1) > 0).long() if outputs.shape[1] == 1 else outputs.argmax(dim=1)


def shaped(rows: Tensor, model: nn.Module) -> Tensor:
    """Flat rows in the shape that the model takes (its ``input_shape``, where it has one)."""
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
