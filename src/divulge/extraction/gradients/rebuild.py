"""One extraction from gradients: first answers, search line, repairs, verification. ``from_gradients.py`` says how."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from divulge.core.errors import DivulgeError
from divulge.core.progress import report
from divulge.extraction import model_kind
from divulge.extraction.attack_space import AttackSpace
from divulge.extraction.failures import ARITHMETIC, UNSETTLED
from divulge.extraction.gradients.affine_maps import LocalMaps, SampleLines, TargetMaps, quality
from divulge.extraction.gradients.first_line import Exploration, line_copy, wrong_rows
from divulge.extraction.gradients.imprecise_copy import imprecise, pruned, width_notes
from divulge.extraction.gradients.jacobian_factors import network_from_jacobians
from divulge.extraction.gradients.kink_search import ROUNDS, KinkSearch
from divulge.extraction.hidden_bumps import HIDDEN, RoundingEvidence, compare_rounding
from divulge.extraction.layers.accuracy import Accuracy, gradient_accuracy
from divulge.extraction.layers.deep_attack import DeepAttack
from divulge.extraction.layers.depth import Depth
from divulge.extraction.layers.query_space import GradientSpace
from divulge.extraction.layers.survey import Survey, search_again
from divulge.extraction.relu_network import Array, NetworkEstimate
from divulge.extraction.result import Extraction
from divulge.extraction.verification import CHECKS, Verification, row_size, smallest_gap, spread, verify
from divulge.oracles.ledger import Spent

HOLDOUT_POINTS = 32
OUTLIER = 1e4
"""A point that is off by so many times the median is looked at, however little that is."""
ROUNDING_ROWS = 96
"""Values that tell how coarsely the target rounds: three at each point, far out."""
REPAIRS = 60
PATIENCE = 4
EXACT = 1e-9
"""A copy is exact if it is off by no more than this share of the output's standard deviation."""
PRECISE = 1e-12
"""Copies of several layers from answers of a larger relative error are not called exact."""
AGREES = 100.0
"""They agree if they are off by no more than so many times that error, as a share of the output's deviation."""
FARTHEST = 1e4
"""How far out the first layer is looked for, in lengths of a typical input."""
DEEPER = (
    "The hyperplanes found on one line bend elsewhere: the target has more than one hidden layer, or is not a ReLU "
    "network."
)
FAR_OFF = 0.1
"""Errors above this share of the deviation are not due to rounding, where answers are precise."""
MISSING = "not all of its neurons were found, or it has units other than ReLU or more hidden layers."


