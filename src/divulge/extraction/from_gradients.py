"""One-hidden-layer ReLU networks from gradients: f(x) = W relu(A x + b) + P x + q (Milli 2019, Algorithm 1).

``method="paper"`` is the algorithm as printed. The default needs an order of magnitude fewer queries, no width, and
knows biases, several outputs and more neurons than inputs. Where it departs, and why:

- several outputs tell neurons apart by themselves: the gradients at a few random points, which are asked anyway, hold
  all neurons if these are no more than the inputs and not many times the outputs (``jacobians``); else
- kinks on a line are predicted from the affine maps of two cells instead of bisected, and the predictions are watched
  by a few points off the line instead of being checked one by one (``explore``);
- the sign of each neuron is the sign of the slope's change along the line, and the affine map at the line's left end
  absorbs what the kinks cannot tell (relu(a) - relu(-a) = a), so Algorithm 1b is not needed;
- what the first line missed (kinks far out, hidden in another's shadow, cancelling pairs) is found on further lines
  through points where the copy is wrong;
- `exact` is claimed only after fresh points agree, with the width of what they could have missed.
"""

from __future__ import annotations

import math
import time
from typing import Literal

import torch
from torch import Tensor

from divulge.errors import DivulgeError, InvalidInput
from divulge.extraction import diagnosis
from divulge.extraction.affine import Answers, SampleLines, Target, quality
from divulge.extraction.explore import Exploration, line_copy, wrong_rows
from divulge.extraction.jacobians import copy_from
from divulge.extraction.kinks import ROUNDS, KinkSearch
from divulge.extraction.logits import Logits, Outputs, beneath, on_top
from divulge.extraction.network import Copy
from divulge.extraction.result import Extraction
from divulge.extraction.rounding import HIDDEN, Heard, listen
from divulge.extraction.verification import Verification, fresh_points, smallest_gap, spread
from divulge.oracles.base import Oracle, Spent, at_the_door
from divulge.progress import report

Method = Literal["default", "paper"]
WITNESSES = 32
FEWEST_CHECKS, CHECKS, MOST_CHECKS = 16, 1000, 4000
GAP = 0.01
"""Without a number of checks there are as many as it takes to see bumps of this width."""
OUTLIER = 1e4
"""A point that is off by so many times the median is looked at, however little that is."""
LISTENED = 96
"""Values that tell how coarsely the target rounds: three at each point, well out, where half of all neurons are on."""
REPAIRS = 60
PATIENCE = 4
EXACT = 1e-9
"""A copy is exact if it is off by no more than this share of the output's standard deviation on fresh points."""


def from_gradients(
    oracle: Oracle,
    *,
    seed: int = 0,
    width: int | None = None,
    method: Method = "default",
    outputs: Outputs | None = None,
    checks: int | None = None,
    delta: float = 0.05,
) -> Extraction:
    """Rebuild a one-hidden-layer ReLU network from its gradients.

    ``width`` is needed by ``method="paper"`` only; the default finds it, and says so if it is not what you expected.
    ``checks`` is how many fresh rows (values, not gradients) verify the copy: the more, the narrower the cancelling
    neurons that cannot have been missed (``smallest_gap``). By default there are 1,000 to 4,000, as many as bring that
    gap down to 0.01. ``outputs`` is what the oracle shows, logits or probabilities; by default several outputs tell,
    and a single one counts as a logit. ``delta`` is the printed algorithm's failure probability.
    """
    seed = at_the_door(oracle, seed)
    if method not in ("default", "paper"):
        raise InvalidInput(f'method is "default" or "paper", not {method!r}.')
    if width is not None and width < 0:
        raise InvalidInput(f"A width of {width} makes no sense; give the number of hidden neurons, or None.")
    if checks is not None and checks < FEWEST_CHECKS:
        raise InvalidInput(f"At least {FEWEST_CHECKS} fresh rows are needed to verify a copy; got checks={checks}.")
    if method == "paper":
        from divulge.extraction.paper_gradients import learn_model

        return learn_model(oracle, seed=seed, width=width, delta=delta, checks=checks or CHECKS)
    spent = oracle.ledger.snapshot()
    oracle = beneath(oracle, outputs, seed)
    run = _Run(oracle, seed=seed, width=width, checks=checks, spent=spent)
    try:
        return on_top(run.result(), oracle)
    except DivulgeError as error:
        error.partial = on_top(run.gathered(exact=False, reason=str(error)), oracle)
        raise


