"""A whole network from the kinks and cells of one line, and the neurons that line missed from further ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from divulge import progress
from divulge.errors import DivulgeError
from divulge.extraction.cells import SHARE, Cells, Gradients, Measurement
from divulge.extraction.detours import Group, detour
from divulge.extraction.draft import Draft, Neuron, neuron_between, stack
from divulge.extraction.lines import Array, Line, Piece, Scan, scan, together
from divulge.extraction.precision import Precision, rougher

ENOUGH = 4e-12
"""Error that one cell may contribute on typical inputs, as a share of the output's standard deviation."""
STRAINED = 2.5
"""Pieces of a straight line miss their chords by less than this many standard errors, those of a smooth one by more."""
COARSE = 1e-12
"""Noise, as a share of the output's standard deviation, that float64 answers stay below."""
LONG_SHARE = 0.05
FAINT = 0.05
"""A kink of the difference at a known hyperplane is an error of that neuron if it is this much weaker."""
PLACES = 16
"""Places on a line where rounding is measured again if the line seems to bend everywhere."""
ROUNDS = 4
"""How often a group of narrow cells is walked around before its cells are measured as they are."""


@dataclass
class Bench:
    """What every step of the attack needs, and the best draft so far, for when it is interrupted."""

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
    grid: int = 16
    """Samples that every line starts with: what is narrower than the space between them may be missed."""
    closest: float = 1e-7
    """Kinks closer than this on a line are left to a detour."""
    draft: Draft | None = None
    centre: Array = field(default_factory=lambda: np.empty(0))
    """A point in a cell where the draft is right, value and gradient."""
    spread: float = 0.0
    """Standard error of the draft's gradient in one direction."""
    rank: int | None = None
    span: Array | None = None
    """Orthonormal rows [rank, d] that the gradients on the first line lie in, if they are few."""
    smallest_gap: float = 0.0
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
        """How long steps are: longer where noise is what spoils them, though more of them leave their cell."""
        return LONG_SHARE if self.coarse else SHARE

    @property
    def patience(self) -> float:
        """How much worse than the median a cell may be before it is walked around: detours need precise neighbours."""
        return 40.0 if self.coarse else 4.0

    def smallest(self, t: float) -> float:
        """Kinks closer than this on a line are left to a detour."""
        return max(self.closest, 300.0 * self.roughness) * (1.0 + abs(t))

    def line(self) -> Line:
        return Line(self.rng.normal(size=self.inputs), self.rng.normal(size=self.inputs))

    def child(self) -> np.random.Generator:
        return np.random.default_rng(self.rng.integers(2**63))


def first_line(bench: Bench) -> None:
    """Draft the network from one random line; there is no draft after it if the function bends everywhere."""
    line = bench.line()
    found = _scanned(bench, line)
    if not found.complete:  # rounding may be worse here than where it was measured
        places = line.at(np.tan(np.linspace(-1.5, 1.5, PLACES)))
        bench.precision = rougher(bench.precision, bench.ask, places, bench.rng)
        found = _scanned(bench, line)
    strained = bench.coarse and found.strain > STRAINED  # precise answers tell smooth functions beforehand
    if not found.complete or not found.pieces or strained:
        return
    progress.report("neurons on the line", len(found.kinks), len(found.kinks))
    bench.seen.append(line.at(np.concatenate([piece.t for piece in found.pieces])))
    t, room = _places(found)
    bench.smallest_gap = found.widest * float(np.linalg.norm(line.direction))
    wide = _wide(bench, line, t, room)
    cells = _cells(line, [found.pieces[i] for i in wide], t[wide], room[wide])
    cells = _sharpened(bench, cells)
    work = Measurement(cells, frame=bench.frame, precision=bench.precision, rng=bench.rng)
    try:
        (measured,) = together(bench.ask, [work.run()])
    except DivulgeError:
        neurons, _ = _split(line, found, wide, t, cells, work.result())
        _assemble(bench, cells, work.result(), neurons)
        raise
    bench.rank = measured.rank
    if measured.rank is not None:
        bench.span = _span(measured)
    wide, cells, measured = _good(bench, wide, cells, measured)
    neurons, groups = _split(line, found, wide, t, cells, measured)
    _assemble(bench, cells, measured, neurons)
    _walk_around(bench, cells, measured, neurons, groups)


def _span(measured: Gradients) -> Array:
    """Orthonormal rows that the trusted gradients lie in."""
    rows = (measured.gradient[measured.trusted] / measured.noise[measured.trusted, None, None]).reshape(
        -1, measured.gradient.shape[2]
    )
    return np.asarray(np.linalg.svd(rows, full_matrices=False)[2][: measured.rank])


def _scanned(bench: Bench, line: Line) -> Scan:
    (found,) = together(
        bench.ask,
        [
            scan(
                line,
                -bench.far,
                bench.far,
                noise=bench.precision.noise,
                smallest=bench.smallest,
                start=bench.grid,
                rng=bench.rng,
            )
        ],
    )
    return found


