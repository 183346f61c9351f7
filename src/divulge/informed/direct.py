"""Inverting training itself: the unknown row without a single shadow model.

The released weights are theta(z) = A(D_- + z) with A deterministic, differentiable and known, so z solves an equation,
and Gauss-Newton through training finds it (``gauss_newton``, ``program``). Balle 2022 poses the attack as inversion
(section IV-A) and then learns the inverse from shadow models; solving it directly takes about a hundred training runs
a record instead of tens of thousands, and ends several orders of magnitude closer. With ``access="logits"`` the
equation is for the released model's answers on probe rows instead of its weights.

The label is found by comparing what the unknown row did to the model with what copies of known rows would have done
(a few for each class, from well to badly fitted ones, trained once for all targets), and where two labels come close,
by searching a little with both. The search starts from whatever of these, or of the classes' mean rows, did most alike:
the mean of a class is fitted so well that it hardly moves a model, and for a hard row J is far too small there.
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
from divulge.informed import checks, gauss_newton
from divulge.informed.program import ByHand, Program, program
from divulge.informed.record import Record
from divulge.informed.seen import Access, Sight, probe_rows, sight
from divulge.informed.setting import encode
from divulge.progress import report
from divulge.training import Recipe, shaped
from divulge.whole import checked_seed

_WITNESSES = 6  # copies of known rows of each class that help to tell the label and where to start
_CLOSE = 0.1  # labels whose likeness differs by less are both tried,
_TRIAL = 24  # with a search of so many training runs
_INNER, _INNER_KINKED = 10, 5  # conjugate gradient steps a round: fewer where the map is rough
_NEAR = 0.2  # of what the row did left unexplained: further off, the derivative does not say how far
_CEILING = "; more runs may help; an unknown shuffling seed, initial model or noise puts a ceiling on this attack"


def direct(
    recipe: Recipe,
    released: Any,
    known_X: Any,
    known_y: Any,
    *,
    labels: Any = None,
    start: Any = "guess",
    runs: float = 90,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    access: Access = "weights",
    probes: Any = 200,
    noise: float | None = None,
    position: int | None = None,
    initial: nn.Module | None = None,
    precision: str | None = None,
    seed: int = 0,
) -> Any:
    """Rebuild the row that ``released`` was trained on besides the known ones; a Record, or a list of them where
    ``released`` is a list of models (each with one unknown row of its own; they are attacked together).

    ``labels`` are the unknown rows' labels where they are known. ``start`` is "guess" (the known row of that label, or
    their mean, that would have moved the model most alike), "mean" (of that label), "noise", or rows to start from,
    such as a reconstructor's. ``runs`` is the budget in training runs a
    record. ``access="logits"`` sees only the released model's answers (it may be an oracle) on the ``probes``: rows, or
    how many of the known ones. ``noise`` is the standard deviation of noise on the released weights: the search then
    looks for the most probable row under a Gaussian prior from the known ones; a recipe with privacy implies its own.
    ``position`` is where the row stood in the training set (mini-batches only), ``initial`` the model that training
    started from where it was not the recipe's.
    """
    started, seed = time.perf_counter(), checked_seed(seed)
    several = isinstance(released, Sequence) and not isinstance(released, Tensor)
    models = list(released) if isinstance(released, Sequence) else [released]
    if not models:
        raise InvalidInput("There is no released model to attack.")
    if access not in ("weights", "logits"):
        raise InvalidInput(f'access is "weights" or "logits"; got {access!r}.')
    X, y = checks.known(recipe, known_X, known_y)
    dtype = torch.float64 if (precision or recipe.precision) == "float64" else torch.float32
    training = program(recipe, X, y, dtype=dtype, position=position, start=initial)
    if training.outputs == 1 and recipe.loss == "square":
        raise InvalidInput("The direct attack needs class labels; for a linear regression use the closed form, glm.")
    view = sight(recipe, training.reference, probes=probe_rows(probes, X) if access == "logits" else None)
    target = torch.stack([view.of(model) for model in models]).to(dtype)
    guesses = _Guesses.of(training, view, X, y)
    noise = _noise(recipe, len(X) + 1, noise, access)
    checks.reproduces(training, view, X, y, target, guesses.theta, initial, noise or 0.0)
    search = _Search(training, view, guesses, bounds, None if noise is None else _prior(X, y, noise, dtype))
    cost = torch.zeros(len(models))
    if labels is not None:
        places = guesses.given(labels, len(models))
    else:
        places, cost = _decide(search, target)
    z = _start(start, search, target, places, seed).to(dtype)
    found: list[Record] = []
    for first in range(0, len(models), training.together):
        part = slice(first, first + training.together)
        report("attacking", first, len(models))
        result = search(target[part], z[part], places[part], runs)
        found += _records(search, result, target[part], places[part], X, seed)
    seconds = (time.perf_counter() - started) / len(found)
    shared = guesses.runs / len(found)
    found = [
        replace(record, seconds=seconds, training_runs=record.training_runs + shared + float(extra))
        for record, extra in zip(found, cost, strict=True)
    ]
    return found if several else found[0]


@dataclass(frozen=True)
class _Search:
    """Everything that the searches for all rows and labels share."""

    training: Program
    view: Sight
    guesses: _Guesses
    bounds: tuple[float, float] | None
    prior: gauss_newton.Prior | None

    def __call__(
        self, target: Tensor, z: Tensor, places: Tensor, runs: float, inner: int | None = None
    ) -> gauss_newton.Inversion:
        """Invert training from ``z`` under the labels at ``places``."""
        encoded = self.guesses.encoded[places]
        prior = None if self.prior is None else replace(self.prior, mean=self.guesses.means[places])
        floor = 4 * torch.finfo(self.training.dtype).eps
        kinked = isinstance(self.training, ByHand) and self.training.recipe.activation == "relu"
        inner = inner or (_INNER_KINKED if kinked else _INNER)

        def train(rows: Tensor, which: Tensor) -> gauss_newton.Trained:
            return self.view.through(self.training.run(rows, encoded[which]))

        return gauss_newton.invert(
            train, target, z, runs=runs, bounds=self.bounds, inner=inner, prior=prior, tolerance=floor
        )


def _records(
    search: _Search, result: gauss_newton.Inversion, target: Tensor, places: Tensor, X: Tensor, seed: int
) -> list[Record]:
    records = []
    anyway = checks.nearest(X)
    for row in range(len(target)):
        left = float(result.misfit[row] / target[row].norm())
        predicted = float(result.misfit[row].square() / result.curvature[row] / search.training.inputs)
        if left > _NEAR:
            predicted = max(predicted, anyway)
        doubt = "" if search.prior is not None else checks.doubt(predicted, anyway, left)
        reason = doubt and doubt + _CEILING
        facts = {"misfit": left, "history": [(used, float(misfit[row])) for used, misfit in result.history]}
        x, label = result.z[row].to(torch.float64), search.guesses.names[int(places[row])]
        records.append(
            Record(
                x, label, predicted, "direct", 0.0, seed, not reason, reason,
                training_runs=result.runs, notes=checks.notes(X, x), facts=facts,
            )
        )  # fmt: skip
    return records


@dataclass(frozen=True)
class _Guesses:
    """What each class's mean row, and copies of a few known rows, would have done to the weights."""

    names: list[Any]
    rows: Tensor
    """The means of the classes, then the known rows."""
    encoded: Tensor
    theta: Tensor
    owner: Tensor
    """The place of each guess's label among the names."""
    runs: int

    @classmethod
    def of(cls, training: Program, view: Sight, X: Tensor, y: Tensor) -> _Guesses:
        names = sorted(set(y.tolist()))
        flat = X.reshape(len(X), -1)
        rows, owner = [flat[y == name].mean(dim=0) for name in names], list(range(len(names)))
        if isinstance(training, ByHand):  # where a training run is cheap
            answered = view.outputs(training.reference, shaped(X.to(torch.float64), view.model))
            loss = training.recipe.loss_of(answered, y, "none").reshape(len(X), -1).sum(dim=1)
            for place, name in enumerate(names):
                order = torch.nonzero(y == name)[:, 0]
                order = order[loss[order].argsort()]
                chosen = torch.linspace(0, len(order) - 1, min(_WITNESSES, len(order))).round().long()
                rows += list(flat[order[chosen]])
                owner += [place] * len(chosen)
        tried, owned = torch.stack(rows).to(training.dtype), torch.tensor(owner)
        encoded = encode(training.recipe, torch.tensor(names), training.outputs).T.to(training.dtype)
        theta = view.image(training.train(tried, encoded[owned]))
        return cls(names, tried, encoded, theta, owned, len(rows))

    @property
    def means(self) -> Tensor:
        """The mean row of each label."""
        return self.rows[: len(self.names)]

    def likeness(self, target: Tensor) -> Tensor:
        """For each target and label, the best cosine to what a guess of that label did [B, labels]."""
        cosine = self._cosine(target)
        best = [cosine[:, self.owner == place].max(dim=1).values for place in range(len(self.names))]
        return torch.stack(best, dim=1)

    def start(self, target: Tensor, places: Tensor) -> Tensor:
        """For each target the guess of its label that did most alike [B, d]."""
        other = self.owner[None, :] != places[:, None]
        return self.rows[self._cosine(target).masked_fill(other, -torch.inf).argmax(dim=1)]

    def _cosine(self, target: Tensor) -> Tensor:
        return normalize(target, dim=1) @ normalize(self.theta, dim=1).T

    def given(self, labels: Any, count: int) -> Tensor:
        """The places of labels that the caller knows."""
        values = torch.as_tensor(labels).reshape(-1).tolist()
        if len(values) != count:
            raise WrongShape(f"There are {count} released models but {len(values)} labels.")
        missing = [value for value in values if value not in self.names]
        if missing:
            raise InvalidInput(f"No known row has the label {missing[0]!r}; labels are {self.names}.")
        return torch.tensor([self.names.index(value) for value in values])


