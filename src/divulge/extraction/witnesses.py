"""What can be read off the residuals of points that watch a search line from outside.

Where an interval's jump was taken for one neuron and is the sum of several, the residual at a witness is a sum of some
of those neurons. Two witnesses whose residuals differ by exactly one neuron give that neuron away: it crosses the
search line in a known place, and if that lies in such an interval, the interval holds this neuron and the rest of its
jump, and no query is needed to split it. If it lies beyond the ends of the search line, it was missed there. A wrong
guess shows: the right one clears its neuron from about half of the residuals, a wrong one adds something to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.extraction.affine import Answers
from divulge.extraction.kinks import Tolerance
from divulge.extraction.network import Copy

GUESSES = 48
"""Differences between residuals, the smallest first, that are tried for being one neuron."""
CLEARED = 0.15
"""Share of the witnesses whose residual a right guess changes at least; one half is expected."""
CLEAN = 0.8
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
    doubt: Tensor
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


def affine_maps(answers: Answers) -> Tensor:
    """Gradients and constants together [n, k, d + 1]."""
    return torch.cat([answers.gradient, answers.constant[:, :, None]], dim=2)


def peel(witnesses: Answers, jumps: Jumps, copy: Copy, mix: Tensor, tolerance: Tolerance) -> list[tuple[Tensor, float]]:
    """Neurons (jump [k, d + 1] along the search line, place on it) that the witnesses' residuals give away."""
    X = witnesses.X
    residual = affine_maps(witnesses.minus(copy))
    rest = jumps.rest.clone()
    found: list[tuple[Tensor, float]] = []
    while (split := _best_split(residual, jumps, rest, mix, tolerance, X)) is not None:
        jump, place, change = split
        residual = residual - change
        index = jumps.interval(place)
        if index is not None and abs(place) <= jumps.reach:
            rest[index] -= jump
        found.append((jump, place))
    return found


def _best_split(
    residual: Tensor, jumps: Jumps, rest: Tensor, mix: Tensor, tolerance: Tolerance, X: Tensor
) -> tuple[Tensor, float, Tensor] | None:
    """The first guess that clears what it touches: its jump, its place, and how it changes the copy's maps."""
    energy = float(residual.square().sum())
    for guess in _guesses(residual, tolerance):
        row = torch.einsum("k,ke->e", mix, guess)
        place = jumps.place(row)
        for jump in (guess, -guess):
            change = _change(jumps, rest, jump, row, place, mix, X)
            if change is None:
                continue
            touched = float(change.square().sum())
            enough = touched >= CLEARED * len(X) * float(guess.square().sum())
            if enough and energy - float((residual - change).square().sum()) >= CLEAN * touched:
                return jump, place, change
    return None


def _guesses(residual: Tensor, tolerance: Tolerance) -> Tensor:
    """The smallest residuals, differences and sums of two residuals, that are not next to nothing [g, k, d + 1]."""
    slopes = residual[:, :, :-1].flatten(1)  # constants alone are no neuron
    real = slopes.norm(dim=1) > 4 * tolerance.jump
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
    return guesses[guesses[:, :, :-1].flatten(1).norm(dim=1) > 4 * tolerance.jump]


def _change(
    jumps: Jumps, rest: Tensor, jump: Tensor, row: Tensor, place: float, mix: Tensor, X: Tensor
) -> Tensor | None:
    """How the copy's maps at ``X`` change if the neuron leaves its interval's jump, or is added beyond the ends."""
    added = jumps.contribution(jump, row, X)
    if abs(place) > jumps.reach:
        return added - jump if place < 0 else added
    index = jumps.interval(place)
    if index is None:
        return None
    whole = rest[index]
    remainder = whole - jump
    rows = torch.einsum("k,jke->je", mix, torch.stack([whole, remainder]))
    return added + jumps.contribution(remainder, rows[1], X) - jumps.contribution(whole, rows[0], X)
