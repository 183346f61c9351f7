"""The rows of A, which hold exact zeros: a hidden unit that an input never turned on was not moved by it.

A row of A is L q. Given an input, the units that it leaves off before and after training show where its row is zero.
So q is the direction for which the entries of L q at those units vanish, most of all where the unit is far from being
on. Training may have turned a unit on and off again, so some of the entries are not zero: they are found by iteratively
reweighted least squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.reconstruction.known_start.difference import Span
from divulge.reconstruction.matching import correlation

CERTAIN = 6.0
"""Standard deviations of the rounding within which an entry counts as zero."""
LOOSE, CLOSE = (1e-3, 1e-3, 1e-4, 1e-5, 0.0), (3e-5, 1e-5, 0.0, 0.0)
"""Shares of the root mean square entry that count as zero while a direction is made exact, round by round: as a rule,
and after large steps."""
OWN_SHARE = 0.02
"""A zero is also below this share of the largest value that its unit can take in the span."""
SMALLEST = 0.02
"""Units that moved by less than this share of the typical unit tell no inputs apart."""
NEAR = 0.1
"""Entries below this share of the root mean square entry are small."""
NEARBY, SHARPENING = 0.03, 12
"""The first smoothing of a search that starts near its goal, and its rounds."""
ROUNDS, CONSTRAINED = 45, 4
"""Rounds of reweighting, and how many of them hold the row to the coordinates of its input."""
LED, FADED = 15, 1e-3
"""For how many rounds what the derivatives and the other candidates say keeps its weight, and what is left of it."""
ALIKE = 0.95
"""Correlation from which on two candidates may be the same input."""
BATCH = 64
MARGIN = 8
"""Zeros, at least, beyond those that can be forced."""
LEVERAGE = 0.995
"""The largest leverage of a zero of a certain row."""
FEW_BY_CHANCE, FEWEST_EXCLUDING = 0.5, 4
"""Zeros expected by chance below which every direction needs to be excluded by few zeros only."""


@dataclass(frozen=True)
class Weights:
    """What leads the search for a row: which of them finds a row differs from input to input."""

    power: float = 1.0
    """Of how far off a unit is, in the weight of its zero."""
    lead: float = 5.0
    """Weight of what the derivatives and the other candidates say."""
    large_steps: bool = False
    """Whether training began with large steps. Then the derivatives say little, and small entries need not be zeros. A
    unit that moved far may have been on in between, so how far off it is counts as a share of its movement."""


@dataclass(frozen=True)
class Rows:
    """Directions q, and where their rows vanish."""

    q: Tensor
    """[m, r], of length one."""
    zero: Tensor
    """[m, h], only for units that tell inputs apart."""
    isolated: Tensor
    """[m]: how many zeros exclude the direction that comes next to vanishing at all of them."""
    leverage: Tensor
    """[m]: the largest leverage of a zero among all of them; 1 if a direction is excluded by that zero alone."""
    chance: Tensor
    """[m]: how many zeros to expect by chance, from the rounding of the weights."""
    near: Tensor
    """[m]: how many entries are small."""
    active: Tensor
    """[m]: the share of the pre-activation at the zeros that is positive, for the input that led to the row."""

    def __len__(self) -> int:
        return len(self.q)

    @property
    def zeros(self) -> Tensor:
        """[m]."""
        return self.zero.sum(dim=1)

    def take(self, index: Tensor) -> Rows:
        return Rows(*(getattr(self, name)[index] for name in NAMES))

    def certain(self) -> Tensor:
        """[m]: whether a row is no mixture of rows, whatever its input.

        A mixture of m rows vanishes where all of them do, and can be forced to vanish at m - 1 further units. These
        alone exclude its parts, so their leverage is 1. Where rounding makes zeros by chance, every direction must be
        excluded by more zeros than can be forced.
        """
        fewest = least(self.q.shape[1])
        isolated = torch.where(self.chance < FEW_BY_CHANCE, FEWEST_EXCLUDING, fewest)
        sure: Tensor = (self.zeros >= fewest) & (self.isolated >= isolated) & (self.leverage <= LEVERAGE)
        return sure


NAMES = ("q", "zero", "isolated", "leverage", "chance", "near", "active")


def least(rank: int) -> int:
    """The zeros from which on a row or an input is certain: more than can be forced."""
    return rank + max(MARGIN, rank // 10)


def none(span: Span) -> Rows:
    """No rows of a span."""
    count, real = torch.zeros(0, dtype=torch.long), span.S.new_zeros(0)
    nowhere = torch.zeros(0, len(span.L), dtype=torch.bool)
    return Rows(real.reshape(0, span.rank), nowhere, count, real, real, count, real)


def join(parts: list[Rows]) -> Rows:
    """All rows of several sets."""
    return Rows(*(torch.cat([getattr(part, name) for part in parts]) for name in NAMES))


def informative(span: Span) -> Tensor:
    """The units [h] that moved by more than rounding: one that never moved is zero in every direction."""
    size = (span.L * span.S).norm(dim=1)
    rounding = 10 * span.noise * math.sqrt(span.rank)
    typical = span.L.square().mean().sqrt() * math.sqrt(span.rank)
    moved: Tensor = (size > rounding) & (span.L.norm(dim=1) > SMALLEST * typical)
    return moved


def zeros_of(span: Span, q: Tensor, units: Tensor, *, loose: float = 0.0) -> Tensor:
    """Where the rows of directions q [m, r] vanish among the ``units`` [h], [m, h].

    The bound is the rounding of the weights seen through q, or the share ``loose`` of the root mean square entry.
    """
    rounding = CERTAIN * span.noise * (q / span.S).norm(dim=1)
    bound = torch.maximum(rounding, loose * q.norm(dim=1) / math.sqrt(len(span.L)))[:, None]
    own = OWN_SHARE * span.L.norm(dim=1)
    zero: Tensor = ((q @ span.L.T).abs() < torch.minimum(bound, own)) & units
    return zero


def frames(span: Span, exact: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal bases of the directions that rows can take beside certain inputs ``exact`` [g, r].

    The first [r, r - g] is that of rows of other inputs, the second [g, r, r - g + 1] those of the inputs' own rows.
    """
    rank, known = span.rank, len(exact)
    if known == 0:
        return torch.eye(rank).to(span.S), span.S.new_zeros(0, rank, rank)
    rest = torch.linalg.svd(exact)[2][known:].T
    own = torch.linalg.pinv(exact).T
    own = own / own.norm(dim=1, keepdim=True)
    return rest, torch.cat([rest.expand(known, -1, -1), own[..., None]], dim=2)


