"""A whole network from the kinks and cells of one line, and the neurons that line missed from further ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from divulge.core import progress
from divulge.core.errors import DivulgeError
from divulge.extraction.precision import worst_precision_at
from divulge.extraction.relu_network import NetworkEstimate, neuron_between
from divulge.extraction.values.cell_gradients import Cells, Gradients, Measurement
from divulge.extraction.values.line_scan import Array, Line, Piece, Scan, run_together, scan
from divulge.extraction.values.narrow_cells import Group, resolve_group
from divulge.extraction.values.search_state import SearchedLine, SearchState

WANTED_ERROR = 4e-12
"""Error that one cell may contribute on typical inputs, as a share of the output's standard deviation."""
STRAINED = 2.5
"""Pieces of a straight line miss their chords by less than this many standard errors, those of a smooth one by more."""
FAINT = 0.05
"""A kink of the difference at a known hyperplane is an error of that neuron if it is this much weaker."""
PLACES = 16
"""Places on a line where rounding is measured again if the line seems to bend everywhere."""
EDGE = 0.05
"""A kink closer to the end of what is searched than this part of a typical length is left to another line."""
ROUNDS = 4
"""Paths around a group of narrow cells, at most, before its kinks count as one neuron."""
TRIED = 16
"""Groups that are tried first. Where none of them can be separated, the function has steps, or answers are rounded."""


def first_line(state: SearchState) -> None:
    """Estimate the network from one random line; there is no estimate after it if the function bends everywhere."""
    line = state.line()
    found = _scanned(state, line)
    if not found.complete:  # rounding may be worse here than where it was measured
        low, high = (-1.5, 1.5) if state.precise is None else (np.arctan(found.low), np.arctan(found.high))
        places = line.at(np.tan(np.linspace(float(low), float(high), PLACES)))
        state.precision = worst_precision_at(state.precision, state.ask, places, state.rng)
        found = _scanned(state, line)
    strained = state.coarse and found.strain > STRAINED  # precise answers have shown smooth functions before
    if not found.complete or not found.pieces or strained:
        return
    progress.report("neurons on the line", len(found.kinks), len(found.kinks))
    state.seen.append(line.at(np.concatenate([piece.t for piece in found.pieces])))
    found = _trimmed(state, found)
    t, room = _places(state, found)
    state.smallest_gap = found.widest * float(np.linalg.norm(line.direction))
    wide = _wide(state, line, t, room)
    cells = _cells(line, [found.pieces[i] for i in wide], t[wide], room[wide])
    cells = _sharpened(state, cells)
    work = Measurement(cells, frame=state.frame, precision=state.precision, rng=state.rng)
    try:
        (measured,) = run_together(state.ask, [work.run()])
    except DivulgeError:
        neurons, _ = _split(line, found, wide, t, cells, work.result())
        _assemble(state, cells, work.result(), neurons)
        raise
    state.rank = measured.rank
    if measured.rank is not None:
        state.span = _span(measured)
    state.first_line = SearchedLine(line, found, t, wide, cells, measured)
    wide, cells, measured = _good(state, wide, cells, measured)
    neurons, groups = _split(line, found, wide, t, cells, measured)
    _assemble(state, cells, measured, neurons)
    _resolve_groups(state, cells, measured, neurons, groups)


def _span(measured: Gradients) -> Array:
    """Orthonormal rows that the trusted gradients lie in."""
    rows = (measured.gradient[measured.trusted] / measured.noise[measured.trusted, None, None]).reshape(
        -1, measured.gradient.shape[2]
    )
    return np.asarray(np.linalg.svd(rows, full_matrices=False)[2][: measured.rank])


def _scanned(state: SearchState, line: Line) -> Scan:
    low, high = state.searched(line)
    (found,) = run_together(
        state.ask,
        [
            scan(
                line,
                low,
                high,
                noise=state.precision.noise,
                smallest=state.smallest,
                start=state.grid,
                rng=state.rng,
            )
        ],
    )
    return found