def _places(found: Scan) -> tuple[Array, Array]:
    """Where to measure each cell and how far the nearest kink is, in units of the line."""
    kinks = np.array([kink.t for kink in found.kinks])
    if not len(kinks):
        return np.zeros(1), np.ones(1)
    before, after = max(0.5, abs(kinks[0])), max(0.5, abs(kinks[-1]))  # the outer cells have no end
    t = np.concatenate([[kinks[0] - before], 0.5 * (kinks[:-1] + kinks[1:]), [kinks[-1] + after]])
    return t, np.concatenate([[before], 0.5 * np.diff(kinks), [after]])


def _wide(bench: Bench, line: Line, t: Array, room: Array) -> Array:
    """The cells that are wide enough to be measured well where they are."""
    step = bench.share * room * float(np.linalg.norm(line.direction))
    error = bench.precision.noise(line.at(t)) * np.sqrt(bench.inputs) / step
    wide = error <= max(3e-11 * bench.scale, bench.patience * float(np.median(error)))
    wide[0] = wide[-1] = True
    return np.flatnonzero(wide)


def _good(bench: Bench, wide: Array, cells: Cells, measured: Gradients) -> tuple[Array, Cells, Gradients]:
    """The cells that came out well; hyperplanes beside the line may have forced tiny steps on the others."""
    error = measured.noise * np.sqrt(bench.inputs)
    good = measured.trusted & (error <= max(5e-11 * bench.scale, 2.0 * bench.patience * float(np.median(error))))
    good[0] = good[-1] = True
    kept = replace(
        cells,
        base=cells.base[good],
        value=cells.value[good],
        noise=cells.noise[good],
        slope=cells.slope[good],
        room=cells.room[good],
    )
    return (
        wide[good],
        kept,
        Gradients(measured.gradient[good], measured.noise[good], measured.trusted[good], measured.rank),
    )


def _cells(line: Line, pieces: list[Piece], t: Array, room: Array) -> Cells:
    length = float(np.linalg.norm(line.direction))
    return Cells(
        base=line.at(t),
        value=np.stack([piece.at(at) for piece, at in zip(pieces, t, strict=True)]),
        noise=np.array([piece.uncertainty(at) for piece, at in zip(pieces, t, strict=True)]),
        slope=np.stack([piece.slope for piece in pieces]) / length,
        direction=line.direction / length,
        room=room * length,
    )


def _sharpened(bench: Bench, cells: Cells) -> Cells:
    """Values asked, not interpolated, where the samples around are far away: in the two outer cells."""
    outer = [0, -1] if len(cells.base) > 1 else [0]
    value, noise = cells.value.copy(), cells.noise.copy()
    value[outer] = bench.ask(cells.base[outer])
    noise[outer] = bench.precision.noise(cells.base[outer])
    enough = ENOUGH * bench.scale / np.sqrt(bench.inputs)
    return replace(cells, value=value, noise=noise, enough=enough, share=bench.share)


def _split(
    line: Line, found: Scan, wide: Array, t: Array, cells: Cells, measured: Gradients
) -> tuple[list[Neuron], list[Group]]:
    """Neurons that stand alone between two wide cells, and groups of those that do not."""
    neurons: list[Neuron] = []
    groups: list[Group] = []
    for index, (i, j) in enumerate(itertools.pairwise(wide)):
        kinks = found.kinks[i:j]
        near, far = measured.gradient[index], measured.gradient[index + 1]
        if len(kinks) == 1 and kinks[0].single:
            neurons.append(neuron_between(near, far, line.at(np.array(kinks[0].t)), cells.direction))
            continue
        middle = 0.5 * (kinks[0].t + kinks[-1].t)
        room = max(middle - t[i], t[j] - middle) * float(np.linalg.norm(line.direction))
        points = tuple(line.at(np.array(kink.t)) for kink in kinks)
        groups.append(
            Group(cells.base[index], cells.base[index + 1], cells.value[index], near, far - near, room, points)
        )
    return neurons, groups


def _assemble(bench: Bench, cells: Cells, measured: Gradients, neurons: list[Neuron]) -> None:
    """The draft of these neurons, right in the cell nearest to the middle of typical inputs."""
    start = Draft.affine(measured.gradient[0], cells.base[0], cells.value[0])
    draft = start.with_neurons(*stack(neurons, bench.inputs, bench.outputs))
    central = int(np.argmin(np.linalg.norm(cells.base, axis=1)))
    bench.centre = cells.base[central]
    bench.draft = draft.anchored(bench.centre, measured.gradient[central], cells.value[central])
    bench.spread = max(2.0 * float(np.median(measured.noise)), float(np.sqrt(np.mean(measured.noise**2))))


