"""What ``exact`` rests on: fresh rows where the copy must answer as the target does, and every row that was asked.

A copy is exact if it meets the target's answers, up to a stated share of their standard deviation, on

- rows drawn like typical inputs, also where the attack itself had to ask elsewhere because probabilities there round to
  0 or 1: if n of them agree, the copy is wrong on less than 1 - 0.01^(1/n) of such inputs with
  a confidence of 99 % (the exact binomial limit for no failure in n trials);
- rows beside the hyperplanes found, at their distances from the origin, and along random lines far out;
- rows of the data, where the caller gave any;
- every row that the attack itself asked.

Constant answers prove nothing: a function may be flat where it was asked and not elsewhere.

Neurons that cancel outside a slab (a tent: +1, -2, +1 on three parallel hyperplanes) are invisible to every point
outside it. A Gaussian point of standard deviation s falls into a slab of width g at distance o from the origin with
probability g / s * phi(o / s), whatever the slab's direction. ``smallest_gap`` is the width of the slabs that all
points miss with a probability of at most ``MISSED``.

Milli 2019 and Chen 2021 verify nothing: their guarantees hold for networks that meet their assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from divulge.extraction.attack_space import AttackSpace
from divulge.extraction.relu_network import NetworkEstimate
from divulge.oracles.ledger import Spent

CHECKS, FEWEST_CHECKS = 6_000, 16
"""Fresh rows that verify a copy by default, and at least."""
CONFIDENCE = 0.99
TYPICAL_SHARE = 0.77
"""Share of the fresh rows that are typical inputs: 4,620 of 6,000, so that less than 0.1 % of inputs can be wrong."""
LINES = 2
DATA_ROWS = 1_000
"""Most rows of the caller's data that are asked."""
MISSED = 1e-4
CLOSEST = -9
"""Points beside a hyperplane lie between 10 to this power and one away from it: two that were taken for one differ."""
ROUNDING = 1e3
"""Deviations up to so many times the precision of the answers are those of a constant."""
ROWS_AT_ONCE, NUMBERS_AT_ONCE = 4_096, 2**22
"""Most rows, and most answers, that a copy gives at once: 32 MB."""
Value = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Verification:
    """Fresh rows, the target's answers there, and how far the copy is off."""

    X: Tensor
    truth: Tensor
    off: Tensor  # [n] difference in each row
    allowed: Tensor  # [n] what counts as rounding in each row
    precise: Tensor  # [n] where logits can be compared, and not only probabilities
    typical: int  # the first rows are typical inputs
    given: int  # the last rows are the caller's data
    asked: int  # rows of the whole run, these included
    compared: int  # of these, the rows that were kept and compared
    contradicted: int  # of these, the rows where the copy is wrong
    constant: tuple[int, ...]  # outputs that never changed
    spent: Spent

    @property
    def worst(self) -> float:
        """Largest difference; those of far rows count in proportion to their distance."""
        return float((self.off / row_size(self.X)).max())

    @property
    def scale(self) -> float:
        return spread(self.truth[: self.typical])

    def wrong(self) -> tuple[Tensor, Tensor]:
        """Fresh rows where the copy is wrong [m, d] and their answers, the worst first; none that is saturated."""
        order = (self.off / self.allowed).argsort(descending=True)
        order = order[(self.off > self.allowed)[order] & self.precise[order]]
        return self.X[order], self.truth[order]

    @property
    def share(self) -> float:
        """The copy is wrong on less than this share of typical inputs, if all fresh rows agree."""
        return float(1 - (1 - CONFIDENCE) ** (1 / max(1, self.typical)))

    @property
    def reason(self) -> str:
        """Why the copy is not exact; empty if it is."""
        wrong = int((self.off > self.allowed).sum())
        if wrong:
            return (
                f"The copy differs from the target by up to {self.worst / self.scale:.1e} of the output's standard "
                f"deviation, on {wrong:,} of {len(self.X):,} fresh rows."
            )
        if self.contradicted:
            return f"The copy contradicts {self.contradicted:,} of the {self.compared:,} rows that were asked."
        if self.constant:
            which = "The answers are" if len(self.constant) == self.truth.shape[1] else (
                f"The answers of outputs {', '.join(map(str, self.constant))} are"
            )  # fmt: skip
            return (
                f"{which} constant on all rows that were asked, which proves nothing about other rows. Give inputs= "
                "with rows like the target's data."
            )
        return ""

    def facts(self) -> dict[str, object]:
        """What ``exact`` claims, for ``Extraction.facts``."""
        claim = (
            f"All {len(self.X):,} fresh rows agree: with {100 * CONFIDENCE:.0f} % confidence the copy is wrong on less "
            f"than {100 * self.share:.2g} % of inputs."
        )
        return {
            "rows": len(self.X),
            "typical_rows": self.typical,
            "given_rows": self.given,
            "wrong_rows": int((self.off > self.allowed).sum()),
            "attack_rows_compared": self.compared - len(self.X),
            "confidence": CONFIDENCE,
            "share": self.share,
            "claim": "" if self.reason else claim,
        }