def measured(span: Span, q: Tensor, highest: Tensor, units: Tensor) -> Rows:
    """The zeros of directions q [m, r] at the ``units`` [h] that tell inputs apart, and how well those fix q."""
    q = q / q.norm(dim=1, keepdim=True).clamp_min(1e-300)
    zero = zeros_of(span, q, units)
    entries = (q @ span.L.T).abs() * math.sqrt(len(span.L))
    near = ((entries < NEAR) & units).sum(dim=1)
    bound = CERTAIN * span.noise * (q / span.S).norm(dim=1) * math.sqrt(len(span.L))
    chance = bound / NEAR * ((entries < NEAR) & units & ~zero).sum(dim=1)
    isolated, leverage = [zero.sum(dim=1)[:0]], [q[:0, 0]]
    for i in range(0, len(q), BATCH):
        part = slice(i, i + BATCH)
        isolated.append(excluding(span.L, zero[part]))
        leverage.append(largest_leverage(span.L, q[part], zero[part]))
    return Rows(q, zero, torch.cat(isolated), torch.cat(leverage), chance, near, active_share(highest, zero))


def largest_leverage(L: Tensor, q: Tensor, zero: Tensor) -> Tensor:
    """The largest leverage [m] of the rows of L [h, r] or [m, h, r] at ``zero`` [m, h], in directions other than q."""
    there = L * zero[..., None]
    factor = _cholesky(there, zero.to(L), q[:, :, None] * q[:, None, :])
    shares = torch.linalg.solve_triangular(factor, there.mT, upper=False).square().sum(dim=1)
    largest: Tensor = shares.nan_to_num(nan=1.0).amax(dim=1)
    return largest


def active_share(highest: Tensor, zero: Tensor) -> Tensor:
    """The share of the highest pre-activations [m, h], at the zeros of the rows, that is positive, [m]."""
    there = torch.where(zero, highest, torch.zeros(()).to(highest))
    share: Tensor = there.clamp_min(0).sum(dim=1) / there.abs().sum(dim=1).clamp_min(1e-300)
    return share


