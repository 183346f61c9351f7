"""Reference models: models like the target, trained on known halves of the pool of members and non-members.

They come in pairs that train on complementary halves, so that every record is in exactly half of an even number of
models: the same models serve all records, online (with models that saw the record) and offline (only those that did
not). A model is kept only as its fit to each record of the pool, one number a record, on disk too where a folder is
given. A ``Recipe`` of a multilayer perceptron trains many models as one tensor program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.core import workers as pool_of_workers
from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.storage import digest
from divulge.membership.records import Records
from divulge.oracles.local.sklearn_estimator import is_estimator, refit
from divulge.oracles.record_scores import Task, asked
from divulge.training import Recipe
from divulge.training.batched.subsets import group_size, supported, train_on_parts

Train: TypeAlias = Recipe | Callable[[Any, Any, int], object] | object
"""How a model is trained: a recipe, an estimator to clone, or a function (X, y, seed) to a model."""
MOST = 1_024


@dataclass(frozen=True)
class References:
    """The fits of the reference models to the pool, and which records each was trained on, both [models, records]."""

    fits: NDArray[np.float64]
    inside: NDArray[np.bool_]


def halves(count: int, records: int, seed: int) -> NDArray[np.bool_]:
    """Which records each model trains on [count, records]; models 2i and 2i + 1 take complementary halves."""
    rng = np.random.default_rng([seed, 1])
    inside = np.zeros((count, records), dtype=bool)
    for first in range(0, count, 2):
        order = rng.permutation(records)
        half = records // 2
        inside[first, order[:half]] = True
        if first + 1 < count:
            inside[first + 1, order[half : 2 * half]] = True
    return inside


def reference_models(
    train: Train,
    pool: Records,
    count: int,
    *,
    task: Task,
    seed: int,
    workers: pool_of_workers.Workers = None,
    folder: str | Path | None = None,
) -> References:
    """Train ``count`` models on halves of the pool and ask each how well it fits every record."""
    check_train(train)
    inside = halves(count, len(pool), seed)
    together = isinstance(train, Recipe) and supported(train)
    size = group_size(train, len(pool) // 2) if isinstance(train, Recipe) and together else 1
    jobs = [list(range(first, min(count, first + size))) for first in range(0, count, size)]
    fit = partial(_fits, train, pool, inside, task, seed)
    options: dict[str, Any] = {"workers": workers, "stage": "reference models"}
    if folder is None:
        parts = pool_of_workers.run(fit, jobs, **options)
    else:
        settings = {"pool": digest(pool.X, repr(pool.y.tolist())), "seed": seed, "count": count, "train": _named(train)}
        parts = pool_of_workers.checkpointed(fit, jobs, folder, settings=settings, **options)
    return References(np.concatenate([np.asarray(part) for part in parts]), inside)


def check_train(train: object) -> None:
    """Refuse what is no way to train a model."""
    if not (isinstance(train, Recipe) or is_estimator(train) or callable(train)):
        raise InvalidInput(
            f"train is a Recipe, an estimator to clone or a function (X, y, seed) to a model; got a "
            f"{type(train).__name__}."
        )


def _named(train: Train) -> Any:
    """What tells one way of training from another, for the folder that keeps the models."""
    if isinstance(train, Recipe):
        return train.as_dict()
    return repr(train) if is_estimator(train) else getattr(train, "__qualname__", type(train).__name__)


def _fits(
    train: Train, pool: Records, inside: NDArray[np.bool_], task: Task, seed: int, models: list[int]
) -> NDArray[np.float64]:
    """The fits [models, records] of a few models that train together."""
    seeds = [int(np.random.SeedSequence([seed, 2, model]).generate_state(1)[0]) for model in models]
    parts = [np.flatnonzero(inside[model]) for model in models]
    if isinstance(train, Recipe) and len(models) > 1:
        indices = [torch.as_tensor(part) for part in parts]
        trained: list[Any] = list(train_on_parts(train, pool.X, targets_of(pool.y), indices, seeds))
    else:
        trained = [trained_on(train, pool.at(part), own) for part, own in zip(parts, seeds, strict=True)]
    out = np.empty((len(models), len(pool)))
    for place, model in enumerate(trained):
        out[place] = fit_of(model, pool, task)
    return out


def fit_of(model: object, pool: Records, task: Task) -> NDArray[np.float64]:
    """How well one trained model fits each record [n]."""
    plain = callable(model) and not isinstance(model, torch.nn.Module) and not hasattr(model, "predict")
    shape: dict[str, Any] = {"input_shape": (pool.X.shape[1],)} if plain else {}
    seen = getattr(model, "classes_", None)
    view = asked(model, pool.y if seen is None else np.asarray(seen), **shape)
    if view.task != task and seen is None:
        view = replace(view, task=task)
    if not view.oracle.allows("value"):
        raise InvalidInput("Reference models must answer values; these answer labels only.")
    return view.fits(pool.X, pool.y)


def trained_on(train: Train, part: Records, seed: int) -> object:
    """One model, trained on these records from this seed."""
    if isinstance(train, Recipe):
        return replace(train, seed=seed).train(part.X, targets_of(part.y))
    if is_estimator(train):
        return refit(_cloned(train, seed), part.X.numpy(), part.y)
    assert callable(train)
    try:
        return train(part.X.numpy(), part.y, seed)
    except DivulgeError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"The function that trains reference models failed with {type(error).__name__}: {error}; it is called as "
            "train(X, y, seed) with arrays."
        ) from error


def _cloned(estimator: Any, seed: int) -> Any:
    from sklearn.base import clone

    fresh = clone(estimator)
    states = {name: seed % 2**31 for name in fresh.get_params() if name.split("__")[-1] == "random_state"}
    return fresh.set_params(**states)


def targets_of(y: NDArray[Any]) -> torch.Tensor:
    """Labels or targets as a recipe takes them."""
    if y.dtype.kind not in "fiub":
        raise InvalidInput("A recipe trains on labels that are numbers; these are text.")
    whole = y.dtype.kind != "f" or bool((y == np.round(y)).all())
    return torch.as_tensor(y.astype(np.int64) if whole and y.ndim == 1 else y.astype(np.float64))
