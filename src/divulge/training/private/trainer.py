"""Training with differential privacy, whose effect can be stated beforehand.

Balle 2022, section VI-D: gradient descent with every example's gradient clipped and Gaussian noise added to their sum.
Batches are the full set, or Poisson samples. Clipping is by ``mlp_clipping`` for multilayer perceptrons (many of them
train as one tensor program, so that the informed attack can be run against private targets), by ``layer_clipping`` for
networks of linear layers, convolutions and group normalisation, and by Opacus for sampled batches of other networks.
Noise and samples come from the operating system unless the recipe has a seed for them (``randomness``). The privacy
spent is computed by an accountant (``accounting``).
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from divulge.core import workers as pool
from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.core.losses import shaped
from divulge.core.progress import report
from divulge.core.storage import digest
from divulge.models import MLP
from divulge.training.batched.shared_setup import encode, with_row
from divulge.training.private.canaries import GradientCanaries
from divulge.training.private.layer_clipping import Layerwise
from divulge.training.private.mlp_clipping import Stack, clipped_sum
from divulge.training.private.opacus_clipping import OpacusClipping
from divulge.training.private.randomness import Randomness, SeededRandomness, randomness
from divulge.training.recipe import ArrayLike, Recipe
from divulge.training.trainer import check_outputs

_ELEMENTS = 2**20  # units times rows times models that are computed at once
ClippedSum = Callable[[], tuple[list[Tensor], Tensor]]
"""Clipped gradients summed, and the norms before clipping, at the parameters as they are."""


class Clipping(Protocol):
    """A model and its training rows, from which clipped gradients are summed."""

    def parameters(self) -> list[Tensor]:
        """The parameters in place, each with a leading axis for its one model."""

    def clipped_sum(self, clip: float, index: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """The clipped gradients of all rows, or of those at ``index``, summed; and the norms [1, n] before clipping."""

    def release(self) -> nn.Module:
        """The trained model in evaluation mode."""


def train(
    recipe: Recipe,
    X: ArrayLike,
    y: ArrayLike,
    *,
    start: nn.Module | None = None,
    canaries: GradientCanaries | None = None,
) -> nn.Module:
    """The model that ``recipe`` (with its ``privacy``) trains on X and y, in evaluation mode.

    ``canaries`` join the records of every step and read its noisy sum; the model is then an audit's, not one to use.
    """
    if recipe.privacy is None:
        raise InvalidInput("This recipe has no privacy; give it privacy=Privacy(noise_multiplier=..., clip=...).")
    rows, targets = recipe.prepare(X, y)
    model = recipe.initial_model() if start is None else copy.deepcopy(start).to(recipe.dtype)
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise UnsupportedModel(
            "Batch normalisation mixes the examples of a batch, so that none has a gradient of its own to clip; train "
            'privately with norm="group" or norm="none".'
        )
    check_outputs(recipe.loss, model, shaped(rows, model), targets)
    source, clip, n = randomness(recipe.privacy.noise_seed), recipe.privacy.clip, len(rows)
    clipping = _clipping(recipe, model, rows, targets)
    if recipe.batch_size is None or recipe.batch_size >= n:
        _descend(
            recipe, clipping.parameters(), lambda: clipping.clipped_sum(clip), n, recipe.epochs, [source], canaries
        )  # fmt: skip
        return clipping.release()
    steps, rate = schedule(recipe, n)

    def summed() -> tuple[list[Tensor], Tensor]:
        return clipping.clipped_sum(clip, source.sample(n, rate))

    _descend(recipe, clipping.parameters(), summed, n * rate, steps, [source], canaries)
    return clipping.release()


def schedule(recipe: Recipe, rows: int) -> tuple[int, float]:
    """The noisy steps that private training takes on so many rows, and each row's chance to be in one."""
    if recipe.batch_size is None or recipe.batch_size >= rows:
        return recipe.epochs, 1.0
    batches = math.ceil(rows / recipe.batch_size)
    return recipe.epochs * batches, 1 / batches


def _clipping(recipe: Recipe, model: nn.Module, rows: Tensor, targets: Tensor) -> Clipping:
    if isinstance(model, MLP):
        return _MlpClipping(recipe, model, rows, targets)
    try:
        return Layerwise(copy.deepcopy(model), rows, targets, recipe)
    except UnsupportedModel:
        if recipe.batch_size is None:
            raise
        return OpacusClipping(model, rows, targets, recipe)