def excluding(L: Tensor, zero: Tensor) -> Tensor:
    """How many zeros exclude the direction that vanishes at most others of them, [m].

    A mixture of two rows vanishes where both do. So both vanish at nearly all zeros of the mixture, and only those that
    were forced by its coefficients, at most one for each further row, exclude one of them.
    """
    gram = (L.mT * zero[:, None].to(L)) @ L
    _, vectors = torch.linalg.eigh(gram)
    rank = L.shape[-1]
    fewest = torch.full((len(zero),), L.shape[-2], dtype=torch.long)
    for place in range(1, min(4, rank)):
        other = (L @ vectors[:, :, place, None])[..., 0]
        size = other.square().mean(dim=1, keepdim=True).sqrt()
        fewest = torch.minimum(fewest, ((other.abs() > 0.02 * size) & zero).sum(dim=1))
    return fewest


def from_masks(
    span: Span, highest: Tensor, c: Tensor, units: Tensor, *, weights: Weights = Weights(),
    slopes: Tensor | None = None, frame: Tensor | None = None, among: Tensor | None = None,
) -> Rows:  # fmt: skip
    """The rows of different inputs with coordinates c [m, r] whose highest pre-activations are ``highest`` [m, h].

    ``slopes`` [m, k, h] span, nearly, what a row is where its units are on (``derivatives.py``). ``frame`` [m, r, f]
    are bases of the directions to look at. ``among`` [k, r] are all candidates, c by default.
    """
    if frame is None:
        frame = torch.eye(span.rank).to(c).expand(len(c), -1, -1)
    movement = (span.L * span.S).norm(dim=1).clamp_min(1e-300)
    distance = -highest / movement if weights.large_steps else -highest
    off = torch.where(units & (highest < 0), distance, torch.zeros(()).to(highest)).pow(weights.power)
    found = [c[:0]]
    for i in range(0, len(c), BATCH):
        part = slice(i, i + BATCH)
        within = frame[part]
        led = within.mT @ _share_of_others(span, c[part], c if among is None else among) @ within
        share = (c[part, None] @ within)[:, 0]
        away = None
        if slopes is not None:
            away = within.mT @ _away_from(span.L, highest[part] >= 0, slopes[part]) @ within
        q = _reweighted(span.L @ within, off[part], share, away, led, weights.lead)
        bounds = CLOSE if weights.large_steps else LOOSE
        found.append(_null_vectors(span, (within @ q[..., None])[..., 0], units, within, bounds))
    q = torch.cat(found)
    return measured(span, torch.where(torch.isfinite(q).all(dim=1, keepdim=True), q, c), highest, units)


def _away_from(L: Tensor, on: Tensor, slopes: Tensor) -> Tensor:
    """Matrices [m, r, r] of the squared distances of rows, where units are ``on``, from what ``slopes`` span."""
    basis = torch.linalg.qr((slopes * on[:, None]).mT)[0]  # [m, h, k]
    there = L * on[..., None]
    along = basis.mT @ there
    squared: Tensor = there.mT @ there - along.mT @ along
    return squared


def _share_of_others(span: Span, c: Tensor, among: Tensor) -> Tensor:
    """Matrices [m, r, r] of the squared shares of directions in candidates ``among`` [k, r] that are unlike those of c.

    The row of an input has no share in any other input.
    """
    X = span.inputs(among)
    size = X.norm(dim=1)
    weight = (size.median() / size).clamp(max=1.0)
    other = (correlation(span.inputs(c), X) < ALIKE).to(c) * weight.square()  # [m, k]
    squared: Tensor = (among.T[None] * other[:, None]) @ among
    return squared


