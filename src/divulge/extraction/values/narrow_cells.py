"""Neurons of cells too narrow to measure, by another path between the wide cells on either side.

The path consists of two straight segments that meet at a point off the line. It crosses a hyperplane at most twice, and
that of a neuron which differs between the two ends an odd number of times: exactly once. Off the line the kinks of a
group lie apart. The gradients at both ends are known, so m neurons cost m - 1 gradients, as on the line, but the steps
that measure them are longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from divulge.extraction.precision import Precision
from divulge.extraction.relu_network import NetworkEstimate, neuron_between
from divulge.extraction.values.cell_gradients import Cells, Measurement
from divulge.extraction.values.line_scan import Array, Line, Questions, Scan, scan

CORNERS = 4
"""Paths that are tried, at most, before the one with the widest cells is taken."""
AWAY = 3.0
"""Distance of a path's corner from the line, in units of the distance to the group."""


@dataclass(frozen=True)
class Group:
    """Neighbouring kinks with no wide cell between them, and the affine maps of the wide cells on either side."""

    before: Array  # [d] a point in the cell before
    after: Array  # [d]
    value: Array  # [k] at the point before
    gradient: Array  # [k, d] in the cell before
    change: Array  # [k, d] gradient in the cell after, less that in the cell before
    room: float
    """Distance from the farther of the two points to the kinks."""
    kinks: tuple[Array, ...]
    """Points where the line was seen to cross hyperplanes; there may be more."""


@dataclass(frozen=True)
class _PathCell:
    """A cell on the path: its middle, the slope there, the direction of the path and half its length."""

    point: Array
    slope: Array
    direction: Array
    room: float


def resolve_group(
    group: Group,
    estimate: NetworkEstimate,
    *,
    spread: float,
    frame: Array,
    precision: Precision,
    rng: np.random.Generator,
) -> Questions[list[NetworkEstimate] | None]:
    """The neurons of a group, off at ``group.before``; None if this path did not separate them.

    ``estimate`` holds the neurons known so far; ``spread`` is the standard error of its gradient in one direction.
    """
    known = estimate.anchored(group.before, group.gradient, group.value)

    def noise(rows: Array) -> Array:
        distance = np.linalg.norm(rows - group.before, axis=1)
        return np.asarray(np.hypot(precision.noise(rows), 4.0 * spread * distance))

    best: _Path | None = None
    for _ in range(CORNERS):
        path = yield from _random_path(group, known, noise, rng)
        if path is not None and (best is None or path.cost(group) < best.cost(group)):
            best = path
        if best is not None and best.cost(group) < len(group.kinks):
            break
    if best is None:
        return None
    steps = [np.zeros_like(group.change)]
    for cell in best.cells:
        unit = cell.direction / np.linalg.norm(cell.direction)
        value = (yield cell.point[None]) - known(cell.point[None])
        one = Cells(
            cell.point[None],
            value,
            precision.noise(cell.point[None]),
            cell.slope[None],
            unit,
            np.array([cell.room]),
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
class _Path:
    crossings: list[tuple[Array, Array]]  # points on the hyperplanes, and the direction of crossing
    cells: list[_PathCell]  # one between any two crossings

    def cost(self, group: Group) -> float:
        """Gradients to measure; the narrower the narrowest cell, the more it adds."""
        room = min((cell.room for cell in self.cells), default=group.room)
        return len(self.cells) + max(0.0, float(np.log2(0.3 * group.room / room)))


def _random_path(
    group: Group, known: NetworkEstimate, noise: Callable[[Array], Array], rng: np.random.Generator
) -> Questions[_Path | None]:
    """A path over a random corner; None if some kinks on it could not be separated."""
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
    return _Path(crossings, _path_cells(lines, scans)) if crossings else None


def _path_cells(lines: list[Line], scans: list[Scan]) -> list[_PathCell]:
    """The cells between the first and the last crossing of a path; the one with the corner counts once."""
    cells: list[list[_PathCell]] = []
    for number, (line, found) in enumerate(zip(lines, scans, strict=True)):
        length = float(np.linalg.norm(line.direction))
        edges = [0.0, *(kink.t for kink in found.kinks), 1.0]
        for index, piece in enumerate(found.pieces):
            low, high = edges[index], edges[index + 1]
            t = 0.5 * (low + high)
            cell = _PathCell(line.at(np.array(t)), piece.slope / length, line.direction, 0.5 * (high - low) * length)
            if number == 1 and index == 0:
                cells[-1].append(cell)
            else:
                cells.append([cell])
    return [max(options, key=lambda cell: cell.room) for options in cells[1:-1]]


def _belonging(neurons: list[NetworkEstimate], group: Group) -> list[NetworkEstimate]:
    """The neurons that differ between the two ends; one of another group may have been crossed twice."""
    ends = torch.from_numpy(np.stack([group.before, group.after]))
    return [
        neuron for neuron in neurons if bool((neuron.preactivation(ends) < 0)[0] != (neuron.preactivation(ends) < 0)[1])
    ]
