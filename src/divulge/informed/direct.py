"""Inverting training itself: the unknown row without a single shadow model.

The released weights are theta(z) = A(D_- + z) with A deterministic, differentiable and known, so z solves an equation,
and Gauss-Newton through training finds it (``gauss_newton``, ``sweeps``). Balle 2022 poses the attack as inversion
(section IV-A) and then learns the inverse from shadow models; solving it directly takes about a hundred training runs
a record instead of tens of thousands, and ends several orders of magnitude closer.

The label is found by comparing what the unknown row did to the weights with what copies of known rows would have done
(a few for each class, trained once for all targets), and where two labels come close, by searching a little with both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from divulge.errors import InvalidInput, WrongShape
from divulge.informed import checks, descent, gauss_newton, sweeps
from divulge.informed.record import Record
from divulge.informed.setting import Setting, encode
from divulge.informed.shadows import group_size
from divulge.progress import report
from divulge.training import Recipe

_WITNESSES = 6  # copies of known rows of each class that help to tell the label
_CLOSE = 0.1  # labels whose likeness differs by less are both tried,
_TRIAL = 24  # with a search of so many training runs
_BYTES = 1.5e9  # what the runs of one group may hold in memory
_FOUND = 0.05  # a search that leaves more than this share unexplained has not found the row
_CEILING = (
    "{:.0%} of what the unknown row did to the weights is left unexplained: more runs may help; an unknown shuffling "
    "seed, initial model or noise puts a ceiling on this attack"
)


def direct(
    recipe: Recipe,
    released: nn.Module | Tensor | Sequence[nn.Module],
    known_X: Any,
    known_y: Any,
    *,
    labels: Any = None,
    start: Any = "mean",
    runs: float = 90,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    noise: float | None = None,
    position: int | None = None,
    initial: nn.Module | None = None,
    precision: str | None = None,
    seed: int = 0,
) -> Any:
    """Rebuild the row that ``released`` was trained on besides the known ones; a Record, or a list of them where
    ``released`` is a list of models (each with one unknown row of its own; they are attacked together).

    ``labels`` are the unknown rows' labels where they are known. ``start`` is "mean" (of the known rows of that
    label), "noise", or rows to start from, such as a reconstructor's. ``runs`` is the budget in training runs a
    record. ``noise`` is the standard deviation of noise on the released weights: the search then looks for the most
    probable row under a Gaussian prior from the known ones (where bounds are known, the search without it was closer in
    every case measured). ``position`` is where the row stood in the training set
    (mini-batches only), ``initial`` the model that training started from where it was not the recipe's.
    """
    started = time.perf_counter()
    several = isinstance(released, Sequence) and not isinstance(released, Tensor)
    models = list(released) if isinstance(released, Sequence) else [released]
    X, y = checks.known(recipe, known_X, known_y)
    dtype = torch.float64 if (precision or recipe.precision) == "float64" else torch.float32
    setting = descent.prepare(recipe, X, y, dtype=dtype, position=position, start=initial)
    target = checks.differences(setting, models)
    if setting.widths[-1] == 1 and recipe.loss == "square":
        raise InvalidInput("The direct attack needs class labels; for a linear regression use the closed form, glm.")
    guesses = _Guesses.of(setting, X, y)
    checks.reproduces(setting, X, y, target, guesses.theta, initial)
    cost = torch.zeros(len(models))
    if labels is not None:
        places = guesses.given(labels, len(models))
    else:
        places, cost = _decide(setting, guesses, target, bounds)
    z = _start(start, guesses.means, places, len(models), bounds, seed).to(dtype)
    size = _group(setting)
    found: list[Record] = []
    for first in range(0, len(models), size):
        part = slice(first, first + size)
        report("attacking", first, len(models))
        found += _attack(setting, X, y, target[part], z[part], places[part], runs, bounds, noise, guesses, seed)
    seconds = (time.perf_counter() - started) / len(found)
    shared = guesses.runs / len(found)
    found = [
        replace(record, seconds=seconds, training_runs=record.training_runs + shared + float(extra))
        for record, extra in zip(found, cost, strict=True)
    ]
    return found if several else found[0]


def _attack(
    setting: Setting,
    X: Tensor,
    y: Tensor,
    target: Tensor,
    z: Tensor,
    places: Tensor,
    runs: float,
    bounds: tuple[float, float] | None,
    noise: float | None,
    guesses: _Guesses,
    seed: int,
) -> list[Record]:
    train = _trainer(setting, guesses.encoded[places])
    prior = None if noise is None else _prior(X, y, guesses.means[places], noise, setting.dtype)
    floor = 4 * torch.finfo(setting.dtype).eps
    result = gauss_newton.invert(train, target, z, runs=runs, bounds=bounds, prior=prior, tolerance=floor)
    records = []
    for row in range(len(target)):
        left = float(result.misfit[row] / target[row].norm())
        reason = "" if left < _FOUND or noise is not None else _CEILING.format(left)
        facts = {"misfit": left, "history": [(used, float(misfit[row])) for used, misfit in result.history]}
        predicted = float(result.misfit[row].square() / result.curvature[row] / setting.d)
        x, label = result.z[row].to(torch.float64), guesses.names[int(places[row])]
        records.append(
            Record(
                x, label, predicted, "direct", 0.0, seed, not reason, reason,
                training_runs=result.runs, notes=checks.notes(X, x), facts=facts,
            )
        )  # fmt: skip
    return records


def _trainer(setting: Setting, encoded: Tensor) -> gauss_newton.Train:
    def train(rows: Tensor, which: Tensor) -> sweeps.Run:
        return sweeps.Run(setting, rows, encoded[which])

    return train


@dataclass(frozen=True)
class _Guesses:
    """What each class's mean row, and copies of a few known rows, would have done to the weights."""

    names: list[Any]
    means: Tensor
    encoded: Tensor
    theta: Tensor
    owner: Tensor
    """The place of each guess's label among the names."""
    runs: int

    @classmethod
    def of(cls, setting: Setting, X: Tensor, y: Tensor) -> _Guesses:
        names = sorted(set(y.tolist()))
        flat = X.reshape(len(X), -1)
        means = torch.stack([flat[y == name].mean(dim=0) for name in names])
        rows = torch.cat([means, *(flat[y == name][:_WITNESSES] for name in names)]).to(setting.dtype)
        counts = [min(_WITNESSES, int((y == name).sum())) for name in names]
        owner = torch.tensor([*range(len(names)), *(i for i, n in enumerate(counts) for _ in range(n))])
        encoded = encode(setting.recipe, torch.tensor(names), setting.widths[-1]).T.to(setting.dtype)
        parts = [
            descent.train_encoded(setting, rows[part], encoded[owner[part]])
            for part in torch.split(torch.arange(len(rows)), group_size(setting))
        ]
        return cls(names, means.to(setting.dtype), encoded, torch.cat(parts), owner, len(rows))

    def likeness(self, target: Tensor) -> Tensor:
        """For each target and label, the best cosine to what a guess of that label did [B, labels]."""
        cosine = normalize(target, dim=1) @ normalize(self.theta, dim=1).T
        best = [cosine[:, self.owner == place].max(dim=1).values for place in range(len(self.names))]
        return torch.stack(best, dim=1)

    def given(self, labels: Any, count: int) -> Tensor:
        """The places of labels that the caller knows."""
        values = torch.as_tensor(labels).reshape(-1).tolist()
        if len(values) != count:
            raise WrongShape(f"There are {count} released models but {len(values)} labels.")
        missing = [value for value in values if value not in self.names]
        if missing:
            raise InvalidInput(f"No known row has the label {missing[0]!r}; labels are {self.names}.")
        return torch.tensor([self.names.index(value) for value in values])