class _MlpClipping:
    """One multilayer perceptron."""

    def __init__(self, recipe: Recipe, model: MLP, rows: Tensor, targets: Tensor) -> None:
        self._recipe, self._model, self._stack = recipe, model, Stack.of(model)
        self._rows, self._targets = rows.flatten(1), encode(recipe, targets, self._stack.outputs).to(recipe.dtype)

    def parameters(self) -> list[Tensor]:
        return self._stack.parameters()

    def clipped_sum(self, clip: float, index: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        whole = index is None
        rows, targets = (self._rows, self._targets) if whole else (self._rows[index], self._targets[:, index])
        return clipped_sum(self._stack, [(rows[None], targets[None])], self._recipe.loss, clip)

    def release(self) -> nn.Module:
        with torch.no_grad():
            for parameter, trained in zip(self._model.parameters(), self._stack.parameters(), strict=True):
                parameter.copy_(trained[0])
        return self._model.eval()


def _descend(
    recipe: Recipe,
    parameters: list[Tensor],
    summed: ClippedSum,
    batch: float,
    steps: int,
    sources: Sequence[Randomness],
    canaries: GradientCanaries | None = None,
) -> None:
    """Private descent in place; parameters have a leading axis of models, each with a source of noise.

    ``batch`` is the expected number of rows in a step. A sample without rows still takes its noisy step, because
    skipping it would show that nobody was drawn.
    """
    privacy = recipe.privacy
    descent = recipe.descent(parameters)
    for step in range(steps):
        gradients, norms = summed()
        if canaries is not None and privacy is not None:
            canaries.insert(gradients, privacy.clip, sources[0])
        if privacy is not None and privacy.noise_multiplier > 0:
            _add_noise(gradients, privacy.noise_multiplier * privacy.clip, sources)
        if canaries is not None:
            canaries.observe(gradients)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.div_(batch)
        descent.learning_rate = recipe.rate(step, steps)
        descent.step()
        if step % 10 == 0 or step + 1 == steps:
            report("private training", step + 1, steps, gradient_norm=f"{float(norms.mean()):.3g}")


def _add_noise(gradients: list[Tensor], deviation: float, sources: Sequence[Randomness]) -> None:
    for gradient in gradients:
        for model, source in enumerate(sources):
            gradient[model] += source.normal(gradient[model].shape, deviation, gradient.dtype).to(gradient.device)


# -- many models ------------------------------------------------------------------------------------------------------

Job = tuple[Tensor, Tensor, list[int]]
"""Records, their targets, and the seeds of their noise."""


def train_many(
    recipe: Recipe,
    known_X: ArrayLike,
    known_y: ArrayLike,
    records_X: ArrayLike,
    records_y: ArrayLike,
    noise_seeds: Sequence[int],
    *,
    at_once: int | None = None,
    workers: pool.Workers = None,
    folder: str | Path | None = None,
) -> Tensor:
    """Train one private model for each record, on the known data and that record.

    Each model equals that of ``train`` on ``known + [record]`` with its noise seed.

    Parameters
    ----------
    recipe : Recipe
        How each is trained. Without ``privacy`` neither clipping nor noise is applied; that is the baseline of what
        privacy costs. Models that train in mini-batches train one after the other.
    known_X, known_y : array [n, d], array [n]
        The data that all models share.
    records_X, records_y : array [B, d], array [B]
        One record for each model.
    noise_seeds : sequence of int
        The seed of each model's noise, and of its Poisson samples.
    at_once : int, optional
        How many multilayer perceptrons train as one tensor program; chosen by size by default.
    workers : int, str or None, default None
        As in ``divulge.core.workers``.
    folder : str or Path, optional
        Keeps what is trained. A run that was killed continues from there.

    Returns
    -------
    Tensor
        The weights of the models [B, P].

    Raises
    ------
    InvalidInput
        There are not as many seeds as records.
    """
    known, own = recipe.prepare(known_X, known_y), recipe.prepare(records_X, records_y)
    if len(noise_seeds) != len(own[0]):
        raise InvalidInput(f"Each of the {len(own[0])} models needs a noise seed; got {len(noise_seeds)}.")
    group = partial(_train_group, recipe, known)
    size = at_once or _group_size(recipe.initial_model(), len(known[0]))
    parts = [slice(first, first + size) for first in range(0, len(own[0]), size)]
    jobs = [(own[0][part], own[1][part], list(noise_seeds[part])) for part in parts]
    options: dict[str, Any] = {"workers": workers, "stage": "training private models"}
    if folder is None:
        return torch.cat(pool.run(group, jobs, **options))
    kept = Path(folder) / _digest(recipe.as_dict(), known)  # one folder for each kind of training
    return torch.cat(pool.checkpointed(group, jobs, kept, key=lambda job: _digest(job[2], job[:2]), **options))


def _group_size(model: nn.Module, rows: int) -> int:
    """So many that a group fits the cache and takes well under a minute."""
    if not isinstance(model, MLP):
        return 4
    widest = max(layer.out_features for layer in model if isinstance(layer, nn.Linear))
    return max(1, min(64, _ELEMENTS // (widest * rows)))


def _train_group(recipe: Recipe, known: tuple[Tensor, Tensor], job: Job) -> Tensor:
    """A few models, each on the known rows and one record."""
    own_rows, own_targets, seeds = job
    start = recipe.initial_model()
    if not isinstance(start, MLP) or schedule(recipe, len(known[0]) + 1)[1] < 1:
        return torch.stack([_train_one(recipe, known, *one) for one in zip(own_rows, own_targets, seeds, strict=True)])
    stack = Stack.of(start, copies=len(own_rows))
    rows, targets = known
    encoded, own = (encode(recipe, y, stack.outputs).to(recipe.dtype) for y in (targets, own_targets))
    parts = [(rows.flatten(1)[None], encoded[None]), (own_rows.flatten(1)[:, None], own.T[:, :, None])]
    clip = None if recipe.privacy is None else recipe.privacy.clip
    sources = [SeededRandomness(seed) for seed in seeds]
    _descend(
        recipe, stack.parameters(), lambda: clipped_sum(stack, parts, recipe.loss, clip), len(rows) + 1,
        recipe.epochs, sources,
    )  # fmt: skip
    return stack.flat()


def _train_one(recipe: Recipe, known: tuple[Tensor, Tensor], row: Tensor, target: Tensor, seed: int) -> Tensor:
    if recipe.privacy is not None:
        recipe = dataclasses.replace(recipe, privacy=dataclasses.replace(recipe.privacy, noise_seed=seed))
    model = recipe.train(*with_row(*known, row, target, len(known[0])))
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _digest(settings: Any, tensors: Sequence[Tensor]) -> str:
    return digest(json.dumps(settings, sort_keys=True), *tensors)[:32]