def verify(
    space: AttackSpace,
    value: Value,
    hyperplanes: NetworkEstimate,
    *,
    checks: int,
    tolerance: float,
    generator: torch.Generator,
    farthest: float,
    also: Tensor | None = None,
) -> Verification:
    """Compare a copy, ``value``, with the target on fresh rows, on the caller's data and on every row asked before.

    ``tolerance`` is the share of the output's standard deviation up to which answers agree; rows far out are allowed
    more in proportion to their distance. ``checks`` fresh rows are asked, or as many as the budget still covers. The
    rows ``also`` are asked where the budget covers them too.
    """
    before = space.oracle.ledger.snapshot()
    remaining = space.oracle.ledger.remaining
    count = checks if remaining is None else max(FEWEST_CHECKS, min(checks, remaining))
    X, typical = fresh_points(hyperplanes, count, generator, farthest=min(farthest, space.reach))
    X[:typical] = space.typical(X[:typical])
    data = _given_rows(space, generator, None if remaining is None else remaining - count)
    if also is not None and (remaining is None or remaining >= count + len(data) + len(also)):
        X = torch.cat([X, also])
    X = torch.cat([X, data]).to(space.oracle.dtype).to(torch.float64)
    truth = space.oracle.value(X).to("cpu", torch.float64)
    seen = truth[:typical]
    allowed = tolerance * spread(seen)
    asked, answers = space.oracle.answers()
    wrong = _differences(space, value, asked, answers) > allowed * row_size(asked)
    return Verification(
        X=X, truth=truth, off=_differences(space, value, X, truth), allowed=allowed * row_size(X),
        precise=space.precise(truth), typical=typical,
        given=len(data), asked=space.oracle.asked, compared=len(asked), contradicted=int(wrong.sum()),
        constant=constant_outputs(truth, space.oracle.eps), spent=space.oracle.ledger.snapshot() - before,
    )  # fmt: skip


def _given_rows(space: AttackSpace, generator: torch.Generator, room: int | None) -> Tensor:
    """Rows of the caller's data in the attack's coordinates, as many as the budget covers."""
    rows = space.region.rows
    if rows is None:
        return torch.zeros(0, space.oracle.input_dim, dtype=torch.float64)
    count = DATA_ROWS if room is None else max(0, min(DATA_ROWS, room))
    return space.region.standardised(rows[torch.randperm(len(rows), generator=generator)[:count]])


