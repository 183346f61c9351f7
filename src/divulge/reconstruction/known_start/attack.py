"""Training inputs out of the difference of two checkpoints: the start of a training and its end.

Haim et al. 2022 reconstruct from the end alone, and need a start near zero and one output. With the start, the first
changed dense layer holds the exact span of the inputs (``difference.py``), whatever the scale of the start, the loss
and the number of outputs. The inputs are separated in the span (``pictures.py``), then made exact by the zeros of the
other factor (``rows.py``, ``search.py``). Of the separated and the assembled inputs those are returned that agree
better with the range of values and with the units that were never on (``evidence.py``).

An input is certified if its row vanishes at more units than can be forced, no mixture of rows vanishes there, and the
input itself lies in the range and leaves those units off; or if all of its values are levels of 8 bits and mixtures
have others (``grid.py``). Both hold for some mixtures with an input that is not known, so nearly all inputs must be
known (``search.unmixed``). Zeros of its own (``sparse.py``) lead the search, and certify nothing without a row.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from divulge.core.errors import UnsupportedModel, WrongShape
from divulge.core.images import picture_shape
from divulge.reconstruction.known_start import labels, pictures, tables, trained_front
from divulge.reconstruction.known_start.assignment import corrected, rows_tell_mixtures, single_row, unclaimed
from divulge.reconstruction.known_start.derivatives import derivatives_of, signs
from divulge.reconstruction.known_start.difference import LayerPair, Span, Spectrum, difference, span_of
from divulge.reconstruction.known_start.evidence import OUTSIDE, Evidence, evidence
from divulge.reconstruction.known_start.grid import grid_of
from divulge.reconstruction.known_start.inversion import FEWER_STEPS, STEPS, invert
from divulge.reconstruction.known_start.layers import ChangedLayer, changed_layer, features_of
from divulge.reconstruction.known_start.notes import notes_of, reason_of
from divulge.reconstruction.known_start.one_hot import categorical
from divulge.reconstruction.known_start.search import ROUNDS, Factors, Separate, search
from divulge.reconstruction.known_start.verdicts import check
from divulge.reconstruction.matching import correlation
from divulge.reconstruction.result import Reconstruction
from divulge.reconstruction.value_bounds import Bound, ValueBounds, checked_bounds, infer_mean
from divulge.training.recipe import Recipe

Start = nn.Module | str | Path | Recipe
LONGEST = 900.0
"""Wall-clock seconds without a limit of the user's. The search ends by itself long before, so that its answer does not
depend on how busy the machine is."""
MISSED = 0.02
"""The share of its features that a certified picture may miss."""
AGREED = 0.99
"""The correlation of the assembled and the separated input from which on both are taken for the input of their row."""
SAME = 0.98
"""The correlation from which on an input is taken for one that is known exactly."""


def opened(start: Start, *, trust_pickle: bool = False) -> nn.Module:
    """The start as a module: a file is loaded, a recipe's seed gives its initial model."""
    from divulge.oracles import load_model

    if isinstance(start, str | Path) and Path(start).suffix == ".json" and Path(start).name == "recipe.json":
        start = Recipe.load(start)
    if isinstance(start, Recipe):
        return start.initial_model()
    loaded = load_model(start, trust_pickle=trust_pickle)
    if not isinstance(loaded, nn.Module):
        raise UnsupportedModel(f"The start is a torch module, a file of one or a Recipe; got {type(loaded).__name__}.")
    return loaded


@dataclass(frozen=True)
class Found:
    """Inputs, with the evidence for each of them."""

    X: Tensor
    """[m, d]."""
    evidence: Evidence
    sure: Tensor
    """[m]: whether the row is certain."""

    @property
    def certified(self) -> Tensor:
        return self.sure & self.evidence.agrees


@dataclass(frozen=True)
class Answer:
    """Inputs for a number of them, with what belongs to them."""

    found: Found
    A: Tensor
    """Their rows, [m, h]."""
    residual: float
    bounds: ValueBounds | None
    """With the mean that was inferred."""
    rank: int
    facts: dict[str, int]
    everything: Tensor | None = None
    """All candidates."""


