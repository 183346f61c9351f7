"""How a recipe is run.

A step on the rows I lowers the *mean* over I of a loss of ``divulge.core.losses``. With g the gradient of that mean
plus ``weight_decay`` * theta (biases too), a step of ``sgd`` is v <- momentum * v + g (v starts at the first g),
theta <- theta - learning_rate * v, as torch.optim.SGD does. ``adam``, ``adamw`` and ``rmsprop`` are as in torch.optim,
with betas 0.9 and 0.999, smoothing 0.99, and 1e-8 added to the root. A ``schedule`` sets the rate before each step. A
training run can so be rewritten elsewhere and compared to the last digits.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from divulge.core.errors import EmptyBatch, InvalidInput, NonFiniteInput, WrongShape
from divulge.core.losses import Loss, check_labels, shaped
from divulge.core.progress import report
from divulge.training.recipe import ArrayLike, Recipe, TrainingDiverged


def train(
    recipe: Recipe,
    X: ArrayLike,
    y: ArrayLike,
    *,
    start: nn.Module | None = None,
    device: str | torch.device | None = None,
) -> nn.Module:
    """The trained model, in evaluation mode; see ``Recipe.train``."""
    if recipe.privacy is not None:
        from divulge.training.private import trainer

        if device is not None and torch.device(device).type != "cpu":
            raise InvalidInput("Private training runs on the CPU; leave device out.")
        return trainer.train(recipe, X, y, start=start)
    rows, targets = prepare(recipe, X, y, device=device)
    model = recipe.initial_model() if start is None else copy.deepcopy(start).to(recipe.dtype)
    model.to(rows.device).train()
    rows = shaped(rows, model)
    check_outputs(recipe.loss, model, rows, targets)
    if recipe.batch_size is not None and len(rows) % recipe.batch_size == 1 and _normalises(model):
        raise InvalidInput(
            f"Batches of {recipe.batch_size} leave one row over of {len(rows)}, which batch normalisation cannot "
            "take; choose another batch_size."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)  # for dropout and other random layers in models of the user's own
        _descend(recipe, model, rows, targets)
    return model.eval()


def _descend(recipe: Recipe, model: nn.Module, rows: Tensor, targets: Tensor) -> None:
    descent = recipe.descent(model.parameters())
    total = recipe.steps(len(rows))
    whole = recipe.batch_size is None or recipe.batch_size >= len(rows)
    for step, index in enumerate(recipe.batches(len(rows)), start=1):
        descent.clear()
        loss = recipe.loss_of(model(rows if whole else rows[index]), targets if whole else targets[index])
        loss.backward()  # type: ignore[no-untyped-call]
        descent.learning_rate = recipe.rate(step - 1, total)
        descent.step()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"The loss became {value} at step {step} of {total}; "
                f"try a learning rate below {recipe.learning_rate:g}."
            )
        report("training", step, total, loss=f"{value:.3g}")
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise TrainingDiverged(f"The weights are no longer finite; try a rate below {recipe.learning_rate:g}.")


# -- checks -----------------------------------------------------------------------------------------------------------


def prepare(
    recipe: Recipe, X: ArrayLike, y: ArrayLike, *, device: str | torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Rows [n, ...] in the recipe's precision and their targets, checked."""
    try:
        rows = torch.as_tensor(X, device=device).to(recipe.dtype)
        targets = torch.as_tensor(y, device=rows.device)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"Training data are arrays of numbers; these are not: {error}") from error
    if rows.ndim < 2:
        raise WrongShape(f"Training rows come as [n, width]; got shape {tuple(rows.shape)}.")
    if len(rows) == 0:
        raise EmptyBatch("There are no rows to train on.")
    if targets.ndim == 0 or len(targets) != len(rows):
        raise WrongShape(f"There are {len(rows)} rows but targets of shape {tuple(targets.shape)}.")
    if not bool(rows.isfinite().all()) or not bool(targets.isfinite().all()):
        raise NonFiniteInput("The training data holds NaN or infinite values; remove or fill those rows first.")
    if recipe.loss == "logistic":
        values = sorted(set(targets.flatten().tolist()))
        if not (set(values) <= {0, 1} or set(values) <= {-1, 1}):
            raise InvalidInput(f"The logistic loss takes labels 0 and 1, or -1 and 1; got {values[:5]}.")
    if targets.is_floating_point():
        targets = targets.to(recipe.dtype)
    elif recipe.loss == "cross-entropy":
        targets = targets.long()
    return rows, targets


def _normalises(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def check_outputs(loss: Loss, model: nn.Module, rows: Tensor, targets: Tensor) -> None:
    """Refuse targets that do not fit the model's outputs before the first step is taken."""
    model.eval()
    try:
        with torch.no_grad():
            outputs = model(rows[:1])
    except RuntimeError as error:
        raise WrongShape(
            f"The model does not take rows of shape {tuple(rows.shape[1:])}: {str(error).splitlines()[0]} A model of "
            "your own may say what it takes in an attribute input_shape."
        ) from error
    model.train()
    if outputs.ndim != 2:
        raise WrongShape(f"A model answers rows of outputs [n, k]; this one answered {tuple(outputs.shape)} for n = 1.")
    check_labels(loss, outputs, targets)
