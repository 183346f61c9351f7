"""Most neurons from one search line, at fewer queries than one check for each.

A check beside every predicted kink would cost one query a neuron. Instead the affine maps at a few *hold-out points*
off the line are asked once and check all predictions together. As long as the jump of an interval is the sum of several
neurons, the copy is wrong at about half of the hold-out points, and its residuals there are combinations of those
neurons. So the intervals to split are those whose jump lies in the span of the residuals. With several outputs they
also show by themselves, because the jump of one neuron has rank one. A neuron beside a much larger one is read off the
residuals directly. The search ends when no residual is left.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from divulge.core.progress import report
from divulge.extraction.failures import SearchFailed
from divulge.extraction.gradients.affine_maps import LocalMaps, SampleLines
from divulge.extraction.gradients.kink_search import KinkSearch, Tolerance
from divulge.extraction.gradients.residuals import Jumps, ResidualDecomposition, affine_maps
from divulge.extraction.relu_network import NetworkEstimate, neurons_from_jumps

ROUNDS = 80
"""Most rounds of a search line; networks of 1,000 neurons take 50."""
MOST_KINKS = 4_096
"""Kinks on one line, plus 64 for each input, beyond which the target is taken for a curved function."""
RANK_ONE = 1e-6
OUTPUTS_COMPARED = 8
KINKS_PER_HOLDOUT_POINT = 8
PATIENCE = 2
"""How often neurons are read off the hold-out points without the residual becoming smaller."""


class Exploration:
    """A line under search, the copy that its cells imply, and the hold-out points that check it."""

    def __init__(
        self, lines: SampleLines, search: KinkSearch, tolerance: Tolerance, holdout: LocalMaps, reach: float, seed: int
    ) -> None:
        self.lines, self.search, self.tolerance = lines, search, tolerance
        self.holdout, self.reach = holdout, reach
        self._generator = torch.Generator().manual_seed(seed)
        inputs, outputs = lines.target.inputs, lines.target.outputs
        compared = min(outputs, OUTPUTS_COMPARED)
        self._mix = torch.randn(compared, outputs, generator=self._generator, dtype=torch.float64)
        self._constant = torch.zeros(0, outputs, dtype=torch.float64)  # of the samples' affine maps, as far as needed
        self._parts = torch.zeros(0, outputs, inputs + 1, dtype=torch.float64)
        self._places = torch.zeros(0, dtype=torch.float64)
        self._least, self._futile = torch.inf, 0

    def run(self) -> NetworkEstimate:
        """Split suspect intervals until the copy explains the hold-out points, or no split helps."""
        copy, ends_sampled = self.copy(), False
        for _ in range(ROUNDS):
            rest = self.holdout.minus(copy)
            wrong = rest.gradient.flatten(1).norm(dim=1) > 4 * self.tolerance.jump
            ledger = self.lines.target.oracle.ledger
            report("finding kinks", copy.width, None, neurons=copy.width, queries=ledger.total,
                   worst=f"{float(rest.value.abs().max()):.1e}")  # fmt: skip
            if not bool(wrong.any()):
                break
            chosen = self.suspects(rest, wrong)
            if not len(chosen) and not ends_sampled:
                ends_sampled = True
                self.search.sample_ends()
            elif not len(chosen) and not self._decompose(copy) and not self._spread_out():
                chosen = self._doubtful()
                if not len(chosen):
                    break
            if copy.width > MOST_KINKS + 64 * self.lines.target.inputs:
                raise SearchFailed(f"{copy.width:,} kinks on one line")
            self.search.refine(chosen[: self.lines.target.room(len(chosen))])
            copy = self.copy()
        return copy

    # -- the copy -----------------------------------------------------------------------------------------------------

    def copy(self) -> NetworkEstimate:
        """The copy that the cells on the line imply, taking every jump for one neuron, less the parts known."""
        jumps = self.jumps()
        left = jumps.left - jumps.parts[jumps.places < -self.reach].sum(dim=0)
        every = torch.cat([jumps.rest, jumps.parts])
        loose = torch.full((len(jumps.parts),), 10 * self.tolerance.jump, dtype=torch.float64)
        neurons = neurons_from_jumps(
            every[:, :, :-1],
            every[:, :, -1],
            jumps.direction,
            self.tolerance.jump,
            torch.cat([jumps.offset_error, loose]),
        )
        return replace(neurons, P=left[:, :-1], q=left[:, -1])

    def jumps(self) -> Jumps:
        ((cells, intervals),) = self.search.cells()
        maps = self._maps(cells)
        samples = self.search.samples
        jumps = Jumps(
            origin=self.lines.origins[0],
            direction=self.lines.directions[0],
            reach=self.reach,
            left=maps[0],
            low=samples.t[self.search.left[intervals]],
            high=samples.t[self.search.right[intervals]],
            rest=maps.diff(dim=0),
            offset_error=_offset_error(samples.t[cells], self.tolerance),
            parts=self._parts,
            places=self._places,
        )
        keep = []
        for part, place in zip(self._parts, self._places.tolist(), strict=True):
            home = jumps.interval(place)
            alone = home is not None and float((jumps.rest[home] - part).norm()) <= 1e-4 * float(part.norm())
            keep.append(not alone and (home is not None or abs(place) > self.reach))
            if home is not None and not alone:
                jumps.rest[home] -= part
                jumps.offset_error[home] = 10 * self.tolerance.jump
        self._parts, self._places = self._parts[keep], self._places[keep]
        return replace(jumps, parts=self._parts, places=self._places)

    def _decompose(self, copy: NetworkEstimate) -> bool:
        """Read single neurons off the residuals at the hold-out points; True if there were any."""
        residual = torch.einsum("k,nke->ne", self._mix[0], affine_maps(self.holdout.minus(copy)))
        rank = int((torch.linalg.svdvals(residual) > 4 * self.tolerance.jump).sum())
        size = float(residual.norm())
        self._futile = 0 if size < 0.99 * self._least else self._futile + 1
        self._least = min(size, self._least)
        if 4 * rank > min(residual.shape) or self._futile > PATIENCE:  # too much is mixed up to tell neurons apart
            return False
        decomposition = ResidualDecomposition(self.holdout, self.jumps(), copy, self._mix[0], self.tolerance)
        if not decomposition.run():
            return False
        self._parts = torch.stack([jump for jump, _ in decomposition.parts])
        self._places = torch.tensor([place for _, place in decomposition.parts], dtype=torch.float64)
        return True

    # -- where to ask next --------------------------------------------------------------------------------------------

    def suspects(self, rest: LocalMaps, wrong: Tensor) -> Tensor:
        """Intervals that probably hold several kinks, the most suspect first."""
        candidates = self.search.open.nonzero().flatten()
        if not len(candidates):
            return candidates
        jumps = self._jumps(candidates)  # [m, r, d + 1]
        if jumps.shape[1] > 1:
            several = rank_gap(jumps) > RANK_ONE
            if bool(several.any()):
                return candidates[several]
        residual = torch.einsum("k,nke->ne", self._mix[0], affine_maps(rest)[wrong])
        share, rank = span_share(jumps[:, 0], residual, self.tolerance.jump)
        by_chance = rank / residual.shape[1]
        if by_chance > 0.5:  # the residuals span nearly everything: judge by how much of an interval is unknown
            return candidates[:0]
        complete = rank < 0.8 * len(residual)
        if not complete and KINKS_PER_HOLDOUT_POINT * len(self.holdout) < int((~self.search.empty).sum()):
            self._more_holdout(len(self.holdout))
        floor = 0.99 if complete else max(0.5 * float(share.max()), 2 * by_chance)
        order = torch.argsort(share, descending=True)
        return candidates[order[share[order] > floor]]

    def _doubtful(self) -> Tensor:
        """Open intervals of which most is unknown."""
        candidates = self.search.open.nonzero().flatten()
        order = torch.argsort(self.search.doubtful[candidates], descending=True)
        return candidates[order[: max(8, len(order) // 2)]]

    def _spread_out(self) -> bool:
        """Add hold-out points along a line, whose neighbours differ by few neurons; False if they would be too many."""
        count = len(self.holdout) // 2
        if 2 * (count + len(self.holdout)) > int((~self.search.empty).sum()):
            return False
        origin, direction = torch.randn(2, self.lines.target.inputs, generator=self._generator, dtype=torch.float64)
        share = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        t = torch.tan(torch.pi * (share - 0.5))
        self._ask(origin + t[:, None] * direction)
        return True

    def _more_holdout(self, count: int) -> None:
        self._ask(torch.randn(count, self.lines.target.inputs, generator=self._generator, dtype=torch.float64))

    def _ask(self, X: Tensor) -> None:
        target, old = self.lines.target, self.holdout
        X = X[: target.room(len(X))]
        value, gradient = target.maps(X)
        self.holdout = LocalMaps(
            torch.cat([old.X, X]), torch.cat([old.value, value]), torch.cat([old.gradient, gradient])
        )

    def _jumps(self, intervals: Tensor) -> Tensor:
        """Jumps of the affine map [m, r, d + 1], of r random mixtures of the outputs."""
        left, right = self.search.left[intervals], self.search.right[intervals]
        return torch.einsum("rk,mke->mre", self._mix, self._maps(right) - self._maps(left))

    def _maps(self, index: Tensor) -> Tensor:
        """Affine maps of the line's samples [m, k, d + 1]."""
        samples = self.search.samples
        assert samples.gradient is not None
        known = len(self._constant)
        if known < len(samples):
            X = self.lines.at(samples.line[known:], samples.t[known:])
            new = LocalMaps(X, samples.value[known:], samples.gradient[known:])
            self._constant = torch.cat([self._constant, new.constant])
        return torch.cat([samples.gradient[index], self._constant[index][:, :, None]], dim=2)


