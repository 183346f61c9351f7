"""The search of ``informed.direct``: trial searches for the label, the search itself, and the error it expects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput, WrongShape
from divulge.informed.inversion import gauss_newton
from divulge.informed.inversion.label_guess import LabelGuess
from divulge.informed.inversion.preconditioner import Metric, Prior
from divulge.informed.inversion.training_function import MlpTraining, TrainingFunction
from divulge.informed.inversion.unused_inputs import UnusedInputs
from divulge.informed.released_view import ReleasedView
from divulge.informed.result import Record

TRIAL_RUNS = 24
"""Training runs of a trial search under one label, at most."""
_TRIAL_ONE_UNIT = 70  # the same for one unit, whose first steps say little
_TRIAL_INNER = 5  # conjugate gradient steps a round in a trial search
_INNER, _INNER_RELU = 7, 5  # the same in the search itself; fewer for ReLU, whose map is rough
_INNER_SAMPLED, _INNER_UNROLLED = 20, 10  # more where a step is cheap, or J ill-conditioned
_NEAR = 0.2  # the largest unexplained share at which the derivative still says how far off the row is
_INNER_ONE_UNIT = 24  # one unit: a dozen strong directions and one weak one, beside a multiple of the identity
_NEAR_ONE_UNIT = 0.01  # one unit: the training runs bend so much that searches end in valleys beyond this
_MORE_LABELS = 4  # labels that are tried where none of the first explained the model
_MEASURED, _MEASURED_STEPS = 6, 10  # rows and steps for which the unrecovered share is measured


@dataclass(frozen=True)
class Search:
    """Everything that the searches for all rows and labels share."""

    training: TrainingFunction
    view: ReleasedView
    guess: LabelGuess
    bounds: tuple[float, float] | None
    metric: Metric | None
    prior: Prior | None
    unused: UnusedInputs | None = None
    """Inputs that need care under this optimiser."""

    def __call__(
        self, target: Tensor, z: Tensor, places: Tensor, runs: float, inner: int | None = None
    ) -> gauss_newton.Inversion:
        """Invert training from the rows ``z`` under the labels at ``places``."""
        encoded = self.guess.encoded[places]
        prior = None if self.prior is None else replace(self.prior, mean=self.guess.means[places])
        rounding = 4 * torch.finfo(self.training.dtype).eps
        box = None if self.bounds is None else (z.new_tensor(self.bounds[0]), z.new_tensor(self.bounds[1]))
        if self.unused is not None:
            box = self.unused.box(target, z, self.bounds)
            z = self.unused.start(z, box, self.guess.examples)

        def train(rows: Tensor, which: Tensor) -> gauss_newton.DifferentiableRun:
            return self.seen_run(self.training.run(rows, encoded[which]))

        return gauss_newton.invert(
            train, self.seen(target), z, runs=runs, bounds=box, inner=inner or self._inner, metric=self.metric,
            prior=prior, tolerance=rounding,
        )  # fmt: skip

    def seen(self, target: Tensor) -> Tensor:
        """What the search compares of the released models' features [B, F]."""
        return target if self.unused is None else self.unused.left_out(target)

    def seen_run(self, run: gauss_newton.DifferentiableRun) -> gauss_newton.DifferentiableRun:
        """The same of a training run."""
        return self.view.of_run(run) if self.unused is None else self.unused.of_run(run)

    def find_labels(self, target: Tensor, runs: float) -> tuple[Tensor, Tensor, Tensor]:
        """The index of each target's label, the row to continue from, and the training runs spent on each.

        Every label in question gets a trial search, of no more than half of ``runs``; the smallest misfit decides.
        """
        most, inner = (_TRIAL_ONE_UNIT, None) if self.one_unit else (TRIAL_RUNS, _TRIAL_INNER)
        places, tried = self.guess.candidates(self.seen(target))
        z, cost = self.guess.start(target, places), torch.zeros(len(target))
        least = [float("inf")] * len(target)
        pairs = torch.nonzero(tried & (tried.sum(dim=1, keepdim=True) > 1))
        for rows, labels in (part.T for part in torch.split(pairs, self.training.together) if len(part)):
            begin = self.guess.start(target[rows], labels)
            result = self(target[rows], begin, labels, min(most, runs / 2), inner)
            for pair, row in enumerate(rows.tolist()):
                cost[row] += result.runs
                if float(result.misfit[pair]) < least[row]:
                    least[row], places[row], z[row] = float(result.misfit[pair]), labels[pair], result.z[pair]
        return places, z, cost

    def restart(
        self, result: gauss_newton.Inversion, target: Tensor, first: Tensor, places: Tensor, runs: float
    ) -> Tensor:
        """Search again from other starts than the ``first`` where the search from there ended far off; the better one
        stays in ``result``.

        Returns the training runs that this took for each row.
        """
        cost = torch.zeros(len(target))
        for start in self.guess.other_starts():
            far = self._far(result, target)
            z = start(target[far], places[far])
            new = (z != first[far]).any(dim=1)
            far, z = far[new], z[new]
            if len(far):
                cost[far] += self._again(result, far, target, z, places[far], runs)[1]
        return cost

    def other_labels(self, result: gauss_newton.Inversion, target: Tensor, places: Tensor, runs: float) -> Tensor:
        """Search under other labels where no search explained the model; ``result`` and ``places`` keep the better.

        The next most similar labels get a trial search each, and the best of them a whole one.
        """
        cost, far = torch.zeros(len(target)), self._far(result, target)
        if not len(far):
            return cost
        tried = torch.nn.functional.one_hot(places[far], len(self.guess.names)).bool()
        similar = self.guess.similarity(self.seen(target[far])).masked_fill(tried, -torch.inf)
        count = min(1 if self.one_unit else _MORE_LABELS, similar.shape[1] - 1)
        least, best = torch.full((len(far),), torch.inf).to(target), places[far].clone()
        z = self.guess.start(target[far], best)
        for labels in similar.topk(count, dim=1).indices.T:
            begin = self.guess.start(target[far], labels)
            trial = self(target[far], begin, labels, _TRIAL_ONE_UNIT if self.one_unit else TRIAL_RUNS)
            better = trial.misfit < least
            least, best = torch.where(better, trial.misfit, least), torch.where(better, labels, best)
            z = torch.where(better[:, None], trial.z, z)
            cost[far] += trial.runs
        better, spent = self._again(result, far, target, z, best, runs)
        places[far[better]] = best[better]
        cost[far] += spent
        return cost

    def _far(self, result: gauss_newton.Inversion, target: Tensor) -> Tensor:
        """The rows whose search ended far off."""
        return torch.nonzero(result.misfit > self.near * self.seen(target).norm(dim=1))[:, 0]

    def _again(
        self, result: gauss_newton.Inversion, rows: Tensor, target: Tensor, z: Tensor, places: Tensor, runs: float
    ) -> tuple[Tensor, float]:
        """Search again for some rows; which of them came out better and are kept, and the training runs."""
        second = self(target[rows], z, places, runs)
        better = second.misfit < result.misfit[rows]
        for old, new in (
            (result.z, second.z), (result.misfit, second.misfit), (result.curvature, second.curvature),
            (result.weakest, second.weakest),
        ):  # fmt: skip
            old[rows[better]] = new[better]
        return better, second.runs

    def unrecovered_error(self, result: gauss_newton.Inversion, z: Tensor, places: Tensor) -> tuple[Tensor, float]:
        """The squared error to expect in directions that the misfit hardly shows, and the training runs it took.

        Where J is ill-conditioned, a small misfit says little. The share of a known row's difference that such a
        search recovers is measured for a few rows (later steps recover less than the first). It is applied to the
        distance that the search moved from its start.
        """
        dense = isinstance(self.training, MlpTraining) and self.view.probes is None
        if dense or self.prior is not None or result.steps == 0:
            return z.new_zeros(len(z)), 0.0
        few = torch.arange(min(_MEASURED, len(z)))
        run = self.seen_run(self.training.run(result.z[few], self.guess.encoded[places[few]]))
        difference = self.guess.examples[places[few]] - result.z[few]
        left = gauss_newton.unrecovered_share(run, difference, _MEASURED_STEPS, self.metric)
        share = (left ** max(1.0, result.steps / _MEASURED_STEPS) ** 0.5).clamp(max=0.99)
        each = torch.cat([share, share.median().expand(len(z) - len(few))])
        moved = (result.z - z).square().sum(dim=1)
        return moved * each / (1 - each), (2 + 2 * _MEASURED_STEPS) * run.share * len(few) / len(z)

    @property
    def one_unit(self) -> bool:
        """Whether the first layer has one unit: a row's effect then has one direction, which hardly shows the label."""
        return isinstance(self.training, MlpTraining) and self.training.setup.widths[1] == 1

    @property
    def near(self) -> float:
        """The largest unexplained share at which the derivative still says how far off the row is."""
        return _NEAR_ONE_UNIT if self.one_unit else _NEAR

    @property
    def _inner(self) -> int:
        """Conjugate gradient steps a round."""
        if not isinstance(self.training, MlpTraining):
            return _INNER_UNROLLED
        if self.one_unit:
            return _INNER_ONE_UNIT
        if self.training.recipe.activation == "relu":
            return _INNER_RELU
        return _INNER if self.training.sample is None else _INNER_SAMPLED


def starting_rows(start: Any, search: Search, target: Tensor, places: Tensor, seed: int) -> Tensor:
    """The rows that the caller's ``start`` stands for [B, d]."""
    means, bounds, count = search.guess.means, search.bounds, len(target)
    if isinstance(start, str):
        if start == "guess":
            return search.guess.start(target, places)
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
