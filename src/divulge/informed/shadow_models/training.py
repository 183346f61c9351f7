"""Shadow models: models trained on the known rows and one shadow row each, in the place of the unknown row.

Multilayer perceptrons train in groups as one tensor program (``training.batched``). Other architectures and private
models train one after the other, by the recipe itself. Each group is written to disk when it is done, so that a run
that was killed continues where it stopped, and memory holds one group a worker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from divulge.core import workers as pool
from divulge.core.errors import InvalidInput, WrongShape
from divulge.core.storage import digest, write_json
from divulge.informed.inversion.training_function import MlpTraining, mlp_training
from divulge.informed.released_view import flat_weights
from divulge.training import Recipe
from divulge.training.batched.model_group import prepare
from divulge.training.batched.shared_setup import as_mlp, encode, supported, with_row

Precision = Literal["float64", "float32", "bfloat16"]
Job = tuple[Tensor, Tensor]
"""Rows [B, d] and their labels [B]."""


@dataclass(frozen=True)
class Shadows:
    """Shadow models and the rows that make them differ."""

    recipe: Recipe
    """How each model was trained."""
    differences: Tensor
    """[N, P]: each model's weights less the reference's, in the order of ``model.parameters()``."""
    reference: Tensor
    """[P], float64: the weights that the known rows alone lead to."""
    X: Tensor
    """The row of each model, [N, d]."""
    y: Tensor
    """Its label or target, [N]."""
    seconds: float
    """How long training took."""
    trained: int
    """How many were trained now; the others were found on disk."""
    train: Callable[[Job], Tensor] = field(repr=False)
    """Trains more of them: from rows and labels to differences [B, P]."""

    @property
    def rate(self) -> float:
        """Models trained a second."""
        return self.trained / self.seconds if self.seconds > 0 else float("nan")

    def subset(self, count: int) -> Shadows:
        """The first ``count`` of them."""
        return replace(self, differences=self.differences[:count], X=self.X[:count], y=self.y[:count], trained=0)


def shadows(
    recipe: Recipe,
    known_X: Any,
    known_y: Any,
    shadow_X: Any,
    shadow_y: Any,
    *,
    precision: Precision | None = None,
    position: int | None = None,
    start: nn.Module | None = None,
    folder: str | Path | None = None,
    workers: pool.Workers = None,
) -> Shadows:
    """Train one model on the known rows plus each shadow row.

    Parameters
    ----------
    recipe : Recipe
        How each model is trained.
    known_X : array [n, d]
        The rows that all models share.
    known_y : array [n]
        Their labels or targets.
    shadow_X : array [m, d]
        One row a model.
    shadow_y : array [m]
        Their labels or targets.
    precision : {"float64", "float32", "bfloat16"}, optional
        The recipe's own by default. "bfloat16" makes the large products in bfloat16, on processors that have it.
    position : int, optional
        Where the row stands in the training set; last by default. It matters for mini-batches.
    start : nn.Module, optional
        Replaces the recipe's initial model.
    folder : str or Path, optional
        Keeps the result, and resumes.
    workers : int or str, optional
        A number of processes, or a Dask scheduler.

    Returns
    -------
    Shadows
        The weights' differences to the model without the row.

    Raises
    ------
    WrongShape
        Rows or labels do not fit the recipe.

    Examples
    --------
    >>> import divulge
    >>> X, y = divulge.datasets.load("iris").train
    >>> recipe = divulge.Recipe(widths=[4, 8, 3], epochs=5, precision="float64")
    >>> divulge.informed.shadows(recipe, X[:30], y[:30], X[30:40], y[30:40]).differences.shape
    torch.Size([10, 67])
    """
    known_X, known_y = checked_rows(recipe, known_X, known_y, "known")
    shadow_X, shadow_y = checked_rows(recipe, shadow_X, shadow_y, "shadow")
    precision = precision or recipe.precision
    if precision not in ("float64", "float32", "bfloat16"):
        raise InvalidInput(f"precision is float64, float32 or bfloat16; got {precision!r}.")
    started = time.perf_counter()
    program = _program(recipe, known_X, known_y, precision, position, start)
    firsts = range(0, len(shadow_X), program.group)
    identity = _fingerprint(recipe, precision, position, start, known_X, known_y, shadow_X, shadow_y)
    store = _Store(folder, (len(shadow_X), len(program.reference)), precision, identity)
    missing = [first for first in firsts if first not in store.done]
    jobs = [(shadow_X[first : first + program.group], shadow_y[first : first + program.group]) for first in missing]
    pool.run(
        program, jobs, workers=workers, stage="training shadow models",
        on_done=lambda index, result: store.put(missing[index], result),
    )  # fmt: skip
    return Shadows(
        recipe, store.tensor(), program.reference, shadow_X, shadow_y,
        time.perf_counter() - started, sum(len(rows) for rows, _ in jobs), program,
    )  # fmt: skip


# -- how a group is trained -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Together:
    """A group as one tensor program."""

    program: MlpTraining

    @property
    def reference(self) -> Tensor:
        return self.program.reference

    @property
    def group(self) -> int:
        return self.program.group

    def __call__(self, job: Job) -> Tensor:
        Z, y = job
        return self.program.train(Z.flatten(1), encode(self.program.recipe, y, self.program.outputs).T)


@dataclass(frozen=True)
class _OneByOne:
    """Each model by the recipe itself."""

    recipe: Recipe
    known: tuple[Tensor, Tensor] = field(repr=False)
    position: int
    start: nn.Module | None
    reference: Tensor = field(repr=False)
    group: int = 4

    def __call__(self, job: Job) -> Tensor:
        Z, y = job
        rows = [self.train(z, label) - self.reference for z, label in zip(Z, y, strict=True)]
        return torch.stack(rows)

    def train(self, z: Tensor, label: Tensor) -> Tensor:
        X, y = with_row(*self.known, z, label, self.position)
        return flat_weights(self.recipe.train(X, y, start=self.start))


def _program(
    recipe: Recipe, X: Tensor, y: Tensor, precision: str, position: int | None, start: nn.Module | None
) -> _Together | _OneByOne:
    if supported(recipe):
        dtype = torch.float64 if precision == "float64" else torch.float32
        half = precision == "bfloat16"
        return _Together(mlp_training(prepare(recipe, X, y, dtype=dtype, position=position, start=start, half=half)))
    reference = flat_weights(recipe.train(X, y, start=start))
    return _OneByOne(recipe, (X, y), len(X) if position is None else position, start, reference)


def checked_rows(recipe: Recipe, X: Any, y: Any, which: str) -> tuple[Tensor, Tensor]:
    """Rows and labels that fit the recipe's model, in its precision; ``which`` names them in an error."""
    rows, targets = recipe.prepare(X, y)
    plain = as_mlp(recipe)
    if plain is not None and plain.widths is not None:
        width, outputs = plain.widths[0], plain.widths[-1]
        if rows[0].numel() != width:
            raise WrongShape(f"The recipe's model takes {width} features; the {which} rows have {rows[0].numel()}.")
        encode(recipe, targets, outputs)
    return rows.cpu(), targets.cpu()


