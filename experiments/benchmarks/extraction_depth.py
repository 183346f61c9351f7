"""Any depth: how many networks are copied exactly, at what cost, and whether a claim is ever false.

``python -m experiments extraction_depth``; weights are N(0, 1 / fan-in) and biases N(0, 0.3^2), with fresh seeds, or
trained on the digits of scikit-learn or on MNIST, and none is left out. Every claim is checked on 200,000 points that
are not in the ledger, half of them five times as far out. Targets that answer in float32 or with six decimals allow no
exact copy: their rows tell how far the copies are off on these points (``imprecise``). Every network is a part of its
own, so that a run may be made in slices (``--only "20-16-16-1, gradients" --seed 5 --seeds 5``); rows sum up all that
were measured.

The growth with depth and width is drawn beside the line k h (Milli 2019, section 7, asks for O(k h) queries); a network
that is not copied within a minute of processor time is shown as such. Networks with shared weights or connections that
skip a layer are asked from gradients. The last part are 500 small functions of depth 1 to 6 that may not be plain ReLU
networks: a maximum over pieces, an absolute value, skip connections and leaky units are among them.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import divulge
from divulge.core import plots
from divulge.core.errors import BudgetExhausted
from divulge.extraction import from_gradients, from_values
from divulge.extraction.result import Extraction
from divulge.models import MLP
from divulge.oracles.base import Oracle
from experiments.deep_targets import KINDS, STRUCTURES, function, network, structure, trained
from experiments.plan import Plan

Attack = Callable[..., Extraction]

POINTS = 200_000
FALSE = 1e-7
"""Errors above this share of the output's standard deviation make a claim false."""
GRADIENTS = (
    "20-16-16-1",
    "10-15-15-1",
    "20-30-20-1",
    "64-32-32-32-1",
    "784-64-32-16-10",
    "40-20-10-10-10-1",
    "64-16-16-16-1",
    "64-16-16-16-16-1",
    "64-16-16-16-16-16-1",
    "64-16-16-16-16-16-16-16-16-1",
)
VALUES = ("20-16-16-1", "80-40-20-1", "10-15-15-1")
TRAINED = ("64-32-16-10", "64-32-32-16-10")
MNIST = "784-128-128-10"
NETWORKS, FIRST_SEED = 20, 140_000
"""Networks of each row; their seeds were not used while settings were chosen."""
DEPTHS, DEEP_WIDTH = range(1, 9), 16
GROWTH_NETWORKS, LIMIT = 3, 60
"""Networks of each size, and the processor seconds that one may take; other structures have the same limit."""
WIDTHS, WIDE_DEPTH = (8, 16, 32, 64, 128), 2
"""Growth: networks of width 16 and depth 1 to 8 behind 64 inputs, and of depth 2 behind twice as many inputs."""
IMPRECISE = {
    "20-16-16-1": ("float32", "six decimals"), "30-20-20-20-1": ("float32",), "64-32-16-10": ("float32",),
    "64-32-32-16-10": ("float32",),
}  # fmt: skip
"""Networks whose answers are imprecise; those of ``TRAINED`` are trained on digits."""
CLOSE = 1e-4
"""A copy of imprecise answers is close if it is off by no more than this share of the output's standard deviation."""
FUNCTIONS, BUDGET, FUNCTION_LIMIT = 500, 60_000, 20
FIGURE = Path("docs/results/extraction_growth.png")


