"""A reconstructor learned from shadow models (Balle 2022, section IV): trained once, then it reads the unknown row off
any model released for the same known rows.

    attack = divulge.informed.reconstructor(recipe, known_X, known_y, shadow_X, shadow_y)
    record = attack(released)

``method="ridge"`` (the default) is our own, ``"network"`` the paper's. ``access="logits"`` sees only the released
model's answers on probe rows.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge import workers as pool
from divulge.errors import InvalidInput
from divulge.informed import network, picture_network, ridge
from divulge.informed.checks import NotReproduced, notes
from divulge.informed.record import Record
from divulge.informed.seen import Access, Sight, probe_rows, sight
from divulge.informed.setting import as_mlp
from divulge.informed.shadows import Shadows, shadows
from divulge.training import Recipe

Method = Literal["ridge", "network"]


@dataclass(frozen=True)
class Reconstructor:
    """Call it with a released model (or, for logits, anything that answers the probes) to get a Record."""

    recipe: Recipe
    method: Method
    access: Access
    shadows: Shadows
    known: Tensor
    sight: Sight
    """What is looked at: weights, some layers, or logits."""
    largest: float
    """The longest difference that a shadow row made."""
    labels: ridge.RidgeMap
    map: network.NetworkMap | None
    error: float
    """The mean squared error on shadow models held out (leave one out, for ridge)."""
    bounds: tuple[float, float] | None
    seed: int
    seconds: float

    def __call__(self, released: Any) -> Record:
        """The unknown row of one released model."""
        started = time.perf_counter()
        away = self.sight.of(released)
        size = float(away.norm())
        direction = _direction(away)
        alike = float((direction @ self.labels.features.T).max())
        if size > 3 * self.largest or (alike < 0.1 and size > self.largest):
            raise NotReproduced(
                f"The released model is {size:.3g} from where this recipe leads with the known rows, and no shadow row "
                f"moved it by more than {self.largest:.3g} or in a like direction: the recipe, its seed (initial "
                "weights) or the known rows are not this model's. Without the initial weights this attack is not "
                "possible."
            )
        place = self.labels.label(self.sight.by_layer(away))
        row = self.labels.rows(direction, place) if self.map is None else self.map.rows(direction)
        x = row[0].to(torch.float64)
        x = x if self.bounds is None else x.clamp(*self.bounds)
        label = self.labels.classes[int(place)]
        predicted = self.error if self.map is not None else self.labels.loo[label]
        return Record(
            x, label, predicted, self.method, time.perf_counter() - started, self.seed,
            training_runs=float(len(self.shadows.X)), notes=notes(self.known, x), facts={"moved": size},
        )  # fmt: skip


def reconstructor(
    recipe: Recipe,
    known_X: Any,
    known_y: Any,
    shadow_X: Any,
    shadow_y: Any,
    *,
    method: Method = "ridge",
    access: Access = "weights",
    layers: Sequence[int] | None = None,
    probes: Any = 200,
    epochs: int = 100,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    position: int | None = None,
    start: nn.Module | None = None,
    folder: str | Path | None = None,
    workers: pool.Workers = None,
    models: Shadows | None = None,
    tune: Reconstructor | None = None,
    seed: int = 0,
) -> Reconstructor:
    """Train shadow models on the known rows plus each shadow row, and learn to read the row off the model.

    ``layers`` are the numbers of the layers that the attack may look at (all by default). ``probes`` are the rows whose
    answers a black-box attack sees, or how many of the shadow rows to take. ``models`` are shadow models trained
    before; ``tune`` continues from a network learned for another fixed set. ``epochs`` are the network's.
    """
    started = time.perf_counter()
    if method not in ("ridge", "network") or access not in ("weights", "logits"):
        raise InvalidInput(f'method is "ridge" or "network" and access "weights" or "logits"; got {method}, {access}.')
    if models is None:
        models = shadows(
            recipe, known_X, known_y, shadow_X, shadow_y, position=position, start=start, folder=folder, workers=workers
        )
    if len(models.X) < 2:
        raise InvalidInput("A reconstructor needs at least two shadow rows; a few hundred is where it starts to work.")
    queries = None if access == "weights" else probe_rows(probes, models.X)
    looked = sight(recipe, models.reference, layers=layers, probes=queries)
    away = looked.image(models.differences)
    features = _direction(away)
    labels = ridge.fit(features, looked.by_layer(away), models.X, models.y)
    learned, error = None, float("nan")
    if method == "network":
        held = max(1, len(features) // 20)
        previous = None if tune is None else tune.map
        train = _fit_network(recipe)
        learned = train(features[held:], models.X[held:], epochs=epochs, seed=seed, start=previous)
        error = float((learned.rows(features[:held]) - models.X[:held].flatten(1)).square().mean())
    known = torch.as_tensor(known_X)
    return Reconstructor(
        recipe, method, access, models, known, looked, float(away.norm(dim=1).max()), labels, learned,
        error, bounds, seed, time.perf_counter() - started,
    )  # fmt: skip


def _direction(away: Tensor) -> Tensor:
    """Differences of features [P] or [N, P] as directions [N, P]."""
    return normalize(away.reshape(-1, away.shape[-1]), dim=1).to(torch.float32)


def _fit_network(recipe: Recipe) -> Callable[..., network.NetworkMap]:
    """The paper's network for the recipe's kind of model: dense for MNIST, transposed convolutions for CIFAR-10."""
    shape = getattr(recipe.initial_model(), "input_shape", ())
    if as_mlp(recipe) is not None or len(shape) != 3 or any(side % 4 for side in shape[1:]):
        return network.fit
    return functools.partial(picture_network.fit, shape=tuple(shape))
