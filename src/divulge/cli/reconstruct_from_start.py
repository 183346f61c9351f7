"""The two models of ``divulge reconstruct --start``: the start, and what was released, as files hold them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divulge.core.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn

    from divulge.reconstruction import Reconstruction
    from divulge.training import Recipe

SHORT = 1e-6
"""The size of a step that turns no unit on, as a share of the weights."""


def base(start: str, *, trust_pickle: bool) -> Any:
    """The model before training, or the initial model of the recipe that gives it."""
    from divulge.oracles import load_model
    from divulge.training import Recipe

    if Path(start).name == "recipe.json":
        recipe: Recipe = Recipe.load(start)
        return recipe.initial_model()
    return network(load_model(start, trust_pickle=trust_pickle))


def released(model: str, start: Any, *, update: bool, trust_pickle: bool) -> Any:
    """The released model. A file of weights alone belongs to the architecture of the start, where there is one."""
    from divulge.oracles import load_model
    from divulge.oracles.load_model import load_weights
    from divulge.reconstruction.known_start.checkpoints import applied

    tensors = None if start is None else load_weights(model)
    if tensors is not None:
        return applied(start, tensors, update=update)
    if update:
        raise InvalidInput("--update takes a .pt or .safetensors file of tensors that are named as those of the start.")
    return load_model(model, trust_pickle=trust_pickle)


def network(model: Any) -> Any:
    """The network itself, where the model is an estimator that holds one."""
    from divulge.oracles import oracle
    from divulge.oracles.local.sklearn_estimator import is_estimator

    return oracle(model, access="weights").weights() if is_estimator(model) else model


def smaller(module: nn.Module, start: nn.Module) -> nn.Module:
    """The start with so small a share of the module's changes that no hidden unit comes on: as a gradient's step is."""
    import torch

    step = copy.deepcopy(module)
    size, changed = (torch.cat([p.detach().flatten().double() for p in parts]).norm() for parts in (
        start.parameters(), [a - b.to(a) for a, b in zip(module.parameters(), start.parameters(), strict=True)]
    ))  # fmt: skip
    share = SHORT * float(size / changed.clamp_min(1e-300))
    with torch.no_grad():
        for parameter, before in zip(step.parameters(), start.parameters(), strict=True):
            parameter.copy_(before.to(parameter) + share * (parameter - before.to(parameter)))
    return step


def attack(module: nn.Module, start: nn.Module, *, update: bool, options: dict[str, Any]) -> Reconstruction:
    """The attack. An update may be a change or a gradient, so both are tried until one certifies all inputs."""
    from divulge import reconstruction

    found = reconstruction.from_weights(module, start=start, **options)
    if not update or _certified(found) == len(found.samples):
        return found
    again = reconstruction.from_weights(smaller(module, start), start=start, **options)
    return max((found, again), key=_certified)


def _certified(found: Reconstruction) -> int:
    return 0 if found.certified is None else int(found.certified.sum())