@dataclass(frozen=True)
class Problem:
    """The difference of a layer, and what is known of its inputs."""

    models: tuple[nn.Module, nn.Module]
    layer: ChangedLayer
    D: Tensor
    spectrum: Spectrum
    bounds: ValueBounds | None
    shape: tuple[int, ...] | None
    seed: int
    end: float
    """The ``time.perf_counter()`` at which to stop."""

    def solve(self, rank: int, rounds: int = ROUNDS) -> Answer:
        """The inputs, if there were ``rank`` of them."""
        layer, inside, bounds = self.layer, self.layer.features is not None, self.bounds
        span = span_of(self.D, rank, has_bias=layer.pair.has_bias)
        layout = layer.feature_shape if inside else self.shape or _layout(span)
        if not span.has_bias and not inside and bounds is not None:
            span = replace(span, fill=_ends(bounds))
        slopes = derivatives_of(self.models, layer.name, layer.input_shape, self.spectrum.unit_sizes)
        grid = None if inside else grid_of(span, bounds, layout)
        separate = _separation(span, layout, self.seed, self.end)
        factors = search(
            span, layer.pair, separate, slopes, grid, seed=self.seed, end=self.end, rounds=rounds
        )  # fmt: skip
        if not inside:
            bounds = _with_mean(bounds, span, factors)
        found = _sorted(_best(span, layer.pair, factors, None if inside else bounds))
        A = _rows(span, found.X, factors.rows.q[: factors.sure]) * self.spectrum.unit_sizes
        residual, facts = _unexplained(span, found.X), {"rows": factors.sure, "exact": len(factors.exact)}
        if not span.has_bias and not inside and span.fill is not None and span.fill[0] < 0:
            turned = signs(self.models[1], layer.name, layer.input_shape, found.X, A)[:, None]
            found, A = replace(found, X=found.X * turned), A * turned
        if inside:
            return Answer(_pictures(found, self.models, layer, bounds), A, residual, bounds, rank, facts)
        everything = span.inputs(torch.cat([factors.separated, factors.others]))
        return Answer(found, A, residual, bounds, rank, facts, everything)

    def solve_blind(self, numbers: list[int]) -> Answer:
        """The inputs behind a trained extractor, from more directions than there are inputs."""
        answers = [self.solve(number, rounds=1) for number in numbers]
        X = torch.cat([answer.found.X for answer in answers])
        every = [answer.found.evidence for answer in answers]
        outside, active = torch.cat([each.outside for each in every]), torch.cat([each.active for each in every])
        kept = trained_front.distinct(X, outside, self.layer.input_shape)
        uncertain = torch.zeros(len(kept), dtype=torch.bool)
        found = Found(X[kept], Evidence(outside[kept], active[kept]), uncertain)
        A = torch.cat([answer.A for answer in answers])[kept]
        residual = min(answer.residual for answer in answers)
        return Answer(found, A, residual, self.bounds, len(kept), {"rows": 0, "exact": 0})


def reconstruct(
    model: nn.Module, start: Start, *, seed: int, n: int | None, mean: Tensor | None,
    value_range: tuple[Bound, Bound] | None, shape: tuple[int, ...] | None, seconds: float | None,
) -> Reconstruction:  # fmt: skip
    """Reconstruct the inputs on which ``model`` was trained from ``start``."""
    started = time.perf_counter()
    base = opened(start)
    layer = changed_layer(model, base, shape)
    d = math.prod(layer.input_shape)
    if shape is not None and math.prod(shape) != d:
        raise WrongShape(f"shape {tuple(shape)} is not that of the model's {d} inputs.")
    D, spectrum = difference(layer.pair)
    problem = Problem((base, model), layer, D, spectrum, checked_bounds(d, mean, value_range), shape, seed,
                      started + (LONGEST if seconds is None else seconds))  # fmt: skip
    numbers = [] if n is not None or layer.frozen else trained_front.ranks(spectrum)
    answer = problem.solve_blind(numbers) if numbers else problem.solve(check(layer.pair, spectrum, n))
    found, bounds = answer.found, answer.bounds
    return Reconstruction(
        samples=found.X, labels=labels.classes((base, model), found.X.reshape(-1, *layer.input_shape), answer.A),
        multipliers=answer.A.norm(dim=1), confidence=_confidence(found), residual=answer.residual, rank=answer.rank,
        restarts=max(len(numbers), 1), method="known-start", seed=seed, seconds=time.perf_counter() - started,
        mean=None if bounds is None else bounds.mean, value_range=_as_numbers(value_range),
        shape=shape or _shape_of(layer.input_shape), certified=found.certified, everything=answer.everything,
        notes=notes_of(spectrum, found.certified, layer, numbers, n),
        reason=reason_of(found.evidence, found.certified, layer),
        facts={"layer": layer.name, "gap": spectrum.ratio, "decay": spectrum.decay, **answer.facts,
               "features": layer.features is not None},
    )  # fmt: skip


