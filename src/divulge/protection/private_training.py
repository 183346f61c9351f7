"""Training with differential privacy: the protection whose price and effect can be stated beforehand.

Balle et al. 2022, section VI-D: full-batch gradient descent with every example's gradient clipped and Gaussian noise
added to their sum. The full batch is ours (``clipping`` for multilayer perceptrons, many of which train as one tensor
program so that the informed attack can be run against private targets; ``layerwise`` for other networks); mini-batches
are drawn by Poisson sampling and go through Opacus. What the privacy costs is always asked of an accountant
(``divulge.protection.accounting``).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divulge import workers as pool
from divulge.errors import InvalidInput, MissingPackage, UnsupportedModel
from divulge.informed.setting import encode
from divulge.informed.shadows import with_row
from divulge.models import MLP
from divulge.progress import report
from divulge.protection.clipping import Stack, clipped_sum
from divulge.protection.layerwise import Layerwise
from divulge.training import Privacy, Recipe, check_outputs, shaped

_ELEMENTS = 2**20  # units times rows times models that are worked on at once
ClippedSum = Callable[[], tuple[list[Tensor], Tensor]]
"""Clipped gradients summed, and the norms before clipping, at the parameters as they are."""


def train(recipe: Recipe, X: Any, y: Any, *, start: nn.Module | None = None) -> nn.Module:
    """The model that ``recipe`` (with its ``privacy``) trains on X and y, in evaluation mode."""
    privacy = _privacy_of(recipe)
    rows, targets = recipe.prepare(X, y)
    model = recipe.initial_model() if start is None else copy.deepcopy(start).to(recipe.dtype)
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise UnsupportedModel(
            "Batch normalisation mixes the examples of a batch, so that none has a gradient of its own to clip; train "
            'privately with norm="group" or norm="none".'
        )
    check_outputs(recipe.loss, model, shaped(rows, model), targets)
    if recipe.batch_size is not None and recipe.batch_size < len(rows):
        return _train_sampled(recipe, privacy, model, rows, targets)
    generators = [_generator(privacy.noise_seed)]
    if not isinstance(model, MLP):
        layers = Layerwise(model, rows, targets, recipe)
        _descend(recipe, layers.parameters(), lambda: layers.clipped_sum(privacy.clip), len(rows), generators)
        return layers.release()
    stack = Stack.of(model)
    parts = [(rows.flatten(1)[None], encode(recipe, targets, stack.outputs).to(recipe.dtype)[None])]
    _descend_stack(recipe, stack, parts, generators)
    with torch.no_grad():
        for parameter, trained in zip(model.parameters(), stack.parameters(), strict=True):
            parameter.copy_(trained[0])
    return model.eval()


def train_many(
    recipe: Recipe,
    known_X: Any,
    known_y: Any,
    records_X: Any,
    records_y: Any,
    noise_seeds: Sequence[int],
    *,
    at_once: int | None = None,
    workers: pool.Workers = None,
    folder: str | Path | None = None,
) -> Tensor:
    """One private model for each record, trained on the known data and that record: their weights, [B, P].

    The same as ``train`` on ``known + [record]`` with ``noise_seed`` replaced, ``at_once`` models in a tensor program
    where they are multilayer perceptrons (as many as work well, by default). Without ``recipe.privacy`` neither
    clipping nor noise is applied, which is the baseline for its cost. ``workers`` is as in ``divulge.workers``;
    ``folder`` keeps what is trained, and a run that was killed goes on from there.
    """
    known, own = recipe.prepare(known_X, known_y), recipe.prepare(records_X, records_y)
    if recipe.batch_size is not None:
        raise InvalidInput("Many private models train together on full batches only; set batch_size=None.")
    if len(noise_seeds) != len(own[0]):
        raise InvalidInput(f"Each of the {len(own[0])} models needs a noise seed; got {len(noise_seeds)}.")
    group = partial(_train_group, recipe, known)
    size = at_once or _group_size(recipe.initial_model(), len(known[0]))
    parts = [slice(first, first + size) for first in range(0, len(own[0]), size)]
    jobs = [(own[0][part], own[1][part], list(noise_seeds[part])) for part in parts]
    told: dict[str, Any] = {"workers": workers, "stage": "training private models"}
    if folder is None:
        return torch.cat(pool.run(group, jobs, **told))
    kept = Path(folder) / _digest(recipe.as_dict(), known)  # each training of its own kind apart
    return torch.cat(pool.checkpointed(group, jobs, kept, key=lambda job: _digest(job[2], job[:2]), **told))


def _group_size(model: nn.Module, rows: int) -> int:
    """So many that a group works in the cache and is done in well under a minute."""
    if not isinstance(model, MLP):
        return 4
    widest = max(layer.out_features for layer in model if isinstance(layer, nn.Linear))
    return max(1, min(64, _ELEMENTS // (widest * rows)))


Job = tuple[Tensor, Tensor, list[int]]
"""Records, their targets, and the seeds of their noise."""


def _train_group(recipe: Recipe, known: tuple[Tensor, Tensor], job: Job) -> Tensor:
    """A few models, each on the known rows and one record."""
    own_rows, own_targets, seeds = job
    start = recipe.initial_model()
    if not isinstance(start, MLP):
        return torch.stack([_train_one(recipe, known, *one) for one in zip(own_rows, own_targets, seeds, strict=True)])
    stack = Stack.of(start, copies=len(own_rows))
    rows, targets = known
    encoded, own = (encode(recipe, y, stack.outputs).to(recipe.dtype) for y in (targets, own_targets))
    parts = [(rows.flatten(1)[None], encoded[None]), (own_rows.flatten(1)[:, None], own.T[:, :, None])]
    _descend_stack(recipe, stack, parts, [_generator(seed) for seed in seeds])
    return stack.flat()


def _train_one(recipe: Recipe, known: tuple[Tensor, Tensor], row: Tensor, target: Tensor, seed: int) -> Tensor:
    if recipe.privacy is not None:
        recipe = dataclasses.replace(recipe, privacy=dataclasses.replace(recipe.privacy, noise_seed=seed))
    model = recipe.train(*with_row(*known, row, target, len(known[0])))
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _digest(told: Any, tensors: Sequence[Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for tensor in tensors:
        digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return digest.hexdigest()[:32]


def _descend_stack(
    recipe: Recipe, stack: Stack, parts: list[tuple[Tensor, Tensor]], generators: list[torch.Generator]
) -> None:
    clip = None if recipe.privacy is None else recipe.privacy.clip
    examples = sum(X.shape[1] for X, _ in parts)
    _descend(
        recipe, stack.parameters(), lambda: clipped_sum(stack, parts, recipe.loss, clip), examples, generators
    )  # fmt: skip


def _descend(
    recipe: Recipe, parameters: list[Tensor], summed: ClippedSum, examples: int, generators: list[torch.Generator]
) -> None:
    """Full-batch private descent in place; parameters have an axis of models, which have a generator each."""
    privacy = recipe.privacy
    descent = recipe.descent(parameters)
    for step in range(recipe.epochs):
        gradients, norms = summed()
        if privacy is not None and privacy.noise_multiplier > 0:
            _add_noise(gradients, privacy.noise_multiplier * privacy.clip, generators)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.div_(examples)
        descent.step()
        if step % 10 == 0 or step + 1 == recipe.epochs:
            report("private training", step + 1, recipe.epochs, gradient_norm=f"{float(norms.mean()):.3g}")


def _add_noise(gradients: list[Tensor], deviation: float, generators: list[torch.Generator]) -> None:
    for gradient in gradients:
        for model, generator in enumerate(generators):
            noise = torch.normal(0.0, deviation, gradient[model].shape, generator=generator, dtype=gradient.dtype)
            gradient[model] += noise.to(gradient.device)


def _train_sampled(recipe: Recipe, privacy: Privacy, model: nn.Module, rows: Tensor, targets: Tensor) -> nn.Module:
    """DP-SGD with Poisson-sampled batches, by Opacus."""
    private, optimiser, batches = _by_opacus(recipe, privacy, model, rows, targets)
    for epoch in range(recipe.epochs):
        for X, y in batches:
            optimiser.zero_grad()
            if len(X):
                recipe.loss_of(private(shaped(X, model).requires_grad_()), y).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            else:
                _noise_only_step(optimiser)
        report("private training", epoch + 1, recipe.epochs)
    trained: nn.Module = private._module
    private.remove_hooks()
    for parameter in trained.parameters():
        parameter.grad = None
    return trained.eval()


def _by_opacus(
    recipe: Recipe, privacy: Privacy, model: nn.Module, rows: Tensor, targets: Tensor
) -> tuple[Any, Any, Any]:
    """The model, optimiser and sampled batches as Opacus wraps them."""
    try:
        from opacus import PrivacyEngine
        from opacus.validators.errors import UnsupportedModuleError
    except ImportError as error:
        raise MissingPackage('Private training on sampled batches needs Opacus; install "divulge[privacy]".') from error
    from torch.utils.data import DataLoader, TensorDataset

    order = torch.Generator().manual_seed(recipe.seed)
    loader = DataLoader(TensorDataset(rows, targets), batch_size=recipe.batch_size, generator=order)
    try:
        with warnings.catch_warnings():  # its advice on secure random numbers is in our documentation
            warnings.simplefilter("ignore", UserWarning)
            wrapped: tuple[Any, Any, Any] = PrivacyEngine().make_private(
                module=model.train(),
                optimizer=recipe.optimiser_for(model),
                data_loader=loader,
                noise_multiplier=privacy.noise_multiplier,
                max_grad_norm=privacy.clip,
                noise_generator=_generator(privacy.noise_seed),
            )
    except UnsupportedModuleError as error:
        raise UnsupportedModel(f"Opacus cannot train this model privately: {str(error).splitlines()[0]}") from error
    return wrapped


def _noise_only_step(optimiser: Any) -> None:
    """An empty sample still takes its step: to skip it would tell that nobody was drawn."""
    for parameter in optimiser.params:
        parameter.grad_sample = parameter.new_zeros(1, *parameter.shape)
    optimiser.step()


def _generator(seed: int | None) -> torch.Generator:
    generator = torch.Generator()
    if seed is None:
        generator.seed()  # from the operating system
    else:
        generator.manual_seed(seed)
    return generator


def _privacy_of(recipe: Recipe) -> Privacy:
    if recipe.privacy is None:
        raise InvalidInput("This recipe has no privacy; give it privacy=Privacy(noise_multiplier=..., clip=...).")
    return recipe.privacy