class _Run:
    """One extraction: what was asked, what is known, how it ends."""

    def __init__(self, oracle: Oracle, *, seed: int, width: int | None, checks: int | None, spent: Spent) -> None:
        self.oracle, self.seed, self.width, self.checks = oracle, seed, width, checks
        self.began, self.spent = time.perf_counter(), spent
        self.target = Target(oracle)
        self.generator = torch.Generator().manual_seed(seed)
        self.copy = Copy.nothing(oracle.input_dim, oracle.output_dim)
        self.exploration: Exploration | None = None
        self.witnesses: Answers | None = None
        self.verification: Verification | None = None
        self.gap: float | None = None
        self.reach = math.inf
        self.lines = 0
        self.seen: list[Tensor] = []  # every point the target answered, for what could have been missed

    # -- the course of it ---------------------------------------------------------------------------------------------

    def result(self) -> Extraction:
        origin, direction = self._normal(2)
        self._first_answers(origin, direction)
        kind = self._smooth()
        if kind is not None:
            return self.gathered(
                exact=False,
                reason=f"The target is not piecewise linear: it is curved everywhere, as a network of {kind} units is.",
            )
        if not self._at_once():
            self._explore(origin, direction)
        reason = self._repair_witnesses() or self._verify_and_repair()
        return self.gathered(exact=not reason, reason=reason)

    def _first_answers(self, origin: Tensor, direction: Tensor) -> None:
        """The witnesses, and a row asked twice and once more from nearby."""
        X = torch.cat([torch.stack([origin, origin + 1e-4 * direction, origin]), self._normal(WITNESSES)])
        value, gradient = self.target.maps(X)
        self.witnesses = Answers(X[2:], value[2:], gradient[2:])
        self.quality = quality(self.oracle, self.witnesses, (value[0], gradient[0]))
        self.tolerance = self.quality.tolerance(self.target.inputs)
        self.reach = self.quality.reach
        if isinstance(self.oracle, Logits):
            self.reach = min(self.reach, self.oracle.reach(self.generator))
        self.curved = float((gradient[1] - gradient[0]).norm()) > self.tolerance.jump
        self.seen.append(X)

    def _smooth(self) -> str | None:
        if self.quality.coarse or not self.curved:
            return None
        return diagnosis.smooth(self.target, self.tolerance, self.quality.eps, self.reach, self.generator)

    def _at_once(self) -> bool:
        """All neurons from the witnesses alone, where several outputs tell them apart and the witnesses then agree."""
        copy = copy_from(self._rows(), self.tolerance.value, self.generator)
        if copy is None or bool(wrong_rows(self._rows().minus(copy), self.tolerance).any()):
            return False
        self.copy = copy.merged(self._same())
        self._anchor()
        return True

    def _explore(self, origin: Tensor, direction: Tensor) -> None:
        assert self.witnesses is not None
        nothing = Copy.nothing(self.target.inputs, self.target.outputs)
        lines = SampleLines(self.target, nothing, origin[None], direction[None])
        start = torch.tensor([[-self.reach, 0.0, self.reach]], dtype=torch.float64)
        search = KinkSearch(lines, start, self.tolerance)
        self.exploration = Exploration(lines, search, self.tolerance, self.witnesses, self.reach, self.seed)
        self.copy = self.exploration.run().merged(self._same())
        self.witnesses = self.exploration.witnesses
        self.lines = 1
        samples = search.samples
        self.seen.append(lines.at(samples.line, samples.t))
        self._anchor()

    def _repair_witnesses(self) -> str:
        """Further lines until the witnesses agree; a reason if they never will."""
        rows = self._rows()
        strikes, fewest, asked = 0, len(rows) + 1, False
        for _ in range(REPAIRS):
            rest = rows.minus(self.copy)
            wrong = wrong_rows(rest, self.tolerance)
            count = int(wrong.sum())
            if not count:
                return ""
            strikes = 0 if count < fewest else strikes + 1
            fewest = min(fewest, count)
            if strikes >= 1 and not asked and not self.quality.coarse and 2 * count > len(wrong):
                asked = True
                if diagnosis.bends(self.target, self.copy, self.tolerance, self.generator):
                    return (
                        "The target has more than one hidden layer: the hyperplanes found on one line bend elsewhere. "
                        "Try deep_from_gradients."
                    )
            if strikes > PATIENCE:
                break
            worst = int(torch.where(wrong, rest.gradient.flatten(1).norm(dim=1), torch.zeros(())).argmax())
            self._repair(rows.X[worst])
        self._verify()
        return self._floor_reason()

    def _verify_and_repair(self) -> str:
        """Fresh points until a whole set agrees; a reason if that does not come about."""
        for _ in range(REPAIRS):
            self._anchor()
            self._verify()
            assert self.verification is not None
            if self.quality.coarse:
                return self._floor_reason()
            if self.verification.worst > EXACT * self.verification.scale:
                if not self._repair_checks():
                    break
                continue
            outlier = self._outlier()
            if outlier is not None:
                self._repair(outlier)
                continue
            heard = self._listen()
            if heard.point is None:
                return HIDDEN if heard.hidden else ""
            self._repair(heard.point)
        return self._floor_reason()

    def _outlier(self) -> Tensor | None:
        """A fresh point that is off little, but far more than all others, and where the gradient is wrong indeed."""
        assert self.verification is not None
        size = 1 + self.verification.X.norm(dim=1) / self.target.inputs**0.5
        off = self.verification.off / size
        rows = off.argsort(descending=True)[:PATIENCE]
        X = self.verification.X[rows[off[rows] > OUTLIER * off.median()]]
        if not len(X) or self.target.room(len(X)) < len(X):
            return None
        rest = Answers(X, *self.target.maps(X)).minus(self.copy)
        wrong = rest.gradient.flatten(1).norm(dim=1) > 4 * self.tolerance.jump
        return X[wrong][0] if bool(wrong.any()) else None

    def _listen(self) -> Heard:
        """Whether the target's rounding tells of neurons that cancel."""
        assert self.verification is not None
        if self.quality.eps > torch.finfo(torch.float64).eps or self.target.room(LISTENED) < LISTENED:
            return Heard()
        X = self._normal(LISTENED // 3) * torch.tensor([3.0, 10.0], dtype=torch.float64).repeat(LISTENED // 6)[:, None]
        allowed = EXACT * self.verification.scale
        return listen(
            self.target.values, self.copy, X, self.target.values(X), allowed=allowed, generator=self.generator
        )

    def _repair_checks(self) -> bool:
        """Lines through fresh points where the copy is off, until all of them agree; False if they will not."""
        strikes = 0
        fewest = len(self._off()) + 1
        while strikes <= PATIENCE:
            off = self._off()
            if not len(off):
                return True
            strikes = 0 if len(off) < fewest else strikes + 1
            fewest = min(fewest, len(off))
            X = off[: self.target.room(PATIENCE)]
            rest = Answers(X, *self.target.maps(X)).minus(self.copy)
            wrong = rest.gradient.flatten(1).norm(dim=1) > 4 * self.tolerance.jump
            if not bool(wrong.any()):
                return False
            self._repair(X[wrong][0])
        return False

    def _off(self) -> Tensor:
        """Verification points where the copy is off, the worst first."""
        assert self.verification is not None
        off = (self.verification.truth - self.copy.value(self.verification.X)).abs().amax(dim=1)
        order = off.argsort(descending=True)
        return self.verification.X[order[off[order] > EXACT * self.verification.scale]]

    # -- its steps ----------------------------------------------------------------------------------------------------

    def _repair(self, through: Tensor) -> None:
        """Search the residual along a new line through a point where the copy is wrong, and add what is there."""
        direction = self._normal(1)[0]
        lines = SampleLines(self.target, self.copy, through[None], direction[None])
        start = torch.tensor([[-self.reach, 0.0, self.reach]], dtype=torch.float64)
        search = KinkSearch(lines, start, self.tolerance)
        for _ in range(ROUNDS):
            chosen = search.open.nonzero().flatten()
            if not len(chosen):
                break
            search.refine(chosen[: self.target.room(len(chosen))])
            report("repairing", self.lines, None, neurons=self.copy.width, queries=self.oracle.ledger.total)
        found = line_copy(lines, search, self.tolerance)
        self.copy = self.copy.plus(found, self._same())
        self.lines += 1
        samples = search.samples
        self.seen.append(lines.at(samples.line, samples.t))
        self._anchor()

    def _rows(self) -> Answers:
        assert self.witnesses is not None
        return self.witnesses

    def _same(self) -> float:
        """Neurons that differ by no more than this are on the same hyperplane."""
        return 10 * self.tolerance.jump

    def _anchor(self) -> None:
        """Offsets and constant from the witnesses' values: far ends of lines know them less precisely."""
        rows = self._rows()
        right = rows.minus(self.copy).gradient.flatten(1).norm(dim=1) <= 4 * self.tolerance.jump
        if bool(right.any()):
            self.copy = self.copy.polished(rows.X[right], rows.value[right], self.tolerance.value)

    def _verify(self) -> None:
        """Fresh points, and if all of them agree as many more as the gap asks for."""
        self.verification = self._fresh(self.checks or CHECKS)
        self.gap = smallest_gap(self.copy, torch.cat(self.seen))
        agreed = self.verification.worst <= EXACT * self.verification.scale
        more = min(MOST_CHECKS - CHECKS, int(CHECKS * (self.gap / GAP - 1)))
        if self.checks is None and agreed and more > 0 and self.target.room(more) == more:
            self.verification = self.verification.and_also(self._fresh(more))
            self.gap = smallest_gap(self.copy, torch.cat(self.seen))
        report("verifying", None, None, neurons=self.copy.width, queries=self.oracle.ledger.total,
               worst=f"{self.verification.worst:.1e}")  # fmt: skip

    def _fresh(self, count: int) -> Verification:
        count = max(FEWEST_CHECKS, self.target.room(count))
        X = self.target.stored(fresh_points(self.copy, count, self.generator, farthest=self.reach))
        truth = self.target.values(X)
        self.seen.append(X)
        return Verification(X, truth, (truth - self.copy.value(X)).abs().amax(dim=1))

    def _floor_reason(self) -> str:
        judged = self.verification.X if self.verification is not None else self._rows().X
        truth = self.verification.truth if self.verification is not None else self._rows().value
        off = float((truth - self.copy.value(judged)).abs().max()) / spread(truth)
        if off > 0.1:
            return f"The copy is off by {off:.1e} of the output's standard deviation: {self.quality.describe()}."
        return (
            f"The copy agrees to {off:.1e} of the output's standard deviation, about as well as can be expected: "
            f"{self.quality.describe()}."
        )

    def _normal(self, count: int) -> Tensor:
        return torch.randn(count, self.target.inputs, generator=self.generator, dtype=torch.float64)

    # -- the end ------------------------------------------------------------------------------------------------------

    def gathered(self, *, exact: bool, reason: str) -> Extraction:
        """Everything known so far as a result."""
        copy = self.copy
        if not copy.width and self.exploration is not None and not exact:
            copy = self.exploration.copy()
        worst, scale, points = float("inf"), 1.0, 0
        if self.verification is not None:
            truth = self.verification.truth
            worst = float((truth - copy.value(self.verification.X)).abs().max())
            scale, points = self.verification.scale, len(truth)
        elif self.witnesses is not None:
            rows = self._rows()
            worst = float((rows.value - copy.value(rows.X)).abs().max())
            scale, points = spread(rows.value), len(rows)
        return Extraction(
            model=copy.model(),
            width=copy.width,
            exact=exact,
            worst_error=worst,
            scale=scale,
            ledger=self.oracle.ledger.snapshot() - self.spent,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            method="default",
            reason=reason,
            verified_points=points,
            smallest_gap=self.gap,
            notes=self._notes(copy.width),
            facts={"lines": self.lines},
        )

    def _notes(self, found: int) -> tuple[str, ...]:
        if self.width is None or found == self.width:
            return ()
        if found < self.width:
            return (
                f"{found} neurons show where you expected {self.width}: dead neurons leave no trace, and neurons on "
                "the same hyperplane are merged into one.",
            )
        return (f"{found} neurons show, more than the {self.width} you expected.",)