def _differences(space: AttackSpace, value: Value, X: Tensor, truth: Tensor) -> Tensor:
    at_once = min(ROWS_AT_ONCE, max(1, NUMBERS_AT_ONCE // max(1, truth.shape[1])))
    parts = zip(torch.split(X, at_once), torch.split(truth, at_once), strict=True)
    off = [space.differences(answer, value(rows)) for rows, answer in parts]
    differences = torch.cat(off) if off else torch.zeros(0, dtype=torch.float64)
    return differences.nan_to_num(nan=math.inf)  # a copy that answers NaN is wrong


def row_size(X: Tensor) -> Tensor:
    """Length of each row in lengths of a typical input, at least one [n]."""
    size: Tensor = (X.norm(dim=1) / X.shape[1] ** 0.5).clamp_min(1)
    return size


def spread(values: Tensor) -> float:
    """Standard deviation over rows, of the output where it is largest; 1 for a constant."""
    deviation = float(values.std(dim=0).max()) if len(values) > 1 else 0.0
    return deviation if deviation > 0 else max(float(values.abs().max()), 1.0)


def constant_outputs(values: Tensor, eps: float) -> tuple[int, ...]:
    """The outputs [n, k] that do not change by more than rounding, over all rows."""
    high, low = values.amax(dim=0), values.amin(dim=0)
    flat = high - low <= ROUNDING * eps * torch.maximum(high.abs(), low.abs())
    return tuple(flat.nonzero().flatten().tolist())


def fresh_points(
    copy: NetworkEstimate, count: int, generator: torch.Generator, *, farthest: float = 1e6
) -> tuple[Tensor, int]:
    """Rows to verify a copy on, and how many of the first ones are typical inputs, N(0, I).

    The others lie at the neurons' distances from the origin, beside hyperplanes found, and on random lines far out;
    none lies more than ``farthest`` lengths of a typical input away.
    """
    X = torch.randn(count, copy.inputs, generator=generator, dtype=torch.float64)
    typical = math.ceil(TYPICAL_SHARE * count)
    others = torch.arange(typical, count)
    on_lines = others if not copy.width else others[2 * len(others) // 3 :]
    X[on_lines] = _on_lines(len(on_lines), copy.inputs, generator, min(farthest, 1e4))
    if not copy.width:
        return X, typical
    others = others[: 2 * len(others) // 3]
    pick = torch.randint(copy.width, (len(others),), generator=generator)
    offset, normal = copy.b[pick], copy.A[pick]
    jitter = torch.exp(0.5 * torch.randn(len(others), generator=generator, dtype=torch.float64))
    X[others] *= (offset.abs() * jitter).clamp(1e-6, min(farthest, 1e6))[:, None]
    half = len(others) // 2
    near, normal, offset = others[half:], normal[half:], offset[half:]
    height = (X[near] * normal).sum(dim=1) + offset
    distance = 10 ** (CLOSEST * torch.rand(len(near), generator=generator, dtype=torch.float64))
    side = torch.randint(-1, 2, (len(near),), generator=generator).to(torch.float64)  # 0 lies on the hyperplane
    X[near] += (side * distance - height)[:, None] * normal
    return X, typical


def _on_lines(count: int, inputs: int, generator: torch.Generator, farthest: float) -> Tensor:
    """Points on a few random lines, spread evenly in angle, out to ``farthest``."""
    origin, direction = torch.randn(2, LINES, inputs, generator=generator, dtype=torch.float64)
    line = torch.arange(count) % LINES
    angle = math.atan(farthest) * (2 * torch.rand(count, generator=generator, dtype=torch.float64) - 1)
    points: Tensor = origin[line] + torch.tan(angle)[:, None] * direction[line]
    return points


def smallest_gap(copy: NetworkEstimate, points: Tensor) -> float:
    """Width of the narrowest slab, at distances like those of the neurons found, missed by all points with a
    probability of at most ``MISSED``."""
    inputs = points.shape[1]
    offsets = copy.b.abs() if copy.width else torch.linspace(0, 1, 11, dtype=torch.float64)
    if len(offsets) > 256:
        offsets = offsets.sort().values[:: len(offsets) // 256]
    deviation = (points.norm(dim=1) / math.sqrt(inputs)).clamp_min(1e-9)
    share = torch.exp(-0.5 * (offsets[:, None] / deviation) ** 2) / (math.sqrt(2 * math.pi) * deviation)  # [o, n]
    density = share.sum(dim=1).clamp_min(1e-12)  # expected hits for a slab of width one, by its distance

    def excess(log_width: float) -> float:
        """The mean over distances of the probability that a slab is missed, above what is allowed."""
        return float(torch.exp(-math.exp(log_width) * density).mean()) - MISSED

    low, high = math.log(1e-12), math.log(1e12)
    if excess(high) > 0:
        return 1e12
    return 1e-12 if excess(low) <= 0 else math.exp(brentq(excess, low, high, xtol=1e-15))
