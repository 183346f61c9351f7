"""A small network close to any one-hidden-layer ReLU network, however unkind its weights (Chen 2021).

Where neurons crowd together, cancel or stand in the way of one another, exact extraction may fail, and in the worst
case no one can tell all neurons apart. What can always be had is a copy F' with a small E[(F - F')^2] over Gaussian
inputs. Chen's algorithms (``method="paper"``) cut a random line into equal intervals, take the gradient in each, and
regress on the ReLU features of *all pairs* of them. The default looks at the line with a grid as fine as ``epsilon``
asks for, samples closely only where it bends, takes one gradient between neighbouring kinks, treats kinks that cannot
be told apart as one neuron, and lets least squares and pruning decide which neurons the copy needs. Its error is
measured on fresh Gaussian inputs and comes with a confidence interval.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from divulge.errors import DivulgeError, InvalidInput
from divulge.extraction import paper_worst_case
from divulge.extraction.along import Bench, first_line, further_line
from divulge.extraction.cells import random_frame
from divulge.extraction.draft import Draft
from divulge.extraction.lines import Array
from divulge.extraction.precision import measure
from divulge.extraction.result import Extraction
from divulge.oracles.base import Oracle, at_the_door

EXACT = 1e-8
FARTHER = 32
"""Inputs ten times as large that an exact copy must agree on too."""
LINES, LOOKS = 6, 2
"""Further lines, at most; and how many are searched at least, because a line crosses some bumps too far out to see."""
COARSEST, ENOUGH = 256, 1_024
"""Fewest samples that a line starts with by default, and how many are tried before epsilon alone is good enough."""
FINEST = 6_000
"""Most samples that a line starts with."""


@dataclass(frozen=True)
class Approximation(Extraction):
    """A copy that is close in the mean square over Gaussian inputs. ``exact`` is True where it is more than that."""

    squared_error: float = float("inf")
    """Measured E[(F - F')^2], summed over outputs."""
    interval: tuple[float, float] = (0.0, float("inf"))
    """95 % confidence interval of it."""
    variance: float = 1.0
    """Of the target's outputs over the same inputs, summed, to read the error against."""

    @property
    def relative_error(self) -> float:
        return self.squared_error / self.variance

    def as_dict(self) -> dict[str, object]:
        return super().as_dict() | {
            "squared_error": self.squared_error,
            "interval": list(self.interval),
            "variance": self.variance,
            "relative_error": self.relative_error,
        }


def worst_case(
    oracle: Oracle,
    *,
    epsilon: float = 1e-3,
    seed: int = 0,
    method: Literal["default", "paper"] = "default",
    grid: int | None = None,
    checks: int = 1000,
    width: int | None = None,
    delta: float = 0.1,
) -> Approximation:
    """A copy with E[(F - F')^2] of at most ``epsilon`` times the variance of F, over standard Gaussian inputs.

    ``grid`` is the number of samples that each search line starts with; by default it is fine enough for bumps that
    would cost more than ``epsilon``. ``checks`` fresh inputs measure the error. ``width`` and ``delta`` are for
    ``method="paper"``.
    """
    seed = at_the_door(oracle, seed)
    if method not in ("default", "paper"):
        raise InvalidInput(f'method is "default" or "paper", not {method!r}.')
    if not 0 < epsilon < 1:
        raise InvalidInput(f"epsilon is a share of the output's variance between 0 and 1, not {epsilon}.")
    if checks < 20:
        raise InvalidInput(f"{checks} inputs measure nothing; checks needs at least 20.")
    if grid is not None and grid < 3:
        raise InvalidInput(f"A grid of {grid} samples shows no kinks; give at least 3.")
    run = _Run(oracle, epsilon, seed, checks, grid if grid is not None else grid_for(epsilon))
    return run.paper(width, delta, grid) if method == "paper" else run.adaptive()


def grid_for(epsilon: float) -> int:
    """Samples on a line that see every bump worth ``epsilon``.

    A tent of width g and slope 1 has a mean square of about g^3 / 12 times the density, so bumps narrower than
    (12 epsilon)^(1/3) may be missed; a line of Gaussian direction crosses them in about their width.
    """
    return int(np.clip(2.0 * np.pi / (12.0 * epsilon) ** (1.0 / 3.0), COARSEST, FINEST))


class _Run:
    def __init__(self, oracle: Oracle, epsilon: float, seed: int, checks: int, grid: int) -> None:
        self.oracle, self.epsilon, self.seed, self.checks, self.grid = oracle, epsilon, seed, checks, grid
        self.rng = np.random.default_rng(seed)
        self.began, self.before = time.perf_counter(), oracle.ledger.snapshot()
        self.typical = self.rng.normal(size=(32, oracle.input_dim))
        self.draft = Draft.affine(np.zeros((oracle.output_dim, oracle.input_dim)), self.typical[0], np.zeros(1))
        self.notes: list[str] = []
        self.gap: float | None = None

    def ask(self, rows: Array) -> Array:
        return np.asarray(self.oracle.value(torch.from_numpy(rows)).to(torch.float64).cpu().numpy())

    def adaptive(self) -> Approximation:
        bench = None
        try:
            bench = self._bench()
            if not bench.precision.smooth:
                first_line(bench)
            if bench.draft is None:
                self.notes.append("The function bends everywhere: it is not a ReLU network, and the copy is constant.")
                rows, truth = self._fresh()
                return self._result(rows, truth, self.notes[-1])
            return self._improve(bench)
        except DivulgeError as error:
            if bench is not None and bench.draft is not None:
                self.draft = bench.draft
            error.partial = self._result(np.empty((0, self.oracle.input_dim)), np.empty((0, 1)), str(error))
            raise

    def paper(self, width: int | None, delta: float, intervals: int | None) -> Approximation:
        if width is None or width < 1:
            raise InvalidInput("The printed algorithm needs to know the width k; give width=.")
        learned = paper_worst_case.learn_from_queries(
            self.ask, self.oracle.input_dim, self.oracle.output_dim, width, delta, intervals, self.rng
        )
        self.draft = learned.draft
        self.notes += learned.notes
        self.gap = learned.interval
        rows = self.rng.normal(size=(self.checks, self.oracle.input_dim))
        return replace(self._result(rows, self.ask(rows), ""), method="paper")

    def _bench(self) -> Bench:
        seen = self.ask(self.typical)
        self.draft = Draft.affine(
            np.zeros((self.oracle.output_dim, self.oracle.input_dim)), self.typical[0], seen.mean(axis=0)
        )
        return Bench(
            ask=self.ask,
            inputs=self.oracle.input_dim,
            outputs=self.oracle.output_dim,
            precision=measure(self.oracle, self.rng, seen),
            scale=max(float(seen.std(axis=0).max()), 1e3 * self.oracle.eps * float(np.abs(seen).max()), 1e-300),
            frame=random_frame(self.oracle.input_dim, self.rng),
            rng=self.rng,
            grid=self.grid,
            far=1e3,
            closest=1e-6,
        )

    def _improve(self, bench: Bench) -> Approximation:
        """Look along further lines while the error is too large, then let least squares choose the weights."""
        assert bench.draft is not None
        rows, truth = self._fresh()
        error = self._relative(bench.draft, rows, truth)
        for look in range(LINES):
            before, good = error, 0.1 * min(self.epsilon, 1e-8)
            if before <= good and look >= LOOKS:
                break
            off = ((bench.draft(rows) - truth) ** 2).sum(axis=1)
            wrong = np.flatnonzero(off >= 0.1 * off.max())
            toward = rows[self.rng.choice(wrong)] if before > good else self.rng.normal(size=bench.inputs)
            found = further_line(bench, toward)
            error = self._relative(bench.draft, rows, truth)
            if (
                before > good and error > 0.3 * before
            ):  # what is missing is narrower than the grid, or not worth finding
                if bench.grid >= FINEST or (found <= 0 and error <= self.epsilon and bench.grid >= ENOUGH):
                    break
                bench.grid = self.grid = min(4 * bench.grid, FINEST)
        beside = self._on_hyperplanes(bench.draft) if bench.draft.width else rows[:1]
        smaller = self._refitted(bench.draft, np.concatenate([rows, beside]), np.concatenate([truth, self.ask(beside)]))
        self.notes += bench.notes
        self.gap = bench.smallest_gap
        rows, truth = self._fresh()
        error, least = self._relative(bench.draft, rows, truth), self._relative(smaller, rows, truth)
        self.draft, error = (smaller, least) if least <= 10.0 * error + 1e-16 else (bench.draft, error)
        reason = "" if error <= self.epsilon else f"The error of {error:.1e} of the variance is above {self.epsilon:g}."
        return self._result(rows, truth, reason)

    def _fresh(self) -> tuple[Array, Array]:
        rows = self.rng.normal(size=(self.checks, self.oracle.input_dim))
        return rows, self.ask(rows)

    def _on_hyperplanes(self, draft: Draft) -> Array:
        """One input on each hyperplane: the only witnesses of a bump that no other input fell into."""
        rows = self.rng.normal(size=draft.A.shape)
        return np.asarray(rows - ((rows * draft.A).sum(axis=1) + draft.b)[:, None] * draft.A)

    def _relative(self, draft: Draft, rows: Array, truth: Array) -> float:
        return float(((draft(rows) - truth) ** 2).sum() / max(((truth - truth.mean(axis=0)) ** 2).sum(), 1e-300))

    def _refitted(self, draft: Draft, *held: Array) -> Draft:
        """Outer weights by least squares on fresh values; neurons that the held-out ones do not miss are left out, or
        merged with the ones beside them."""
        rows = self.rng.normal(size=(2 * (draft.width + self.oracle.input_dim + 1), self.oracle.input_dim))
        seen = rows, self.ask(rows)
        error = self._relative(draft, *held)
        fitted = _least_squares(draft, *seen)
        if self._relative(fitted, *held) < error:
            draft, error = fitted, self._relative(fitted, *held)
        allowed = max(2.0 * error, 1e-9 * self.epsilon)
        while draft.width and error <= self.epsilon:
            weakest = int(np.argmin(_strength(draft, rows)))
            smaller = (_least_squares(fewer, *seen) for fewer in (draft.closest_merged(), draft.without(weakest)))
            found = next((fewer for fewer in smaller if self._relative(fewer, *held) <= allowed), None)
            if found is None or found.width == draft.width:
                break
            draft = found
        return draft

    def _result(self, rows: Array, truth: Array, reason: str) -> Approximation:
        gap = ((self.draft(rows) - truth) ** 2).sum(axis=1) if len(rows) else np.array([np.inf])
        mean = float(gap.mean())
        half = float(1.96 * gap.std() / np.sqrt(len(gap))) if np.isfinite(mean) else float("inf")
        scale = max(float(truth.std(axis=0).max()), 1e-300) if len(rows) else 1.0
        worst = float(np.abs(self.draft(rows) - truth).max()) if len(rows) else np.inf
        exact = worst <= EXACT * scale and not reason
        if exact and not self._far_out(EXACT * scale):
            exact, reason = False, "The copy is exact on typical inputs, and not where inputs are ten times as large."
        if not exact and not reason:
            reason = f"A close copy was asked for, not an exact one: {mean:.1e} in the mean square."
        return Approximation(
            model=self.draft.model(),
            width=self.draft.width,
            exact=exact,
            worst_error=worst,
            scale=scale,
            ledger=self.oracle.ledger.snapshot() - self.before,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            method="worst-case",
            reason="" if exact else reason,
            verified_points=len(rows),
            smallest_gap=self.gap,
            notes=tuple(self.notes),
            facts={"grid": self.grid, "epsilon": self.epsilon},
            squared_error=mean,
            interval=(max(0.0, mean - half), mean + half),
            variance=float(truth.var(axis=0).sum()) if len(rows) else 1.0,
        )

    def _far_out(self, allowed: float) -> bool:
        """Whether the copy agrees on inputs ten times as large too, in proportion."""
        remaining = self.oracle.ledger.remaining
        if remaining is not None and remaining < FARTHER:
            return False
        rows = 10.0 * self.rng.normal(size=(FARTHER, self.oracle.input_dim))
        return bool(np.abs(self.draft(rows) - self.ask(rows)).max() <= 10.0 * allowed)


def _features(draft: Draft, rows: Array) -> Array:
    return np.concatenate([np.maximum(rows @ draft.A.T + draft.b, 0.0), rows, np.ones((len(rows), 1))], axis=1)


def _least_squares(draft: Draft, rows: Array, values: Array) -> Draft:
    """The same hyperplanes with outer weights and affine part fitted to values."""
    h, d = draft.A.shape
    correction = np.linalg.lstsq(_features(draft, rows), values - draft(rows), rcond=1e-11)[0]
    return replace(
        draft,
        W=draft.W + correction[:h].T,
        P=draft.P + correction[h : h + d].T,
        q=draft.q + correction[h + d],
    )


def _strength(draft: Draft, rows: Array) -> Array:
    """How much each neuron bends the function on these rows: its spread beyond an affine function."""
    z = rows @ draft.A.T + draft.b
    bend = np.abs(z) - np.abs(z).mean(axis=0)
    return np.asarray(bend.std(axis=0) * np.linalg.norm(draft.W, axis=0))
