"""The first line: most neurons, at fewer queries than one check for each.

A check from just beside every predicted kink would cost a query a neuron. Instead a few *witnesses*, points off the
line whose affine maps are asked once, watch all predictions at the same time: as long as an interval's jump is really
the sum of several neurons, the copy is wrong at about half of the witnesses, and it is wrong by those very neurons. So
the intervals that still need splitting are those whose jump lies in the span of the witnesses' residuals (with several
outputs they also show by themselves: the jump of one neuron has rank one). When no residual is left, all is found.
"""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.extraction.affine import Answers, SampleLines
from divulge.extraction.kinks import KinkSearch, Tolerance
from divulge.extraction.network import Copy, from_jumps
from divulge.progress import report

ROUNDS = 400
RANK_ONE = 1e-6
OUTPUTS_COMPARED = 8


class Exploration:
    """A line under search, the copy that its cells imply, and the witnesses that judge it."""

    def __init__(self, lines: SampleLines, search: KinkSearch, witnesses: Answers, tolerance: Tolerance) -> None:
        self.lines, self.search, self.witnesses, self.tolerance = lines, search, witnesses, tolerance
        outputs = witnesses.value.shape[1]
        generator = torch.Generator().manual_seed(0)
        self._mix = torch.randn(min(outputs, OUTPUTS_COMPARED), outputs, generator=generator, dtype=torch.float64)

    def copy(self) -> Copy:
        """The copy that the cells on the line imply, taking every jump for one neuron."""
        ((cells, _),) = self.search.cells()
        here = self._answers(cells)
        constant = here.constant
        neurons, _ = from_jumps(
            here.gradient.diff(dim=0), constant.diff(dim=0), self.lines.directions[0], self.tolerance.jump
        )
        return Copy(here.gradient[0], constant[0], neurons)

    def run(self) -> Copy:
        """Split what is suspect until the witnesses are content or nothing is suspect any more."""
        copy = self.copy()
        for _ in range(ROUNDS):
            rest = self.witnesses.minus(copy)
            wrong = wrong_rows(rest, self.tolerance)
            ledger = self.lines.target.oracle.ledger
            report("finding kinks", copy.width, None, neurons=copy.width, queries=ledger.total,
                   worst=f"{float(rest.value.abs().max()):.1e}")  # fmt: skip
            if not bool(wrong.any()):
                break
            chosen = self.suspects(rest, wrong)
            if not len(chosen):
                break
            self.search.refine(chosen[: self.lines.target.room(len(chosen))])
            copy = self.copy()
        return copy

    def suspects(self, rest: Answers, wrong: Tensor) -> Tensor:
        """Intervals that probably hold several kinks, the most suspect first."""
        candidates = self.search.open.nonzero().flatten()
        if not len(candidates):
            return candidates
        jumps = self._jumps(candidates)  # [m, r, d + 1]
        if jumps.shape[1] > 1:
            several = rank_gap(jumps) > RANK_ONE
            if bool(several.any()):
                return candidates[several]
        residual = torch.cat([rest.gradient, rest.constant[:, :, None]], dim=2)[wrong]
        residual = torch.einsum("k,nke->ne", self._mix[0], residual)
        share, rank = span_share(jumps[:, 0], residual)
        by_chance = rank / residual.shape[1]
        if by_chance > 0.5:  # the residuals span nearly everything: judge by how much of an interval is unknown
            doubt = self.search.doubtful[candidates]
            order = torch.argsort(doubt, descending=True)
            return candidates[order[: max(8, len(order) // 2)]]
        complete = rank < 0.8 * len(residual)
        floor = 0.99 if complete else max(0.5 * float(share.max()), 2 * by_chance)
        order = torch.argsort(share, descending=True)
        return candidates[order[share[order] > floor]]

    def _jumps(self, intervals: Tensor) -> Tensor:
        """Jumps of the affine map [m, r, d + 1], of r random mixtures of the outputs."""
        left, right = self._mixed(self.search.left[intervals]), self._mixed(self.search.right[intervals])
        return right - left

    def _mixed(self, index: Tensor) -> Tensor:
        here = self._answers(index)
        gradient = torch.einsum("rk,nkd->nrd", self._mix, here.gradient)
        return torch.cat([gradient, (here.constant @ self._mix.T)[:, :, None]], dim=2)

    def _answers(self, index: Tensor) -> Answers:
        samples = self.search.samples
        assert samples.gradient is not None
        X = self.lines.at(samples.line[index], samples.t[index])
        return Answers(X, samples.value[index], samples.gradient[index])


def wrong_rows(rest: Answers, tolerance: Tolerance) -> Tensor:
    """Rows [n] where a residual is more than rounding."""
    bent: Tensor = rest.gradient.flatten(1).norm(dim=1) > 4 * tolerance.jump
    return bent | (rest.value.abs().amax(dim=1) > 64 * tolerance.value + 4 * tolerance.jump)


def rank_gap(jumps: Tensor) -> Tensor:
    """Second singular value over the first, of each [r, e] matrix."""
    values: Tensor = torch.linalg.eigvalsh(jumps @ jumps.transpose(1, 2)).clamp_min(0)
    return (values[:, -2] / values[:, -1].clamp_min(torch.finfo(torch.float64).tiny)).sqrt()


def span_share(vectors: Tensor, rows: Tensor) -> tuple[Tensor, int]:
    """How much (0 to 1) of each vector's squared length lies in the span of the rows, and that span's dimension."""
    _, values, basis = torch.linalg.svd(rows, full_matrices=False)
    basis = basis[values > 1e-8 * values[0]]
    inside = (vectors @ basis.T).square().sum(dim=1)
    return inside / vectors.square().sum(dim=1).clamp_min(torch.finfo(torch.float64).tiny), len(basis)
