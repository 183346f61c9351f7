"""Training with differential privacy: the protection whose price and effect can be stated beforehand.

Balle et al. 2022, section VI-D: full-batch gradient descent with every example's gradient clipped and Gaussian noise
added to their sum. The full batch is ours (``divulge.protection.clipping``), because many models must train as one
tensor program for the informed attack to be run against private targets; mini-batches are drawn by Poisson sampling and
go through Opacus. What the privacy costs is always asked of an accountant (``divulge.protection.accounting``).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput, MissingPackage
from divulge.informed.setting import encode
from divulge.progress import report
from divulge.protection.clipping import Stack, clipped_sum
from divulge.training import Privacy, Recipe


def train(recipe: Recipe, X: Any, y: Any, *, start: nn.Module | None = None) -> nn.Module:
    """The model that ``recipe`` (with its ``privacy``) trains on X and y, in evaluation mode."""
    privacy = _privacy_of(recipe)
    rows, targets = recipe.prepare(X, y)
    model = recipe.initial_model() if start is None else copy.deepcopy(start).to(recipe.dtype)
    if recipe.batch_size is not None and recipe.batch_size < len(rows):
        return _train_sampled(recipe, privacy, model, rows, targets)
    stack = Stack.of(model)
    encoded = encode(recipe, targets, stack.outputs).to(recipe.dtype)
    _descend(recipe, stack, [(rows.flatten(1)[None], encoded[None])], [_generator(privacy.noise_seed)])
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
    at_once: int = 64,
) -> Tensor:
    """One private model for each record, trained on the known data and that record: their weights, [B, P].

    The same as ``train`` on ``known + [record]`` with ``noise_seed`` replaced, ``at_once`` models in a tensor program.
    Without ``recipe.privacy`` neither clipping nor noise is applied, which is the baseline for its cost.
    """
    rows, targets = recipe.prepare(known_X, known_y)
    own_rows, own_targets = recipe.prepare(records_X, records_y)
    if recipe.batch_size is not None:
        raise InvalidInput("Many private models train together on full batches only; set batch_size=None.")
    if len(noise_seeds) != len(own_rows):
        raise InvalidInput(f"Each of the {len(own_rows)} models needs a noise seed; got {len(noise_seeds)}.")
    start = recipe.initial_model()
    outputs = Stack.of(start).outputs
    known, own = (encode(recipe, y, outputs).to(recipe.dtype) for y in (targets, own_targets))
    trained = []
    for first in range(0, len(own_rows), at_once):
        report("training private models", first, len(own_rows))
        part = slice(first, first + at_once)
        stack = Stack.of(start, copies=len(own_rows[part]))
        parts = [(rows.flatten(1)[None], known[None]), (own_rows[part].flatten(1)[:, None], own.T[part, :, None])]
        _descend(recipe, stack, parts, [_generator(seed) for seed in noise_seeds[part]])
        trained.append(stack.flat())
    return torch.cat(trained)


def _descend(
    recipe: Recipe, stack: Stack, parts: list[tuple[Tensor, Tensor]], generators: list[torch.Generator]
) -> None:
    """Full-batch private descent of all models in the stack, in place."""
    privacy = recipe.privacy
    parameters = stack.parameters()
    descent = recipe.descent(parameters)
    examples = sum(X.shape[1] for X, _ in parts)
    for step in range(recipe.epochs):
        gradients, norms = clipped_sum(stack, parts, recipe.loss, None if privacy is None else privacy.clip)
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
    try:
        from opacus import PrivacyEngine
    except ImportError as error:
        raise MissingPackage('Private training on sampled batches needs Opacus; install "divulge[privacy]".') from error
    from torch.utils.data import DataLoader, TensorDataset

    from divulge.training import shaped

    assert recipe.batch_size is not None
    order = torch.Generator().manual_seed(recipe.seed)
    loader = DataLoader(TensorDataset(rows, targets), batch_size=recipe.batch_size, generator=order)
    with warnings.catch_warnings():  # its advice on secure random numbers is in our documentation
        warnings.simplefilter("ignore", UserWarning)
        private, optimiser, batches = PrivacyEngine().make_private(
            module=model.train(),
            optimizer=recipe.optimiser_for(model),
            data_loader=loader,
            noise_multiplier=privacy.noise_multiplier,
            max_grad_norm=privacy.clip,
            noise_generator=_generator(privacy.noise_seed),
        )
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