# -- on disk ----------------------------------------------------------------------------------------------------------


def _fingerprint(recipe: Recipe, precision: str, position: int | None, start: nn.Module | None, *data: Tensor) -> str:
    tensors = [*data, *([] if start is None else [flat_weights(start)])]
    numbers = [part for tensor in tensors for part in (str(tuple(tensor.shape)), tensor)]
    return digest(json.dumps([recipe.as_dict(), precision, position], sort_keys=True), *numbers)


class _Store:
    """The differences, in memory or in a file that grows group by group."""

    def __init__(self, folder: str | Path | None, shape: tuple[int, int], precision: str, identity: str) -> None:
        dtype = np.float64 if precision == "float64" else np.float32
        self.done: set[int] = set()
        self.array: Any
        self.folder = None if folder is None else Path(folder)
        if self.folder is None:
            self.array = np.zeros(shape, dtype)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path, note = self.folder / "shadows.npy", self.folder / "shadows.json"
        if note.exists() and path.exists():
            kept = _read_note(note)
            if kept["identity"] != identity:
                raise InvalidInput(
                    f"{self.folder} holds the shadow models of another recipe or other data; choose another folder."
                )
            self.done = set(kept["done"])
            self.array = np.lib.format.open_memmap(path, mode="r+")
        else:
            self.array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        self.identity = identity

    def put(self, first: int, rows: Tensor) -> None:
        self.array[first : first + len(rows)] = rows.numpy()
        self.done.add(first)
        if self.folder is not None:
            self.array.flush()
            write_json(
                self.folder / "shadows.json", {"identity": self.identity, "done": sorted(self.done)}, indent=None
            )

    def tensor(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.array))


def _read_note(note: Path) -> dict[str, Any]:
    try:
        kept = json.loads(note.read_text())
        return {"identity": str(kept["identity"]), "done": [int(first) for first in kept["done"]]}
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{note} is damaged: {error}. Delete the folder to start again.") from error