def line_copy(lines: SampleLines, search: KinkSearch, tolerance: Tolerance) -> NetworkEstimate:
    """The copy that a finished search along one line implies."""
    maps, _ = _line_maps(lines, search, 0)
    return replace(line_neurons(lines, search, 0, tolerance), P=maps[0, :, :-1], q=maps[0, :, -1])


def line_neurons(lines: SampleLines, search: KinkSearch, line: int, tolerance: Tolerance) -> NetworkEstimate:
    """The neurons that one of the lines crosses, each turned to switch on along it."""
    maps, t = _line_maps(lines, search, line)
    jumps = maps.diff(dim=0)
    offset_error = _offset_error(t, tolerance)
    return neurons_from_jumps(jumps[:, :, :-1], jumps[:, :, -1], lines.directions[line], tolerance.jump, offset_error)


def _line_maps(lines: SampleLines, search: KinkSearch, line: int) -> tuple[Tensor, Tensor]:
    """Affine maps of a line's cells [m, k, d + 1], and the places on the line where they were asked [m]."""
    cells, _ = search.cells()[line]
    samples = search.samples
    assert samples.gradient is not None
    t = samples.t[cells]
    return affine_maps(LocalMaps(lines.at(samples.line[cells], t), samples.value[cells], samples.gradient[cells])), t


