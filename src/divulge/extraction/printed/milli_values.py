"""Milli 2019, Algorithm 1-MQ, as printed: Algorithm 1 with every gradient replaced by d forward differences.

Theorem 4's proof gives the step: with the search's resolution eps and half length l of Theorem 2, all estimates are
exact with probability 1 - 2 l h s / eps, so s = delta eps / (2 (2 - delta) l h) (the theorem's statement loses the h).
That step is far below what float64 can difference without loss: at h = 16 it is about 1e-11, so a derivative is good
to five digits at best, and the copy is no better. Two derivatives count as equal within that error.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.progress import report
from divulge.core.validation import checked_number
from divulge.extraction.gradients.affine_maps import TargetMaps
from divulge.extraction.printed.milli_gradients import Failure, recover_s, resolution
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.result import Extraction
from divulge.extraction.verification import spread
from divulge.oracles.base import Oracle

EXACT = 1e-8
CHECKS = 32


def step_of(width: int, delta: float) -> float:
    """The forward-difference step of Theorem 4, from delta and Theorem 2's eps and l."""
    eps, end = resolution(width, delta / 2)
    return delta * eps / (2 * (2 - delta) * end * width)


def learn_model(oracle: Oracle, *, seed: int, width: int | None, delta: float = 0.1) -> Extraction:
    """Algorithm 1-MQ, then verification on fresh points."""
    if width is None or width < 1:
        raise InvalidInput("The printed algorithm needs to know the width; give width=, or use the default method.")
    if oracle.output_dim != 1:
        raise InvalidInput(f"The printed algorithm reads one output, and this target has {oracle.output_dim}.")
    checked_number("delta", delta, above=0, below=1)
    run = _Run(oracle, seed, width, delta)
    try:
        run.learn()
    except Failure as failure:
        run.reason = f"The printed algorithm noticed its failure: {failure}."
    except DivulgeError as error:
        run.reason = str(error)
        error.partial = run.result()
        raise
    return run.result()


class _Run:
    def __init__(self, oracle: Oracle, seed: int, width: int, delta: float) -> None:
        self.oracle, self.seed, self.width, self.delta = oracle, seed, width, delta
        self.began, self.before = time.perf_counter(), oracle.ledger.snapshot()
        self.generator = torch.Generator().manual_seed(seed)
        self.target = TargetMaps(oracle)
        self.step = step_of(width, delta)
        self.eps, self.end = resolution(width, delta / 2)
        self.found: list[Tensor] = []
        self.copy = NetworkEstimate.zero(oracle.input_dim, 1)
        self.worst, self.scale, self.points, self.reason = math.inf, 1.0, 0, ""

    def learn(self) -> None:
        self._recover_z()
        self.copy = recover_s(self.target, torch.stack(self.found), self.generator)
        X = torch.randn(CHECKS, self.oracle.input_dim, generator=self.generator, dtype=torch.float64)
        X = self.target.stored(X)
        truth = self.target.values(X)
        self.worst, self.scale = float((truth - self.copy.value(X)).abs().max()), spread(truth)
        self.points = len(X)
        if self.worst > EXACT * self.scale:
            self.reason = (
                f"The copy is off by up to {self.worst / self.scale:.1e} of the output's standard deviation: the "
                f"printed step of {self.step:.0e} leaves few digits of a difference, and biases are not foreseen."
            )

    def _recover_z(self) -> None:
        """Algorithm 1a with estimated gradients: the change at each kink from -l to l."""
        u, v = torch.randn(2, self.oracle.input_dim, generator=self.generator, dtype=torch.float64)
        asked: dict[float, tuple[Tensor, float]] = {}

        def gradient(t: float) -> tuple[Tensor, float]:
            if t not in asked:
                asked[t] = self._estimate(u + t * v)
            return asked[t]

        def differ(a: float, b: float) -> bool:
            (first, error), (second, other) = gradient(a), gradient(b)
            return float((first - second).norm()) > 4 * math.hypot(error, other)

        left = -self.end
        for number in range(self.width):
            report("binary search", number, self.width, neurons=number, queries=self.oracle.ledger.total)
            low, high = left, self.end
            while high - low > self.eps:
                middle = (low + high) / 2
                if differ(low, middle):
                    high = middle
                elif differ(middle, high):
                    low = middle
                else:
                    raise Failure("the search line shows fewer kinks than the width says")
            self.found.append(gradient(high)[0] - gradient(low)[0])
            left = high
            asked = {t: answer for t, answer in asked.items() if t >= left}

    def _estimate(self, x: Tensor) -> tuple[Tensor, float]:
        """The gradient by forward differences along the axes, and the standard error of its length."""
        rows = torch.cat([x[None], x + self.step * torch.eye(len(x), dtype=torch.float64)])
        stored = self.target.stored(rows)
        values = self.target.values(stored)[:, 0]
        size = float(values.abs().max() + (values[1:] - values[0]).abs().sum() / self.step * stored.abs().max() / 8)
        gradient = (values[1:] - values[0]) / self.step
        return gradient, self.oracle.eps * size * math.sqrt(len(x)) / self.step

    def result(self) -> Extraction:
        return Extraction(
            model=self.copy.model(),
            width=self.copy.width,
            exact=not self.reason,
            worst_error=self.worst,
            scale=self.scale,
            ledger=self.oracle.ledger.snapshot() - self.before,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            method="paper",
            reason=self.reason,
            verified_points=self.points,
            smallest_gap=self.eps,
            facts={"hyperplanes": len(self.found), "step": self.step},
        )
