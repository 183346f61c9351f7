"""What kind of function a model is: by its layers where they say it, otherwise from gradients or from answers.

Layers say it only if the model is a plain sequence of layers that are known here: a forward pass of the user's own may
do anything between them. Gradients say it by two facts. A piecewise-linear function has the same gradient at a point
and very near to it, almost everywhere; a smooth one nowhere. Answers along lines say it by second differences, at
several scales: those of a smooth function shrink with the square of the step, those of a kink with the step. Where
neither fits, the kind is unknown. Lines go through the data, if there is any: far from it answers saturate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor, nn

from divulge.core.errors import DivulgeError
from divulge.oracles import oracle as make_oracle
from divulge.oracles.arguments import Precision
from divulge.oracles.base import Oracle

Kind = Literal[
    "constant", "linear", "one hidden ReLU layer", "piecewise linear", "piecewise constant", "smooth", "unknown"
]
KINDS: dict[Kind, str] = {
    "constant": "a model that gave the same answer everywhere it was asked",
    "linear": "a linear model",
    "one hidden ReLU layer": "a network with one hidden ReLU layer",
    "piecewise linear": "a deeper piecewise-linear network",
    "piecewise constant": "a piecewise-constant model, such as a forest of trees",
    "smooth": "a smooth network",
    "unknown": "a model of unknown kind",
}
_PIECEWISE = (nn.ReLU, nn.LeakyReLU, nn.MaxPool1d, nn.MaxPool2d, nn.ReLU6, nn.Hardtanh)
_SMOOTH = (nn.ELU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GELU, nn.SiLU, nn.Softmax, nn.SELU)
_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d)
_AFFINE = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.BatchNorm1d, nn.BatchNorm2d, nn.AvgPool2d,
           nn.AdaptiveAvgPool2d)  # fmt: skip
_ROWS, _NEAR, _EQUAL = 16, 1e-6, 1e-9
_FEWEST_ROWS, _NUMBERS = 4, 1 << 23
"""Fewer rows are asked where their gradients would have more numbers than this, 64 MiB, but at least these."""
_SPREAD_ROWS = 10_000
"""Rows of the data, at most, that say how far its columns spread."""
LINES, POINTS = 3, 33
SCALES = (3.0, 0.6, 0.12, 0.024)
"""Lengths of the lines, relative to the distance between two rows of the data."""
_VISIBLE, _STRAIGHT, _SLOPING = 100.0, 0.3, 0.2
ROWS = 500
"""Rows of the data, at most, on which a linear model is compared with an affine fit."""
_JUMP = 30.0
"""How many times the median second difference an isolated one is that no smooth function has."""


# -- by the layers ----------------------------------------------------------------------------------------------------


def kind_by_layers(model: nn.Module) -> Kind | None:
    """What a network is by its layers; None where they do not say it."""
    if getattr(model, "spec", {}).get("architecture") == "relu-network":
        return "one hidden ReLU layer"
    layers = [layer for layer in model.modules() if not list(layer.children())]
    if not hasattr(model, "spec") and not _plain(model):
        return None
    if layers and type(layers[-1]) is nn.Softmax:
        layers.pop()  # exact extraction takes it off
    if any(isinstance(layer, _SMOOTH) for layer in layers):
        return "smooth"
    weighted = sum(isinstance(layer, _WEIGHTED) for layer in layers)
    bends = sum(isinstance(layer, _PIECEWISE) for layer in layers)
    if bends == 0:
        return "linear" if weighted == 1 or _plain(model) else None
    convolutional = any(isinstance(layer, nn.Conv1d | nn.Conv2d) for layer in layers)
    return "one hidden ReLU layer" if weighted == 2 and not convolutional else "piecewise linear"


def _plain(model: nn.Module) -> bool:
    """Whether the model is a known layer, or a sequence of such: its forward pass is then what its layers say."""
    if type(model) is nn.Sequential:
        return all(_plain(layer) for layer in model)
    return type(model) in (*_PIECEWISE, *_SMOOTH, *_WEIGHTED, *_AFFINE)


# -- from gradients ---------------------------------------------------------------------------------------------------


def kind_of_module(
    model: nn.Module,
    rows: Tensor | None = None,
    *,
    input_shape: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
) -> tuple[Kind, bool]:
    """What a network is, and whether its layers say so."""
    said = kind_by_layers(model)
    if said is not None:
        return said, True
    precisions: tuple[Precision, ...] = ("double", "native")
    for precision in precisions:
        with suppress(DivulgeError, RuntimeError):  # what cannot be differentiated, or not in double precision
            view = make_oracle(model, access="gradient", precision=precision, input_shape=input_shape)
            return kind_by_gradients(view, rows), False
        with suppress(DivulgeError, RuntimeError):
            view = make_oracle(model, access="value", precision=precision, input_shape=input_shape)
            return kind_by_asking(view, rows), False
    return "unknown", False


def kind_by_gradients(oracle: Oracle, rows: Tensor | None = None, *, seed: int = 0) -> Kind:
    """What a model is by its gradients at some points and very near to them."""
    generator = torch.Generator().manual_seed(seed)
    count = max(_FEWEST_ROWS, min(_ROWS, _NUMBERS // (2 * oracle.input_dim * oracle.output_dim)))
    points = _points(oracle.input_dim, rows, count, generator)
    scale = float((points - points.mean(dim=0)).square().mean().sqrt().clamp(min=1e-12))
    near = points + _NEAR * scale * torch.randn(points.shape, generator=generator, dtype=torch.float64)
    values, slopes = oracle.gradient(torch.cat([points, near]))
    here, there = slopes[:count].double().flatten(1), slopes[count:].double().flatten(1)
    size = float(here.abs().max())
    if size == 0:
        return "constant" if bool((values == values[0]).all()) else "piecewise constant"
    tolerance = max(_EQUAL, 64 * oracle.eps) * size
    if bool(((here - here[0]).abs() <= tolerance).all()):
        return "linear"
    same = ((here - there).abs().amax(dim=1) <= tolerance).double().mean()
    if float(same) >= 0.5:
        return "piecewise linear"
    return "smooth" if float(same) == 0 and oracle.eps < _EQUAL else "unknown"


# -- from answers -----------------------------------------------------------------------------------------------------


def kind_by_asking(oracle: Oracle, rows: Tensor | None = None, *, seed: int = 0, lines: int = LINES) -> Kind:
    """What a model is by its answers along lines, at several scales. Costs 132 values a line, or the budget."""
    left = oracle.ledger.remaining
    lines = lines if left is None else max(1, min(lines, left // (POINTS * len(SCALES))))
    points = POINTS if left is None else max(3, min(POINTS, left // (lines * len(SCALES))))
    generator = torch.Generator().manual_seed(seed)
    ends = _points(oracle.input_dim, rows, 2 * lines, generator)
    start, direction = ends[:lines], ends[lines:] - ends[:lines]
    t = 0.5 + torch.tensor(SCALES)[:, None] * torch.linspace(-0.5, 0.5, points, dtype=torch.float64)
    X = start[None, :, None] + t[:, None, :, None] * direction[None, :, None]
    values = oracle.value(X.reshape(-1, oracle.input_dim)).to(torch.float64).reshape(len(SCALES), lines, points, -1)
    eps = max(oracle.eps, 2.0**-52)
    if bool((values == values.flatten(0, 2)[0]).all()):
        return "constant"
    if _has_steps(values):
        return "piecewise constant"
    said = _by_second_differences(values, 64 * eps)
    logits = _logits(values)
    if said in ("smooth", "unknown") and logits is not None:
        behind = _by_second_differences(logits, 1024 * eps)
        said = behind if behind in ("linear", "piecewise linear") else said
    if said == "linear" and rows is not None and not _linear_on(rows, oracle, 1e6 * eps):
        return "unknown"
    return said


def _linear_on(rows: Tensor, oracle: Oracle, tolerance: float) -> bool:
    """Whether one affine function gives the answers on the data as well: lines pass by what is narrow or far away."""
    left = oracle.ledger.remaining
    chosen = rows[: ROWS if left is None else min(ROWS, left)].to(torch.float64)
    if len(chosen) < 2 * oracle.input_dim + 2:
        return True  # an affine function fits so few answers anyway
    values = oracle.value(chosen).to(torch.float64)
    logits = _logits(values)
    spread = chosen.std(dim=0)
    units = (chosen - chosen.mean(dim=0)) / torch.where(spread > 0, spread, torch.ones_like(spread))
    table = torch.cat([units, torch.ones(len(units), 1, dtype=torch.float64)], dim=1)

    def fits(answers: Tensor) -> bool:
        known = torch.isfinite(answers).all(dim=1)
        answers, used = answers[known], table[known]
        if len(answers) < 2 * oracle.input_dim + 2:
            return True
        off = answers - used @ torch.linalg.lstsq(used, answers, driver="gelsd").solution
        return float(off.abs().max()) <= tolerance * float(answers.abs().max())

    return fits(values) or (logits is not None and fits(logits))


def _has_steps(values: Tensor) -> bool:
    """Whether the answers are flat but for jumps that stand alone, with more levels than a saturated sigmoid has."""
    moved = (values.diff(dim=2) != 0).any(dim=3)
    fine = moved[-1]
    alone = 5 * int((fine[:, 1:] & fine[:, :-1]).sum()) <= int(fine.sum())
    levels = len(torch.unique(values.flatten(0, 2), dim=0))
    return float(fine.double().mean()) < 0.5 and alone and levels >= 3


def _logits(values: Tensor) -> Tensor | None:
    """The logits behind probabilities; None where the answers are none. Saturated ones become NaN."""
    several = bool((values >= 0).all()) and bool(((values.sum(dim=-1) - 1).abs() < 1e-5).all())
    if values.shape[-1] == 2 and several:
        values = values[..., 1:]
    elif values.shape[-1] > 2 and several:
        logs = torch.where(values > 0, values, torch.nan).log()
        return logs - logs.mean(dim=-1, keepdim=True)
    if values.shape[-1] == 1 and bool(((values >= 0) & (values <= 1)).all()):
        inside = torch.where((values > 1e-4) & (values < 1 - 1e-4), values, torch.nan)
        return (inside / (1 - inside)).log()
    return None


def _by_second_differences(values: Tensor, tolerance: float) -> Kind:
    finite = values[torch.isfinite(values)]
    bends = values.diff(n=2, dim=2).abs().amax(dim=3)
    known = torch.isfinite(bends)
    if len(finite) == 0 or float(known.double().mean()) < 0.3:
        return "unknown"
    floor = tolerance * float(finite.abs().max())
    straight = [float((part[mask] <= floor).double().mean()) for part, mask in zip(bends, known, strict=True)]
    if _on_lines(values[0], 4 * floor):
        return "linear"
    for part, share in zip(bends, straight, strict=True):
        shown = torch.nan_to_num(part)
        if share >= _STRAIGHT and float(shown.max()) >= _VISIBLE * floor and _isolated(shown > floor):
            return "piecewise linear" if _slopes(values, floor) else "unknown"
    medians = [float(part[mask].median()) if bool(mask.any()) else 0.0 for part, mask in zip(bends, known, strict=True)]
    visible = [(scale, size) for scale, size in zip(SCALES, medians, strict=True) if size > 5 * floor]
    if len(visible) < 2:
        return "unknown"
    if any(_jumps(line, floor) for line in torch.nan_to_num(bends).flatten(0, 1)):
        return "unknown"
    (coarse, large), (fine, small) = visible[0], visible[-1]
    return "smooth" if math.log(large / small) / math.log(coarse / fine) > 1.6 else "unknown"


def _on_lines(values: Tensor, tolerance: float) -> bool:
    """Whether the answers along each line lie on a straight line: over its whole length, a slight curve shows."""
    t = torch.linspace(0, 1, values.shape[1], dtype=torch.float64)[None, :, None]
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        return bool(
            (values.diff(n=2, dim=1)[finite[:, 2:] & finite[:, 1:-1] & finite[:, :-2]].abs() <= tolerance).all()
        )
    off = values - (values[:, :1] + t * (values[:, -1:] - values[:, :1]))
    return bool((off.abs() <= tolerance).all())


def _slopes(values: Tensor, floor: float) -> bool:
    """Whether the answers change on straight places at the finest scale: steps are straight there and do not."""
    finest = values[-1]
    straight = (finest.diff(n=2, dim=1).abs() <= floor).all(dim=2)
    moving = (finest.diff(dim=1)[:, 1:].abs() > floor).any(dim=2)
    return int((straight & moving).sum()) >= _SLOPING * int(straight.sum())


def _jumps(bends: Tensor, floor: float) -> bool:
    """Whether a few second differences along a line stand alone far above the others."""
    high = bends > _JUMP * max(floor, float(bends.median()))
    return bool(high.any()) and float(high.double().mean()) < 0.3 and _isolated(high[None])


def _isolated(bent: Tensor) -> bool:
    """Whether bent places stand in short runs, as kinks do: one kink bends two second differences."""
    starts = bent[:, 0].sum() + (bent[:, 1:] & ~bent[:, :-1]).sum()
    return int(bent.sum()) <= 4 * int(starts)


def _points(width: int, rows: Tensor | None, count: int, generator: torch.Generator) -> Tensor:
    """Rows of the data, drawn with replacement where there are few; Gaussian ones where there is no data."""
    gaussian = torch.randn(count, width, generator=generator, dtype=torch.float64)
    if rows is None or len(rows) < 2:
        return 2 * gaussian
    chosen = rows[torch.randint(len(rows), (count,), generator=generator)].to(torch.float64)
    spread = rows[:_SPREAD_ROWS].to(torch.float64).std(dim=0)
    return chosen + 0.1 * spread * gaussian
