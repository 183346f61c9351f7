"""A reconstructor learned from shadow models (Balle 2022, section IV): trained once, then it reads the unknown row off
any model released for the same known rows.

    attack = divulge.informed.reconstructor(recipe, known_X, known_y, shadow_X, shadow_y)
    record = attack(released)

``method="ridge"`` (the default) is our own, ``"network"`` the paper's. ``access="logits"`` sees only the released
model's answers on probe rows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge import workers as pool
from divulge.errors import InvalidInput, NonFiniteInput, WrongShape
from divulge.informed import network, ridge
from divulge.informed.checks import NotReproduced, notes
from divulge.informed.record import Record
from divulge.informed.shadows import Shadows, flat_weights, shadows
from divulge.training import Recipe, shaped

Method = Literal["ridge", "network"]
Access = Literal["weights", "logits"]
Answers = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Reconstructor:
    """Call it with a released model (or, for logits, anything that answers the probes) to get a Record."""

    recipe: Recipe
    method: Method
    access: Access
    shadows: Shadows
    known: Tensor
    probes: Tensor | None
    chosen: Tensor | None
    """The weights that are looked at; None for all of them."""
    base: Tensor
    """The reference run's features."""
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
        away = self.features(released) - self.base
        size = float(away.norm())
        direction = normalize(away[None], dim=1).to(torch.float32)
        alike = float((direction @ self.labels.features.T).max())
        if size > 3 * self.largest or (alike < 0.1 and size > 0.5 * self.largest):
            raise NotReproduced(
                f"The released model is {size:.3g} from where this recipe leads with the known rows, and no shadow row "
                f"moved it by more than {self.largest:.3g} or in a like direction: the recipe, its seed (initial "
                "weights) or the known rows are not this model's. Without the initial weights this attack is not "
                "possible."
            )
        place = self.labels.label(direction)
        row = self.labels.rows(direction, place) if self.map is None else self.map.rows(direction)
        x = row[0].to(torch.float64)
        x = x if self.bounds is None else x.clamp(*self.bounds)
        label = self.labels.classes[int(place)]
        predicted = self.error if self.map is not None else self.labels.loo[label]
        return Record(
            x, label, predicted, self.method, time.perf_counter() - started, self.seed,
            training_runs=float(len(self.shadows.X)), notes=notes(self.known, x), facts={"moved": size},
        )  # fmt: skip

    def features(self, released: Any) -> Tensor:
        """What the attack sees of a model: chosen weights, or answers on the probes; float64."""
        if self.access == "logits":
            assert self.probes is not None
            answers = _answers(released, self.recipe)(self.probes).detach().to(torch.float64).reshape(-1)
            expected = len(self.base)
        else:
            answers = released.reshape(-1).double() if isinstance(released, Tensor) else flat_weights(released)
            expected = len(self.shadows.reference)
        if len(answers) != expected:
            raise WrongShape(
                f"The released model shows {len(answers)} numbers where this recipe's has {expected}: "
                "another architecture."
            )
        if not bool(answers.isfinite().all()):
            raise NonFiniteInput("The released model holds NaN or infinite values.")
        return answers if self.chosen is None or self.access == "logits" else answers[self.chosen]


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
    queries = None if access == "weights" else _probes(probes, models.X)
    chosen = None if layers is None else _chosen(recipe, layers)
    base, away = _seen(recipe, models, queries, chosen)
    features = normalize(away.to(torch.float32), dim=1)
    labels = ridge.fit(features, models.X, models.y)
    learned, error = None, float("nan")
    if method == "network":
        held = max(1, len(features) // 20)
        previous = None if tune is None else tune.map
        learned = network.fit(features[held:], models.X[held:], epochs=epochs, seed=seed, start=previous)
        error = float((learned.rows(features[:held]) - models.X[:held].flatten(1)).square().mean())
    known = torch.as_tensor(known_X)
    return Reconstructor(
        recipe, method, access, models, known, queries, chosen, base, float(away.norm(dim=1).max()), labels, learned,
        error, bounds, seed, time.perf_counter() - started,
    )  # fmt: skip


def _probes(probes: Any, X: Tensor) -> Tensor:
    if isinstance(probes, int):
        if probes < 1:
            raise InvalidInput(f"probes is a positive number of rows, or the rows themselves; got {probes}.")
        return X[:probes]
    rows = torch.as_tensor(probes).to(X)
    if rows.ndim < 2 or rows[0].numel() != X[0].numel():
        raise WrongShape(f"Probe rows have {X[0].numel()} features, like the shadow rows; got {tuple(rows.shape)}.")
    return rows


def _chosen(recipe: Recipe, layers: Sequence[int]) -> Tensor:
    """The places of the named layers' weights among all weights."""
    names = [name.rsplit(".", 1)[0] for name, _ in recipe.initial_model().named_parameters()]
    order = list(dict.fromkeys(names))
    if not layers or any(not 0 <= layer < len(order) for layer in layers):
        raise InvalidInput(f"layers are numbers from 0 to {len(order) - 1}; got {list(layers)}.")
    wanted = {order[layer] for layer in layers}
    sizes = [parameter.numel() for parameter in recipe.initial_model().parameters()]
    ends = list(itertools.accumulate(sizes))
    places = [
        torch.arange(end - size, end) for name, size, end in zip(names, sizes, ends, strict=True) if name in wanted
    ]
    return torch.cat(places)


def _seen(recipe: Recipe, models: Shadows, probes: Tensor | None, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
    """The reference's features, and how the shadow models' differ from them [N, F]."""
    if probes is None:
        if chosen is None:
            return models.reference, models.differences
        return models.reference[chosen], models.differences[:, chosen]
    model = recipe.initial_model().to(torch.float64).eval()
    rows = shaped(probes.to(torch.float64), model)

    def answers(theta: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(theta, model.parameters())
        with torch.no_grad():
            flat: Tensor = model(rows).reshape(-1)
        return flat

    base = answers(models.reference)
    away = [(answers(models.reference + row.to(torch.float64)) - base).to(torch.float32) for row in models.differences]
    return base, torch.stack(away)


def _answers(released: Any, recipe: Recipe) -> Answers:
    """How to ask the released model for its outputs: an oracle, a module or a function."""
    if hasattr(released, "value") and hasattr(released, "ledger"):
        return lambda rows: torch.as_tensor(released.value(rows))
    if isinstance(released, nn.Module):

        def ask(rows: Tensor) -> Tensor:
            dtype = next(released.parameters()).dtype
            with torch.no_grad():
                outputs: Tensor = released(shaped(rows.to(dtype), released))
            return outputs

        return ask
    if callable(released):
        return lambda rows: torch.as_tensor(released(rows))
    raise InvalidInput("Black-box access needs an oracle, a model or a function that answers rows with logits.")