def _decide(search: _Search, target: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each target's label, and the training runs that the decision took."""
    likeness = search.guesses.likeness(target)
    best = likeness.topk(min(2, likeness.shape[1]), dim=1)
    places, cost = best.indices[:, 0].clone(), torch.zeros(len(target))
    if likeness.shape[1] < 2:
        return places, cost
    close = torch.nonzero(best.values[:, 0] - best.values[:, 1] < _CLOSE)[:, 0]
    for part in torch.split(close, search.training.together) if len(close) else ():
        misfits = []
        for rank in range(2):
            label = best.indices[part, rank]
            begin = search.guesses.start(target[part], label)
            result = search(target[part], begin, label, _TRIAL, inner=_TRIAL // 2 - 2)
            misfits.append(result.misfit)
            cost[part] += result.runs
        places[part] = torch.where(misfits[1] < misfits[0], best.indices[part, 1], best.indices[part, 0])
    return places, cost


def _start(start: Any, search: _Search, target: Tensor, places: Tensor, seed: int) -> Tensor:
    means, bounds, count = search.guesses.means, search.bounds, len(target)
    if isinstance(start, str):
        if start == "guess":  # noise hides what is alike
            return search.guesses.start(target, places) if search.prior is None else means[places]
        if start == "mean":
            return means[places]
        if start == "noise":
            generator = torch.Generator().manual_seed(seed)
            low, high = bounds if bounds is not None else (float(means.min()), float(means.max()))
            return low + (high - low) * torch.rand(count, means.shape[1], generator=generator)
        raise InvalidInput(f'start is "guess", "mean", "noise" or rows to start from; got {start!r}.')
    if isinstance(start, Record):
        start = start.x
    if isinstance(start, Sequence) and start and isinstance(start[0], Record):
        start = torch.stack([record.x for record in start])
    rows = torch.as_tensor(start).reshape(-1, means.shape[1])
    if len(rows) != count:
        raise WrongShape(f"There are {count} released models but {len(rows)} rows to start from.")
    return rows if bounds is None else rows.clamp(*bounds)


def _noise(recipe: Recipe, n: int, noise: float | None, access: Access) -> float | None:
    """The standard deviation of the noise on each released weight: as given, or as private training leaves it where
    nothing pulls the weights back."""
    if noise is not None:
        if noise <= 0:
            raise InvalidInput(f"noise is a positive standard deviation; got {noise!r}.")
        return float(noise)
    if recipe.privacy is None or recipe.privacy.noise_multiplier == 0:
        return None
    if access == "logits":
        raise InvalidInput("Against private training the direct attack needs the weights.")
    reach = torch.cumsum(float(recipe.momentum) ** torch.arange(recipe.steps(n), dtype=torch.float64), dim=0)
    each = recipe.privacy.noise_multiplier * recipe.privacy.clip / n
    return float(recipe.learning_rate) * each * float(reach.square().sum().sqrt())


def _prior(X: Tensor, y: Tensor, noise: float, dtype: torch.dtype) -> gauss_newton.Prior:
    """The covariance within classes pooled over them; the mean is each row's class mean, put in later."""
    flat = X.reshape(len(X), -1).to(torch.float64)
    spread = flat.clone()
    for label in set(y.tolist()):
        spread[y == label] -= flat[y == label].mean(dim=0)
    values, vectors = torch.linalg.eigh(spread.T @ spread / max(1, len(flat) - 1))
    values = values.clamp(min=0) + 1e-3 * values.mean()
    return gauss_newton.Prior(flat[:0].to(dtype), values.to(dtype), vectors.to(dtype), noise)
