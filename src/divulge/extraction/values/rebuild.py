"""One extraction from values: hold-out points, line searches, repairs, verification. ``from_values.py`` says how."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from divulge.core import progress
from divulge.core.errors import DivulgeError
from divulge.extraction.attack_space import AttackSpace
from divulge.extraction.failures import ARITHMETIC, UNSETTLED, SearchFailed
from divulge.extraction.hidden_bumps import HIDDEN, compare_rounding
from divulge.extraction.layers.deep_attack import DeepAttack
from divulge.extraction.layers.depth import Depth
from divulge.extraction.layers.value_survey import ValueSpace, ValueSurvey
from divulge.extraction.precision import measure
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.result import Extraction
from divulge.extraction.values.cell_gradients import basis_of, random_frame
from divulge.extraction.values.gauss_newton import parameters
from divulge.extraction.values.holdout import FEWEST_CHECKS as HOLDOUT_POINTS
from divulge.extraction.values.holdout import HoldOut
from divulge.extraction.values.line_network import first_line, further_line
from divulge.extraction.values.line_scan import Array
from divulge.extraction.values.polishing import polish
from divulge.extraction.values.precise_answers import as_affine, repair
from divulge.extraction.values.search_state import SearchState
from divulge.extraction.values.tolerances import (
    DEEPER,
    EXACT,
    FAINT,
    HOPELESS,
    NEARLY,
    PRECISE,
    QUICK_POLISH,
    unclear,
)
from divulge.extraction.verification import CHECKS, FEWEST_CHECKS, Verification, fresh_points, smallest_gap, verify
from divulge.oracles.ledger import Spent

MOST_HOLDOUT, HOLDOUT_SHARE = 1000, 0.02
"""Most hold-out points before a copy is verified, and the share of its cost that they are below that."""
ROUNDING_ROWS = 12
"""Hold-out points whose rounding is compared with the copy's."""
RESTARTS = 3
FLOOR = 30.0
"""So many times the noise of coarse answers is what a copy of all neurons agrees to."""
COARSE = "Further layers are found from answers in float64 only."
FEWEST_PRECISE = 4
"""Typical rows with precise answers without which there is nothing to search from."""
SATURATED = "Probabilities round to 0 or 1 on nearly all typical inputs, which hides the logits behind them."
FAR, FARTHEST = 1e4, 1e6
"""How far from the centre lines are searched, and how far out anything is asked, in lengths of a typical input."""
REPAIRS, VERIFICATIONS = 6, 3


