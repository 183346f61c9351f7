"""Where an exact attack asks: in coordinates in which inputs are N(0, I), and of logits.

The attacks are written for inputs around N(0, I) and for piecewise-linear answers. A target that takes inputs in units
of its own is asked through ``RegionOracle``: x = center + scale * u, column by column, and the copy's weights are
changed back at the end. A target that shows probabilities is asked through ``LogitOracle``; if its probabilities round
to 0 or 1 on typical inputs, the coordinates are moved to where they do not. ``Recorder`` keeps every answer of a run,
so that a copy is compared with all of them before it is called exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core.errors import UnsupportedModel
from divulge.extraction.relu_network import NetworkEstimate
from divulge.extraction.result import Extraction
from divulge.models import MLP, ReluNetwork
from divulge.oracles.base import Oracle
from divulge.oracles.guards.base import Guard
from divulge.oracles.ledger import Spent
from divulge.oracles.outputs import (
    LogitOracle,
    Outputs,
    checked_outputs,
    coarse_class,
    logit_span,
    output_layer,
    outputs_shown,
)
from divulge.oracles.region import Region, RegionOracle

KEPT_NUMBERS = 2**25
"""Most numbers of a run's rows and answers that are kept, 256 MB; of longer runs a random part of the rows is kept."""
LARGEST, SMALLEST = 1e100, 1e-100
"""Answers beyond this size, or all below it, are refused: squares of them leave the range of float64."""
TYPICAL_ROWS = 8
"""Rows asked to find how probabilities are computed, and where they do not round to 0 or 1."""
LEAST_PRECISE = 0.25
"""Share of typical inputs with precise logits from which on an attack that can leave out the others asks there."""
FARTHER = (3.0, 10.0, 30.0, 100.0)
"""Where another decision is looked for, in lengths of a typical input, if typical ones all round to the same."""
HALVINGS = 40
MOST_CURVED = 0.29
"""How far from one half a sigmoid is most curved."""
WIDEST, SCALES, PARABOLA = 1e-3, 6, (9.0, 28.0)
"""A single output is taken for a probability if it bends like a parabola: four times shorter steps bend it 16 times
less, twice in a row, on two of three segments. A corner never does: its bends fall about fourfold, and are zero for
steps that do not reach it."""
FARTHEST = 1e6
"""How far out an attack may ask that leaves out what is not precise, in lengths of a typical input."""
NEAREST_REACH, WANTED_REACH = 2.0, 4.0
"""If typical inputs reach fewer than the first number of lengths before probabilities round, the coordinates shrink so
that they reach the second number."""


def checked_size(values: Tensor, largest: float = 0.0) -> float:
    """The size of the largest answer so far; refuse answers whose squares leave the range of float64.

    Parameters
    ----------
    values : Tensor [n, k]
        Answers of the target.
    largest : float, default 0.0
        The size of the largest answer before these.

    Returns
    -------
    float

    Raises
    ------
    UnsupportedModel
        If the largest answer is beyond ``LARGEST`` or below ``SMALLEST`` and not zero.
    """
    low, high = torch.aminmax(values)  # no copy: answers may be many
    largest = max(largest, float(high), -float(low))
    if largest > LARGEST or 0 < largest < SMALLEST:
        raise UnsupportedModel(
            f"The largest answer of the target has the size {largest:.1e}; exact attacks compute with "
            f"answers between {SMALLEST:g} and {LARGEST:g}. Multiply its outputs by a constant."
        )
    return largest


