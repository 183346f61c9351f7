"""Around a narrow cell: from the wide cell before it to the wide cell behind it by way of a point off the line.

Two straight segments cross a hyperplane at most twice, and a neuron that differs between the two ends is crossed an odd
number of times: exactly once. Off the line its neighbours' kinks lie apart, the gradients at both ends are known
already, so m neurons cost m - 1 gradients, as they would have on the line, but with steps that are not tiny.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from divulge.extraction.cells import Cells, Measurement
from divulge.extraction.draft import Draft, Neuron, neuron_between
from divulge.extraction.lines import Array, Line, Questions, Scan, scan
from divulge.extraction.precision import Precision

CORNERS = 4
"""Most ways around that are tried before the roomiest of them is taken."""
AWAY = 3.0
"""How far a corner lies from the line, in units of the distance to the group."""


@dataclass(frozen=True)
class Group:
    """Neighbouring kinks with no wide cell between them, and what is known in the wide cells on either side."""

    before: Array  # [d] a point in the cell before
    after: Array  # [d]
    value: Array  # [k] at the point before
    gradient: Array  # [k, d] in the cell before
    change: Array  # [k, d] gradient in the cell after, less that in the cell before
    room: float
    """Distance from the farther of the two points to the kinks."""
    kinks: tuple[Array, ...]
    """Points where the line crosses its hyperplanes, as far as seen; there may be more."""


@dataclass(frozen=True)
class _Stop:
    """A cell on the detour: its middle, its extent and what is known there."""

    point: Array
    slope: Array
    direction: Array
    room: float


def detour(
    group: Group,
    draft: Draft,
    *,
    spread: float,
    frame: Array,
    precision: Precision,
    rng: np.random.Generator,
) -> Questions[list[Neuron] | None]:
    """The neurons of a group, off at ``group.before``; None if this detour did not tell them apart.

    ``draft`` holds the neurons known so far; ``spread`` is the standard error of its gradient in one direction.
    """
    known = draft.anchored(group.before, group.gradient, group.value)

    def noise(rows: Array) -> Array:
        distance = np.linalg.norm(rows - group.before, axis=1)
        return np.asarray(np.hypot(precision.noise(rows), 4.0 * spread * distance))

    best: _Route | None = None
    for _ in range(CORNERS):
        route = yield from _explore(group, known, noise, rng)
        if route is not None and (best is None or route.cost(group) < best.cost(group)):
            best = route
        if best is not None and best.cost(group) < len(group.kinks):
            break
    if best is None:
        return None
    steps = [np.zeros_like(group.change)]
    for stop in best.stops:
        unit = stop.direction / np.linalg.norm(stop.direction)
        value = (yield stop.point[None]) - known(stop.point[None])
        one = Cells(
            stop.point[None],
            value,
            precision.noise(stop.point[None]),
            stop.slope[None],
            unit,
            np.array([stop.room]),
            spread,
        )
        measured = yield from Measurement(one, frame=frame, precision=precision, rng=rng, known=known).run()
        if not measured.trusted[0]:
            return None
        steps.append(measured.gradient[0])
    steps.append(group.change)
    neurons = [
        neuron_between(near, far, point, direction)
        for near, far, (point, direction) in zip(steps[:-1], steps[1:], best.crossings, strict=True)
    ]
    return _belonging(neurons, group)


@dataclass(frozen=True)
class _Route:
    crossings: list[tuple[Array, Array]]  # points on the hyperplanes, and the way they are crossed
    stops: list[_Stop]  # one between any two crossings

    def cost(self, group: Group) -> float:
        """Gradients to measure, where a cramped cell counts as several, and so much the more the more cramped it is."""
        room = min((stop.room for stop in self.stops), default=group.room)
        return len(self.stops) + max(0.0, float(np.log2(0.3 * group.room / room)))


def _explore(
    group: Group, known: Draft, noise: Callable[[Array], Array], rng: np.random.Generator
) -> Questions[_Route | None]:
    """Walk around by a random corner; None if some kinks could not be told apart on the way."""
    along = group.after - group.before
    side = rng.normal(size=len(along))
    side -= along * (side @ along) / (along @ along)
    corner = 0.5 * (group.before + group.after) + side * (AWAY * group.room / np.linalg.norm(side))
    lines = [Line(group.before, corner - group.before), Line(corner, group.after - corner)]
    scans = []
    for line in lines:
        found = yield from scan(
            line,
            0.0,
            1.0,
            noise=noise,
            smallest=lambda t: 1e-5,
            known=known,
            start=8,
            limit=200 + 40 * len(group.kinks),
            rng=rng,
        )
        if not found.complete or not all(kink.single for kink in found.kinks):
            return None
        scans.append(found)
    crossings = [
        (line.at(np.array(kink.t)), line.direction)
        for line, found in zip(lines, scans, strict=True)
        for kink in found.kinks
    ]
    return _Route(crossings, _stops(lines, scans)) if crossings else None


def _stops(lines: list[Line], scans: list[Scan]) -> list[_Stop]:
    """The cells between the first and the last crossing of a detour; one that holds the corner counts once."""
    stops: list[list[_Stop]] = []
    for number, (line, found) in enumerate(zip(lines, scans, strict=True)):
        length = float(np.linalg.norm(line.direction))
        edges = [0.0, *(kink.t for kink in found.kinks), 1.0]
        for index, piece in enumerate(found.pieces):
            low, high = edges[index], edges[index + 1]
            t = 0.5 * (low + high)
            stop = _Stop(line.at(np.array(t)), piece.slope / length, line.direction, 0.5 * (high - low) * length)
            if number == 1 and index == 0:
                stops[-1].append(stop)
            else:
                stops.append([stop])
    return [max(options, key=lambda stop: stop.room) for options in stops[1:-1]]


def _belonging(neurons: list[Neuron], group: Group) -> list[Neuron]:
    """Those that stand between the two ends; a neuron of another group may have been crossed there and back."""
    return [
        neuron
        for neuron in neurons
        if (neuron.a @ group.before + neuron.b < 0) != (neuron.a @ group.after + neuron.b < 0)
    ]
