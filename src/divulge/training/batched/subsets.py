"""Many models of one recipe trained at once, each on its own part of the same rows and from its own seed.

The models' parameters are stacked and every step is one batched program, so that small networks cost far less than one
after the other. Each model takes the steps that ``Recipe.train`` takes with its seed on its rows; only the order of the
additions in a product differs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput
from divulge.core.losses import shaped
from divulge.core.progress import report
from divulge.models.mlp import MLP
from divulge.training.recipe import ArrayLike, Recipe, TrainingDiverged

LARGEST = 2**26
"""Numbers in the rows of one step of all models together."""


def supported(recipe: Recipe) -> bool:
    """Whether models of this recipe train together: multilayer perceptrons without private training."""
    return recipe.privacy is None and isinstance(recipe.initial_model(), MLP)


def group_size(recipe: Recipe, rows: int) -> int:
    """How many models train together so that a step's rows stay small."""
    at_once = rows if recipe.batch_size is None else min(rows, recipe.batch_size)
    first = recipe.spec["widths"][0] if recipe.widths is not None else 1
    return max(1, min(64, LARGEST // max(1, at_once * int(first))))


def train_on_parts(
    recipe: Recipe, X: ArrayLike, y: ArrayLike, parts: Sequence[Tensor], seeds: Sequence[int]
) -> list[nn.Module]:
    """One model for each part of the rows.

    Parameters
    ----------
    recipe : Recipe
        How each model is trained; its own seed is not used.
    X, y : array [n, ...], array [n]
        All rows, with their labels or targets.
    parts : sequence of Tensor
        The rows of each model, as indices; all parts have the same length.
    seeds : sequence of int
        The seed of each model.

    Returns
    -------
    list of Module
        The trained models, in evaluation mode.

    Raises
    ------
    InvalidInput
        If parts and seeds do not fit together, or models of this recipe do not train together.
    TrainingDiverged
        If the weights are no longer finite.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.training.batched.subsets import train_on_parts
    >>> X, y = divulge.datasets.load("iris").train
    >>> recipe = divulge.Recipe(widths=[4, 8, 3], epochs=2)
    >>> len(train_on_parts(recipe, X, y, [torch.arange(0, 40), torch.arange(40, 80)], [1, 2]))
    2
    """
    rows, targets = recipe.prepare(X, y)
    sizes = {len(part) for part in parts}
    if len(sizes) != 1 or len(parts) != len(seeds) or not supported(recipe):
        raise InvalidInput(
            "Models that train together have parts of one length, a seed each, and fully connected layers."
        )
    own = [replace(recipe, seed=int(seed)) for seed in seeds]
    networks = [one.initial_model().train() for one in own]
    rows = shaped(rows, networks[0]).flatten(1)
    layers = zip(*(network.parameters() for network in networks), strict=True)
    stacked = [_stacked(layer) for layer in layers]
    index = torch.stack([torch.as_tensor(part) for part in parts])
    _descend(recipe, own, networks[0], stacked, rows, targets, index)
    if not all(bool(parameter.isfinite().all()) for parameter in stacked):
        raise TrainingDiverged(f"The weights are no longer finite; try a rate below {recipe.learning_rate:g}.")
    return [_unstacked(networks[0], stacked, place) for place in range(len(seeds))]


def _descend(
    recipe: Recipe, own: list[Recipe], network: nn.Module, stacked: list[Tensor], rows: Tensor, targets: Tensor,
    index: Tensor,
) -> None:  # fmt: skip
    count, n = index.shape
    descent, total = recipe.descent(stacked), recipe.steps(n)
    whole = recipe.batch_size is None or recipe.batch_size >= n
    held = (rows[index], targets[index]) if whole else None
    for step, batches in enumerate(zip(*(one.batches(n) for one in own), strict=True), start=1):
        if held is None:
            taken = index.gather(1, torch.stack(batches))
            inputs, wanted = rows[taken], targets[taken]
        else:
            inputs, wanted = held
        descent.clear()
        outputs = _forward(network, stacked, inputs)
        loss = recipe.loss_of(outputs.flatten(0, 1), wanted.flatten(0, 1), "sum") / inputs.shape[1]
        loss.backward()  # type: ignore[no-untyped-call]
        descent.learning_rate = recipe.rate(step - 1, total)
        descent.step()
        report("training reference models", step, total, models=count)


def _stacked(layer: tuple[nn.Parameter, ...]) -> Tensor:
    """One parameter of all models. Weights [out, in] are held as [in, out]: so their gradients need no copy."""
    values = torch.stack([parameter.detach().t() for parameter in layer])
    return values.contiguous().requires_grad_()


def _forward(network: nn.Module, stacked: list[Tensor], inputs: Tensor) -> Tensor:
    """Outputs [models, rows, k] of a stack of multilayer perceptrons."""
    assert isinstance(network, nn.Sequential)
    values, place = inputs, 0
    for module in network:
        if not isinstance(module, nn.Linear):
            values = values.flatten(2) if isinstance(module, nn.Flatten) else module(values)
            continue
        weight, place = stacked[place], place + 1
        if module.bias is None:
            values = values @ weight
        else:
            values, place = torch.baddbmm(stacked[place][:, None], values, weight), place + 1
    return values


def _unstacked(network: nn.Module, stacked: list[Tensor], place: int) -> nn.Module:
    model = copy.deepcopy(network)
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), stacked, strict=True):
            parameter.copy_(values[place].t())
    return model.eval()
