"""A small network close to any one-hidden-layer ReLU network, whatever its weights (Chen 2021).

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
from typing import Any, Literal

import numpy as np
import torch

from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.memory import claim
from divulge.core.validation import checked_choice, checked_number, checked_whole
from divulge.extraction.attack_space import AttackSpace, attack_space
from divulge.extraction.failures import ARITHMETIC, UNSETTLED, SearchFailed
from divulge.extraction.precision import measure
from divulge.extraction.printed import chen_worst_case
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.result import Extraction
from divulge.extraction.values.cell_gradients import random_frame
from divulge.extraction.values.line_network import first_line, further_line
from divulge.extraction.values.line_scan import Array
from divulge.extraction.values.outer_weights import bend_strength, least_squares
from divulge.extraction.values.search_state import SearchState
from divulge.extraction.verification import CHECKS, FEWEST_CHECKS, Verification, verify
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.ledger import Spent
from divulge.oracles.outputs import Outputs

LARGEST_REFIT = 1_000
"""Neurons up to which the outer weights are fitted by least squares, which takes time with the cube of them."""
EXACT = 1e-8
MEASURING = 1000
"""Fresh inputs that measure the error by default."""
FARTHEST = 1e3
"""How far out an exact copy must agree, in lengths of a typical input."""
LINES, LOOKS = 6, 2
"""Further lines, at most; and how many are searched at least, because a line crosses some bumps too far out to see."""
COARSEST, FINE = 256, 1_024
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
        """The error as a share of the variance."""
        return self.squared_error / self.variance

    @property
    def success(self) -> bool:
        """Whether the error is as small as was asked for."""
        return self.exact or self.relative_error <= float(self.facts.get("epsilon", 0.0))

    def as_dict(self) -> dict[str, Any]:
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
    inputs: Any = None,
    seed: int = 0,
    method: Literal["default", "paper"] = "default",
    outputs: Outputs | None = None,
    grid: int | None = None,
    checks: int | None = None,
    width: int | None = None,
    delta: float = 0.1,
    tau: float | None = None,
    bounds: tuple[float, float] | None = None,
) -> Approximation:
    """A copy F' of any one-hidden-layer ReLU network F that is close in the mean square over Gaussian inputs.

    Parameters
    ----------
    oracle : Oracle
        The target, with value access or more.
    epsilon : float, default 1e-3
        E[(F - F')^2] that is wanted, as a share of the variance of F.
    inputs : array-like of shape [n, d], optional
        Rows like the target's data: the Gaussian then has their columns' means and standard deviations. By default
        inputs are N(0, I).
    seed : int, default 0
        Fixes every random choice.
    method : {"default", "paper"}, default "default"
        "paper" is Algorithms 1 to 4 of Chen 2021 as printed.
    outputs : {"logits", "log-probabilities", "probabilities"}, optional
        What the target shows. By default the answers decide.
    grid : int, optional
        Samples that each search line starts with. By default it is fine enough for bumps that would cost more than
        ``epsilon``. With ``method="paper"``, the number of intervals; by default two of ``width`` random kinks share
        one with probability ``delta``.
    checks : int, optional
        Fresh inputs that measure the error, and that verify the copy where it is exact: by default 1,000 and 6,000.
    width : int, optional
        The number of neurons, for ``method="paper"``.
    delta : float, default 0.1
        Failure probability of ``method="paper"``.
    tau : float, optional
        Half the length of the line of ``method="paper"``. By default it misses one of ``width`` kinks with probability
        ``delta``.
    bounds : tuple of two floats, optional
        The largest norm and the largest bias of a neuron, which the paper assumes known: with ``method="paper"`` they
        filter neurons by equation (5) and bound the regression by (7). By default neither is done.

    Returns
    -------
    Approximation
        The copy, with its measured error and a confidence interval.

    Raises
    ------
    InvalidInput
        If a parameter makes no sense.
    BudgetExhausted
        If the oracle's budget ends first; ``partial`` holds the copy so far.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.models import MLP
    >>> _ = torch.manual_seed(0)
    >>> close = divulge.extraction.worst_case(divulge.oracle(MLP([4, 3, 1]).double()), epsilon=1e-2, checks=200)
    >>> close.relative_error < 1e-2
    True
    """
    seed = check_oracle_and_seed(oracle, seed)
    checked_choice("method", method, ("default", "paper"))
    checked_number("epsilon", epsilon, above=0, below=1, hint="It is a share of the output's variance.")
    if checks is not None:
        checked_whole("checks", checks, at_least=20)
    if grid is not None:
        checked_whole("grid", grid, at_least=3)
    claim(oracle.input_dim**2, "A matrix of the inputs by the inputs")
    space = attack_space(oracle, inputs=inputs, outputs=outputs, seed=seed)
    run = _Run(space, epsilon, seed, checks, grid if grid is not None else grid_for(epsilon))
    if outputs is None and method == "default" and run.shows_a_probability():
        run = _Run(space.as_probabilities(seed), epsilon, seed, checks, run.grid)
    if method == "paper":
        return run.paper(_printed(width, delta, tau, grid, bounds))
    return run.adaptive()


def _printed(
    width: int | None, delta: float, tau: float | None, intervals: int | None, bounds: tuple[float, float] | None
) -> chen_worst_case.Printed:
    """The parameters of the printed algorithm, checked."""
    if width is None or width < 1:
        raise InvalidInput("The printed algorithm needs to know the width k; give width=.")
    checked_number("delta", delta, above=0, below=1)
    if tau is not None:
        checked_number("tau", tau, above=0)
    for bound in bounds or ():
        checked_number("bounds", bound, above=0)
    return chen_worst_case.Printed(width, delta, tau, intervals, bounds)


def grid_for(epsilon: float) -> int:
    """Samples on a line that see every bump worth ``epsilon``.

    A tent of width g and slope 1 has a mean square of about g^3 / 12 times the density, so bumps narrower than
    (12 epsilon)^(1/3) may be missed; a line of Gaussian direction crosses them in about their width.
    """
    return int(np.clip(2.0 * np.pi / (12.0 * epsilon) ** (1.0 / 3.0), COARSEST, FINEST))


class _Run:
    def __init__(self, space: AttackSpace, epsilon: float, seed: int, checks: int | None, grid: int) -> None:
        self.space, self.epsilon, self.seed, self.grid = space, epsilon, seed, grid
        self.oracle = oracle = space.oracle
        self.checks, self.verifying = checks or MEASURING, checks or CHECKS
        self.rng = np.random.default_rng(seed)
        self.began = time.perf_counter()
        self.seen: Array | None = None
        self.verification: Verification | None = None
        self.typical = self.rng.normal(size=(32, oracle.input_dim))
        self.estimate = NetworkEstimate.zero(oracle.input_dim, oracle.output_dim)
        self.notes: list[str] = []
        self.gap: float | None = None

    def shows_a_probability(self) -> bool:
        """Whether typical inputs are answered by a single probability that was taken for a logit."""
        self.seen = self.ask(self.typical)
        return self.space.may_be_probabilities(torch.from_numpy(self.seen))

    def ask(self, rows: Array) -> Array:
        if not np.isfinite(rows).all():
            raise SearchFailed()
        return np.asarray(self.oracle.value(torch.from_numpy(rows)).to(torch.float64).cpu().numpy())

    def adaptive(self) -> Approximation:
        state = None
        try:
            state = self._search_state()
            if not state.precision.smooth:
                first_line(state)
            if state.estimate is None:
                self.notes.append("The function bends everywhere: it is not a ReLU network, and the copy is constant.")
                rows, truth = self._fresh()
                return self._result(rows, truth, self.notes[-1])
            return self._improve(state)
        except ARITHMETIC:
            return self._result(*self._fresh(), UNSETTLED)
        except DivulgeError as error:
            if state is not None and state.estimate is not None:
                self.estimate = state.estimate
            error.partial = self._result(np.empty((0, self.oracle.input_dim)), np.empty((0, 1)), str(error))
            raise

    def paper(self, printed: chen_worst_case.Printed) -> Approximation:
        learned = chen_worst_case.learn_from_queries(
            self.ask, self.oracle.input_dim, self.oracle.output_dim, printed, self.rng
        )
        self.estimate = learned.estimate
        self.notes += learned.notes
        self.gap = learned.interval
        rows = self.rng.normal(size=(self.checks, self.oracle.input_dim))
        return replace(self._result(rows, self.ask(rows), ""), method="paper")

    def _search_state(self) -> SearchState:
        seen = self.ask(self.typical) if self.seen is None else self.seen
        self.estimate = NetworkEstimate.affine(
            np.zeros((self.oracle.output_dim, self.oracle.input_dim)), seen.mean(axis=0)
        )
        return SearchState(
            ask=self.ask,
            inputs=self.oracle.input_dim,
            outputs=self.oracle.output_dim,
            precision=measure(self.oracle, self.rng, seen, away=min(10.0, self.space.reach)),
            scale=max(float(seen.std(axis=0).max()), 1e3 * self.oracle.eps * float(np.abs(seen).max()), 1e-300),
            frame=random_frame(self.oracle.input_dim, self.rng),
            rng=self.rng,
            grid=self.grid,
            far=min(1e3, self.space.reach),
            closest=1e-6,
        )

    def _improve(self, state: SearchState) -> Approximation:
        """Look along further lines while the error is too large, then let least squares choose the weights."""
        assert state.estimate is not None
        rows, truth = self._fresh()
        error = self._relative(state.estimate, rows, truth)
        for look in range(LINES):
            before, good = error, 0.1 * min(self.epsilon, 1e-8)
            if before <= good and look >= LOOKS:
                break
            if state.estimate.width > LARGEST_REFIT and before > self.epsilon:  # more kinks do not help any more
                break
            off = ((state.estimate(rows) - truth) ** 2).sum(axis=1)
            wrong = np.flatnonzero(off >= 0.1 * off.max())
            toward = rows[self.rng.choice(wrong)] if before > good else self.rng.normal(size=state.inputs)
            found = further_line(state, toward)
            error = self._relative(state.estimate, rows, truth)
            if before > good and error > 0.3 * before:  # what is missing is narrower than the grid, or worth little
                if state.grid >= FINEST or (found <= 0 and error <= self.epsilon and state.grid >= FINE):
                    break
                state.grid = self.grid = min(4 * state.grid, FINEST)
        beside = self._on_hyperplanes(state.estimate) if state.estimate.width else rows[:1]
        smaller = self._refitted(
            state.estimate, np.concatenate([rows, beside]), np.concatenate([truth, self.ask(beside)])
        )
        self.notes += state.notes
        self.gap = state.smallest_gap
        rows, truth = self._fresh()
        error, least = self._relative(state.estimate, rows, truth), self._relative(smaller, rows, truth)
        self.estimate, error = (smaller, least) if least <= 10.0 * error + 1e-16 else (state.estimate, error)
        reason = "" if error <= self.epsilon else f"The error of {error:.1e} of the variance is above {self.epsilon:g}."
        return self._result(rows, truth, reason)

    def _fresh(self) -> tuple[Array, Array]:
        rows = self.rng.normal(size=(self.checks, self.oracle.input_dim))
        return rows, self.ask(rows)

    def _on_hyperplanes(self, estimate: NetworkEstimate) -> Array:
        """One input on each hyperplane: these show a bump that no other input fell into."""
        A, b, *_ = estimate.arrays()
        rows = self.rng.normal(size=A.shape)
        return np.asarray(rows - ((rows * A).sum(axis=1) + b)[:, None] * A)

    def _relative(self, estimate: NetworkEstimate, rows: Array, truth: Array) -> float:
        return float(((estimate(rows) - truth) ** 2).sum() / max(((truth - truth.mean(axis=0)) ** 2).sum(), 1e-300))

    def _refitted(self, estimate: NetworkEstimate, *held: Array) -> NetworkEstimate:
        """Outer weights by least squares on fresh values; neurons that the held-out ones do not miss are left out, or
        merged with the ones beside them."""
        if estimate.width > LARGEST_REFIT:
            self.notes.append(f"The weights of {estimate.width:,} neurons were not fitted once more: too many.")
            return estimate
        rows = self.rng.normal(size=(2 * (estimate.width + self.oracle.input_dim + 1), self.oracle.input_dim))
        seen = rows, self.ask(rows)
        error = self._relative(estimate, *held)
        fitted = least_squares(estimate, *seen)
        if self._relative(fitted, *held) < error:
            estimate, error = fitted, self._relative(fitted, *held)
        allowed = max(2.0 * error, 1e-9 * self.epsilon)
        while estimate.width and error <= self.epsilon:
            weakest = int(np.argmin(bend_strength(estimate, rows)))
            smaller = (least_squares(fewer, *seen) for fewer in (estimate.closest_merged(), estimate.without(weakest)))
            found = next((fewer for fewer in smaller if self._relative(fewer, *held) <= allowed), None)
            if found is None or found.width == estimate.width:
                break
            estimate = found
        return estimate

    def _result(self, rows: Array, truth: Array, reason: str) -> Approximation:
        gap = ((self.estimate(rows) - truth) ** 2).sum(axis=1) if len(rows) else np.array([np.inf])
        mean = float(gap.mean())
        half = float(1.96 * gap.std() / np.sqrt(len(gap))) if np.isfinite(mean) else float("inf")
        scale = max(float(truth.std(axis=0).max()), 1e-300) if len(rows) else 1.0
        worst = float(np.abs(self.estimate(rows) - truth).max()) if len(rows) else np.inf
        exact = worst <= EXACT * scale and not reason
        if exact and (wrong := self._verified()):
            exact, reason = False, f"The copy is close and not exact. {wrong}"
        if not exact and not reason:
            reason = f"A close copy was asked for, not an exact one: {mean:.1e} in the mean square."
        facts: dict[str, object] = {"grid": self.grid, "epsilon": self.epsilon}
        if self.verification is not None:
            facts["verification"] = self.verification.facts()
        found = Approximation(
            model=self.space.network(self.estimate).model(),
            width=self.estimate.width,
            exact=exact,
            worst_error=worst,
            scale=scale,
            ledger=self.space.spent,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            method="worst-case",
            reason="" if exact else reason,
            verified_points=len(rows),
            smallest_gap=self.gap,
            notes=tuple(self.notes),
            facts=facts,
            verification=Spent() if self.verification is None else self.verification.spent,
            squared_error=mean,
            interval=(max(0.0, mean - half), mean + half),
            variance=float(truth.var(axis=0).sum()) if len(rows) else 1.0,
        )
        shown = self.space.as_shown(found)
        assert isinstance(shown, Approximation)
        return shown

    def _verified(self) -> str:
        """Why the copy is not exact, on fresh rows and on every row asked; empty if it is."""
        remaining = self.oracle.ledger.remaining
        if remaining is not None and remaining < FEWEST_CHECKS:
            return "The budget left no rows to verify it on."
        self.verification = verify(
            self.space, self.estimate.value, self.estimate, checks=self.verifying, tolerance=EXACT,
            generator=torch.Generator().manual_seed(self.seed), farthest=FARTHEST,
        )  # fmt: skip
        return self.verification.reason
