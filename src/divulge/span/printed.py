"""Algorithm 2 of Jayaram 2020 as printed, with numbers of any length.

The algorithm moves a boundary point x outwards by e0 and searches the boundary from there along the directions
u_i = 2^-N g_i - x/|x|. All u_i agree to N bits, and so do the distances c_i at which the label flips. The gradient is
in their last bits, and solving y^T B = 1/c amplifies every error by 2^N. We take e0 = 2^-3N, so that curvature affects
only 2^-2N of the result, and find c_i to 2^-6N. This needs numbers of 8 N bits and gives the direction to about 2^-2N,
a quarter of the bits. In float64 (``precision="double"``, points rounded to the oracle's format) that is three digits
at best.

Departures: the printed loop runs k + 1 times and ours k times. The printed constants are O(1) and poly(N), ours are
those above. The threshold is the oracle's (outputs above 0), and the label at the origin may be either one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from divulge.core.errors import AttackFailed, DivulgeError, InvalidInput, MissingPackage, UnsupportedModel
from divulge.core.progress import report
from divulge.core.validation import checked_whole
from divulge.oracles.base import Oracle, decide
from divulge.span.result import Span

Vector = list[Any]
"""mpmath numbers."""
Labels = Callable[[Sequence[Vector]], list[int]]

_RESTARTS = 20


def printed_algorithm(
    oracle: Oracle,
    rank: int | None,
    *,
    precision: Literal["double", "extended"],
    bits: int,
    tries: int,
    seed: int,
) -> Span:
    """Run Algorithm 2 with numbers of ``bits`` bits. ``precision="extended"`` evaluates the network with them too."""
    checked_whole("bits", bits, at_least=32)
    mp = _mpmath(bits if precision == "extended" else max(bits, 128))
    labels = _extended_labels(oracle, mp) if precision == "extended" else _rounded_labels(oracle, mp)
    N = (bits if precision == "extended" else 53) // 8
    run = _Run(oracle, labels, mp, N=N, tries=tries, seed=seed)
    try:
        while len(run.basis) < (rank if rank is not None else oracle.input_dim) and run.step():
            report("Algorithm 2 as printed", len(run.basis), rank, queries=oracle.ledger.total)
    except DivulgeError as error:
        if error.partial is None:
            error.partial = run.finish(rank, precision, bits, error=str(error))
        raise
    result = run.finish(rank, precision, bits)
    if result.rank == 0:
        raise AttackFailed(
            f"The label never changed in {tries:,} tries around the origin: there is no boundary to follow.",
            partial=result,
        )
    return result


class _Run:
    """The directions found so far, and the numbers of one run."""

    def __init__(self, oracle: Oracle, labels: Labels, mp: Any, *, N: int, tries: int, seed: int) -> None:
        self.oracle, self.labels, self.mp, self.N, self.tries, self.seed = oracle, labels, mp, N, tries, seed
        self.dim = oracle.input_dim
        self.generator = torch.Generator().manual_seed(seed)
        self.basis: list[Vector] = []
        self.restarts = 0
        self.started, self.ledger_before = time.perf_counter(), oracle.ledger.snapshot()
        self.origin_label = labels([[mp.mpf(0)] * self.dim])[0]

    def step(self) -> bool:
        """Lines 3 to 10: add one direction. False where no Gaussian point outside the span so far changes the label."""
        for _ in range(_RESTARTS):
            g = self._other_label()
            if g is None:
                return False
            direction = self._direction(g)
            if direction is not None:
                self.basis.append(direction)
                return True
            self.restarts += 1
        return False

    def _other_label(self) -> Vector | None:
        for _ in range(max(1, self.tries // 16)):
            batch = [self._outside(self._gaussian()) for _ in range(16)]
            for g, label in zip(batch, self.labels(batch), strict=True):
                if label != self.origin_label:
                    return g
        return None

    def _direction(self, g: Vector) -> Vector | None:
        """Lines 4 to 9, for a Gaussian point g outside the span so far whose label differs from that of the origin."""
        mp, N = self.mp, self.N
        low, high = mp.mpf(0), mp.mpf(1)
        while high - low > mp.mpf(2) ** (-7 * N):
            middle = (low + high) / 2
            if self.labels([_scaled(g, middle)])[0] == self.origin_label:
                low = middle
            else:
                high = middle
        length = _norm(g, mp)
        unit = _scaled(g, 1 / length)
        e0 = mp.mpf(2) ** (-3 * N)
        x = _sum(_scaled(g, high), _scaled(unit, e0))
        probes = [
            _sum(_scaled(self._outside(self._gaussian()), mp.mpf(2) ** -N), _scaled(unit, mp.mpf(-1)))
            for _ in range(self.dim)
        ]
        return self._solve(x, probes, 2 * e0)

    def _solve(self, x: Vector, probes: list[Vector], reach: Any) -> Vector | None:
        """Find all distances, then solve the linear system. None where a probe never meets the boundary."""
        mp = self.mp
        low, high = [mp.mpf(0)] * len(probes), [reach] * len(probes)
        if any(label != self.origin_label for label in self._at(x, probes, high)):
            return None
        while high[0] - low[0] > mp.mpf(2) ** (-6 * self.N):
            middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
            for i, label in enumerate(self._at(x, probes, middle)):
                if label == self.origin_label:
                    high[i] = middle[i]
                else:
                    low[i] = middle[i]
        distances = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        # the probes are orthogonal to the span so far, so B lacks full rank: add the directions of the span
        rows = [*probes, *self.basis]
        right = [1 / c for c in distances] + [mp.mpf(0)] * len(self.basis)
        try:
            y = list(mp.qr_solve(mp.matrix(rows), mp.matrix(right))[0])
        except ZeroDivisionError:
            return None
        y = self._outside(self._outside(y))
        norm = _norm(y, mp)
        return _scaled(y, 1 / norm) if norm > 0 else None

    def _at(self, x: Vector, probes: list[Vector], distances: list[Any]) -> list[int]:
        return self.labels([_sum(x, _scaled(u, c)) for u, c in zip(probes, distances, strict=True)])

    def _gaussian(self) -> Vector:
        draw = torch.randn(self.dim, generator=self.generator, dtype=torch.float64)
        return [self.mp.mpf(number) for number in draw.tolist()]

    def _outside(self, vector: Vector) -> Vector:
        for direction in self.basis:
            along = self.mp.fdot(zip(vector, direction, strict=True))
            vector = [a - along * b for a, b in zip(vector, direction, strict=True)]
        return vector

    def finish(self, asked: int | None, precision: str, bits: int, error: str = "") -> Span:
        rows = [[float(number) for number in direction] for direction in self.basis]
        basis = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), self.dim)
        notes = [f"Stopped early: {error}"] if error else []
        short = asked is not None and len(rows) < asked
        if short:
            notes.append(f"Asked for rank {asked}, found {len(rows)}.")
        expected = 2.0 ** (-2 * self.N)
        return Span(
            basis=torch.linalg.qr(basis.T).Q.T.contiguous() if rows else basis,
            singular_values=torch.ones(len(rows), dtype=torch.float64),
            gap=1 / expected,
            threshold=expected,
            curve=tuple(range(1, len(rows) + 1)),
            ledger=self.oracle.ledger.snapshot() - self.ledger_before,
            seed=self.seed,
            seconds=time.perf_counter() - self.started,
            method="paper",
            source="labels",
            complete=not error and not short,
            reason=notes[0] if error or short else "",
            notes=tuple(notes),
            facts={"precision": precision, "bits": bits, "N": self.N, "restarts": self.restarts},
        )


# -- labels from the oracle or in extended precision ------------------------------------------------------------------


def _rounded_labels(oracle: Oracle, mp: Any) -> Labels:
    def labels(points: Sequence[Vector]) -> list[int]:
        rows = torch.tensor([[float(number) for number in point] for point in points], dtype=torch.float64)
        return [int(label) for label in oracle.label(rows)]

    return labels


def _extended_labels(oracle: Oracle, mp: Any) -> Labels:
    """Labels of the network evaluated in extended precision, which takes its weights."""
    if not oracle.allows("weights"):
        raise InvalidInput(
            'precision="extended" evaluates the network in software with long numbers, which takes its weights; build '
            'the oracle of a torch network with access="weights".'
        )
    layers = _layers(oracle.weights(), mp)

    def labels(points: Sequence[Vector]) -> list[int]:
        oracle.ledger.charge("label", len(points))
        answers = []
        for point in points:
            activation = point
            for layer in layers:
                activation = layer(activation)
            signs = torch.tensor([[_sign(activation, i) for i in range(len(activation))]], dtype=torch.float64)
            answers.append(int(decide(signs)[0]))
        return answers

    return labels


def _sign(outputs: Vector, i: int) -> float:
    """A float with the decision of the long number: its sign, or whether it is the largest."""
    if len(outputs) == 1:
        return 1.0 if outputs[0] > 0 else -1.0
    return 1.0 if all(outputs[i] >= other for other in outputs) else 0.0


def _layers(module: nn.Module, mp: Any) -> list[Callable[[Vector], Vector]]:
    activations: dict[type, Callable[[Any], Any]] = {
        nn.Tanh: mp.tanh,
        nn.Sigmoid: lambda z: 1 / (1 + mp.exp(-z)),
        nn.Softplus: lambda z: mp.log1p(mp.exp(z)),
        nn.ReLU: lambda z: z if z > 0 else mp.mpf(0),
    }
    if not isinstance(module, nn.Sequential):
        raise UnsupportedModel(f"Extended precision takes an nn.Sequential network, not a {type(module).__name__}.")
    layers: list[Callable[[Vector], Vector]] = []
    for layer in module:
        if isinstance(layer, nn.Linear):
            layers.append(_linear(layer.weight, layer.bias, mp))
        elif type(layer) in activations:
            layers.append(_entrywise(activations[type(layer)]))
        else:
            raise UnsupportedModel(
                f"Extended precision knows linear, tanh, sigmoid, softplus and ReLU layers, not {type(layer).__name__}."
            )
    return layers


def _linear(weight: Tensor, bias: Tensor | None, mp: Any) -> Callable[[Vector], Vector]:
    rows = [[mp.mpf(number) for number in row] for row in weight.detach().double().tolist()]
    shift = [mp.mpf(0)] * len(rows) if bias is None else [mp.mpf(number) for number in bias.detach().double().tolist()]
    return lambda x: [mp.fdot(zip(row, x, strict=True)) + b for row, b in zip(rows, shift, strict=True)]


def _entrywise(function: Callable[[Any], Any]) -> Callable[[Vector], Vector]:
    return lambda x: [function(number) for number in x]


def _mpmath(bits: int) -> Any:
    try:
        from mpmath import MPContext
    except ImportError as error:
        raise MissingPackage(
            "Algorithm 2 as printed needs long numbers, and mpmath is not installed: pip install 'divulge[extended]'."
        ) from error
    context = MPContext()  # its own, so that no other user of mpmath sees this precision
    context.prec = bits
    return context


def _scaled(vector: Vector, factor: Any) -> Vector:
    return [factor * number for number in vector]


def _sum(first: Vector, second: Vector) -> Vector:
    return [a + b for a, b in zip(first, second, strict=True)]


def _norm(vector: Vector, mp: Any) -> Any:
    return mp.sqrt(mp.fsum(number * number for number in vector))