def worst_error(model: nn.Module, copy: nn.Module, inputs: int) -> float:
    """Worst error on fresh points over the output's standard deviation; far ones in proportion to their distance."""
    generator, worst, scale = torch.Generator().manual_seed(99), 0.0, 0.0
    for distance in (1.0, 5.0):
        for _ in range(POINTS // 20_000):
            X = distance * torch.randn(10_000, inputs, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                truth = model(X)
                scale = scale or float(truth.std(dim=0).max())
                worst = max(worst, float((truth - copy(X)).abs().max()) / distance)
    return worst / scale


def measure(widths: list[int], seed: int, access: str, make: Callable[[list[int], int], MLP]) -> dict[str, object]:
    """One network: what the copy cost, and how far it is off."""
    model = make(widths, seed)
    attack, granted = (from_gradients, "gradient") if access == "gradient" else (from_values, "value")
    oracle = divulge.oracle(model, access=granted, input_shape=(widths[0],))  # type: ignore[arg-type]
    return attacked(model, oracle, widths[0], seed, attack)


def attacked(model: nn.Module, oracle: Oracle, inputs: int, seed: int, attack: Attack) -> dict[str, object]:
    """What a copy of one function cost, and how far it is off where it calls itself exact."""
    began = time.process_time()
    try:
        stolen = attack(oracle, seed=seed)
    except BudgetExhausted as error:
        return {"exact": False, "false": False, "reason": str(error)}
    seconds = time.process_time() - began
    error = worst_error(model, stolen.model, inputs) if stolen.exact else None
    return {
        "exact": stolen.exact, "false": error is not None and error > FALSE, "gradients": stolen.cost.gradient,
        "values": stolen.cost.value, "verification": stolen.verification.total, "error": error,
        "cpu_seconds": seconds, "widths": stolen.widths, "reason": stolen.reason,
        "without_effect": stolen.facts.get("entries_without_effect", 0),
    }  # fmt: skip


def imprecise(widths: list[int], seed: int, answers: str) -> dict[str, object]:
    """How far a copy from imprecise gradients is off, and how far it says it is."""
    digits = "-".join(map(str, widths)) in TRAINED
    model = (trained if digits else network)(widths, seed)
    if answers == "float32":
        oracle = divulge.oracle(model.float(), access="gradient", input_shape=(widths[0],))
    else:
        oracle = divulge.oracle(
            partial(_rounded, model), gradient=partial(_rounded_slopes, model), access="gradient",
            input_shape=(widths[0],),
        )  # fmt: skip
    began = time.process_time()
    stolen = from_gradients(oracle, seed=seed)
    seconds = time.process_time() - began
    error = worst_error(model.double(), stolen.model, widths[0])
    return {
        "exact": stolen.exact, "close": error <= CLOSE, "gradients": stolen.cost.gradient, "values": stolen.cost.value,
        "verification": stolen.verification.total, "error": error, "stated": stolen.worst_error / stolen.scale,
        "cpu_seconds": seconds, "widths": stolen.widths, "reason": stolen.reason,
    }  # fmt: skip


def _rounded(model: nn.Module, X: Any) -> Any:
    with torch.no_grad():
        return model(torch.from_numpy(X)).round(decimals=6).numpy()


def _rounded_slopes(model: nn.Module, X: Any) -> Any:
    """Gradients [n, 1, d] of a single output, of six decimals."""
    with torch.enable_grad():
        rows = torch.from_numpy(X).requires_grad_(True)
        (slope,) = torch.autograd.grad(model(rows).sum(), rows)
    return slope[:, None].round(decimals=6).numpy()


def imprecise_summary(rows: list[dict[str, Any]]) -> dict[str, object]:
    """One row of the table of imprecise answers."""
    close = [row for row in rows if row["close"]]
    return {
        "networks": len(rows), "close": len(close), "exact": sum(row["exact"] for row in rows),
        "median_gradients": statistics.median(row["gradients"] for row in rows),
        "median_values": statistics.median(row["values"] for row in rows),
        "median_error": statistics.median(row["error"] for row in rows),
        "worst_close": max((row["error"] for row in close), default=None),
        "others": [row["error"] for row in rows if not row["close"]],
        "cpu_seconds": statistics.median(row["cpu_seconds"] for row in rows),
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, object]:
    """One row of the table, over all networks that were measured."""
    exact = [row for row in rows if row["exact"]]

    def middle(name: str, among: list[dict[str, Any]]) -> float | None:
        return statistics.median(row[name] for row in among) if among else None

    return {
        "networks": len(rows), "exact": len(exact), "false": sum(row["false"] for row in rows),
        "median_gradients": middle("gradients", exact), "median_values": middle("values", exact),
        "most_rows": max((row["gradients"] + row["values"] for row in exact), default=None),
        "median_verification": middle("verification", exact), "cpu_seconds": middle("cpu_seconds", exact),
        "worst_error": max((row["error"] for row in exact), default=None),
        "not_exact": [row["reason"] for row in rows if not row["exact"]],
    }  # fmt: skip


def one_structure(name: str, seed: int) -> dict[str, object]:
    """A network with shared weights or connections that skip a layer, from gradients."""
    model, inputs = structure(name, FIRST_SEED + seed)
    return in_time(model, inputs, FIRST_SEED + seed, LIMIT)


class TimeUp(Exception):
    """The processor seconds of an attack are used up."""


def in_time(
    model: nn.Module, inputs: int, seed: int, seconds: int, *, budget: int | None = None
) -> dict[str, object]:  # fmt: skip
    """``attacked`` from gradients within so many processor seconds; what was asked by then if they do not suffice."""
    oracle = divulge.oracle(model, access="gradient", input_shape=(inputs,), budget=budget)

    def stop(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return attacked(model, oracle, inputs, seed, from_gradients)
    except TimeUp:
        return {
            "exact": False, "false": False, "gradients": oracle.ledger.gradient, "values": oracle.ledger.value,
            "verification": 0, "error": None, "cpu_seconds": float(seconds), "reason": f"{seconds} seconds were up",
        }  # fmt: skip
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def one_function(seed: int) -> dict[str, object]:
    """A function of any kind: exact copies are welcome where they agree everywhere, false claims are counted."""
    model, inputs = function(seed)
    return {"kind": KINDS[seed % len(KINDS)], **in_time(model, inputs, seed, FUNCTION_LIMIT, budget=BUDGET)}


def one_growth(shape: list[int], seed: int) -> dict[str, object]:
    """A network of the figure."""
    return in_time(network(shape, seed), shape[0], seed, LIMIT)


def growth_shapes() -> dict[str, list[int]]:
    """The networks of the figure."""
    shapes = {f"growth, depth {k}": [64, *[DEEP_WIDTH] * k, 1] for k in DEPTHS}
    return shapes | {f"growth, width {h}": [2 * h, *[h] * WIDE_DEPTH, 1] for h in WIDTHS}


def draw(results: dict[str, Any], path: Path) -> None:
    """Gradients and seconds against depth and width, with a multiple of k h beside them."""
    figure = plots.new_figure(9.0, 6.0)
    for column, (what, sizes, each, scale, title) in enumerate(
        (
            ("depth", list(DEPTHS), DEEP_WIDTH, "linear", f"64 inputs, {DEEP_WIDTH} units a layer"),
            ("width", list(WIDTHS), WIDE_DEPTH, "log", f"{WIDE_DEPTH} layers, twice as many inputs as units"),
        )
    ):
        points = [
            (size, row) for size in sizes for name, row in results.items() if name.startswith(f"growth, {what} {size},")
        ]
        for place, quantity in enumerate(("gradients", "cpu_seconds")):
            axes = figure.add_subplot(2, 2, 1 + column + 2 * place)
            for exact, marker, color in ((True, "o", "C0"), (False, "x", "C3")):
                shown = [(size, row[quantity]) for size, row in points if row["exact"] is exact]
                if shown:
                    label = "exact" if exact else f"not exact in {LIMIT} s"
                    axes.plot(*zip(*shown, strict=True), marker, color=color, label=label)
            ratio = [row["gradients"] / (size * each) for size, row in points if row["exact"]]
            if quantity == "gradients" and ratio:
                slope = statistics.median(ratio)
                axes.plot(sizes, [slope * size * each for size in sizes], color="0.6", label=f"{slope:.0f} k h")
                axes.plot(sizes, [size * each for size in sizes], "--", color="0.6", label="k h")
            axes.set(
                xlabel=what, ylabel="gradients" if quantity == "gradients" else "processor seconds", yscale="log",
                xscale=scale, title="" if place else title,
            )  # fmt: skip
            axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
            axes.set_xticks([], minor=True)
            axes.legend(fontsize=8)
    plots.save(figure, path)


def run(plan: Plan) -> dict[str, Any]:
    """All networks of the table, the growth, and the functions of other kinds."""
    torch.set_num_threads(1)
    rows: list[tuple[str, list[int], str, Callable[[list[int], int], MLP], int]] = []
    for name, access in [*((name, "gradient") for name in GRADIENTS), *((name, "value") for name in VALUES)]:
        rows.append((f"{name}, {access}s", _shape(name), access, network, NETWORKS))
    rows += [(f"{name}, gradients, digits", _shape(name), "gradient", trained, NETWORKS) for name in TRAINED]
    mnist = partial(trained, data="mnist", epochs=4)
    rows += [(f"{MNIST}, {access}s, mnist", _shape(MNIST), access, mnist, 1) for access in ("gradient", "value")]
    parts: dict[str, Callable[[], dict[str, object]]] = {
        f"{name}, seed {seed}": partial(measure, shape, FIRST_SEED + seed, access, make)
        for name, shape, access, make, count in rows
        for seed in plan.seeds_of(count)
    }
    parts |= {
        f"{name}, seed {seed}": partial(one_structure, name, seed)
        for name in STRUCTURES
        for seed in plan.seeds_of(NETWORKS)
    }
    parts |= {
        f"{name}, seed {seed}": partial(one_growth, shape, FIRST_SEED + seed)
        for name, shape in growth_shapes().items()
        for seed in plan.seeds_of(GROWTH_NETWORKS)
    }
    parts |= {
        f"{name}, gradients of {answers}, seed {seed}": partial(imprecise, _shape(name), FIRST_SEED + seed, answers)
        for name, kinds in IMPRECISE.items() for answers in kinds for seed in plan.seeds_of(NETWORKS)
    }  # fmt: skip
    functions = plan.seeds_of(FUNCTIONS)
    parts |= {f"functions of other kinds, seed {seed}": partial(one_function, seed) for seed in functions}
    results = plan.measure("extraction_depth", parts)
    if any(name.startswith("growth") and plan.wants(name) for name in results):
        draw(results, FIGURE)
    names = dict.fromkeys(name.rpartition(", seed")[0] for name in results)
    table = {}
    for name in names:
        rows_of = [row for key, row in results.items() if key.startswith(f"{name}, seed")]
        table[name] = imprecise_summary(rows_of) if "close" in rows_of[0] else summary(rows_of)
    for name, row in table.items():
        if plan.wants(name):
            plan.show(name, row)
    return table


def _shape(name: str) -> list[int]:
    return [int(part) for part in name.split("-")]
