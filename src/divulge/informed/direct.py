"""Inverting training itself: the unknown row without a single shadow model.

The released weights are theta(z) = A(D_- + z) with A deterministic, differentiable and known, so z solves an equation,
and Gauss-Newton through training finds it (``gauss_newton``, ``program``). Balle 2022 poses the attack as inversion
(section IV-A) and then learns the inverse from shadow models; solving it directly takes about a hundred training runs
a record instead of tens of thousands, and ends several orders of magnitude closer. With ``access="logits"`` the
equation is for the released model's answers on probe rows instead of its weights.

The label is found by comparing what the unknown row did to the model with what known rows would have done (``twins``),
or, where that cannot be told without training (logits, convolutions), with what each class's mean row does. Where
labels come close, a short search with each decides, and the search goes on from where the best of them ended. One that
is still far off in the end is begun again from the class's mean.
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
from divulge.informed import checks, gauss_newton, likely
from divulge.informed.program import ByHand, Program, program
from divulge.informed.record import Record
from divulge.informed.seen import Access, Sight, probe_rows, sight
from divulge.informed.setting import encode
from divulge.informed.twins import Twins
from divulge.progress import report
from divulge.training import Recipe
from divulge.whole import checked_seed

_CLOSE = 0.7  # labels that are so much as likely as the best are tried,
_CANDIDATES = 3  # at most so many,
_TRIAL, _TRIAL_INNER = 24, 5  # with a search of so many training runs (half of a search's if those are fewer), so many
# conjugate gradient steps a round
_INNER, _INNER_KINKED = 7, 5  # conjugate gradient steps a round: fewer where the map is rough,
_INNER_SAMPLED, _INNER_UNROLLED = 20, 10  # more where a step is cheap, or J ill-conditioned
_MEASURED, _DEEP = 6, 10  # rows, at most, for which it is measured what a search does not see, and with how many steps
_NEAR = 0.2  # of what the row did left unexplained: further off, the derivative does not say how far
_NARROW = "the first layer has a single unit, with which rows of another label may explain the model as well"
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

    ``labels`` are the unknown rows' labels where they are known. ``start`` is "guess" (the mean of the label's known
    rows that would have moved the model most alike), "mean" (of all of that label's), "noise", or rows to start from,
    such as a reconstructor's. ``runs`` is the budget in training runs of a search. ``access="logits"``
    sees only the released model's answers (it may be an oracle) on the ``probes``: rows, or how many of the known ones.
    ``noise`` is the standard deviation of noise on the released weights: the search then looks for the most probable
    row under a Gaussian prior from the known ones; a recipe with privacy implies its own.
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
    noise = _noise(recipe, len(X) + 1, noise, access)
    guesses = _Guesses.of(training, view, X, y, noisy=noise is not None)
    checks.reproduces(training, view, X, y, target, guesses.theta, initial, noise or 0.0)
    shape = tuple(getattr(view.model, "input_shape", ()))
    belief = None if noise is None else likely.prior(X, y, noise, dtype)
    search = _Search(training, view, guesses, bounds, likely.metric(X, shape, dtype), belief)
    cost = torch.zeros(len(models))
    if labels is not None:
        places = guesses.given(labels, len(models))
    else:
        places, z, cost = _decide(search, target, min(_TRIAL, runs / 2))
    if labels is not None or start != "guess":
        z = _start(start, search, target, places, seed).to(dtype)
    found: list[Record] = []
    for first in range(0, len(models), training.together):
        part = slice(first, first + training.together)
        report("attacking", first, len(models))
        result = search(target[part], z[part], places[part], runs)
        if start == "guess" and belief is None and runs >= 2 * _TRIAL:  # a shorter one has no time to go astray
            cost[part] += search.again(result, target[part], places[part], runs)
        unseen, spent = search.unseen(result, z[part], places[part])
        cost[part] += spent
        found += _records(search, result, unseen, target[part], places[part], X, seed, told=labels is not None)
    seconds = (time.perf_counter() - started) / len(found)
    shared = len(guesses.names) / len(found)
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
    metric: gauss_newton.Metric | None
    prior: gauss_newton.Prior | None

    def __call__(
        self, target: Tensor, z: Tensor, places: Tensor, runs: float, inner: int | None = None
    ) -> gauss_newton.Inversion:
        """Invert training from ``z`` under the labels at ``places``."""
        encoded = self.guesses.encoded[places]
        prior = None if self.prior is None else replace(self.prior, mean=self.guesses.means[places])
        floor = 4 * torch.finfo(self.training.dtype).eps
        inner = inner or self._inner

        def train(rows: Tensor, which: Tensor) -> gauss_newton.Trained:
            return self.view.through(self.training.run(rows, encoded[which]))

        return gauss_newton.invert(
            train, target, z, runs=runs, bounds=self.bounds, inner=inner, metric=self.metric, prior=prior,
            tolerance=floor,
        )  # fmt: skip

    def again(self, result: gauss_newton.Inversion, target: Tensor, places: Tensor, runs: float) -> Tensor:
        """Begin anew from the class's mean where a search is still far off, keep the better of both in ``result``, and
        tell how many training runs that took for each row."""
        far = torch.nonzero(result.misfit > _NEAR * target.norm(dim=1))[:, 0]
        cost = torch.zeros(len(target))
        if len(far):
            second = self(target[far], self.guesses.means[places[far]], places[far], runs)
            better = second.misfit < result.misfit[far]
            for old, new in (
                (result.z, second.z), (result.misfit, second.misfit), (result.curvature, second.curvature),
            ):  # fmt: skip
                old[far[better]] = new[better]
            cost[far] = second.runs
        return cost

    def unseen(self, result: gauss_newton.Inversion, z: Tensor, places: Tensor) -> tuple[Tensor, float]:
        """The squared error of each row in directions that hardly show, and the training runs that it took to tell.

        Where J is ill-conditioned a misfit says little. How much of a known row's difference such a search would find
        is measured, for a few rows; the later steps find less than the first. What was found of the unknown row's
        difference to where the search started is known.
        """
        dense = isinstance(self.training, ByHand) and self.view.probes is None
        if dense or self.prior is not None or result.steps == 0:
            return z.new_zeros(len(z)), 0.0
        few = torch.arange(min(_MEASURED, len(z)))
        run = self.view.through(self.training.run(result.z[few], self.guesses.encoded[places[few]]))
        difference = self.guesses.examples[places[few]] - result.z[few]
        left = gauss_newton.unresolved(run, difference, _DEEP, self.metric)
        share = (left ** max(1.0, result.steps / _DEEP) ** 0.5).clamp(max=0.99)
        each = torch.cat([share, share.median().expand(len(z) - len(few))])
        moved = (result.z - z).square().sum(dim=1)
        return moved * each / (1 - each), (2 + 2 * _DEEP) * run.share * len(few) / len(z)

    @property
    def narrow(self) -> bool:
        """Whether what a row did to the first layer has one direction only, which hardly tells labels apart."""
        return isinstance(self.training, ByHand) and self.training.setting.widths[1] == 1

    @property
    def _inner(self) -> int:
        """Conjugate gradient steps a round."""
        if not isinstance(self.training, ByHand):
            return _INNER_UNROLLED
        if self.training.recipe.activation == "relu":
            return _INNER_KINKED
        return _INNER if self.training.sample is None else _INNER_SAMPLED


def _records(
    search: _Search,
    result: gauss_newton.Inversion,
    unseen: Tensor,
    target: Tensor,
    places: Tensor,
    X: Tensor,
    seed: int,
    *,
    told: bool,
) -> list[Record]:
    """``told`` where the labels were known."""
    records = []
    anyway = checks.nearest(X)
    unsure = "" if told or not search.narrow else _NARROW
    for row in range(len(target)):
        left = float(result.misfit[row] / target[row].norm())
        expected = result.misfit[row].square() / result.curvature[row] + unseen[row]
        predicted = float(expected) / search.training.inputs
        if left > _NEAR:
            predicted = max(predicted, anyway)
        doubt = "" if search.prior is not None else checks.doubt(predicted, anyway, left) or unsure
        reason = doubt and doubt + _CEILING
        facts = {"misfit": left}
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
    """What is held against a released model to tell its label, and where a search begins."""

    names: list[Any]
    means: Tensor
    """The mean row of each label."""
    encoded: Tensor
    theta: Tensor
    """What the mean rows would have done."""
    examples: Tensor
    """A known row of each label."""
    twins: Twins | None
    """What the known rows would have done, where that can be told without training."""

    @classmethod
    def of(cls, training: Program, view: Sight, X: Tensor, y: Tensor, *, noisy: bool) -> _Guesses:
        """``noisy`` where noise on the weights hides what is alike."""
        names = sorted(set(y.tolist()))
        flat = X.reshape(len(X), -1).to(training.dtype)
        means = torch.stack([flat[y == name].mean(dim=0) for name in names])
        encoded = encode(training.recipe, torch.tensor(names), training.outputs).T.to(training.dtype)
        theta = view.image(training.train(means, encoded))
        examples = torch.stack([flat[y == name][0] for name in names])
        twins = None
        if isinstance(training, ByHand) and view.probes is None and not noisy:
            twins = Twins.of(training.setting, X, torch.tensor([names.index(label) for label in y.tolist()]))
        return cls(names, means, encoded, theta, examples, twins)

    def candidates(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """The place of each target's likeliest label [B], and which labels are worth a trial [B, labels]: those nearly
        as likely by what known rows would have done, and the one whose mean row did most alike."""
        means = normalize(target, dim=1) @ normalize(self.theta, dim=1).T
        likeness = means if self.twins is None else self.twins.likeness(target)
        best = likeness.topk(min(_CANDIDATES, likeness.shape[1]), dim=1)
        close = best.values >= best.values[:, :1] - (1 - _CLOSE) * best.values[:, :1].abs()
        tried = torch.zeros_like(likeness, dtype=torch.bool).scatter(1, best.indices, close)
        return best.indices[:, 0], tried.scatter(1, means.argmax(dim=1, keepdim=True), value=True)

    def start(self, target: Tensor, places: Tensor) -> Tensor:
        """Where to begin under these labels [B, d]."""
        return self.means[places] if self.twins is None else self.twins.start(target, places).to(self.means)

    def given(self, labels: Any, count: int) -> Tensor:
        """The places of labels that the caller knows."""
        values = torch.as_tensor(labels).reshape(-1).tolist()
        if len(values) != count:
            raise WrongShape(f"There are {count} released models but {len(values)} labels.")
        missing = [value for value in values if value not in self.names]
        if missing:
            raise InvalidInput(f"No known row has the label {missing[0]!r}; labels are {self.names}.")
        return torch.tensor([self.names.index(value) for value in values])


def _decide(search: _Search, target: Tensor, runs: float) -> tuple[Tensor, Tensor, Tensor]:
    """The place of each target's label, where to go on from, and the training runs that the decision took, at most
    ``runs`` a label."""
    places, tried = search.guesses.candidates(target)
    z, cost = search.guesses.start(target, places), torch.zeros(len(target))
    least = [float("inf")] * len(target)
    pairs = torch.nonzero(tried & (tried.sum(dim=1, keepdim=True) > 1))
    for rows, labels in (part.T for part in torch.split(pairs, search.training.together) if len(part)):
        begin = search.guesses.start(target[rows], labels)
        result = search(target[rows], begin, labels, runs, _TRIAL_INNER)
        for pair, row in enumerate(rows.tolist()):
            cost[row] += result.runs
            if float(result.misfit[pair]) < least[row]:
                least[row], places[row], z[row] = float(result.misfit[pair]), labels[pair], result.z[pair]
    return places, z, cost


def _start(start: Any, search: _Search, target: Tensor, places: Tensor, seed: int) -> Tensor:
    means, bounds, count = search.guesses.means, search.bounds, len(target)
    if isinstance(start, str):
        if start == "guess":
            return search.guesses.start(target, places)
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
