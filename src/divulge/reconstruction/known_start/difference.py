"""The difference of one dense layer before and after training, and the span of the training inputs in it.

Every step of gradient descent adds a combination of the inputs to a dense layer. So [W, b] - c [W0, b0] = A^T [X, 1]
for n inputs X, whatever the batches, the momentum and the number of steps. Weight decay shrinks the start by a known
kind of factor c, which is 1 without decay. The rank of the difference is the number of inputs, and its row space is
their span. Haim et al. 2022 have no start, and need one near zero instead. One step of Adam is undone first
(``adam_step.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from divulge.reconstruction.known_start import precision
from divulge.reconstruction.known_start.adam_step import AdamStep, undone

RESOLVED = 1e-7
"""Singular values below this share of the largest are rounding, because Gram matrices are used."""
GRAM = 1e-8
"""The error of a singular value, as a share of the largest, that comes from a Gram matrix."""
GAP = 2.5
"""The least ratio of neighbouring singular values that counts as a gap. Differences of independent weights and those
of Adam stay below 1.6 at every place but the first two."""
DECAY_GAP = 30.0
"""Below this ratio a weight decay is looked for: rounding alone leaves a ratio above 1e3 in single precision."""
ARITHMETIC = float(torch.finfo(torch.float32).eps) / 2
"""The relative error of a change that was computed in single precision."""
ROUNDED = 1000.0
"""How many times the rounding of the weights an exact difference holds beside the inputs, at most. It is 1 after one
step, 7 after 100 and 36 after 400, and above 4,000 where the difference is no combination of so few inputs."""
COARSE, EDGE = 1e-5, 1.1
"""The share of the largest singular value from which on rounding is that of the release, which is not repeated in every
step, and how far above the largest singular value of random rounding (the sum of the roots of the extents) an input
shows."""
UNTRAINED = 1e-5
"""The change of the biases, as a share of that of the most changed input's weights, that is rounding: batch
normalisation behind the layer takes the mean away, so that a bias is not trained."""


@dataclass(frozen=True)
class LayerPair:
    """A dense layer before and after training, in double precision. Biases are None where it has none."""

    W0: Tensor
    b0: Tensor | None
    W: Tensor
    b: Tensor | None

    @property
    def has_bias(self) -> bool:
        """Whether the bias was trained: one that did not move says nothing about the inputs."""
        if self.b is None or self.b0 is None:
            return False
        moved = (self.W - self.W0).norm(dim=0).max()
        return bool((self.b - self.b0).norm() > UNTRAINED * moved)

    def stacked(self) -> tuple[Tensor, Tensor]:
        """The layer before and after, [h, d + 1] with a trained bias as last column, [h, d] without."""
        if not self.has_bias:
            return self.W0, self.W
        assert self.b0 is not None
        assert self.b is not None
        return torch.cat([self.W0, self.b0[:, None]], dim=1), torch.cat([self.W, self.b[:, None]], dim=1)

    def rounding(self) -> Tensor:
        """The standard deviation of the rounding of the difference, of the shape of ``stacked``."""
        start, end = self.stacked()
        squares = [precision.rounding(self.W).square() + precision.rounding(self.W0).square()]
        if self.has_bias:
            assert self.b0 is not None
            assert self.b is not None
            both = precision.rounding(self.b).square() + precision.rounding(self.b0).square()
            squares.append(both[:, None])
        return (torch.cat(squares, dim=1) + (ARITHMETIC * (end - start)).square()).sqrt()

    def highest(self, X: Tensor) -> Tensor:
        """The larger of the pre-activations before and after training, [n, h], for inputs X [n, d]."""
        before, after = X @ self.W0.T, X @ self.W.T
        if self.b0 is not None and self.b is not None:
            before, after = before + self.b0, after + self.b
        return torch.maximum(before, after)


@dataclass(frozen=True)
class Spectrum:
    """The singular values of a difference, and the number of inputs that they show."""

    values: Tensor
    rank: int
    ratio: float
    """Of the singular values at the gap."""
    decay: float
    """The factor c by which training shrank the start; 1 without weight decay."""
    rest: float = 0.0
    """The root of the sum of squares behind the gap, in roundings of the weights."""
    adam: AdamStep | None = None
    """The step of Adam that was undone, if it was one."""

    @property
    def exact(self) -> bool:
        """Whether there is nothing but rounding beside the inputs."""
        return self.rest <= ROUNDED

    @property
    def unit_sizes(self) -> Tensor | float:
        """By what the row of each unit was divided, [h]."""
        return 1.0 if self.adam is None else self.adam.scale


@dataclass(frozen=True)
class Span:
    """A difference of rank r as L diag(S) V. An input is (c S) V for coordinates c, and its row of A is L q.

    The coordinates of all inputs and the directions q of all rows are inverse matrices.
    """

    L: Tensor
    """Orthonormal columns, [h, r]."""
    S: Tensor
    """[r]."""
    V: Tensor
    """Orthonormal rows, [r, d + 1] or [r, d]."""
    noise: float
    """The root mean square entry of what is left of the difference outside of the span."""
    has_bias: bool
    fill: tuple[float, float] | None = None
    """The range of values that inputs fill where no bias fixes their size."""

    @property
    def rank(self) -> int:
        return len(self.S)

    @property
    def input_dim(self) -> int:
        return self.V.shape[1] - self.has_bias

    def inputs(self, c: Tensor) -> Tensor:
        """Inputs [m, d] of coordinates c [m, r]. A bias fixes sign and size; without one they fill the range."""
        rows = (c * self.S) @ self.V
        if not self.has_bias:
            return rows if self.fill is None else _filling(rows, *self.fill)
        last = rows[:, -1:]
        return rows[:, :-1] / torch.where(last.abs() < 1e-12, 1e-12, last)

    def coordinates(self, X: Tensor) -> Tensor:
        """The coordinates [m, r] of inputs X [m, d]."""
        rows = torch.cat([X, X.new_ones(len(X), 1)], dim=1) if self.has_bias else X
        return (rows @ self.V.T) / self.S


def _filling(rows: Tensor, low: float, high: float) -> Tensor:
    """Rows [m, d] with the sign of a positive sum and of the largest size that fits between ``low`` and ``high``."""
    rows = torch.where(rows.sum(dim=1, keepdim=True) < 0, -rows, rows)
    size = high / rows.amax(dim=1, keepdim=True).clamp_min(1e-300)
    if low < 0:
        size = torch.minimum(size, low / rows.amin(dim=1, keepdim=True).clamp_max(-1e-300))
    return rows * size


def gap(values: Tensor, rounding: float = 0.0, edge: float = 0.0) -> tuple[int, float]:
    """The place of the largest ratio of neighbouring singular values (largest first), and that ratio.

    A place behind which there is nothing but ``rounding`` comes before all others, and before these the one behind
    which all values lie below the ``edge`` of rounding, where it was large.
    """
    resolved = values.clamp_min(float(values[0]) * RESOLVED)
    last = len(values) - max(1, len(values) // 20)
    if last < 2:
        return len(values), math.inf
    ratios = resolved[: last - 1] / resolved[1:last]
    behind = values.square().flip(0).cumsum(0).flip(0).sqrt()[1:last]
    above = int((values > edge).sum()) - 1
    if edge > 0 and 0 <= above < len(ratios) and float(ratios[above]) >= GAP:
        return above + 1, float(ratios[above])
    exact = (behind <= ROUNDED * rounding) & (ratios >= GAP)
    place = int(torch.where(exact, ratios, 0.0).argmax() if bool(exact.any()) else ratios.argmax())
    return place + 1, float(ratios[place])


def difference(pair: LayerPair) -> tuple[Tensor, Spectrum]:
    """The difference [h, d + 1] that holds the span, and its spectrum; weight decay or one step of Adam is undone."""
    start, end = pair.stacked()
    D = end - start
    step = undone(start, end)
    if step is not None:
        found = _spectrum(step.D, 1.0)
        if found.ratio >= GAP:
            return step.D, replace(found, adam=step)
    rounding = pair.rounding()
    found = _spectrum(D, 1.0, rounding)
    if found.ratio >= DECAY_GAP or not bool(D.any()):
        return D, found
    shrunk, kept = _without_decay(start, end, found, rounding)
    return (shrunk, kept) if kept.ratio > 2 * found.ratio else (D, found)


def _without_decay(start: Tensor, end: Tensor, found: Spectrum, rounding: Tensor) -> tuple[Tensor, Spectrum]:
    """The difference to the shrunk start: its factor is fitted outside the span found so far, until it stays."""
    factor, D = float((start * end).sum() / start.square().sum()), end - start
    for _ in range(40):
        D = end - factor * start
        found = _spectrum(D, factor, rounding)
        V = torch.linalg.qr(_right(D, found.rank).T)[0]
        outside, outside_start = end - (end @ V) @ V.T, start - (start @ V) @ V.T
        new = float((outside * outside_start).sum() / outside_start.square().sum().clamp_min(1e-300))
        moved, factor = abs(new - factor), new
        if moved < 1e-10:
            break
    return D, found


def _gram(D: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, largest first, and the singular vectors of the shorter side as columns."""
    values, vectors = torch.linalg.eigh(D @ D.T if len(D) < D.shape[1] else D.T @ D)
    return values.flip(0).clamp_min(0).sqrt(), vectors.flip(1)


