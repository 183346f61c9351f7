"""What every step of a search for kinks needs: the oracle, its precision, the coordinates, and the best estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from divulge.extraction.precision import Precision
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.values.cell_gradients import SHARE, Cells, Gradients
from divulge.extraction.values.line_scan import Array, Line, Scan

COARSE = 1e-12
"""Noise, as a share of the output's standard deviation, that float64 answers stay below."""
LONG_SHARE = 0.05
EDGE_SAMPLES, EDGE_HALVINGS = 25, 5
"""Samples that show where answers on a line stop being precise, and halvings that narrow that place down."""


@dataclass(frozen=True)
class SearchedLine:
    """A line with all its kinks, and the gradients in those of its cells that are wide enough to measure."""

    line: Line
    scan: Scan
    t: Array  # [pieces] a place inside each cell
    wide: Array  # [c] which cells were measured
    cells: Cells
    gradients: Gradients


@dataclass
class SearchState:
    """What every step of the attack needs, and the best estimate so far, for when it is interrupted."""

    ask: Callable[[Array], Array]
    inputs: int
    outputs: int
    precision: Precision
    scale: float
    """Standard deviation of the function on typical inputs."""
    frame: Array  # [d, d] random orthonormal directions
    rng: np.random.Generator
    far: float = 1e4
    """How far from the middle a line is searched, in lengths of a typical input."""
    precise: Callable[[Array], Array] | None = None
    """From answers [n, k] to whether each is precise [n], where some are not; lines end where answers are not."""
    places: Array = field(default_factory=lambda: np.empty((0, 0)))
    """Rows [n, d] with precise answers, for lines to go through, where some answers are not precise."""
    grid: int = 16
    """Samples that every line starts with: what is narrower than the space between them may be missed."""
    closest: float = 1e-7
    """Kinks closer than this on a line are resolved on another path."""
    estimate: NetworkEstimate | None = None
    centre: Array = field(default_factory=lambda: np.empty(0))
    """A point in a cell where the estimate is right, value and gradient."""
    spread: float = 0.0
    """Standard error of the estimate's gradient in one direction."""
    rank: int | None = None
    span: Array | None = None
    """Orthonormal rows [rank, d] that the gradients on the first line lie in, if they are few."""
    smallest_gap: float = 0.0
    first_line: SearchedLine | None = None
    """The first line as it was measured. What is found on paths around its narrow cells holds for one hidden layer
    only, and is not part of it."""
    seen: list[Array] = field(default_factory=list)
    """Where lines were sampled [n, d]."""
    notes: list[str] = field(default_factory=list)

    @property
    def roughness(self) -> float:
        """Noise of values on typical inputs, as a share of the scale."""
        typical = np.full((1, self.inputs), 1.0)
        return float(self.precision.noise(typical)[0]) / max(self.scale, np.finfo(float).tiny)

    @property
    def coarse(self) -> bool:
        """Whether answers are noisier than those of float64 networks."""
        return self.roughness > COARSE

    @property
    def share(self) -> float:
        """Length of steps, as a share of the cell: longer where answers are noisy, though more leave the cell."""
        return LONG_SHARE if self.coarse else SHARE

    @property
    def patience(self) -> float:
        """How much less precise than the median a cell may be before another path is taken around it."""
        return 40.0 if self.coarse else 4.0

    def smallest(self, t: float) -> float:
        """Kinks closer than this on a line are resolved on another path."""
        return max(self.closest, 300.0 * self.roughness) * (1.0 + abs(t))

    def line(self) -> Line:
        origin = self.rng.normal(size=self.inputs)
        if len(self.places):
            origin = self.places[self.rng.integers(len(self.places))]
        return Line(origin, self.rng.normal(size=self.inputs))

    def searched(self, line: Line) -> tuple[float, float]:
        """The part of a line around its origin that is searched: all of it, or where answers are precise."""
        if self.precise is None:
            return -self.far, self.far
        angles = np.linspace(-np.arctan(self.far), np.arctan(self.far), EDGE_SAMPLES)
        good = self.precise(self.ask(line.at(np.tan(angles))))
        middle = EDGE_SAMPLES // 2
        bad = np.flatnonzero(~good)
        left, right = bad[bad < middle], bad[bad > middle]
        inside = np.array([angles[left[-1] + 1] if len(left) else angles[0],
                           angles[right[0] - 1] if len(right) else angles[-1]])  # fmt: skip
        outside = np.array([angles[left[-1]] if len(left) else angles[0],
                            angles[right[0]] if len(right) else angles[-1]])  # fmt: skip
        for _ in range(EDGE_HALVINGS):
            between = 0.5 * (inside + outside)
            good = self.precise(self.ask(line.at(np.tan(between))))
            inside, outside = np.where(good, between, inside), np.where(good, outside, between)
        return float(np.tan(inside[0])), float(np.tan(inside[1]))

    def child(self) -> np.random.Generator:
        return np.random.default_rng(self.rng.integers(2**63))
