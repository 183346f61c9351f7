"""Single neurons from the residuals at hold-out points, without further queries.

Where the jump of an interval on the search line was taken for one neuron and is the sum of several, the residual at a
hold-out point is a sum of some of those neurons. If two residuals differ by exactly one neuron, that neuron is known.
It crosses the search line at a known place. If the place lies in such an interval, the interval's jump is split into
this neuron and a rest. If it lies beyond the ends of the search line, the neuron was missed there. A right guess
removes its neuron from about half of the residuals; a wrong one adds something to them.

This step is ours; Milli 2019 (Algorithm 1a) asks a gradient beside every kink instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.extraction.gradients.affine_maps import LocalMaps
from divulge.extraction.gradients.kink_search import Tolerance
from divulge.extraction.relu_network import NetworkEstimate

GUESSES = 48
"""Differences between residuals, the smallest first, that are tried for being one neuron."""
TRANSFERS = 8
"""How many of them are tried for having been taken off with another neuron."""
MOVES = 8
"""Neurons read off, or moved, before the line is looked at again."""
CLEARED = 0.15
"""Share of the holdout whose residual a right guess changes at least; one half is expected."""
CLEAN = 0.9
"""How much of what a guess changes must have been in the residuals before: all of it, if the guess is right."""


@dataclass(frozen=True)
class Jumps:
    """The search line as it is understood."""

    origin: Tensor
    direction: Tensor
    reach: float
    left: Tensor
    """The affine map at its left end [k, d + 1]."""
    low: Tensor
    high: Tensor
    """The intervals that hold kinks [m]."""
    rest: Tensor
    """The jump in each [m, k, d + 1], less the parts that are known."""
    offset_error: Tensor
    """How far the constant of each jump may be off [m]."""
    parts: Tensor
    """Single neurons known [p, k, d + 1]."""
    places: Tensor
    """Where they cross [p]."""

    def place(self, row: Tensor) -> float:
        """Where the hyperplane ``row`` [d + 1] crosses the search line."""
        along = float(row[:-1] @ self.direction)
        return -float(row[:-1] @ self.origin + row[-1]) / along if along else float("inf")

    def interval(self, place: float) -> int | None:
        """The interval that holds a place."""
        index = int(torch.searchsorted(self.low, torch.tensor(place, dtype=torch.float64))) - 1
        return index if index >= 0 and place < float(self.high[index]) else None

    def contribution(self, jump: Tensor, row: Tensor, X: Tensor) -> Tensor:
        """What a neuron with this jump [k, d + 1] on the hyperplane ``row`` adds to the map at each point."""
        side = 1.0 if float(row[:-1] @ self.direction) >= 0 else -1.0
        on = (X @ row[:-1] + row[-1]) * side > 0
        return on.to(X)[:, None, None] * jump


def affine_maps(answers: LocalMaps) -> Tensor:
    """Gradients and constants together [n, k, d + 1]."""
    return torch.cat([answers.gradient, answers.constant[:, :, None]], dim=2)


Part = tuple[Tensor, float]
"""A single neuron: its jump [k, d + 1] along the search line, and its place on it."""


class ResidualDecomposition:
    """The residuals at the hold-out points, and the neurons read off them one by one."""

    def __init__(
        self, holdout: LocalMaps, jumps: Jumps, copy: NetworkEstimate, mix: Tensor, tolerance: Tolerance
    ) -> None:
        self.X, self.jumps, self.mix, self.tolerance = holdout.X, jumps, mix, tolerance
        self.residual = affine_maps(holdout.minus(copy))
        self.rest = jumps.rest.clone()
        self.parts: list[Part] = list(zip(jumps.parts, jumps.places.tolist(), strict=True))

    def run(self) -> bool:
        """Read off what can be; True if that was anything."""
        count = 0
        while count < MOVES and (self._split() or self._transfer()):
            count += 1
        return count > 0

    def _split(self) -> bool:
        """Take the guess that best clears what it touches out of its interval's jump, or add it beyond the ends."""
        best, found = CLEAN, None
        for guess in self._guesses():
            place = self.jumps.place(self._row(guess))
            index = self.jumps.interval(place) if abs(place) <= self.jumps.reach else None
            if index is None and abs(place) <= self.jumps.reach:
                continue
            for jump in (guess, -guess):
                change = self._on(jump)
                if index is not None:
                    change = change + self._on(self.rest[index] - jump) - self._on(self.rest[index])
                elif place < 0:
                    change = change - jump
                cleared = self._cleared(change, guess)
                if cleared > best:
                    best, found = cleared, (jump, place, index, change)
        if found is None:
            return False
        jump, place, index, change = found
        self.residual = self.residual - change
        if index is not None:
            self.rest[index] -= jump
        self.parts.append((jump, place))
        return True

    def _transfer(self) -> bool:
        """Move a guess from a part back to the rest of its interval: the part was two neurons, one of them small."""
        for guess in self._guesses()[:TRANSFERS]:
            for number, (part, place) in enumerate(self.parts):
                index = self.jumps.interval(place)
                if index is None:
                    continue
                for jump in (guess, -guess):
                    smaller, larger = part - jump, self.rest[index] + jump
                    moved = self.jumps.place(self._row(smaller))
                    if self.jumps.interval(moved) != index:
                        continue
                    change = self._on(smaller) + self._on(larger) - self._on(part) - self._on(self.rest[index])
                    if self._cleared(change, guess) > CLEAN:
                        self.residual = self.residual - change
                        self.rest[index] += jump
                        self.parts[number] = (smaller, moved)
                        return True
        return False

    def _cleared(self, change: Tensor, guess: Tensor) -> float:
        """Which share of a change to the copy was in the residuals before; 0 if it touches too few of them."""
        touched = float(change.square().sum())
        if touched < CLEARED * len(self.X) * float(guess.square().sum()):
            return 0.0
        return (2 * float((self.residual * change).sum()) - touched) / touched

    def _on(self, jump: Tensor) -> Tensor:
        return self.jumps.contribution(jump, self._row(jump), self.X)

    def _row(self, jump: Tensor) -> Tensor:
        return torch.einsum("k,ke->e", self.mix, jump)

    def _guesses(self) -> Tensor:
        return smallest_differences(self.residual, 4 * self.tolerance.jump)