class ValueAttack:
    """One run: the hold-out points, the state of the line searches, and what the rows cost."""

    def __init__(
        self, space: AttackSpace, *, seed: int, width: int | None, span: Any, checks: int | None, depth: Depth
    ) -> None:
        self.space, self.seed, self.width, self.span, self.depth = space, seed, width, span, depth
        self.checks, self.deep_checks = checks or CHECKS, checks
        self.oracle = space.oracle
        self.basis = basis_of(span, self.oracle.input_dim, space.region.scale.numpy())
        self.inputs = self.oracle.input_dim if self.basis is None else len(self.basis)
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.began = time.perf_counter()
        self.fitted = np.empty((0, self.inputs))  # rows that the Gauss-Newton fit uses
        self.fitted_values = np.empty((0, self.oracle.output_dim))
        self.far = min(space.reach, FARTHEST)
        self.precise = self.precise_ones if space.selects and space.outputs != "logits" else None
        self.holdout = HoldOut(
            self.ask_full, self.oracle.input_dim, self.oracle.eps, self.basis, self.rng, farther=min(10.0, self.far),
            precise=self.precise,
        )  # fmt: skip
        self.affine: NetworkEstimate | None = None
        self.state: SearchState | None = None
        self.verification: Verification | None = None
        self.hidden = False

    def shows_a_probability(self) -> bool:
        """Whether the hold-out points are answered by a single probability that was taken for a logit."""
        if self.space.outputs != "logits" or self.oracle.output_dim > 1:
            return False
        self.holdout.redraw()
        return self.space.may_be_probabilities(torch.from_numpy(self.holdout.truth))

    def precise_ones(self, values: Array) -> Array:
        """Which answers [n, k] are precise: logits of probabilities that round to 0 or 1 are not."""
        return np.asarray(self.space.precise(torch.from_numpy(values)).numpy())

    def ask(self, rows: Array) -> Array:
        """Values at rows of the space that the attack works in."""
        if self.basis is not None:
            rows = rows @ self.basis
        return self.ask_full(rows)

    def ask_full(self, rows: Array) -> Array:
        """Values at full rows."""
        if not np.isfinite(rows).all():
            raise SearchFailed()
        answer = self.oracle.value(torch.from_numpy(rows)).to(torch.float64).cpu().numpy()
        progress.report("asking", self.oracle.ledger.total, self.oracle.ledger.budget)
        return np.asarray(answer)

    def run(self, *, find_outputs: bool = False) -> Extraction:
        """The extraction; with ``find_outputs`` a single output that is a probability is asked for its logit."""
        try:
            if find_outputs and self.shows_a_probability():
                space = self.space.as_probabilities(self.seed)
                again = ValueAttack(
                    space, seed=self.seed, width=self.width, span=self.span, checks=self.deep_checks, depth=self.depth
                )
                return again.run()
            reason = self._rebuild()
            if reason == DEEPER and self.state is not None and not self.state.precision.faithful:
                reason = unclear(self.state.precision.describe())
            elif reason == DEEPER and self.depth.most > 1 and not self._plain:
                reason = f"{DEEPER} {COARSE}"
        except ARITHMETIC:
            return self._result(UNSETTLED)
        except DivulgeError as error:
            if error.partial is None and len(self.holdout.rows):
                error.partial = self._result(str(error))
            raise
        stolen = self._result(reason)
        return self._deeper(stolen) if self._may_be_deeper(reason) else stolen

    def _may_be_deeper(self, reason: str) -> bool:
        """Whether further layers may explain what one does not."""
        return reason == DEEPER and self.depth.most > 1 and self.basis is None

    @property
    def _plain(self) -> bool:
        """Whether the answers are as precise as further layers need."""
        return self.state is not None and self.state.precision.plain(self.oracle.eps)

    def _deeper(self, stolen: Extraction) -> Extraction:
        """Go on with further layers."""
        inputs = self.oracle.input_dim
        lines = ValueSurvey(ValueSpace(self.ask_full, inputs, self.rng))
        if self.state is not None and self.state.first_line is not None:
            lines.take_over(self.state.first_line)
        attack = DeepAttack(
            self.space, lines, exact=EXACT, seed=self.seed,
            checks=self.deep_checks, depth=self.depth, reach=min(self.far, FAR), one_layer=stolen, began=self.began,
            survey_in=lambda first: ValueSurvey(ValueSpace(self.ask_full, inputs, self.rng, first)),
        )  # fmt: skip
        return attack.run()

    def _rebuild(self) -> str:
        """Do it all; the reason why the copy is not exact, or nothing."""
        reason = as_affine(self)
        if reason is not None:
            return reason
        if not len(self.holdout.rows):
            self.holdout.redraw()
        if self.precise is not None and self.holdout.count < FEWEST_PRECISE:
            return SATURATED
        at = None if self.precise is None else self.holdout.rows[np.arange(4) % len(self.holdout.rows)]
        precision = measure(self.oracle, self.rng, self.holdout.typical, away=min(10.0, self.far), at=at)
        state = self.state = SearchState(
            ask=self.ask,
            inputs=self.inputs,
            outputs=self.oracle.output_dim,
            precision=precision,
            scale=self.holdout.scale,
            frame=random_frame(self.inputs, self.rng),
            rng=self.rng,
            far=min(FAR, self.far),
            precise=self.precise,
            places=self._lines_through(),
        )
        if precision.smooth:
            return self._not_piecewise_linear()
        first_line(state)
        if state.estimate is None:
            return self._not_piecewise_linear()
        reason = self._repair(state)
        for _ in range(RESTARTS if state.coarse else 1):
            if reason == DEEPER or not self._worth_another(state, reason):
                break
            reason = self._another_line(state, reason)
        return reason or self._verified(state)

    def _lines_through(self) -> Array:
        """Rows with precise answers in the space that the attack works in; none where all answers are precise."""
        if self.precise is None:
            return np.empty((0, 0))
        rows = self.holdout.rows[: self.holdout.count]
        return rows if self.basis is None else rows @ self.basis.T

    def _verified(self, state: SearchState) -> str:
        """Verify on fresh rows; where they show neurons that were missed, search those and verify again."""
        if self.affordable(FEWEST_CHECKS) < FEWEST_CHECKS:
            return "The copy agrees on the hold-out points, and the budget left no rows to verify it on."
        state.estimate = self.estimate.without_faint(FAINT * EXACT * self.holdout.scale)
        for attempt in range(VERIFICATIONS):
            self.verification = verify(
                self.space, self.full_estimate.value, self.full_estimate, checks=self.checks, tolerance=EXACT,
                generator=self.generator, farthest=self.far,
            )  # fmt: skip
            wrong = self.verification.wrong()
            if not len(wrong[0]) or attempt == VERIFICATIONS - 1:
                break
            self.holdout.add(wrong[0][:HOLDOUT_POINTS].numpy(), wrong[1][:HOLDOUT_POINTS].numpy())
            reason = self._repair(state)
            if reason:
                return reason
        return self.verification.reason if self.verification is not None else ""

    def _worth_another(self, state: SearchState, reason: str) -> bool:
        """Whether the copy is worse than answers of this precision allow, though not so far off as to be hopeless."""
        error = self.holdout.error(self.estimate) / self.holdout.scale
        if self.affordable(needed := 2 * (self.estimate.width + 1) * (state.inputs + 1)) < needed:
            return False
        if state.coarse:
            return FLOOR * state.roughness < error < HOPELESS
        precise = error <= PRECISE or (not reason and error <= self.explained(state) / self.holdout.scale)
        return not precise and error <= NEARLY * EXACT

    def _another_line(self, state: SearchState, reason: str) -> str:
        """Start over on another line and keep the better of the two copies."""
        estimate, notes = self.estimate, list(state.notes)
        state.notes.clear()
        first_line(state)
        second = self._repair(state)
        if self.holdout.error(self.estimate) <= self.holdout.error(estimate):
            return second
        state.estimate, state.notes = estimate, notes
        return reason

    def _repair(self, state: SearchState) -> str:
        """Polish where precision is lacking and search further lines where neurons are; a reason if that fails."""
        if self.precise is not None:
            return repair(self, state)
        polished = False
        for _ in range(REPAIRS):
            toward = self.wrong_point(state)
            if toward is None or (polished and self.holdout.error(self.estimate) > EXACT * self.holdout.scale):
                break
            if state.coarse and not polished and (polished := polish(self, state)):
                continue
            most = max(8, self.estimate.width // 2)
            found = further_line(state, toward, most)
            if found < 0 or found > most:
                return DEEPER
            if found:
                polished = False
                self.holdout.redraw()
                self.holdout.add_between(toward, self.estimate, found)
            elif not state.coarse and not polished and parameters(self.estimate) <= QUICK_POLISH:
                polished = polish(self, state)
        else:
            self.hidden = True  # it was still wrong somewhere after the last repair
        return self.judgement(state)

    def wrong_point(self, state: SearchState) -> Array | None:
        """A point where the copy is wrong; None if neither hold-out points nor the target's rounding show any."""
        allowed = EXACT * self.holdout.scale
        if self.holdout.error(self.estimate) <= allowed:
            self._more_holdout(state)
        point: Array | None = None
        if self.holdout.error(self.estimate) > allowed:
            point = self.holdout.worst_point(self.estimate, allowed)
        elif state.precision.plain(self.oracle.eps) and self.affordable(2 * ROUNDING_ROWS) == 2 * ROUNDING_ROWS:
            point = self._point_from_rounding(allowed)
        return point if point is None or self.basis is None else point @ self.basis.T

    def _more_holdout(self, state: SearchState) -> None:
        """Hold-out points in proportion to what the copy cost."""
        few = int(np.clip(HOLDOUT_SHARE * self.space.spent.total, HOLDOUT_POINTS, MOST_HOLDOUT))
        count = self.affordable(few - len(self.holdout.rows))
        if count > 0:
            points, _ = fresh_points(self.full_estimate, count, self.generator, farthest=self.far)
            self.holdout.add(state.precision.store(points.numpy()))

    def _point_from_rounding(self, allowed: float) -> Array | None:
        """A point where the target's rounding shows neurons that cancel (``hidden_bumps.py``)."""
        part = slice(HOLDOUT_POINTS - ROUNDING_ROWS, HOLDOUT_POINTS)
        rows, truth = torch.from_numpy(self.holdout.rows[part]), torch.from_numpy(self.holdout.truth[part])

        def ask(X: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(self.ask_full(X.numpy()))

        evidence = compare_rounding(ask, self.full_estimate, rows, truth, allowed=allowed, generator=self.generator)
        self.hidden = evidence.hidden
        return None if evidence.point is None else evidence.point.numpy()

    def affordable(self, rows: int) -> int:
        remaining = self.oracle.ledger.remaining
        return rows if remaining is None else min(rows, remaining)

    def judgement(self, state: SearchState) -> str:
        """Why the copy is not exact, as far as the hold-out points tell; empty if they all agree."""
        error = self.holdout.error(self.estimate)
        share = error / self.holdout.scale
        if error <= EXACT * self.holdout.scale and state.precision.faithful:
            return HIDDEN if self.hidden else ""
        if error <= (FLOOR * state.roughness * self.holdout.scale if state.coarse else self.explained(state)):
            return (
                f"The copy agrees to {share:.1e} of the output's standard deviation, as well as the oracle's precision "
                f"allows: {state.precision.describe()}."
            )
        reason = f"The copy is off by {share:.1e} of the output's standard deviation on fresh points."
        if state.coarse:
            reason += f" Answers are good to {state.roughness:.1e} of it at best: {state.precision.describe()}."
            reason += f" {COARSE}" if share > HOPELESS and self.depth.most > 1 else ""
        return reason

    def explained(self, state: SearchState) -> float:
        """Errors up to this size are what the measured precision leads one to expect."""
        return 10.0 * state.spread * float(np.sqrt(state.inputs * (self.estimate.width + 1)))

    @property
    def estimate(self) -> NetworkEstimate:
        """The network so far; the mean answer while there is none."""
        if self.affine is not None:
            return self.affine
        if self.state is not None and self.state.estimate is not None:
            return self.state.estimate
        mean = self.holdout.typical.mean(axis=0) if self.holdout.count else np.zeros(self.oracle.output_dim)
        return NetworkEstimate.affine(np.zeros((self.oracle.output_dim, self.inputs)), mean)

    @property
    def full_estimate(self) -> NetworkEstimate:
        """The network as a function of full inputs."""
        return self.estimate if self.basis is None else self.estimate.from_subspace(self.basis)

    def _not_piecewise_linear(self) -> str:
        """The reason for a function that is curved everywhere, by what its outputs do far out."""
        assert self.state is not None
        self.state.estimate = None
        if self.precise is not None:
            return (
                "The answers were taken for probabilities, by their range and their sums. The logits behind them are "
                "not piecewise linear where they are precise, and only ReLU networks can be rebuilt exactly."
            )
        rows = self.holdout.rows[:4]
        far = self.ask_full(np.concatenate([0.5 * self.far * rows, self.far * rows]))
        saturates = bool(np.abs(far[4:] - far[:4]).max() <= 0.01 * max(np.abs(far).max(), self.holdout.scale))
        kind = (
            "its outputs level off far out, as a sigmoid or tanh network's do"
            if saturates
            else "it is smooth but straight far out, as ELU, softplus or GELU networks are"
        )
        return f"The model is not piecewise linear: {kind}. Only ReLU networks can be rebuilt exactly."

    def _gap(self) -> float:
        seen = [] if self.state is None else self.state.seen
        rows = [self.holdout.rows, *(part if self.basis is None else part @ self.basis for part in seen)]
        if self.verification is not None:
            rows.append(self.verification.X.numpy())
        return smallest_gap(self.full_estimate, torch.from_numpy(np.concatenate(rows)))

    def _notes(self, exact: bool) -> tuple[str, ...]:
        state, width = self.state, self.estimate.width
        notes = [] if state is None else list(state.notes)
        if self.width is not None and width != self.width and exact:
            notes.append(
                f"The width was given as {self.width}, and {width} neurons explain every answer; neurons that never "
                "switch, or that share a hyperplane, count as one or none."
            )
        if state is not None and state.rank is not None:
            notes.append(f"The first layer depends on {state.rank} directions only, which saved queries.")
        return tuple(notes)

    def _result(self, reason: str) -> Extraction:
        state, verification = self.state, self.verification
        facts: dict[str, object] = {}
        if state is not None:
            facts = {"noise": state.roughness, "rank": state.rank, "precision": state.precision.describe()}
        if verification is not None:
            facts["verification"] = verification.facts()
        points = len(self.holdout.rows) if verification is None else len(verification.X)
        worst = self.holdout.error(self.estimate)
        stolen = Extraction(
            model=self.space.network(self.full_estimate).model(),
            width=self.estimate.width,
            exact=not reason,
            worst_error=worst if verification is None else max(worst, verification.worst),
            scale=self.holdout.scale,
            ledger=self.space.spent,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            method="values",
            reason=reason,
            verified_points=points,
            smallest_gap=self._gap(),
            notes=self._notes(not reason),
            facts=facts,
            verification=verification.spent if verification is not None and not reason else Spent(),
        )
        return self.space.as_shown(stolen)