def _reweighted(
    L: Tensor, off: Tensor, c: Tensor, slopes: Tensor | None, others: Tensor, lead: float
) -> Tensor:  # fmt: skip
    """Directions q [m, f] whose entries L q, L [m, h, f], vanish at units that are ``off``; the farther, the more so.

    At first what the derivatives say and the shares in other candidates lead the direction. Both fade while the weights
    single out ever closer zeros.
    """
    height, rank = L.shape[1:]
    most = min(height, max(int((off > 0).sum(dim=1).max()), rank + 5))
    weight, place = off.topk(most, dim=1)
    weight = weight / (weight.sum(dim=1) / (weight > 0).sum(dim=1).clamp_min(1)).clamp_min(1e-300)[:, None]
    B = L.take_along_dim(place[..., None], dim=1)  # [m, most, f]
    u, q = weight, c / c.norm(dim=1, keepdim=True)
    for k in range(ROUNDS):
        fading = min(1.0, (1 - k / ROUNDS) / (1 - LED / ROUNDS))
        share = (c * q).sum(dim=1).square().clamp_min(1e-300)
        led = others / share[:, None, None] + (0 if slopes is None else slopes)
        factor = _cholesky(B, u, lead * FADED ** (1 - fading) * led)
        q = torch.cholesky_solve((c if k < CONSTRAINED else q)[..., None], factor)[..., 0]
        q = q / q.norm(dim=1, keepdim=True)
        if k >= CONSTRAINED:
            q = torch.cholesky_solve(q[..., None], factor)[..., 0]
            q = q / q.norm(dim=1, keepdim=True)
        y = (B @ q[..., None])[..., 0] * math.sqrt(height)
        smooth = 1e-8 ** (k / ROUNDS)
        u = weight * (1 + smooth) / (y * y + smooth)
    found: Tensor = q
    return found


def from_inverse(span: Span, highest: Tensor, c: Tensor, units: Tensor, wanted: Tensor) -> Rows:
    """The ``wanted`` [m] rows of r inputs with coordinates c [r, r] from their inverse, made exact where units are off.

    The inverse is near the rows where the inputs are near. So the search starts with little smoothing, and stays there.
    """
    q, highest = torch.linalg.pinv(c).T[wanted], highest[wanted]
    found = [q[:0]]
    for i in range(0, len(q), BATCH):
        sharp = _sharpened(span, q[i : i + BATCH], (highest[i : i + BATCH] < 0) & units)
        whole = torch.eye(span.rank).to(q).expand(len(sharp), -1, -1)
        found.append(_null_vectors(span, sharp, units, whole))
    return measured(span, torch.cat(found), highest, units)


def _sharpened(span: Span, q: Tensor, off: Tensor) -> Tensor:
    """Directions near q [m, r] with exact zeros at units that are ``off`` [m, h]."""
    height = len(span.L)
    most = max(int(off.sum(dim=1).max()), span.rank + 5)
    weight, place = off.to(span.L).topk(min(height, most), dim=1)
    B = span.L[place]
    start = q = q / q.norm(dim=1, keepdim=True)
    for k in range(SHARPENING):
        y = (B @ q[..., None])[..., 0] * math.sqrt(height)
        smooth = NEARBY * 0.6**k
        factor = _cholesky(B, weight / (y * y + smooth * smooth + 1e-10) ** 0.7)
        q = torch.cholesky_solve(q[..., None], factor)[..., 0]
        q = q / q.norm(dim=1, keepdim=True)
    return torch.where(torch.isfinite(q).all(dim=1, keepdim=True), q, start)


def _null_vectors(span: Span, q: Tensor, units: Tensor, frame: Tensor, bounds: tuple[float, ...] = LOOSE) -> Tensor:
    """Each q [m, r] replaced by the direction of its ``frame`` [m, r, f] that vanishes at all its zeros.

    The ``bounds`` of a zero become ever closer.
    """
    L = span.L @ frame
    for loose in bounds:
        zero = zeros_of(span, q, units, loose=loose)
        some = zero.sum(dim=1) > frame.shape[2]
        if not bool(some.any()):
            continue
        weight, place = zero[some].to(L).topk(int(zero.sum(dim=1).max()), dim=1)
        factor = _cholesky(L[some].take_along_dim(place[..., None], dim=1), weight)
        new = (q[some, None] @ frame[some])[:, 0]
        for _ in range(2):
            new = torch.cholesky_solve(new[..., None], factor)[..., 0]
            new = new / new.norm(dim=1, keepdim=True)
        q = q.clone()
        whole = (frame[some] @ new[..., None])[..., 0]
        q[some] = torch.where(torch.isfinite(whole).all(dim=1, keepdim=True), whole, q[some])
    return q


def _cholesky(B: Tensor, u: Tensor, added: Tensor | None = None) -> Tensor:
    """The Cholesky factors of B^T diag(u) B, [m, r, r], with ``added``, and a little added to the diagonal."""
    M = (B * u[..., None]).mT @ B
    if added is not None:
        M = M + added
    ridge = 1e-12 * M.diagonal(dim1=1, dim2=2).mean(dim=1)
    eye = torch.eye(M.shape[1]).to(M)
    factor: Tensor = torch.linalg.cholesky_ex(M + ridge[:, None, None] * eye)[0]
    return factor