def _offset_error(t: Tensor, tolerance: Tolerance) -> Tensor:
    """The error of the jumps' constants, between cells that were asked at these places."""
    error = tolerance.of_value(t)
    return error[1:] + error[:-1]


def wrong_rows(rest: LocalMaps, tolerance: Tolerance) -> Tensor:
    """Rows [n] where a residual is more than rounding."""
    bent: Tensor = rest.gradient.flatten(1).norm(dim=1) > 4 * tolerance.jump
    return bent | (rest.value.abs().amax(dim=1) > 64 * tolerance.value + 4 * tolerance.jump)


def rank_gap(jumps: Tensor) -> Tensor:
    """Second singular value over the first, of each [r, e] matrix."""
    values: Tensor = torch.linalg.eigvalsh(jumps @ jumps.transpose(1, 2)).clamp_min(0)
    return (values[:, -2] / values[:, -1].clamp_min(torch.finfo(torch.float64).tiny)).sqrt()


def span_share(vectors: Tensor, rows: Tensor, noise: float) -> tuple[Tensor, int]:
    """How much (0 to 1) of each vector's squared length lies in the span of the rows, and that span's dimension."""
    tall = len(rows) > rows.shape[1]
    values, vectors_of = torch.linalg.eigh(rows.T @ rows if tall else rows @ rows.T)
    large = values > max(1e-14 * float(values[-1]), (4 * noise) ** 2)
    basis = vectors_of[:, large].T if tall else (vectors_of[:, large] / values[large].sqrt()).T @ rows  # orthonormal
    inside = (vectors @ basis.T).square().sum(dim=1)
    return inside / vectors.square().sum(dim=1).clamp_min(torch.finfo(torch.float64).tiny), len(basis)
