"""A one-hidden-layer ReLU network from its values alone, to the last bits of the oracle's precision.

Milli 2019, Algorithm 1-MQ, estimates every gradient that Algorithm 1 asks for by d values, about 40 d values for each
neuron in all (``paper_values``). The default here asks close to one value for each unknown parameter:

1. all kinks on one random line from scalar samples (``lines``);
2. one gradient in every cell between them (``cells``): neighbouring cells differ by exactly one neuron, weight and bias
   included, and which way round a neuron stands does not matter, because relu(z) = relu(-z) + z and the affine part
   takes up the difference (so Algorithm 1b and its linear programme are not needed);
3. cells too narrow to measure well are walked around on a detour that crosses each of their neurons exactly once
   (``detours``), which costs no more gradients than measuring them would have;
4. the copy is compared on points that nothing was fitted to; neurons that the line never met are found in the
   difference, along further lines (``along``).

Values of several outputs share their kinks, and one row answers for all of them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from divulge import progress
from divulge.errors import DivulgeError, InvalidInput
from divulge.extraction import paper_values
from divulge.extraction.along import Bench, first_line, further_line
from divulge.extraction.cells import basis_of, random_frame
from divulge.extraction.draft import Draft
from divulge.extraction.fresh import FEWEST_CHECKS, Fresh
from divulge.extraction.lines import Array
from divulge.extraction.logits import Logits, Outputs, beneath, on_top
from divulge.extraction.polish import parameters, polish, pruned
from divulge.extraction.precision import measure
from divulge.extraction.result import Extraction
from divulge.extraction.rounding import HIDDEN, listen
from divulge.extraction.verification import fresh_points, smallest_gap
from divulge.oracles.base import Oracle, Spent, at_the_door

EXACT, PRECISE = 1e-8, 2e-9
"""A copy whose worst error on fresh points is at most this share of the output's standard deviation is exact; beyond
the second share it is measured again, unless its line does not allow for better."""
MOST_CHECKS, CHECKED = 1000, 0.02
"""Most fresh points before a copy is called exact, and the share of what it cost that they are below that."""
LISTENED = 12
"""Fresh points whose rounding is compared with the copy's."""
NEARLY = 1e3
"""Errors up to so many times what counts as exact are imprecision: another line is worth its queries."""
RESTARTS = 3
FLOOR = 30.0
"""So many times the noise of coarse answers is what a copy of all neurons agrees to."""
DEEPER = (
    "The hyperplanes found along one line do not explain another: the model has more than one hidden layer, or is not "
    "a ReLU network."
)
FAR, FARTHEST = 1e4, 1e6
"""How far from the middle lines are searched, and how far out anything is asked, in lengths of a typical input."""
REPAIRS = 6
LARGEST_POLISH, QUICK_POLISH = 5_000, 1_500
"""Most parameters that are fitted at once, and most that are fitted many times over."""


def from_values(
    oracle: Oracle,
    *,
    seed: int = 0,
    width: int | None = None,
    method: Literal["default", "paper"] = "default",
    span: Any = "auto",
    outputs: Outputs | None = None,
    checks: int | None = None,
    delta: float = 0.1,
) -> Extraction:
    """Rebuild the one-hidden-layer ReLU network behind ``oracle`` from its values.

    ``width`` is needed by ``method="paper"`` only, which fails with probability ``delta`` at most; by default a width
    that turns out different is noted. ``span`` is a result of ``divulge.span`` (or rows [k, d] that span the inputs the
    model listens to): the attack then works in k dimensions. With "auto" a first layer of low rank is noticed on the
    way, and costs less without being told. ``checks`` is how many fresh rows verify the copy: by default 2 % of all
    rows, 32 to 1,000; the more, the narrower the bumps that cannot have been missed (``smallest_gap``).
    ``outputs`` is what the oracle shows, logits or probabilities; by default several outputs tell, and a single one
    counts as a logit.
    """
    seed = at_the_door(oracle, seed)
    if method not in ("default", "paper"):
        raise InvalidInput(f'method is "default" or "paper", not {method!r}.')
    if method == "paper":
        return paper_values.learn_model(oracle, seed=seed, width=width, delta=delta)
    if width is not None and width < 0:
        raise InvalidInput(f"A hidden layer of width {width} makes no sense; give zero or more, or leave it out.")
    if checks is not None and checks < FEWEST_CHECKS:
        raise InvalidInput(f"At least {FEWEST_CHECKS} fresh rows are needed to verify a copy; got checks={checks}.")
    basis, spent = basis_of(span, oracle.input_dim), oracle.ledger.snapshot()
    oracle = beneath(oracle, outputs, seed)
    try:
        attack = _Attack(oracle, seed=seed, width=width, basis=basis, checks=checks, spent=spent)
        return on_top(attack.run(), oracle)
    except DivulgeError as error:
        if isinstance(error.partial, Extraction):
            error.partial = on_top(error.partial, oracle)
        raise