class Recorder(Guard):
    """Passes everything on and keeps the rows asked, with values and gradients, in float64."""

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle)
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._share, self._numbers, self.asked = 1.0, 0, 0
        self._largest = 0.0

    def _value(self, X: Tensor) -> Tensor:
        value = super()._value(X)
        self.keep(X, value)
        return value

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = super()._gradient(X)
        self.keep(X, value)
        checked_size(gradient, self._largest)
        return value, gradient

    def keep(self, X: Tensor, value: Tensor) -> None:
        """Keep rows and their values, which may have been asked elsewhere."""
        self.asked += len(X)
        rows, values = X.cpu().to(torch.float64), value.cpu().to(torch.float64)
        self._largest = checked_size(values, self._largest)
        while self._numbers + self._share * (rows.numel() + values.numel()) > KEPT_NUMBERS:
            self._thin_out()
        if self._share < 1:
            rows, values = self._part(rows, values, self._share)
        self._kept.append((rows, values))
        self._numbers += rows.numel() + values.numel()

    def _thin_out(self) -> None:
        self._kept = [self._part(rows, values, 0.5) for rows, values in self._kept]
        self._share /= 2
        self._numbers = sum(rows.numel() + values.numel() for rows, values in self._kept)

    def _part(self, rows: Tensor, values: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """A random part of rows and their values."""
        pick = torch.rand(len(rows), generator=self._generator) < share
        return rows[pick], values[pick]

    def answers(self) -> tuple[Tensor, Tensor]:
        """The rows kept [n, d] and their values [n, k]."""
        if not self._kept:
            return torch.zeros(0, self.input_dim).double(), torch.zeros(0, self.output_dim).double()
        self._kept = [(torch.cat([X for X, _ in self._kept]), torch.cat([y for _, y in self._kept]))]
        return self._kept[0]


@dataclass(frozen=True)
class AttackSpace:
    """The oracle that an attack asks, and how to turn its copy back into one of the target."""

    oracle: Recorder
    region: Region
    outputs: Outputs
    reach: float
    """How far out rows may lie, in lengths of a typical input; infinite for logits."""
    before: Spent
    """What the target's ledger showed before the attack."""
    claimed: Region | None = None
    """The inputs that the copy is claimed for, where the attack asks closer to a decision boundary than that."""
    selects: bool = False
    """Whether the attack leaves out rows whose logits are not precise, so that it may ask typical inputs."""

    def typical(self, U: Tensor) -> Tensor:
        """Rows N(0, I) [n, d] as typical inputs of the claim, in the attack's coordinates."""
        return U if self.claimed is None else self.region.standardised(self.claimed.to_inputs(U))

    @property
    def spent(self) -> Spent:
        return self.oracle.ledger.snapshot() - self.before

    def differences(self, truth: Tensor, copy: Tensor) -> Tensor:
        """Largest absolute difference in each row [n]: of logits, or of probabilities where these round to 0 or 1."""
        off = (truth - copy).abs().amax(dim=1)
        if self.outputs == "logits":
            return off
        layer = output_layer("probabilities", truth.shape[1])
        assert layer is not None
        shown = (layer(truth) - layer(copy)).abs().amax(dim=1)
        return torch.where(self.precise(truth), off, shown)

    def precise(self, truth: Tensor) -> Tensor:
        """Rows [n] whose logits are known precisely: those of probabilities that round to 0 or 1 are not."""
        logits = self.oracle.oracle
        return logits.precise(truth) if isinstance(logits, LogitOracle) else torch.ones(len(truth), dtype=torch.bool)

    def may_be_probabilities(self, values: Tensor) -> bool:
        """Whether a single output, taken for a logit, stays within [0, 1] and is curved there: a probability."""
        if self.outputs != "logits" or values.shape[1] > 1:
            return False
        if not bool(((values >= 0) & (values <= 1)).all()) or bool((values == values[0]).all()):
            return False
        rows, seen = self.oracle.answers()
        nearest = rows[int(((seen[:, 0] - 0.5).abs() - MOST_CURVED).abs().argmin())]
        generator = torch.Generator().manual_seed(0)
        wide = WIDEST * (self.oracle.eps / torch.finfo(torch.float64).eps) ** 0.25
        along = wide * torch.randn(3, 1, self.oracle.input_dim, generator=generator, dtype=torch.float64)
        scale = torch.tensor([0.0, *(sign * 4.0**-j for sign in (1.0, -1.0) for j in range(SCALES))]).double()
        y = self.oracle.value((nearest + scale[:, None] * along).flatten(0, 1)).to(torch.float64).reshape(3, -1)
        bend = (y[:, 1 : SCALES + 1] - 2 * y[:, :1] + y[:, SCALES + 1 :]).abs()
        parabola = (bend[:, :-1] > PARABOLA[0] * bend[:, 1:]) & (bend[:, :-1] < PARABOLA[1] * bend[:, 1:])
        parabola &= bend[:, 1:] > 64 * self.oracle.eps
        return int((parabola[:, 1:] & parabola[:, :-1]).any(dim=1).sum()) >= 2

    def as_probabilities(self, seed: int) -> AttackSpace:
        """The same target, asked for the logit behind its single probability."""
        target = self.oracle.oracle.oracle if isinstance(self.oracle.oracle, RegionOracle) else self.oracle.oracle
        first = Recorder(target, seed)
        U, shown = self.oracle.answers()
        first.keep(self.region.to_inputs(U), shown)
        space = _space(first, self.region, "probabilities", seed, selects=self.selects)
        return replace(space, before=self.before)

    def network(self, estimate: NetworkEstimate) -> NetworkEstimate:
        """An estimate in the attack's coordinates, in the target's own."""
        if self.region.standard:
            return estimate
        A, P = estimate.A / self.region.scale, estimate.P / self.region.scale
        shift = self.region.center
        return replace(estimate, A=A, P=P, b=estimate.b - A @ shift, q=estimate.q - P @ shift)

    def deeper(self, model: nn.Module) -> nn.Module:
        """An MLP or ReluNetwork in the attack's coordinates, in the target's own; it is changed in place."""
        if self.region.standard:
            return model
        with torch.no_grad():
            layers: list[tuple[Tensor, Tensor]] = []
            if isinstance(model, ReluNetwork):
                layers = [(model.A, model.b), (model.P, model.q)]
            if isinstance(model, MLP):
                first = next(layer for layer in model if isinstance(layer, nn.Linear))
                layers = [(first.weight, first.bias)]
            for weight, bias in layers:
                weight.div_(self.region.scale)
                bias.sub_(weight @ self.region.center)
        return model

    def as_shown(self, stolen: Extraction) -> Extraction:
        """The copy with the target's output layer, where the attack asked for the logits behind it."""
        layer = output_layer(self.outputs, self.oracle.output_dim)
        facts = {**stolen.facts, "outputs": self.outputs}
        if layer is None:
            return replace(stolen, facts=facts, region=self.region)
        note = "The target shows probabilities: errors are those of its logits"
        note += "." if self.oracle.output_dim == 1 else ", which are known up to a shared number."
        model = nn.Sequential(stolen.model, layer).eval()
        model.input_shape = stolen.model.input_shape
        return replace(stolen, model=model, notes=(*stolen.notes, note), facts=facts, region=self.region)


def attack_space(
    oracle: Oracle, *, inputs: Any = None, outputs: Outputs | None = None, seed: int = 0, selects: bool = False
) -> AttackSpace:
    """The space for an exact attack on ``oracle``.

    ``inputs`` are rows like the target's data, or None for N(0, I). ``outputs`` is what the target shows; None asks two
    rows of a target with several outputs to find out. An attack that ``selects`` uses precise logits only.
    """
    checked_outputs(outputs)
    before = oracle.ledger.snapshot()
    region, first = Region.of(inputs, oracle), Recorder(oracle, seed)
    if outputs is None:
        outputs = "probabilities" if oracle.threshold > 0 else "logits"
        if oracle.output_dim > 1:
            rows = torch.randn(2, oracle.input_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            outputs = outputs_shown(region.oracle(first).value(rows).to(torch.float64), oracle.threshold)
    return replace(_space(first, region, outputs, seed, selects=selects), before=before)


def _space(first: Recorder, region: Region, outputs: Outputs, seed: int, *, selects: bool) -> AttackSpace:
    """The space of a target that was asked through ``first`` so far: a copy must explain these rows too."""
    oracle, before = first.oracle, first.ledger.snapshot()
    if outputs == "logits":
        recorder = _going_on(first, region, None, seed)
        return AttackSpace(recorder, region, outputs, math.inf, before, selects=selects)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(TYPICAL_ROWS, oracle.input_dim, generator=generator, dtype=torch.float64)
    inner = region.oracle(first)
    shown = inner.value(rows)
    logits = LogitOracle(inner, outputs, coarse=coarse_class(shown) if outputs == "probabilities" else "none")
    z = logits.logits_of(shown).to(torch.float64)
    share, span = float(logits.precise(z).double().mean()), logit_span(z)
    if selects and share >= LEAST_PRECISE:
        return AttackSpace(_going_on(first, region, logits, seed), region, outputs, FARTHEST, before, selects=True)
    reach = logits.largest_logit / max(span, 1e-3)
    claimed = None
    if reach < NEAREST_REACH:
        claimed = region
        region = _unsaturated(logits, region, rows, z, generator)
        logits = LogitOracle(region.oracle(first), outputs, coarse=logits.coarse)
        reach = logits.reach(generator)
    return AttackSpace(_going_on(first, region, logits, seed), region, outputs, reach, before, claimed, selects)


def _going_on(first: Recorder, region: Region, logits: LogitOracle | None, seed: int) -> Recorder:
    """A recorder in the coordinates of a region, and of logits if the target shows others, that knows earlier rows."""
    inner = region.oracle(first.oracle)
    if logits is not None:
        inner = LogitOracle(inner, logits.outputs, coarse=logits.coarse)
    recorder = Recorder(inner, seed)
    rows, shown = first.answers()
    if len(rows):
        recorder.keep(region.standardised(rows), shown if logits is None else logits.logits_of(shown.to(logits.dtype)))
    return recorder


def _unsaturated(logits: LogitOracle, region: Region, rows: Tensor, z: Tensor, generator: torch.Generator) -> Region:
    """A region whose typical probabilities are precise: around a point where two classes are equally likely."""
    span = 2 * z.abs()[:, 0] if z.shape[1] == 1 else z.amax(dim=1) - z.amin(dim=1)
    for distance in FARTHER:
        if float(span.min()) <= 0.5 * logits.largest_logit or bool((_decisions(z) != _decisions(z[:1])).any()):
            break
        more = distance * torch.randn(rows.shape, generator=generator, dtype=torch.float64)
        rows, z = torch.cat([rows, more]), torch.cat([z, logits.value(more).to(torch.float64)])
        span = 2 * z.abs()[:, 0] if z.shape[1] == 1 else z.amax(dim=1) - z.amin(dim=1)
    center, label = rows[int(span.argmin())], _decisions(z)
    if float(span.min()) > 0.5 * logits.largest_logit and bool((label != label[0]).any()):
        one, other = rows[0], rows[int((label != label[0]).nonzero()[0])]
        center = _boundary(logits, one, other, int(label[0]))
    near = LogitOracle(RegionOracle(logits.oracle, Region(center, torch.ones_like(center))), logits.outputs,
                       coarse=logits.coarse)  # fmt: skip
    return region.moved(center, min(1.0, near.reach(generator) / WANTED_REACH))


def _decisions(z: Tensor) -> Tensor:
    """The classes [n] that logits [n, k] mean."""
    return (z[:, 0] > 0).long() if z.shape[1] == 1 else z.argmax(dim=1)


def _boundary(logits: LogitOracle, one: Tensor, other: Tensor, label: int) -> Tensor:
    """A point on the decision boundary between two rows, by bisection; it stops where logits are moderate."""
    for _ in range(HALVINGS):
        middle = (one + other) / 2
        z = logits.value(middle[None]).to(torch.float64)
        if logit_span(z) < 0.2 * logits.largest_logit:
            return middle
        here = int(_decisions(z)[0])
        one, other = (middle, other) if here == label else (one, middle)
    return (one + other) / 2