def _spectrum(D: Tensor, decay: float, rounding: Tensor | None = None) -> Spectrum:
    """Of the units and inputs that moved: an input that is 0 in every record moves nothing."""
    units, inputs = D.any(dim=1), D.any(dim=0)
    live = D[units][:, inputs]
    if live.numel() == 0:
        return Spectrum(D.new_zeros(1), 0, 1.0, decay)
    values, _ = _gram(live)
    if rounding is None:
        return Spectrum(values, *gap(values), decay)
    noise = rounding[units][:, inputs]
    own = float(noise.norm()) + GRAM * float(values[0]) * math.sqrt(len(values))
    edge = float(noise.square().mean().sqrt()) * sum(math.sqrt(extent) for extent in live.shape)
    coarse = edge > COARSE * float(values[0])
    place, ratio = gap(values, own, EDGE * edge if coarse else 0.0)
    return Spectrum(values, place, ratio, decay, rest=float(values[place:].norm()) / own)


def _right(D: Tensor, rank: int) -> Tensor:
    """Vectors [rank, d] that span the strongest right singular vectors."""
    _, vectors = _gram(D)
    strongest = vectors[:, :rank].T
    return strongest @ D if len(D) < D.shape[1] else strongest


def span_of(D: Tensor, rank: int, *, has_bias: bool) -> Span:
    """The factors of the difference, to a rank."""
    wide = len(D) < D.shape[1]
    _, vectors = _gram(D)
    strongest = vectors[:, :rank]
    small = strongest.T @ D if wide else D @ strongest
    U, S, Vh = torch.linalg.svd(small, full_matrices=False)
    L, V = (strongest @ U, Vh) if wide else (U, Vh @ strongest.T)
    rest = D.square().sum() - S.square().sum()
    moved = int(D.any(dim=1).sum()) - rank, int(D.any(dim=0).sum()) - rank  # an input that is always 0 has no noise
    free = max(moved[0], 1) * max(moved[1], 1)
    noise = math.sqrt(max(float(rest), 0.0) / free)
    floor = float(torch.finfo(torch.float32).eps) * float(S[-1]) / math.sqrt(D.numel())
    return Span(L, S, V, max(noise, floor), has_bias)
