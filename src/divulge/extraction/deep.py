"""Two hidden layers from gradients: f(x) = W3 relu(W2 relu(W1 x + b1) + b2) + b3, where W1's rows are independent.

1. Along a few random lines every kink is found. A first-layer hyperplane goes on everywhere; a second-layer one bends
   at every first-layer one. So a candidate is asked again at random points of its hyperplane: only the first layer's
   jump there, along the same normal.
2. All gradients are combinations of first-layer rows, and a row has no part in the gradient where its neuron is off:
   that tells which side of each hyperplane is the active one.
3. With linearly independent rows every vector u > 0 of first-layer activations is reached by some input, where all
   first-layer neurons are on. Seen from there the target is a *one*-hidden-layer network g(u), and each of its kinks
   shows a complete row of W2, none of its entries hidden by a neuron that is off. A path over all the corners of that
   cone, and rays out to them, cross the second-layer hyperplanes that meet it.
4. f(x) = g(relu(W1 x + b1)) everywhere, because activations never leave the cone.

Only a copy that agrees on fresh points is certified as exact.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from divulge.errors import DivulgeError, InvalidInput
from divulge.extraction import diagnosis
from divulge.extraction.affine import Answers, SampleLines, Target, quality
from divulge.extraction.explore import line_neurons
from divulge.extraction.kinks import KinkSearch, Samples
from divulge.extraction.network import Copy, Neurons
from divulge.extraction.result import Extraction
from divulge.extraction.verification import spread
from divulge.models import MLP
from divulge.oracles.base import Oracle, at_the_door
from divulge.progress import report

EXACT = 1e-9
LINES = 2
MORE_LINES = 4
TRIALS = 4
CONFIRMATIONS = 6
SAME = 1e-6
"""Hyperplanes nearer to each other than this are one."""
FAR = 100.0
"""How far out, in activations, the corners of the cone are visited."""


def deep_from_gradients(oracle: Oracle, *, seed: int = 0, checks: int = 1000) -> Extraction:
    """Rebuild a network of two hidden ReLU layers from its gradients, and certify it on ``checks`` fresh rows."""
    seed = at_the_door(oracle, seed)
    if checks < 16:
        raise InvalidInput(f"At least 16 fresh rows are needed to certify a copy; got checks={checks}.")
    run = _Run(oracle, seed, checks)
    try:
        reason = run.result()
    except DivulgeError as error:
        error.partial = run.gathered(str(error))
        raise
    return run.gathered(reason)


class _Run:
    def __init__(self, oracle: Oracle, seed: int, checks: int) -> None:
        self.oracle, self.seed, self.checks = oracle, seed, checks
        self.began, self.spent = time.perf_counter(), oracle.ledger.snapshot()
        self.target = Target(oracle)
        self.generator = torch.Generator().manual_seed(seed)
        self.first = Neurons.none(oracle.input_dim, oracle.output_dim)  # hyperplanes known to be the first layer's
        self.second: Copy | None = None  # g, as a function of the first layer's activations
        self.worst, self.scale, self.points = float("inf"), 1.0, 0
        self.gradients: list[Answers] = []

    def result(self) -> str:
        """Do it all; the reason why the copy is not exact, or nothing."""
        X = self._normal(3)
        value, gradient = self.target.maps(torch.cat([X, X[:1]]))
        answers = Answers(X, value[:3], gradient[:3])
        self.quality = quality(self.oracle, answers, (value[3], gradient[3]))
        self.tolerance = self.quality.tolerance(self.target.inputs)
        self.scale = spread(answers.value)
        self.gradients.append(answers)
        if self.quality.coarse:
            return f"Two layers need precise answers: {self.quality.describe()}."
        kind = diagnosis.smooth(self.target, self.tolerance, self.quality.eps, self.quality.reach, self.generator)
        if kind is not None:
            return f"The target is not piecewise linear: it is curved everywhere, as a network of {kind} units is."
        reason = self._first_layer()
        if reason:
            return reason
        self._second_layer()
        return self._certify()

    # -- the first layer ----------------------------------------------------------------------------------------------

    def _first_layer(self) -> str:
        """Hyperplanes until they account for all gradients, and their active sides; a reason if that is not reached."""
        reason = ""
        for lines in (LINES, *[1] * MORE_LINES):
            self._search_lines(lines)
            rows = torch.cat([part.gradient for part in self.gradients]).flatten(0, 1)
            size = torch.linalg.svdvals(rows)
            rank = int((size > 1e-8 * float(size[0])).sum()) if float(size[0]) > 0 else 0
            report("first layer", len(self.first), rank, neurons=len(self.first), queries=self.oracle.ledger.total)
            reason = self._orient()
            if reason:
                self._confirm()
                reason = self._orient()
            if not reason and len(self.first) >= rank:
                return ""
        return reason or (
            f"The first layer was not found completely: {len(self.first)} hyperplanes do not account for gradients in "
            f"{rank} dimensions."
        )

    def _confirm(self) -> None:
        """Keep independent hyperplanes, those first that are kinks at most of their points.

        Pieces of the second layer's hyperplanes are kinks at few, and are combinations of the others.
        """
        first = self.first
        share = torch.stack([self._jumps_at(first, 2.0 ** (trial - 2)) for trial in range(CONFIRMATIONS)])
        share = share.to(torch.float64).mean(dim=0)
        basis = torch.zeros(0, self.target.inputs, dtype=torch.float64)
        kept = []
        for index in share.argsort(descending=True, stable=True).tolist():
            rest = first.normal[index] - (first.normal[index] @ basis.T) @ basis
            if float(rest.norm()) > 1e-6 and float(share[index]) > 0.25:
                kept.append(index)
                basis = torch.cat([basis, rest[None] / rest.norm()])
        self.first = first.keep(torch.tensor(sorted(kept), dtype=torch.long))

    def _search_lines(self, count: int) -> None:
        nothing = Copy.nothing(self.target.inputs, self.target.outputs)
        origins, directions = self._normal(count), self._normal(count)
        lines = SampleLines(self.target, nothing, origins, directions)
        reach = self.quality.reach
        search = KinkSearch(lines, torch.tensor([[-reach, 0.0, reach]] * count, dtype=torch.float64), self.tolerance)
        search.run()
        samples = search.samples
        assert samples.gradient is not None
        self.gradients.append(Answers(lines.at(samples.line, samples.t), samples.value, samples.gradient))
        candidates = Neurons.none(self.target.inputs, self.target.outputs)
        for line in range(count):
            candidates = candidates.and_also(line_neurons(lines, search, line, self.tolerance))
        self.first = self.first.and_also(self._go_on(candidates.distinct(SAME))).distinct(SAME)

    def _go_on(self, candidates: Neurons) -> Neurons:
        """Those candidates whose hyperplane is a kink somewhere else too."""
        kept = torch.zeros(len(candidates), dtype=torch.bool)
        for trial in range(TRIALS):
            index = (~kept).nonzero().flatten()
            if len(index):
                kept[index] = self._jumps_at(candidates.keep(index), 2.0 ** (trial - 1))
        return candidates.keep(kept)

    def _jumps_at(self, hyperplanes: Neurons, distance: float) -> Tensor:
        """Whether each is a kink, with a jump along its normal, at a random point of it [m]."""
        count, normal = len(hyperplanes), hyperplanes.normal
        X = self._normal(count) * distance
        X = X - ((X * normal).sum(dim=1) + hyperplanes.offset)[:, None] * normal
        step = 1e-6 * (1 + X.norm(dim=1, keepdim=True) / self.target.inputs**0.5) * normal
        both = torch.cat([X + step, X - step])
        value, gradient = self.target.maps(both)
        self.gradients.append(Answers(both, value, gradient))
        jump = gradient[:count] - gradient[count:]
        along = torch.einsum("mkd,md->mk", jump, normal)
        across = (jump - along[:, :, None] * normal[:, None, :]).flatten(1).norm(dim=1)
        size = along.norm(dim=1)
        kink: Tensor = (size > 4 * self.tolerance.jump) & (across <= 1e-5 * size + 4 * self.tolerance.jump)
        return kink

    def _orient(self) -> str:
        """Turn every first-layer neuron so that it is on where its row takes part in gradients."""
        if not len(self.first):
            return ""
        if len(self.first) > self.target.inputs:
            return (
                f"The first layer has {len(self.first)} neurons, more than the {self.target.inputs} inputs: some "
                "patterns of activations cannot be reached."
            )
        if float(torch.linalg.svdvals(self.first.normal)[-1]) < 1e-6:
            return "The first layer's rows are linearly dependent: some patterns of activations cannot be reached."
        X = torch.cat([part.X for part in self.gradients])
        gradient = torch.cat([part.gradient for part in self.gradients])
        share = torch.einsum("nkd,dh->nkh", gradient, torch.linalg.pinv(self.first.normal)).norm(dim=1)  # [n, h]
        before = X @ self.first.normal.T + self.first.offset
        clear = before.abs() > 1e-7 * (1 + X.norm(dim=1, keepdim=True))
        nothing = torch.zeros_like(share)
        on = torch.where((before > 0) & clear, share, nothing).amax(dim=0)
        off = torch.where((before < 0) & clear, share, nothing).amax(dim=0)
        if bool((torch.minimum(on, off) > 1e-5 * torch.maximum(on, off)).any()):
            return (
                "The first layer was not found completely: some of its rows take part in gradients on both sides of "
                "their hyperplanes. The target may have more than two hidden layers, or units other than ReLU."
            )
        sign = torch.where(on >= off, 1.0, -1.0).to(share)
        first = self.first
        self.first = Neurons(first.normal * sign[:, None], first.offset * sign, first.weight * sign, first.doubt)
        return ""

    # -- the second layer ---------------------------------------------------------------------------------------------

    def _second_layer(self) -> None:
        """g(u) from segments inside the cone of activations: from corner to corner, and from near the origin out."""
        width = len(self.first)
        report("second layer", 0, None, neurons=width, queries=self.oracle.ledger.total)
        base = 0.05 + 0.1 * torch.rand(2 * max(width, 1), width, generator=self.generator, dtype=torch.float64)
        corners = base[:width] + FAR * torch.eye(width, dtype=torch.float64)
        begin = torch.cat([corners[:-1], base[width:]])
        end = torch.cat([corners[1:], corners]) if width else base
        lines = _Activations(self.target, self.first, begin, end - begin)
        start = torch.tensor([[0.0, 0.003, 0.05, 0.5, 1.0]] * len(begin), dtype=torch.float64)
        search = KinkSearch(lines, start, self.tolerance, spread=0.1)
        search.run()
        samples = search.samples
        assert samples.gradient is not None
        neurons = Neurons.none(width, self.target.outputs)
        for line in range(len(begin)):
            neurons = neurons.and_also(line_neurons(lines, search, line, self.tolerance))
        neurons = neurons.distinct(SAME)
        nothing = Copy.nothing(width, self.target.outputs)
        found = Copy(nothing.slope, nothing.constant, neurons)
        here = Answers(lines.at(samples.line[:1], samples.t[:1]), samples.value[:1], samples.gradient[:1])
        rest = here.minus(found)
        self.second = Copy(rest.gradient[0], rest.constant[0], neurons)

    def _certify(self) -> str:
        X = self.target.stored(self._normal(max(16, self.target.room(self.checks))))
        truth = self.target.values(X)
        self.worst = float((truth - self._value(X)).abs().max())
        self.scale, self.points = spread(truth), len(X)
        if self.worst <= EXACT * self.scale:
            return ""
        return (
            f"The copy is off by up to {self.worst / self.scale:.1e} of the output's standard deviation on fresh "
            "points: a neuron was missed, or the target is not a ReLU network of two hidden layers."
        )

    def _value(self, X: Tensor) -> Tensor:
        assert self.second is not None
        return self.second.value(torch.relu(X @ self.first.normal.T + self.first.offset))

    def _normal(self, count: int) -> Tensor:
        return torch.randn(count, self.target.inputs, generator=self.generator, dtype=torch.float64)

    def gathered(self, reason: str) -> Extraction:
        second = self.second or Copy.nothing(len(self.first), self.target.outputs)
        return Extraction(
            model=_as_mlp(self.first, second),
            width=len(self.first) + second.width,
            exact=not reason,
            worst_error=self.worst,
            scale=self.scale,
            ledger=self.oracle.ledger.snapshot() - self.spent,
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            method="deep",
            reason=reason,
            verified_points=self.points,
            facts={"widths": [len(self.first), second.width]},
        )


class _Activations(SampleLines):
    """Segments in the space of first-layer activations: the target there, as a function of them."""

    def __init__(self, target: Target, first: Neurons, begin: Tensor, along: Tensor) -> None:
        super().__init__(target, Copy.nothing(target.inputs, target.outputs), begin, along)
        self.offset, self.inverse = first.offset, torch.linalg.pinv(first.normal)  # [h], [d, h]

    def __call__(self, line: Tensor, t: Tensor) -> Samples:
        value, gradient = self.target.maps((self.at(line, t) - self.offset) @ self.inverse.T)
        inner = gradient @ self.inverse  # [n, k, h]
        return Samples(line, t, value, torch.einsum("nkh,nh->nk", inner, self.directions[line]), inner)


def _as_mlp(first: Neurons, second: Copy) -> nn.Module:
    """Both layers as one MLP. What g has besides its neurons is undone by turning neurons round, if that is what it is,
    since relu(z) = relu(-z) + z; else two more neurons for each output carry it."""
    neurons, slope, constant = second.neurons, second.slope, second.constant
    terms = neurons.weight[:, :, None] * neurons.normal  # [k, h2, h1]
    flips = torch.zeros(second.width, dtype=torch.float64)
    if second.width:
        system = terms.permute(0, 2, 1).reshape(-1, second.width)
        flips = torch.linalg.lstsq(system, -slope.flatten()[:, None], driver="gelsd").solution[:, 0].round().clamp(0, 1)
    left = slope + torch.einsum("j,kjh->kh", flips, terms)
    sign = 1 - 2 * flips
    rows, offsets, weight = neurons.normal * sign[:, None], neurons.offset * sign, neurons.weight
    constant = constant + (neurons.weight * neurons.offset) @ flips
    if float(left.norm()) > 1e-9 * float(slope.norm() + terms.norm()):
        straight = torch.eye(len(left), dtype=left.dtype)
        rows, offsets = torch.cat([rows, left, -left]), torch.cat([offsets, torch.zeros(2 * len(left)).to(offsets)])
        weight = torch.cat([weight, straight, -straight], dim=1)
    if not len(rows):  # nothing but a constant is left
        return replace(Copy.nothing(first.normal.shape[1], len(constant)), constant=constant).model()
    model = MLP([first.normal.shape[1], len(first), len(rows), len(constant)]).to(torch.float64)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer, (A, b) in zip(
            layers, ((first.normal, first.offset), (rows, offsets), (weight, constant)), strict=True
        ):
            layer.weight.copy_(A)
            layer.bias.copy_(b)
    return model.eval()