def _trimmed(state: SearchState, found: Scan) -> Scan:
    """The scan without kinks right at its ends, where the cell beyond them is too short to be measured."""
    if state.precise is None:
        return found
    pieces, kinks, whole = list(found.pieces), list(found.kinks), found.high - found.low

    def margin(t: float) -> float:
        return EDGE * min(whole, 1 + abs(t))

    while kinks and kinks[0].t - found.low < margin(kinks[0].t):
        del pieces[0], kinks[0]
    while kinks and found.high - kinks[-1].t < margin(kinks[-1].t):
        del pieces[-1], kinks[-1]
    low, high = pieces[0].t[0] if pieces else found.low, pieces[-1].t[-1] if pieces else found.high
    return replace(found, pieces=tuple(pieces), kinks=tuple(kinks), low=float(low), high=float(high))


def _places(state: SearchState, found: Scan) -> tuple[Array, Array]:
    """Where to measure each cell and how far the nearest kink is, in units of the line."""
    kinks = np.array([kink.t for kink in found.kinks])
    ended = state.precise is not None
    if not len(kinks):
        if not ended:
            return np.zeros(1), np.ones(1)
        half = 0.5 * (found.high - found.low)
        return np.array([found.low + half]), np.array([min(1.0, half)])
    before, after = max(0.5, abs(kinks[0])), max(0.5, abs(kinks[-1]))  # the outer cells have no end
    if ended:
        before, after = min(before, 0.5 * (kinks[0] - found.low)), min(after, 0.5 * (found.high - kinks[-1]))
    t = np.concatenate([[kinks[0] - before], 0.5 * (kinks[:-1] + kinks[1:]), [kinks[-1] + after]])
    return t, np.concatenate([[before], 0.5 * np.diff(kinks), [after]])


def _wide(state: SearchState, line: Line, t: Array, room: Array) -> Array:
    """The cells that are wide enough to be measured well where they are."""
    step = state.share * room * float(np.linalg.norm(line.direction))
    error = state.precision.noise(line.at(t)) * np.sqrt(state.inputs) / step
    wide = error <= max(3e-11 * state.scale, state.patience * float(np.median(error)))
    wide[0] = wide[-1] = True
    return np.flatnonzero(wide)


def _good(state: SearchState, wide: Array, cells: Cells, measured: Gradients) -> tuple[Array, Cells, Gradients]:
    """The cells that came out well; hyperplanes beside the line may have forced tiny steps on the others."""
    error = measured.noise * np.sqrt(state.inputs)
    good = measured.trusted & (error <= max(5e-11 * state.scale, 2.0 * state.patience * float(np.median(error))))
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


def _sharpened(state: SearchState, cells: Cells) -> Cells:
    """Values asked, not interpolated, where the samples around are far away: in the two outer cells."""
    outer = [0, -1] if len(cells.base) > 1 else [0]
    value, noise = cells.value.copy(), cells.noise.copy()
    value[outer] = state.ask(cells.base[outer])
    noise[outer] = state.precision.noise(cells.base[outer])
    wanted = WANTED_ERROR * state.scale / np.sqrt(state.inputs)
    return replace(cells, value=value, noise=noise, wanted_error=wanted, share=state.share)


def _split(
    line: Line, found: Scan, wide: Array, t: Array, cells: Cells, measured: Gradients
) -> tuple[list[NetworkEstimate], list[Group]]:
    """Neurons that stand alone between two wide cells, and groups of those that do not."""
    neurons: list[NetworkEstimate] = []
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


def _assemble(state: SearchState, cells: Cells, measured: Gradients, neurons: list[NetworkEstimate]) -> None:
    """The estimate of these neurons, right in the cell nearest to the middle of typical inputs."""
    start = NetworkEstimate.affine_at(cells.base[0], measured.gradient[0], cells.value[0])
    estimate = start.with_neurons(*neurons)
    central = int(np.argmin(np.linalg.norm(cells.base, axis=1)))
    state.centre = cells.base[central]
    state.estimate = estimate.anchored(state.centre, measured.gradient[central], cells.value[central])
    state.spread = max(2.0 * float(np.median(measured.noise)), float(np.sqrt(np.mean(measured.noise**2))))