def _walk_around(bench: Bench, cells: Cells, measured: Gradients, neurons: list[Neuron], groups: list[Group]) -> None:
    """Add the neurons of narrow cells to the draft."""
    for _ in range(ROUNDS):
        if not groups:
            return
        assert bench.draft is not None
        walks = [
            detour(
                group,
                bench.draft,
                spread=bench.spread,
                frame=bench.frame if bench.span is None else bench.span,
                precision=bench.precision,
                rng=bench.child(),
            )
            for group in groups
        ]
        answers = together(bench.ask, walks)
        neurons += [neuron for answer in answers if answer is not None for neuron in answer]
        groups = [group for group, answer in zip(groups, answers, strict=True) if answer is None]
        _assemble(bench, cells, measured, neurons)
    if groups:
        neurons += [_merged(group, cells) for group in groups]
        bench.notes.append(f"{len(groups)} bundles of kinks could not be told apart and count as one neuron each.")
        _assemble(bench, cells, measured, neurons)


def _merged(group: Group, cells: Cells) -> Neuron:
    """One neuron in place of a group: its kinks are too close to each other to matter, or to be told apart."""
    middle = np.mean(group.kinks, axis=0)
    return neuron_between(np.zeros_like(group.change), group.change, middle, cells.direction)


def _new(found: Scan, line: Line, draft: Draft) -> Scan:
    """The scan without the faint kinks at hyperplanes that are known: those say how imprecise the draft is."""
    along = draft.A @ line.direction
    with np.errstate(divide="ignore"):
        known = -(draft.A @ line.origin + draft.b) / along
    strength = np.abs(along) * np.linalg.norm(draft.W, axis=0)
    kinks, pieces = [], [found.pieces[0]] if found.pieces else []
    for kink, piece in zip(found.kinks, found.pieces[1:], strict=True):
        near = np.abs(known - kink.t) <= 0.02 * (1.0 + abs(kink.t))
        if np.linalg.norm(kink.jump) <= FAINT * strength[near].max(initial=0.0):
            if piece.t[-1] - piece.t[0] > pieces[-1].t[-1] - pieces[-1].t[0]:
                pieces[-1] = piece
        else:
            kinks.append(kink)
            pieces.append(piece)
    return replace(found, pieces=tuple(pieces), kinks=tuple(kinks))


def further_line(bench: Bench, toward: Array, most: int | None = None) -> int:
    """Look for neurons in what the draft does not explain, along the line from its centre ``toward`` a point where it
    is wrong; how many were found.

    More than ``most`` are not taken in; -1 says that the line bends everywhere.
    """
    draft = bench.draft
    assert draft is not None
    away = toward - bench.centre
    line = Line(bench.centre, away * np.sqrt(bench.inputs) / np.linalg.norm(away))

    def noise(rows: Array) -> Array:
        distance = np.linalg.norm(rows - bench.centre, axis=1)
        return np.asarray(np.hypot(bench.precision.noise(rows), 4.0 * bench.spread * distance))

    (found,) = together(
        bench.ask,
        [
            scan(
                line,
                -bench.far,
                bench.far,
                noise=noise,
                smallest=bench.smallest,
                known=draft,
                start=bench.grid,
                also=float(np.linalg.norm(away)) / np.sqrt(bench.inputs),
                limit=2_000 + 2 * bench.grid + 20 * draft.width,
                rng=bench.rng,
            )
        ],
    )
    if not found.complete:
        return -1
    bench.seen.append(line.at(np.concatenate([piece.t for piece in found.pieces])))
    found = _new(found, line, draft)
    if found.kinks and (most is None or len(found.kinks) <= most):
        bench.draft = draft.with_neurons(*stack(_difference(bench, draft, line, found), bench.inputs, bench.outputs))
    return len(found.kinks)


def _difference(bench: Bench, draft: Draft, line: Line, found: Scan) -> list[Neuron]:
    """The neurons at the kinks of what the draft does not explain, each of them off at the centre."""
    t, room = _places(found)
    home = int(np.searchsorted([kink.t for kink in found.kinks], 0.0))
    others = np.array([i for i in range(len(t)) if i != home])
    cells = _cells(line, [found.pieces[i] for i in others], t[others], room[others])
    cells = replace(
        cells,
        value=bench.ask(cells.base) - draft(cells.base),
        noise=bench.precision.noise(cells.base),
        slack=bench.spread,
    )
    work = Measurement(cells, frame=bench.frame, precision=bench.precision, rng=bench.rng, known=draft)
    (measured,) = together(bench.ask, [work.run()])
    steps = np.insert(measured.gradient, home, 0.0, axis=0)
    neurons = []
    for index, kink in enumerate(found.kinks):
        outward = index >= home
        near, far = (steps[index], steps[index + 1]) if outward else (steps[index + 1], steps[index])
        way = cells.direction if outward else -cells.direction
        neurons.append(neuron_between(near, far, line.at(np.array(kink.t)), way))
    return neurons