def _layout(span: Span) -> tuple[int, ...] | None:
    """The shape of an input as a picture; None for a table, also of as many columns as a picture has pixels."""
    if float(categorical(span).double().mean()) > 0.5:
        return None
    return picture_shape(span.input_dim)


def _shape_of(input_shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of one input as a picture; None for a table."""
    return input_shape if len(input_shape) in (2, 3) else picture_shape(math.prod(input_shape))


def _pictures(
    found: Found, models: tuple[nn.Module, nn.Module], layer: ChangedLayer, bounds: ValueBounds | None
) -> Found:  # fmt: skip
    """The pictures behind the features that were found; of a trained extractor the better of its two ends."""
    tried = models[1:] if layer.frozen else models
    ends = (-math.inf, math.inf) if bounds is None else _ends(bounds)
    steps = STEPS if layer.frozen else FEWER_STEPS
    inverted = [
        invert(features_of(model, layer.name), found.X, layer.input_shape, ends, steps=steps) for model in tried
    ]
    missed = torch.stack([each[1] for each in inverted])
    best = missed.argmin(dim=0)
    X = torch.stack([each[0] for each in inverted])[best, torch.arange(len(best))]
    missed = missed.amin(dim=0)
    sure = found.certified & (missed <= MISSED) & layer.frozen
    return Found(X, Evidence(found.evidence.outside + missed, found.evidence.active), sure)


def _ends(bounds: ValueBounds) -> tuple[float, float]:
    """The ends of the range, with the mean subtracted, of an average input."""
    shift = 0.0 if bounds.mean is None else float(bounds.mean.mean())
    low, high = (float(torch.as_tensor(end).double().mean()) - shift for end in (bounds.low, bounds.high))
    return low, high


def _sorted(found: Found) -> Found:
    """Certified inputs first, then by confidence."""
    score = found.certified.double() + 0.5 * found.evidence.confidence
    order = torch.argsort(score, descending=True, stable=True)
    held = Evidence(found.evidence.outside[order], found.evidence.active[order])
    return Found(found.X[order], held, found.sure[order])


def _confidence(found: Found) -> Tensor:
    """Above a half for certified inputs, below for others."""
    confidence = found.evidence.confidence
    return torch.where(found.certified, 0.5 + 0.5 * confidence, 0.5 * confidence)


def _as_numbers(value_range: tuple[Bound, Bound] | None) -> tuple[float, float] | None:
    if value_range is None:
        return None
    low, high = (float(torch.as_tensor(bound).double().mean()) for bound in value_range)
    return low, high


def _separation(span: Span, shape: tuple[int, ...] | None, seed: int, end: float) -> Separate:
    """How candidates are found in the span: by differences of pixels, or by values."""

    def separate(within: Tensor | None, attempt: int) -> Tensor:
        half = time.perf_counter() + 0.6 * (end - time.perf_counter())
        if shape is None:
            return tables.separate(span, seed=seed + attempt, within=within, end=half)
        return pictures.separate(span, shape, seed=seed, attempt=attempt, within=within, end=half)

    return separate


def _best(span: Span, pair: LayerPair, factors: Factors, bounds: ValueBounds | None) -> Found:
    """Of separated, corrected and assembled inputs, those that agree best with what is known."""
    hypotheses = [_separated(span, pair, factors, bounds)]
    assembled = torch.linalg.pinv(factors.rows.q.T)
    if factors.sure == span.rank:
        hypotheses.append(_judged(span, pair, factors, assembled, torch.ones(span.rank, dtype=torch.bool), bounds))
    elif 0 < factors.sure < span.rank == len(factors.rows):
        known = factors.rows.q[: factors.sure]
        rest = unclaimed(known, torch.cat([factors.separated, factors.others])[-span.rank :], span.rank - factors.sure)
        inputs = torch.cat([corrected(known, torch.cat([factors.exact, factors.separated])), rest])
        sure = _agreed(span, assembled, inputs) & (torch.arange(span.rank) < factors.sure)
        sure &= rows_tell_mixtures(span, known, inputs, torch.cat([factors.separated, factors.others]))
        hypotheses += [_judged(span, pair, factors, each, sure, bounds) for each in (assembled, inputs)]
    chosen = min(hypotheses, key=lambda found: (-int(found.certified.sum()), float(found.evidence.penalty.mean())))
    if not bool(chosen.certified.any()):
        chosen = _with_exact(span, pair, factors.missing, chosen, bounds, sure=False)
    chosen = _with_exact(span, pair, factors.doubted, chosen, bounds, sure=False)
    return _with_exact(span, pair, factors.exact, chosen, bounds, sure=True)


def _with_exact(
    span: Span, pair: LayerPair, exact: Tensor, found: Found, bounds: ValueBounds | None, *, sure: bool
) -> Found:  # fmt: skip
    """Inputs of exact values, certain ones if they are ``sure``, in the place of those that are like them."""
    X = span.inputs(exact)
    if not sure and bool(found.certified.any()):
        X = X[correlation(X, found.X[found.certified]).amax(dim=1) < SAME]
    if len(X) == 0:
        return found
    likeness = correlation(found.X, X)
    keep = (likeness.max(dim=1).values < SAME).nonzero()[:, 0]
    score = found.certified[keep].double() + found.evidence.confidence[keep]
    order = torch.argsort(score, descending=True, stable=True)
    keep = keep[order][: max(span.rank - len(X), 0)]
    own = evidence(X, None, pair, bounds)
    return Found(
        torch.cat([X, found.X[keep]]),
        Evidence(torch.cat([own.outside, found.evidence.outside[keep]]),
                 torch.cat([own.active, found.evidence.active[keep]])),
        torch.cat([torch.full((len(X),), sure), found.sure[keep]]),
    )  # fmt: skip


def _agreed(span: Span, assembled: Tensor, separated: Tensor) -> Tensor:
    """Whether inputs with coordinates [r, r] that all rows give and those of the separation are the same, [r].

    A certain row does not make its input certain while other rows are missing: each wrong row is mixed into the inputs
    that all rows give, and the separated input is corrected where the rows are certain only.
    """
    likeness: Tensor = correlation(span.inputs(assembled), span.inputs(separated)).diagonal()
    return likeness >= AGREED


def _judged(
    span: Span, pair: LayerPair, factors: Factors, c: Tensor, sure: Tensor, bounds: ValueBounds | None
) -> Found:  # fmt: skip
    """Inputs with coordinates c [r, r] that belong to the rows, one for one; ``sure`` [r] are determined by them.

    Where they leave the range as a whole none is: a row that is wrong is mixed into all inputs and throws some far out.
    """
    X = span.inputs(c)
    known = evidence(X, factors.rows.zero, pair, bounds)
    inside = float(known.outside.mean()) <= OUTSIDE
    return Found(X, known, sure if inside else torch.zeros_like(sure))


def _separated(span: Span, pair: LayerPair, factors: Factors, bounds: ValueBounds | None) -> Found:
    """The inputs of the separation alone, without certificates."""
    X = span.inputs(factors.separated)
    return Found(X, evidence(X, None, pair, bounds), torch.zeros(len(X), dtype=torch.bool))


def _with_mean(bounds: ValueBounds | None, span: Span, factors: Factors) -> ValueBounds | None:
    """The bounds with a mean: none was subtracted if the inputs lie in the range, otherwise the inferred one."""
    if bounds is None or bounds.mean is not None:
        return bounds
    low, high = (torch.as_tensor(end).to(span.V) for end in (bounds.low, bounds.high))
    zero = torch.zeros(span.input_dim).to(span.V)
    first = factors.exact if len(factors.exact) else factors.separated
    assembled = torch.linalg.pinv(factors.rows.q.T) if factors.sure else first
    for c in (first, assembled):
        X = span.inputs(c)
        over = ((low - 0.1 * bounds.width > X) | (high + 0.1 * bounds.width < X)).double().mean(dim=1)
        if float(over.median()) < 0.05:
            return ValueBounds(bounds.low, bounds.high, zero)
    X = span.inputs(assembled if factors.sure == span.rank else first)
    return ValueBounds(bounds.low, bounds.high, infer_mean(X, bounds.low, bounds.high, zero))


def _rows(span: Span, X: Tensor, sure: Tensor) -> Tensor:
    """The rows of A [m, h] that belong to the inputs: certain ones [g, r], or those that give the difference best."""
    c = span.coordinates(X)
    q: Tensor = torch.linalg.pinv(c).T
    own, single = single_row(c, sure)
    size = (c[single] * sure[own[single]]).sum(dim=1, keepdim=True)
    q[single] = sure[own[single]] / size
    return q @ span.L.T


def _unexplained(span: Span, X: Tensor) -> float:
    """The share of the difference that is no combination of the inputs."""
    basis = torch.linalg.qr((span.coordinates(X) * span.S).T)[0]
    rest = torch.diag(span.S) - (span.S[:, None] * basis) @ basis.T
    return float(rest.norm() / span.S.norm())