def _decide(
    setting: Setting, guesses: _Guesses, target: Tensor, bounds: tuple[float, float] | None
) -> tuple[Tensor, Tensor]:
    """The place of each target's label, and the training runs that the decision took."""
    likeness = guesses.likeness(target)
    best = likeness.topk(min(2, likeness.shape[1]), dim=1)
    places, cost = best.indices[:, 0].clone(), torch.zeros(len(target))
    if likeness.shape[1] < 2:
        return places, cost
    close = torch.nonzero(best.values[:, 0] - best.values[:, 1] < _CLOSE)[:, 0]
    for part in torch.split(close, _group(setting)) if len(close) else ():
        misfits = []
        for rank in range(2):
            label = best.indices[part, rank]
            train = _trainer(setting, guesses.encoded[label])
            start, inner = guesses.means[label], _TRIAL // 2 - 2
            result = gauss_newton.invert(train, target[part], start, runs=_TRIAL, bounds=bounds, inner=inner)
            misfits.append(result.misfit)
            cost[part] += result.runs
        places[part] = torch.where(misfits[1] < misfits[0], best.indices[part, 1], best.indices[part, 0])
    return places, cost


def _start(
    start: Any, table: Tensor, places: Tensor, count: int, bounds: tuple[float, float] | None, seed: int
) -> Tensor:
    if isinstance(start, str):
        if start == "mean":
            return table[places]
        if start == "noise":
            generator = torch.Generator().manual_seed(seed)
            low, high = bounds if bounds is not None else (float(table.min()), float(table.max()))
            return low + (high - low) * torch.rand(count, table.shape[1], generator=generator)
        raise InvalidInput(f'start is "mean", "noise" or rows to start from; got {start!r}.')
    if isinstance(start, Record):
        start = start.x
    if isinstance(start, Sequence) and start and isinstance(start[0], Record):
        start = torch.stack([record.x for record in start])
    rows = torch.as_tensor(start).reshape(-1, table.shape[1])
    if len(rows) != count:
        raise WrongShape(f"There are {count} released models but {len(rows)} rows to start from.")
    return rows if bounds is None else rows.clamp(*bounds)


def _prior(X: Tensor, y: Tensor, means: Tensor, noise: float, dtype: torch.dtype) -> gauss_newton.Prior:
    """Each row's class mean, and the covariance within classes pooled over them."""
    if noise <= 0:
        raise InvalidInput(f"noise is a positive standard deviation; got {noise!r}.")
    flat = X.reshape(len(X), -1).to(torch.float64)
    spread = flat.clone()
    for label in set(y.tolist()):
        spread[y == label] -= flat[y == label].mean(dim=0)
    covariance = spread.T @ spread / max(1, len(flat) - 1)
    covariance += 1e-3 * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
    return gauss_newton.Prior(means, torch.linalg.cholesky(covariance).to(dtype), noise)


def _group(setting: Setting) -> int:
    """How many rows to attack at once, by the memory that their runs take."""
    batches = setting.batches()
    rows = sum(len(batch.known) if batch.known is not None else setting.n for batch in batches)
    size = rows * sum(setting.widths[1:]) + len(batches) * sum(part.numel() for part in setting.start)
    return max(1, int(_BYTES / (size * setting.U.element_size())))