def _resolve_groups(
    state: SearchState, cells: Cells, measured: Gradients, neurons: list[NetworkEstimate], groups: list[Group]
) -> None:
    """Add the neurons of narrow cells to the estimate."""
    for _ in range(ROUNDS):
        if not groups:
            return
        assert state.estimate is not None
        paths = [
            resolve_group(
                group,
                state.estimate,
                spread=state.spread,
                frame=state.frame if state.span is None else state.span,
                precision=state.precision,
                rng=state.child(),
            )
            for group in groups
        ]
        answers = run_together(state.ask, paths[:TRIED])
        if len(paths) > TRIED:
            if all(answer is None for answer in answers):
                break
            answers += run_together(state.ask, paths[TRIED:])
        neurons += [neuron for answer in answers if answer is not None for neuron in answer]
        groups = [group for group, answer in zip(groups, answers, strict=True) if answer is None]
        _assemble(state, cells, measured, neurons)
    if groups:
        neurons += [_merged(group, cells) for group in groups]
        state.notes.append(f"{len(groups)} groups of kinks could not be separated and count as one neuron each.")
        _assemble(state, cells, measured, neurons)


def _merged(group: Group, cells: Cells) -> NetworkEstimate:
    """One neuron in place of a group whose kinks are too close together to separate."""
    middle = np.mean(group.kinks, axis=0)
    return neuron_between(np.zeros_like(group.change), group.change, middle, cells.direction)


def _new(found: Scan, line: Line, estimate: NetworkEstimate) -> Scan:
    """The scan without the faint kinks at known hyperplanes, which are errors of the estimate."""
    A, b, W, _, _ = estimate.arrays()
    along = A @ line.direction
    with np.errstate(divide="ignore", invalid="ignore"):
        known = -(A @ line.origin + b) / along
    strength = np.abs(along) * np.linalg.norm(W, axis=0)
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


def further_line(state: SearchState, toward: Array, most: int | None = None) -> int:
    """Search the residual on the line from the centre ``toward`` a point where the estimate is wrong.

    The neurons found are added to the estimate, unless they are more than ``most``. Returns their number, or -1 if the
    line bends everywhere.
    """
    estimate = state.estimate
    assert estimate is not None
    away = toward - state.centre
    line = Line(state.centre, away * np.sqrt(state.inputs) / np.linalg.norm(away))

    def noise(rows: Array) -> Array:
        distance = np.linalg.norm(rows - state.centre, axis=1)
        return np.asarray(np.hypot(state.precision.noise(rows), 4.0 * state.spread * distance))

    low, high = state.searched(line)
    there = float(np.linalg.norm(away)) / np.sqrt(state.inputs)
    (found,) = run_together(
        state.ask,
        [
            scan(
                line,
                low,
                high,
                noise=noise,
                smallest=state.smallest,
                known=estimate,
                start=state.grid,
                also=there if low < there < high else None,
                limit=2_000 + 2 * state.grid + 20 * estimate.width,
                rng=state.rng,
            )
        ],
    )
    if not found.complete:
        return -1
    state.seen.append(line.at(np.concatenate([piece.t for piece in found.pieces])))
    found = _trimmed(state, _new(found, line, estimate))
    if found.kinks and (most is None or len(found.kinks) <= most):
        state.estimate = estimate.with_neurons(*_difference(state, estimate, line, found))
    return len(found.kinks)


def _difference(state: SearchState, estimate: NetworkEstimate, line: Line, found: Scan) -> list[NetworkEstimate]:
    """The neurons at the kinks of what the estimate does not explain, each of them off at the centre."""
    t, room = _places(state, found)
    home = int(np.searchsorted([kink.t for kink in found.kinks], 0.0))
    others = np.array([i for i in range(len(t)) if i != home])
    cells = _cells(line, [found.pieces[i] for i in others], t[others], room[others])
    cells = replace(
        cells,
        value=state.ask(cells.base) - estimate(cells.base),
        noise=state.precision.noise(cells.base),
        slack=state.spread,
    )
    work = Measurement(cells, frame=state.frame, precision=state.precision, rng=state.rng, known=estimate)
    (measured,) = run_together(state.ask, [work.run()])
    steps = np.insert(measured.gradient, home, 0.0, axis=0)
    neurons = []
    for index, kink in enumerate(found.kinks):
        outward = index >= home
        near, far = (steps[index], steps[index + 1]) if outward else (steps[index + 1], steps[index])
        way = cells.direction if outward else -cells.direction
        neurons.append(neuron_between(near, far, line.at(np.array(kink.t)), way))
    return neurons