class _Attack:
    def __init__(
        self, oracle: Oracle, *, seed: int, width: int | None, basis: Array | None, checks: int | None, spent: Spent
    ) -> None:
        self.oracle, self.seed, self.width, self.basis, self.checks = oracle, seed, width, basis, checks
        self.rng = np.random.default_rng(seed)
        self.began = time.perf_counter()
        self.before = spent
        self.fitted = np.empty(
            (0, oracle.input_dim if basis is None else len(basis))
        )  # rows that a polish is fitted to
        self.fitted_values = np.empty((0, oracle.output_dim))
        self.bench: Bench | None = None
        self.generator = torch.Generator().manual_seed(seed)
        self.far = oracle.reach(self.generator) if isinstance(oracle, Logits) else FARTHEST
        self.hidden = False

    def ask(self, rows: Array) -> Array:
        """Values at rows of the space the attack works in."""
        if self.basis is not None:
            rows = rows @ self.basis
        return self.ask_full(rows)

    def ask_full(self, rows: Array) -> Array:
        answer = self.oracle.value(torch.from_numpy(rows)).to(torch.float64).cpu().numpy()
        progress.report("asking", self.oracle.ledger.total, self.oracle.ledger.budget)
        return np.asarray(answer)

    def run(self) -> Extraction:
        try:
            return self._run()
        except DivulgeError as error:
            if error.partial is None and self.bench is not None:
                if self.bench.draft is None:
                    self.bench.draft = self._average()
                error.partial = self._result(exact=False, reason=str(error))
            raise

    def _run(self) -> Extraction:
        fresh = self.fresh = Fresh(self.ask_full, self.oracle.input_dim, self.oracle.eps, self.basis, self.rng)
        precision = measure(self.oracle, self.rng, fresh.typical)
        inputs = self.oracle.input_dim if self.basis is None else len(self.basis)
        bench = self.bench = Bench(
            ask=self.ask,
            inputs=inputs,
            outputs=self.oracle.output_dim,
            precision=precision,
            scale=fresh.scale,
            frame=random_frame(inputs, self.rng),
            rng=self.rng,
            far=min(FAR, self.far),
        )
        if precision.smooth:
            return self._not_piecewise_linear()
        first_line(bench)
        if bench.draft is None:
            return self._not_piecewise_linear()
        best = self._repair(bench)
        for _ in range(RESTARTS if bench.coarse else 1):
            if best.reason == DEEPER or not self._worth_another(bench, best):
                break
            best = self._another_line(bench, best)
        return best

    def _worth_another(self, bench: Bench, best: Extraction) -> bool:
        """Whether the copy is worse than answers of this precision allow, though not so far off as to be hopeless."""
        error = self.fresh.error(self._draft) / self.fresh.scale
        if self._affordable(needed := 2 * (best.width + 1) * (bench.inputs + 1)) < needed:
            return False
        if bench.coarse:
            return error > FLOOR * bench.roughness
        precise = error <= PRECISE or (best.exact and error <= self._explained(bench) / self.fresh.scale)
        return not precise and error <= NEARLY * EXACT

    def _another_line(self, bench: Bench, best: Extraction) -> Extraction:
        """Start over on another line; the better of the two copies."""
        draft, notes = self._draft, list(bench.notes)
        bench.notes.clear()
        first_line(bench)
        second = self._repair(bench)
        if self.fresh.error(self._draft) <= self.fresh.error(draft):
            return second
        bench.draft, bench.notes = draft, notes
        return self._result(exact=best.exact, reason=best.reason)

    def _repair(self, bench: Bench) -> Extraction:
        """Verify; polish where precision is lacking, search further lines where neurons are; verify again."""
        polished = False
        for _ in range(REPAIRS):
            toward = self._wrong(bench)
            if toward is None or (polished and self.fresh.error(self._draft) > EXACT * self.fresh.scale):
                break
            if bench.coarse and not polished and (polished := self._polished(bench)):
                continue
            most = max(8, self._draft.width // 2)
            found = further_line(bench, toward, most)
            if found < 0 or found > most:
                return self._result(exact=False, reason=DEEPER)
            if found:
                polished = False
                self.fresh.renew()
                self.fresh.look_around(toward, self._draft, found)
            elif not bench.coarse and not polished and parameters(self._draft) <= QUICK_POLISH:
                polished = self._polished(bench)
        else:
            self.hidden = True  # it was still wrong somewhere when patience ran out
        return self._conclude(bench)

    def _wrong(self, bench: Bench) -> Array | None:
        """A point where the copy is wrong; None if neither fresh points nor the target's rounding show any."""
        allowed = EXACT * self.fresh.scale
        if self.fresh.error(self._draft) <= allowed:
            self._check_more(bench)
        point: Array | None = None
        if self.fresh.error(self._draft) > allowed:
            point = self.fresh.wrong(self._draft, allowed)
        elif bench.precision.plain(self.oracle.eps) and self._affordable(2 * LISTENED) == 2 * LISTENED:
            point = self._heard(allowed)
        return point if point is None or self.basis is None else point @ self.basis.T

    def _check_more(self, bench: Bench) -> None:
        """As many fresh points as were asked for, or as what the copy cost makes worth while."""
        spent = (self.oracle.ledger.snapshot() - self.before).total
        few = int(np.clip(CHECKED * spent, FEWEST_CHECKS, MOST_CHECKS))
        count = self._affordable((self.checks or few) - len(self.fresh.rows))
        if count > 0:
            self.fresh.add(
                bench.precision.store(
                    fresh_points(self._whole.copy(), count, self.generator, farthest=self.far).numpy()
                )
            )

    def _heard(self, allowed: float) -> Array | None:
        """Where the target's rounding leads, if it tells of neurons that cancel (``rounding``)."""
        part = slice(FEWEST_CHECKS - LISTENED, FEWEST_CHECKS)
        rows, truth = torch.from_numpy(self.fresh.rows[part]), torch.from_numpy(self.fresh.truth[part])

        def ask(X: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(self.ask_full(X.numpy()))

        heard = listen(ask, self._whole.copy(), rows, truth, allowed=allowed, generator=self.generator)
        self.hidden = heard.hidden
        return None if heard.point is None else heard.point.numpy()

    def _affordable(self, rows: int) -> int:
        remaining = self.oracle.ledger.remaining
        return rows if remaining is None else min(rows, remaining)

    def _polished(self, bench: Bench) -> bool:
        """Fit all parameters to fresh values, if precision is the limit; True if that left nothing but noise."""
        draft = self._draft
        count = parameters(draft)
        if self._explained(bench) <= 0.1 * EXACT * self.fresh.scale or count > LARGEST_POLISH:
            return False
        missing = int(np.ceil(1.6 * count / bench.outputs)) - len(self.fitted)
        remaining = self.oracle.ledger.remaining
        if remaining is not None and missing + 2 * len(self.fresh.rows) > remaining:
            bench.notes.append(f"The budget left no room for the {missing:,} values that would polish the copy.")
            return False
        if missing > 0:
            rows = bench.precision.store(self.rng.normal(size=(missing, bench.inputs)))
            self.fitted = np.concatenate([self.fitted, rows])
            self.fitted_values = np.concatenate([self.fitted_values, self.ask(rows)])
        noise = 4.0 * float(np.sqrt(np.mean(bench.precision.noise(self.fitted) ** 2)))
        better = polish(draft, self.fitted, self.fitted_values)
        if better.after > noise:
            return False
        bench.draft = better.draft
        if count <= QUICK_POLISH:
            bench.draft = pruned(better.draft, self.fitted, self.fitted_values, noise)
        bench.spread = 0.0
        self.fresh.renew()
        return True

    def _conclude(self, bench: Bench) -> Extraction:
        error = self.fresh.error(self._draft)
        if error <= EXACT * self.fresh.scale and bench.precision.faithful:
            return self._result(exact=not self.hidden, reason=HIDDEN if self.hidden else "")
        if error <= (FLOOR * bench.roughness * self.fresh.scale if bench.coarse else self._explained(bench)):
            reason = (
                f"The copy agrees to {error / self.fresh.scale:.1e} of the output's standard deviation, as well as the "
                f"oracle's precision allows: {bench.precision.describe()}."
            )
        else:
            reason = (
                f"The copy is off by {error / self.fresh.scale:.1e} of the output's standard deviation on fresh points."
            )
            if bench.coarse:
                reason += f" Answers are good to {bench.roughness:.1e} of it at best: {bench.precision.describe()}."
        return self._result(exact=False, reason=reason)

    def _explained(self, bench: Bench) -> float:
        """Errors up to this size are what the measured precision leads one to expect."""
        return 10.0 * bench.spread * float(np.sqrt(bench.inputs * (self._draft.width + 1)))

    @property
    def _draft(self) -> Draft:
        assert self.bench is not None
        assert self.bench.draft is not None
        return self.bench.draft

    @property
    def _whole(self) -> Draft:
        """The draft as a function of full inputs."""
        draft = self._draft
        return draft if self.basis is None else replace(draft, A=draft.A @ self.basis, P=draft.P @ self.basis)

    def _average(self) -> Draft:
        """The constant that stands in for a copy where there is none."""
        k, inputs = self.oracle.output_dim, self.fitted.shape[1]
        return Draft.affine(np.zeros((k, inputs)), np.zeros(inputs), self.fresh.typical.mean(axis=0))

    def _not_piecewise_linear(self) -> Extraction:
        assert self.bench is not None
        self.bench.draft = self._average()
        far = self.ask_full(np.concatenate([0.5 * self.far * self.fresh.rows[:4], self.far * self.fresh.rows[:4]]))
        saturates = bool(np.abs(far[4:] - far[:4]).max() <= 0.01 * max(np.abs(far).max(), self.fresh.scale))
        kind = (
            "its outputs level off far out, as a sigmoid or tanh network's do"
            if saturates
            else "it is smooth but straight far out, as ELU, softplus or GELU networks are"
        )
        return self._result(
            exact=False, reason=f"The model is not piecewise linear: {kind}. Only ReLU networks can be rebuilt exactly."
        )

    def _gap(self, bench: Bench) -> float:
        seen = [rows if self.basis is None else rows @ self.basis for rows in bench.seen]
        return smallest_gap(self._whole.copy(), torch.from_numpy(np.concatenate([self.fresh.rows, *seen])))

    def _result(self, *, exact: bool, reason: str) -> Extraction:
        bench, draft = self.bench, self._draft
        assert bench is not None
        notes = list(bench.notes)
        if self.width is not None and draft.width != self.width and exact:
            notes.append(
                f"The width was given as {self.width}, and {draft.width} neurons explain every answer; neurons that "
                "never switch, or that share a hyperplane, count as one or none."
            )
        if bench.rank is not None:
            notes.append(f"The first layer listens to {bench.rank} directions only, which saved queries.")
        draft = self._whole
        return Extraction(
            model=draft.model(),
            width=draft.width,
            exact=exact,
            worst_error=self.fresh.error(self._draft),
            scale=self.fresh.scale,
            ledger=self.oracle.ledger.snapshot() - self.before,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            method="values",
            reason=reason,
            verified_points=len(self.fresh.rows),
            smallest_gap=self._gap(bench),
            notes=tuple(notes),
            facts={"noise": bench.roughness, "rank": bench.rank, "precision": bench.precision.describe()},
        )