class GradientAttack:
    """One run: what was asked, what is known, and how it ends."""

    def __init__(
        self, space: AttackSpace, *, seed: int, width: int | None, checks: int | None, depth: Depth
    ) -> None:  # fmt: skip
        self.space, self.seed, self.width, self.depth = space, seed, width, depth
        self.checks, self.deep_checks = checks or CHECKS, checks
        self.oracle, self.began = space.oracle, time.perf_counter()
        self.target = TargetMaps(space.oracle)
        self.generator = torch.Generator().manual_seed(seed)
        self.copy = NetworkEstimate.zero(self.oracle.input_dim, self.oracle.output_dim)
        self.exploration: Exploration | None = None
        self.holdout: LocalMaps | None = None
        self.verification: Verification | None = None
        self.gap: float | None = None
        self.reach = math.inf
        self.searched: list[SampleLines] = []

    # -- the course of it ---------------------------------------------------------------------------------------------

    def shows_a_probability(self) -> bool:
        """Whether the first answers are those of a single probability that was taken for a logit."""
        self._first_answers()
        return self.space.may_be_probabilities(self._holdout().value)

    def run(self, *, find_outputs: bool = False) -> Extraction:
        """The extraction; with ``find_outputs`` a single output that is a probability is asked for its logit."""
        try:
            if find_outputs and self.shows_a_probability():
                space = self.space.as_probabilities(self.seed)
                again = GradientAttack(
                    space, seed=self.seed, width=self.width, checks=self.deep_checks, depth=self.depth
                )
                return again.run()
            reason = self._rebuild()
        except ARITHMETIC:
            return self.result(UNSETTLED)
        except DivulgeError as error:
            error.partial = self.result(str(error))
            raise
        stolen = self.result(reason)
        return self._deeper(stolen) if self._may_be_deeper(reason) else stolen

    def _may_be_deeper(self, reason: str) -> bool:
        """Whether further layers may explain what one does not."""
        return reason == DEEPER and self.depth.most > 1 and bool(self.searched)

    def _deeper(self, stolen: Extraction) -> Extraction:
        """Go on with further layers, on the lines that were searched."""
        coarse = self.quality.eps > PRECISE

        def accuracy(first: tuple[Array, Array] | None = None) -> Accuracy:
            entry = self.quality.entry_error if coarse else 0.0
            return gradient_accuracy(entry, self._holdout().gradient.numpy(), first)

        lines = Survey(GradientSpace(self.target, accuracy=accuracy()))
        try:
            for searched in self.searched:
                search_again(lines, searched)
        except ARITHMETIC:
            return self.result(UNSETTLED)
        except DivulgeError as error:
            error.partial = stolen
            raise
        attack = DeepAttack(
            self.space, lines, exact=AGREES * self.quality.eps if coarse else EXACT, seed=self.seed,
            checks=self.deep_checks, depth=self.depth, coarse=self.quality.describe() if coarse else "",
            reach=min(self.reach, FARTHEST), one_layer=stolen, began=self.began,
            survey_in=lambda first: Survey(GradientSpace(self.target, first, accuracy(first))),
        )  # fmt: skip
        return attack.run()

    def _rebuild(self) -> str:
        """Do it all; the reason why the copy is not exact, or nothing."""
        if self.holdout is None:
            self._first_answers()
        kind = self._smooth()
        if kind is not None:
            return f"The target is not piecewise linear: it is curved everywhere, as a network of {kind} units is."
        if not self._from_jacobians():
            self._explore()
        return self._repair_holdout() or self._verify_and_repair()

    def _first_answers(self) -> None:
        """The hold-out points, and one row asked twice and once more from nearby."""
        self.origin, self.direction = origin, direction = self._normal(2)
        X = torch.cat([torch.stack([origin, origin + 1e-4 * direction, origin]), self._normal(HOLDOUT_POINTS)])
        value, gradient = self.target.maps(X)
        self.holdout = LocalMaps(X[2:], value[2:], gradient[2:])
        self.quality = quality(self.oracle, self.holdout, (value[0], gradient[0]))
        self.tolerance = self.quality.tolerance(self.target.inputs)
        self.reach = min(self.quality.reach, self.space.reach)
        self.curved = float((gradient[1] - gradient[0]).norm()) > self.tolerance.jump

    def _smooth(self) -> str | None:
        if self.quality.noise or not self.curved:
            return None
        return model_kind.smooth(self.target, self.tolerance, self.quality.eps, self.reach, self.generator)

    def _from_jacobians(self) -> bool:
        """All neurons from the hold-out points alone, where several outputs tell them apart and the copy agrees."""
        copy = network_from_jacobians(self._holdout(), self.tolerance.value, self.generator)
        if copy is None or bool(wrong_rows(self._holdout().minus(copy), self.tolerance).any()):
            return False
        self.copy = copy.merged(self._same())
        self._fit_offsets()
        return True

    def _explore(self) -> None:
        zero = NetworkEstimate.zero(self.target.inputs, self.target.outputs)
        lines = SampleLines(self.target, zero, self.origin[None], self.direction[None])
        start = torch.tensor([[-self.reach, 0.0, self.reach]], dtype=torch.float64)
        self.searched.append(lines)
        search = KinkSearch(lines, start, self.tolerance)
        self.exploration = Exploration(lines, search, self.tolerance, self._holdout(), self.reach, self.seed)
        self.copy = self.exploration.run().merged(self._same())
        self.holdout = self.exploration.holdout
        self._fit_offsets()

    def _repair_holdout(self) -> str:
        """Further lines until the hold-out points agree; a reason if they never will."""
        rows = self._holdout()
        failures, fewest = 0, len(rows) + 1
        ask_at = [0, 1]  # failures: before a line is spent on residuals, and once more
        for _ in range(REPAIRS):
            rest = rows.minus(self.copy)
            wrong = wrong_rows(rest, self.tolerance)
            count = int(wrong.sum())
            if not count:
                return ""
            failures = 0 if count < fewest else failures + 1
            fewest = min(fewest, count)
            if ask_at and failures >= ask_at[0] and not self.quality.noise and 2 * count > len(wrong):
                ask_at = ask_at[1:]
                if model_kind.bends(self.target, self.copy, self.tolerance, self.generator):
                    return DEEPER
            if failures > PATIENCE:
                break
            worst = int(torch.where(wrong, rest.gradient.flatten(1).norm(dim=1), torch.zeros(())).argmax())
            self._repair(rows.X[worst])
        self._verify()
        return self._precision_reason()

    def _verify_and_repair(self) -> str:
        """Fresh rows until a whole set agrees; a reason if that does not come about."""
        for _ in range(REPAIRS):
            self._fit_offsets()
            self._verify()
            verification = self._verification()
            if self.quality.coarse:
                return self._precision_reason()
            if len(verification.wrong()[0]):
                if not self._repair_checks():
                    break
                continue
            if 64 * self.quality.eps > EXACT:  # answers too coarse to be called exact
                return verification.reason or self._precision_reason()
            outlier = self._outlier()
            if outlier is not None:
                self._repair(outlier)
                continue
            evidence = self._compare_rounding()
            if evidence.point is None:
                return HIDDEN if evidence.hidden else self._contradictions()
            self._repair(evidence.point)
        self._prune()
        return self._precision_reason()

    def _prune(self) -> None:
        """Leave out weak neurons that the fresh rows do not need."""
        rows = self._verification()

        def error(copy: NetworkEstimate) -> float:
            return float((self.space.differences(rows.truth, copy.value(rows.X)) / rows.allowed).max())

        self.copy = pruned(self.copy, error)

    def _contradictions(self) -> str:
        """Compare the copy with every answer of the run once more: some came after the fresh rows."""
        verification = self._verification()
        X, truth = self.oracle.answers()
        off = self.space.differences(truth, self.copy.value(X)) > EXACT * verification.scale * row_size(X)
        if bool(off.any()):
            return f"The copy contradicts {int(off.sum()):,} of the {len(X):,} rows that were asked."
        return verification.reason

    def _outlier(self) -> Tensor | None:
        """A fresh row that is off little, but far more than all others, and where the gradient is wrong indeed."""
        verification = self._verification()
        off = verification.off / (1 + verification.X.norm(dim=1) / self.target.inputs**0.5)
        off = torch.where(verification.precise, off, torch.zeros_like(off))
        rows = off.argsort(descending=True)[:PATIENCE]
        X = verification.X[rows[off[rows] > OUTLIER * off.median()]]
        if not len(X) or self.target.room(len(X)) < len(X):
            return None
        rest = LocalMaps(X, *self.target.maps(X)).minus(self.copy)
        wrong = rest.gradient.flatten(1).norm(dim=1) > 4 * self.tolerance.jump
        return X[wrong][0] if bool(wrong.any()) else None

    def _compare_rounding(self) -> RoundingEvidence:
        """Whether the target's rounding shows neurons that cancel."""
        if self.quality.eps > torch.finfo(torch.float64).eps or self.target.room(ROUNDING_ROWS) < ROUNDING_ROWS:
            return RoundingEvidence()
        distance = torch.tensor([3.0, 10.0], dtype=torch.float64).repeat(ROUNDING_ROWS // 6)[:, None]
        X = self._normal(ROUNDING_ROWS // 3) * distance
        allowed = EXACT * self._verification().scale
        return compare_rounding(
            self.target.values, self.copy, X, self.target.values(X), allowed=allowed, generator=self.generator
        )

    def _repair_checks(self) -> bool:
        """Lines through fresh rows where the copy is off, until all of them agree; False if they will not."""
        failures = 0
        fewest = len(self._off()) + 1
        while failures <= PATIENCE:
            off = self._off()
            if not len(off):
                return True
            failures = 0 if len(off) < fewest else failures + 1
            fewest = min(fewest, len(off))
            X = off[: self.target.room(PATIENCE)]
            rest = LocalMaps(X, *self.target.maps(X)).minus(self.copy)
            wrong = rest.gradient.flatten(1).norm(dim=1) > 4 * self.tolerance.jump
            if not bool(wrong.any()):
                return False
            self._repair(X[wrong][0])
        return False

    def _off(self) -> Tensor:
        """Fresh rows where the copy is off, the worst first."""
        verification = self._verification()
        off = self.space.differences(verification.truth, self.copy.value(verification.X)) / verification.allowed
        order = off.argsort(descending=True)
        return verification.X[order[((off > 1) & verification.precise)[order]]]

    # -- its steps ----------------------------------------------------------------------------------------------------

    def _repair(self, through: Tensor) -> None:
        """Search the residual on a new line through a point where the copy is wrong, and add what is found."""
        direction = self._normal(1)[0]
        lines = SampleLines(self.target, self.copy, through[None], direction[None])
        self.searched.append(lines)
        start = torch.tensor([[-self.reach, 0.0, self.reach]], dtype=torch.float64)
        search = KinkSearch(lines, start, self.tolerance)
        for _ in range(ROUNDS):
            chosen = search.open.nonzero().flatten()
            if not len(chosen):
                break
            search.refine(chosen[: self.target.room(len(chosen))])
            report("repairing", len(self.searched), None, neurons=self.copy.width, queries=self.oracle.ledger.total)
        self.copy = self.copy.plus(line_copy(lines, search, self.tolerance), self._same())
        self._fit_offsets()

    def _holdout(self) -> LocalMaps:
        assert self.holdout is not None
        return self.holdout

    def _verification(self) -> Verification:
        assert self.verification is not None
        return self.verification

    def _same(self) -> float:
        """Neurons that differ by no more than this are on the same hyperplane."""
        return 10 * self.tolerance.jump

    def _fit_offsets(self) -> None:
        """Offsets and constant from the values at hold-out points: far ends of lines know them less precisely."""
        rows = self._holdout()
        right = rows.minus(self.copy).gradient.flatten(1).norm(dim=1) <= 4 * self.tolerance.jump
        if bool(right.any()):
            self.copy = self.copy.with_fitted_offsets(rows.X[right], rows.value[right], self.tolerance.value)

    def _verify(self) -> None:
        """Fresh rows; the oracle itself says no if the budget does not cover the fewest."""
        self.verification = verify(
            self.space, self.copy.value, self.copy, checks=self.checks, tolerance=EXACT,
            generator=self.generator, farthest=self.reach,
        )  # fmt: skip
        self.gap = smallest_gap(self.copy, self.oracle.answers()[0])
        report("verifying", None, None, neurons=self.copy.width, queries=self.oracle.ledger.total,
               worst=f"{self.verification.worst:.1e}")  # fmt: skip

    def _precision_reason(self) -> str:
        judged = self.verification.X if self.verification is not None else self._holdout().X
        truth = self.verification.truth if self.verification is not None else self._holdout().value
        scale = spread(truth) if self.verification is None else self.verification.scale
        off = float((self.space.differences(truth, self.copy.value(judged)) / row_size(judged)).max()) / scale
        if off > FAR_OFF and self.quality.eps <= PRECISE and not self.quality.coarse:
            return f"The copy is off by {off:.1e} of the output's standard deviation: {MISSING}"
        return imprecise(off, self.quality.describe())

    def _normal(self, count: int) -> Tensor:
        return torch.randn(count, self.target.inputs, generator=self.generator, dtype=torch.float64)

    # -- the end ------------------------------------------------------------------------------------------------------

    def result(self, reason: str) -> Extraction:
        """Everything known so far."""
        copy, verification = self.copy, self.verification
        if not copy.width and self.exploration is not None and reason:
            copy = self.exploration.copy()
        worst, scale, points = float("inf"), 1.0, 0
        if verification is not None:
            off = self.space.differences(verification.truth, copy.value(verification.X))
            worst = float((off / row_size(verification.X)).max())
            scale, points = verification.scale, len(verification.X)
        elif self.holdout is not None:
            rows = self.holdout
            worst = float((rows.value - copy.value(rows.X)).abs().max())
            scale, points = spread(rows.value), len(rows)
        facts: dict[str, object] = {"lines": len(self.searched)}
        if verification is not None:
            facts["verification"] = verification.facts()
        stolen = Extraction(
            model=self.space.network(copy).model(),
            width=copy.width,
            exact=not reason,
            worst_error=worst,
            scale=scale,
            ledger=self.space.spent,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            method="default",
            reason=reason,
            verified_points=points,
            smallest_gap=self.gap,
            notes=width_notes(copy.width, self.width),
            facts=facts,
            verification=Spent() if verification is None else verification.spent,
        )
        return self.space.as_shown(stolen)
