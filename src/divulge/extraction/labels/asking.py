"""Questions that can be asked together.

A search is a generator: it yields the rows that it wants to ask [n, d] and receives their labels [n]. ``together`` runs
many searches at once and sends the rows that they all wait for as one request. A remote target therefore answers a
batch of bisections in as many requests as the longest of them needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
T = TypeVar("T")
Asking = Generator[Array, Array, T]
Ask = Callable[[Array], Array]


def together(ask: Ask, searches: Sequence[Asking[T]]) -> list[T]:
    """Run the searches side by side, one request for all of them in each round; their results in order."""
    results: dict[int, T] = {}
    waiting: dict[int, Array] = {}
    for i, search in enumerate(searches):
        _advance(search, None, i, waiting, results)
    while waiting:
        order = list(waiting)
        rows = [waiting[i] for i in order]
        labels = ask(np.concatenate(rows))
        waiting = {}
        parts = np.split(labels, np.cumsum([len(part) for part in rows])[:-1])
        for i, part in zip(order, parts, strict=True):
            _advance(searches[i], part, i, waiting, results)
    return [results[i] for i in range(len(searches))]


def alone(ask: Ask, search: Asking[T]) -> T:
    """Run one search."""
    return together(ask, [search])[0]


def _advance(search: Asking[T], labels: Array | None, i: int, waiting: dict[int, Array], results: dict[int, T]) -> None:
    try:
        waiting[i] = next(search) if labels is None else search.send(labels)
    except StopIteration as stop:
        results[i] = stop.value


@dataclass(frozen=True)
class Crossing:
    """Where a label ends on a path: its last parameter with the label, the first beyond, and the label there."""

    inside: float
    outside: float
    beyond: int | None

    @property
    def middle(self) -> float:
        return (self.inside + self.outside) / 2


def bisect(
    path: Callable[[float], Array], start: float, stop: float, label: int, resolution: float
) -> Asking[Crossing]:
    """Where ``label``, held at ``start``, ends on the way to ``stop``; ``resolution`` is one of the parameter."""
    inside, outside, beyond = start, stop, None
    for _ in range(rounds(abs(stop - start), resolution)):
        middle = (inside + outside) / 2
        answer = int((yield path(middle)[None])[0])
        if answer == label:
            inside = middle
        else:
            outside, beyond = middle, answer
    return Crossing(inside, outside, beyond)


def bisect_all(
    base: Array, along: Array, low: Array, high: Array, label: int | Array, resolution: float
) -> Asking[tuple[Array, Array, Array]]:
    """On the lines base + t along: where ``label``, held at ``high``, ends on the way to ``low``.

    Returns the parameters t [n], whether the label changed strictly inside [n], and the label beyond it (-1 where none
    was seen) [n].
    """
    top, bottom, beyond = high.copy(), low.copy(), np.full(len(base), -1)
    for _ in range(rounds(float((high - low).max(initial=0.0)), resolution)):
        middle = (low + high) / 2
        answers = yield base + middle[:, None] * along
        same = answers == label
        high, low = np.where(same, middle, high), np.where(same, low, middle)
        beyond = np.where(same, beyond, answers)
    return (low + high) / 2, (high < top) & (low > bottom), beyond


def rounds(length: float, resolution: float) -> int:
    """Halvings that bring a length down to the resolution."""
    return max(1, math.ceil(math.log2(length / resolution))) if length > 0 else 1
