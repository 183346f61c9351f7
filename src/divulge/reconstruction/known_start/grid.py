"""Pictures of 8 bits: their values are 256 equally spaced ones, which no mixture of pictures takes everywhere.

A candidate whose error is below half a step of the grid becomes exact: its values are rounded, and the rounded picture
is projected to the span, until it stays. Larger errors are decoded (``decoding.py``). That all values of a picture of
the span lie on the grid is evidence for the picture, because a mixture is forced to at most as many values as it has
coefficients. It is no evidence where the grid does not tell mixtures apart, and controls look for that. Mixtures of
pictures that have few levels lie on the grid too: so a moved picture must not be decoded to another picture of whole
levels. Sums and differences of whole pictures do: so they must leave the range, and none may be a multiple of a prime.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core import progress
from divulge.reconstruction import ica
from divulge.reconstruction.known_start import contrast
from divulge.reconstruction.known_start.decoding import decoded
from divulge.reconstruction.known_start.difference import Span
from divulge.reconstruction.known_start.rows import least
from divulge.reconstruction.matching import correlation
from divulge.reconstruction.value_bounds import ValueBounds

LEVELS = 255
"""Steps of the grid between the ends of the range."""
ON_GRID = 0.1
"""The largest distance, in steps, of a value from the grid. A value that is off the grid stays below it once in five
times."""
CERTAIN = 6.0
"""Standard deviations of the rounding of the weights that must stay below that distance."""
ROUNDS, CLEANING = 12, 10
SHARES = (0.04, 0.08)
"""Standard deviations of the share of another picture in a candidate, in the order in which they are tried."""
FEW, LARGE = 16, 0.3
"""Directions up to which larger shares are tried too."""
MOST_DIRECTIONS = 256
"""Directions up to which decoding is tried: the beam of hypotheses is the same for all of them."""
LOST = math.log(1e-6)
"""The logarithm of the probability of a search to have kept the true levels from which on it ends. Of 58 pictures that
were decoded among 39 directions all but one stayed above 1e-2, and that one above 1e-5."""
PATIENCE = 6
"""Candidates in a row that are decoded to no picture before the others are left alone."""
FARTHEST = 10
"""Ranges up to which a candidate counts as a picture whose share in others can be decoded."""
FEWEST_LEVELS = 16
"""Different levels between the ends of the range that a picture needs to show the grid."""
CONTROLS = 3
"""Pictures that are moved and decoded again as a control: another grid point in reach is in reach of all of them."""
PAIRS, FEW_VALUES = 200, 256
PRIMES, SPARE = (2, 3, 5, 7), 40
"""Divisors that are looked for, and combinations of values beyond the number of pictures: a sum that is no multiple of
two passes for one with a probability of 2^-40."""
INSIDE = 0.999
"""The share of the values that lie in the range, from which on a picture counts as inside."""
ALIKE = 0.9
"""The correlation from which on two pictures count as the same."""


@dataclass(frozen=True)
class Grid:
    """The levels of the inputs of a span."""

    span: Span
    low: Tensor
    """The value of level 0, [d] or a number."""
    step: Tensor
    shape: tuple[int, ...]
    """(height, width) or (channels, height, width) of a picture."""

    def levels(self, X: Tensor) -> Tensor:
        """The levels [m, d] of inputs X [m, d], not rounded."""
        found: Tensor = (X - self.low) / self.step
        return found

    def inputs(self, levels: Tensor) -> Tensor:
        found: Tensor = self.low + self.step * levels
        return found

    def snapped(self, c: Tensor) -> Tensor:
        """Coordinates [m, r] of the pictures of the span near those of c [m, r] whose values are levels."""
        X = self.span.inputs(c)
        for _ in range(ROUNDS):
            rounded = self.levels(X).round().clamp(0, LEVELS)
            c = self.span.coordinates(self.inputs(rounded))
            X = self.span.inputs(c)
        return c

    def decoded(self, c: Tensor, directions: Tensor, end: float) -> Tensor:
        """Coordinates [k, r] of pictures on the grid near those of c [m, r].

        These are wrong along ``directions`` [w, r]. Stops when ``time.perf_counter()`` reaches ``end``, and where the
        levels of a candidate do not decide: the others have as few.
        """
        found = [c[:0]]
        if len(directions) > MOST_DIRECTIONS:
            return found[0]
        own, others = (self.levels(self.span.inputs(each)) for each in (c, directions))
        missed = 0
        for i in self._shows_levels(own).nonzero()[:, 0].tolist():
            progress.report("pictures of whole levels", done=i, total=len(c))
            if missed == PATIENCE:
                break
            missed += 1
            ways = _ways(others, own[i])
            for share in SHARES if len(ways) > FEW else (*SHARES, LARGE):
                if time.perf_counter() > end or len(ways) == 0:
                    break
                levels, decided = decoded(own[i], share * ways, self.shape, end, lost=LOST)
                near = self.span.coordinates(self.inputs(levels))
                near = near[self.on_grid(near)]
                if len(near):
                    found.append(near)
                    missed = 0
                    break
                if not decided:
                    return torch.cat(found)
        return torch.cat(found)

    def cleaned(self, c: Tensor, known: Tensor) -> Tensor:
        """Candidates c [m, r] without the shares of ``known`` pictures [k, r] that make their differences less sharp.

        The contrast is that of the separation, minimised over the shares by iteratively reweighted least squares.
        """
        own, others = self.span.inputs(c), self.span.inputs(known)
        own_steps, steps = ica.differences(own, self.shape), ica.differences(others, self.shape)
        flat, result = steps.flatten(1), []
        power, floor = contrast.SHARPER[0]
        for i in range(len(c)):
            rest = own_steps[i]
            shares = flat.new_zeros(len(flat))
            for _ in range(CLEANING):
                energy = rest.square().mean(dim=0)
                weight = (energy / energy.mean().clamp_min(1e-300) + floor) ** (power - 1)
                weighted = (steps * weight).flatten(1)
                gram = weighted @ flat.T
                ridge = 1e-9 * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
                shares = torch.linalg.solve(gram + ridge, weighted @ own_steps[i].flatten())
                rest = own_steps[i] - (shares[:, None, None] * steps).sum(dim=0)
            result.append((own[i] - shares @ others) / (1 - shares.sum()))
        return self.span.coordinates(torch.stack(result)) if result else c

    def on_grid(self, c: Tensor) -> Tensor:
        """Whether all values of the pictures with coordinates c are levels of the range, and enough of them, [m]."""
        levels = self.levels(self.span.inputs(c))
        nearest = levels.round()
        near = ((levels - nearest).abs() <= ON_GRID).all(dim=1) & torch.isfinite(levels).all(dim=1)
        within = ((nearest >= 0) & (nearest <= LEVELS)).all(dim=1)
        between = self._between(levels)
        result: Tensor = near & within & self._shows_levels(levels) & self._precise(c)
        for i in result.nonzero()[:, 0].tolist():
            result[i] = len(torch.unique(nearest[i][between[i]])) >= FEWEST_LEVELS
        return result

    def _between(self, levels: Tensor) -> Tensor:
        """Which of the levels [m, d] are between the ends of the range and differ from record to record, [m, d]."""
        nearest = levels.round()
        between: Tensor = (nearest > 0) & (nearest < LEVELS) & self._varied()
        return between

    def mostly_between(self, c: Tensor) -> Tensor:
        """Whether most values of the pictures with coordinates c [m, r] are between the ends of the range, [m]."""
        most: Tensor = self._between(self.levels(self.span.inputs(c))).double().mean(dim=1) > 0.5
        return most

    def shows_levels(self, c: Tensor) -> Tensor:
        """Whether the pictures with coordinates c [m, r] have enough levels to be told from mixtures by them, [m]."""
        return self._shows_levels(self.levels(self.span.inputs(c)))

    def _shows_levels(self, levels: Tensor) -> Tensor:
        """Whether more of the levels [m, d] are between the ends of the range than can be forced to be whole, [m]."""
        enough: Tensor = self._between(levels).sum(dim=1) >= least(self.span.rank)
        return enough

    def _varied(self) -> Tensor:
        """The inputs [d] that differ from record to record, or from 0."""
        size = self.span.V[:, : self.span.input_dim].norm(dim=0)
        varied: Tensor = size > 1e-3 * size.max()
        return varied

    def _precise(self, c: Tensor) -> Tensor:
        """Whether the rounding of the weights is far below a step, [m]."""
        c = self.span.coordinates(self.span.inputs(c))
        precise: Tensor = CERTAIN * self.span.noise * c.norm(dim=1) <= ON_GRID * self.step.min()
        return precise

    def certified(self, c: Tensor, others: Tensor, seed: int) -> Tensor:
        """Those of c [m, r] whose pictures are on the grid by no freedom of mixtures.

        ``others`` [k, r] are coordinates of candidates of any kind, which lead the controls.
        """
        c = c[self.on_grid(c)]
        draw = torch.Generator().manual_seed(seed)
        moved = c[torch.randperm(len(c), generator=draw)[:CONTROLS]]
        if not all(self._isolated(each[None], others[: self.span.rank], draw) for each in moved):
            return c[:0]
        here, X = self.span.inputs(c), self.span.inputs(torch.cat([c, others]))
        unlike = correlation(X, here) < ALIKE
        kept = [self._alone_in_range(each, X[other], draw) for each, other in zip(here, unlike.T, strict=True)]
        return c[torch.tensor(kept, dtype=torch.bool)]

    def _isolated(self, c: Tensor, others: Tensor, draw: torch.Generator) -> bool:
        """Whether the picture, moved at random by shares of others, is not decoded to another one of whole levels.

        That other one may be out of the range: it still shows that mixtures have whole levels.
        """
        here = self.levels(self.span.inputs(c))
        ways = SHARES[0] * _ways(self.levels(self.span.inputs(others)), here)
        if len(ways) == 0:
            return True
        start = here[0] + torch.randn(len(ways), generator=draw).to(ways) @ ways
        ended = self.span.coordinates(self.inputs(decoded(start, ways, self.shape)[0][:1]))
        there = self.levels(self.span.inputs(ended))
        same = bool((there - here).abs().amax() < 0.5)
        return same or bool((there - there.round()).abs().amax() > ON_GRID)

    def dependent(self, c: Tensor) -> Tensor:
        """Whether sums of pictures on the grid, with coordinates c [m, r], are multiples of a small prime, [m].

        Then a fraction of such a sum has whole levels too, so that one of them may be a sum of others: where x and
        (x + y) / 2 were trained on, y has whole levels.
        """
        levels = self.levels(self.span.inputs(c)).round()
        levels = torch.cat([levels, levels.new_ones(len(c), 1)], dim=1)
        found = torch.zeros(len(c), dtype=torch.bool)
        draw = torch.Generator().manual_seed(0)
        for prime in PRIMES:  # sums that are multiples stay so in random combinations of the values, others do not
            mixing = torch.randint(prime, (levels.shape[1], len(c) + SPARE), generator=draw).to(levels)
            found |= _in_null_vectors((levels % prime @ mixing).round().long(), prime)
        return found

    def _alone_in_range(self, here: Tensor, X: Tensor, draw: torch.Generator) -> bool:
        """Whether adding the difference of two other pictures X [k, d] to the one ``here`` [d] leads out of the range.

        Or else to the same picture. Most sums are out of it at a few of their values already.
        """
        if len(X) < 2:
            return True
        pairs = torch.randint(len(X), (2, PAIRS), generator=draw)
        allowed = (1 - INSIDE) * X.shape[1]
        few = torch.randperm(X.shape[1], generator=draw)[:FEW_VALUES]
        low, step = (part.expand(X.shape[1]) for part in (self.low, self.step))
        levels = (here[few] + X[pairs[0]][:, few] - X[pairs[1]][:, few] - low[few]) / step[few]
        pairs = pairs[:, _outside(levels) <= allowed]
        sums = here + X[pairs[0]] - X[pairs[1]]
        inside = _outside(self.levels(sums)) <= allowed
        return not bool((inside & (correlation(sums, here[None])[:, 0] < ALIKE)).any())


def _outside(levels: Tensor) -> Tensor:
    """How many of the levels [m, k] are out of the range, [m]."""
    return ((levels <= -0.5) | (levels >= LEVELS + 0.5)).sum(dim=1)


def _ways(others: Tensor, here: Tensor) -> Tensor:
    """The differences [w, d] of levels to those ``here``, of pictures that differ and are no far extrapolations.

    Where a constant picture was trained on, a candidate of nearly no share in the bias has levels without bound.
    """
    ways = others - here
    size = ways.square().mean(dim=1).sqrt()
    kept: Tensor = ways[(size > 1) & (size < FARTHEST * LEVELS)]
    return kept


def _in_null_vectors(rows: Tensor, prime: int) -> Tensor:
    """Whether rows [m, k] of whole numbers take part in combinations of them that are multiples of a prime, [m]."""
    count, width = rows.shape
    table = torch.cat([rows % prime, torch.eye(count, dtype=torch.long)], dim=1)
    free = torch.ones(count, dtype=torch.bool)
    for i in range(count):
        nonzero = table[i, :width].nonzero()
        if len(nonzero) == 0:
            continue
        free[i] = False
        column = int(nonzero[0])
        pivot = table[i] * pow(int(table[i, column]), -1, prime) % prime
        table[i + 1 :] = (table[i + 1 :] - table[i + 1 :, column, None] * pivot) % prime
    return table[free, width:].any(dim=0)


def grid_of(span: Span, bounds: ValueBounds | None, shape: tuple[int, ...] | None) -> Grid | None:
    """The grid of pictures of 8 bits in a range; None without a bias coordinate, a range or a shape.

    A mean that is not known is taken for 0: with another one no value lies on the grid.
    """
    if bounds is None or shape is None or not span.has_bias:
        return None
    low, high = torch.as_tensor(bounds.low).to(span.V), torch.as_tensor(bounds.high).to(span.V)
    shift = low.new_zeros(()) if bounds.mean is None else bounds.mean.to(low)
    return Grid(span, low - shift, (high - low) / LEVELS, shape)