def smallest_differences(residual: Tensor, noise: float) -> Tensor:
    """The smallest residuals, differences and sums of two residuals, that are not next to nothing [g, k, d + 1]."""
    slopes = residual[:, :, :-1].flatten(1)  # constants alone are no neuron
    real = slopes.norm(dim=1) > noise
    flat, slopes = residual[real].flatten(1), slopes[real]
    count = len(flat)
    gram = slopes @ slopes.T
    squares = gram.diagonal()
    first, second = torch.triu_indices(count, count, offset=1)
    pairs = squares[first] + squares[second]
    size = torch.cat([squares, pairs - 2 * gram[first, second], pairs + 2 * gram[first, second]])
    size = torch.where(size > 1e-10 * (squares.max() if count else 1.0), size, torch.full_like(size, torch.inf))
    order = size.argsort()
    order = order[size[order] < torch.inf]
    distinct = size[order].diff(prepend=size.new_zeros(1)) > 1e-7 * size[order]  # the same neuron shows many times
    order = order[distinct][:GUESSES]
    either = torch.cat([torch.arange(count), first, first])[order]
    other = torch.cat([torch.zeros(count, dtype=torch.long), second, second])[order]
    sign = torch.cat([torch.zeros(count), -torch.ones(len(first)), torch.ones(len(first))])[order].to(flat)
    guesses: Tensor = flat[either] + sign[:, None] * flat[other]
    guesses = guesses.reshape(-1, *residual.shape[1:])
    return guesses[guesses[:, :, :-1].flatten(1).norm(dim=1) > noise]
