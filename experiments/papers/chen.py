"""Chen et al. 2021: learning one hidden layer in the worst case, measured.

The paper has theorems and no experiments: whatever the network, a polynomial number of queries is enough. Here the
networks that its title means are tried: random ones, clusters of nearly equal neurons, and bumps, whose neurons cancel
everywhere but on a thin slab; its algorithm as printed beside ours, and the share of bumps that a grid finds.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import divulge
from divulge.core import plots
from divulge.extraction import Approximation, worst_case
from divulge.models import ReluNetwork
from experiments.plan import Plan

SIZES = ((10, 20), (20, 50), (50, 100))  # inputs, hidden units
KINDS = (("random", 0.0), ("clusters", 1e-2), ("clusters", 1e-4), ("clusters", 1e-6), ("bumps", 0.3))
BUMPS, GRIDS = (0.3, 0.1, 0.03, 0.01), (64, 256, 1024, 4096)
PRINTED: tuple[dict[str, Any], ...] = (
    {"method": "paper", "width": 20},
    {"method": "paper", "width": 20, "tau": 20 * math.sqrt(10), "grid": 6000},
    {"method": "paper", "width": 20, "tau": 20 * math.sqrt(10), "grid": 6000, "bounds": "of the network"},
)
"""The printed algorithm with its own line and intervals at delta = 0.1, with a line 13 times shorter, and with the
bounds R and B of the network beside, which the paper takes as known: filter (5) and the constraint of (7)."""
FRESH = 4000
FOUND = 1e-3  # relative squared error below which the bumps count as found

Job = tuple[str, float, int, int, int, dict[str, Any]]
"""Kind, its size, inputs, width, seed and options of the attack."""


def run(plan: Plan) -> dict[str, Any]:
    """Write chen.json, chen.md and chen.png: three networks of each kind, or one without ``full``."""
    seeds = plan.seeds_of(3 if plan.full else 1)
    jobs: list[Job] = [(kind, size, *dims, s, {}) for kind, size in KINDS for dims in SIZES for s in seeds]
    jobs += [(kind, size, *SIZES[0], s, options) for kind, size in KINDS for options in PRINTED for s in seeds]
    narrow: list[Job] = [
        ("bumps", size, 10, 18, s, {"grid": grid})
        for size in BUMPS for grid in GRIDS for s in plan.seeds_of(5 if plan.full else 3)
    ]  # fmt: skip
    plan.check([_part(job) for job in [*jobs, *narrow]])
    result: dict[str, Any] = {"seed": plan.seed, "full": plan.full, "networks": [], "bumps": []}
    for name, wanted in (("networks", jobs), ("bumps", narrow)):
        found: dict[int, dict[str, Any]] = {}

        def keep(job: tuple[int, Job], row: dict[str, Any], found: dict[int, dict[str, Any]] = found) -> None:
            found[job[0]] = row
            plan.show(_part(job[1]), row)

        plan.run(_numbered, list(enumerate(wanted)), lambda job: _part(job[1]), keep)
        result[name] = [found[place] for place in sorted(found)]
        (plan.out / "chen.json").write_text(json.dumps(result, indent=2) + "\n")
        (plan.out / "chen.md").write_text(table(result))
    if result["bumps"]:
        _draw(result["bumps"], plan.out / "chen.png")
    return result


def _part(job: Job) -> str:
    kind, size, inputs, width, seed, options = job
    how = "default" if not options else f"grid {options['grid']}" if "grid" in options else "as printed"
    if "tau" in options:
        how = f"as printed, tau {options['tau']:.3g}" + (", bounds" if "bounds" in options else "")
    return f"{kind} {size:g}, {inputs}-{width}, {how}, seed {seed}"


def _numbered(job: tuple[int, Job]) -> dict[str, Any]:
    return _measured(job[1])


def network(kind: str, inputs: int, width: int, seed: int, size: float) -> ReluNetwork:
    """Random neurons; neurons within ``size`` of few centres; or tents of width ``size`` that vanish elsewhere."""
    rng = np.random.default_rng(seed)
    s = rng.choice([-1.0, 1.0], size=width)
    if kind == "bumps":
        n = width // 3
        a = rng.normal(size=(n, inputs))
        a /= np.linalg.norm(a, axis=1, keepdims=True)
        o = rng.normal(size=n)
        W, b = np.concatenate([a, a, 2 * a]), np.concatenate([-o, -o - size, -2 * o - size])
        s = np.concatenate([np.ones(2 * n), -np.ones(n)])
    else:
        centres = width if kind == "random" else width // 5
        owner = np.arange(width) if kind == "random" else rng.integers(centres, size=width)
        facing = rng.choice([-1.0, 1.0], size=width)
        W = (rng.normal(size=(centres, inputs))[owner] + size * rng.normal(size=(width, inputs))) / np.sqrt(inputs)
        b = 0.5 * rng.normal(size=centres)[owner] + size * rng.normal(size=width)
        W, b = W * facing[:, None], b * facing
    return ReluNetwork(*(torch.from_numpy(part) for part in (W, b, s[None])))


def relative_error(stolen: Approximation, target: ReluNetwork, inputs: int) -> float:
    """Squared error over variance on inputs that no attack saw."""
    X = torch.randn(FRESH, inputs, generator=torch.Generator().manual_seed(77), dtype=torch.float64)
    with torch.no_grad():
        truth = target(X)
        return float(((stolen.model(X) - truth) ** 2).mean() / truth.var())


def _measured(job: tuple[Any, ...]) -> dict[str, Any]:
    kind, size, inputs, width, seed, options = job
    target = network(kind, inputs, width, seed, size)
    if "bounds" in options:
        options = {**options, "bounds": (float(target.A.norm(dim=1).max()), float(target.b.abs().max()))}
    started = time.perf_counter()
    stolen = worst_case(divulge.oracle(target, access="value"), seed=seed, **options)
    return {
        "kind": kind, "size": size, "inputs": inputs, "width": width, "seed": seed, "method": stolen.method,
        "error": relative_error(stolen, target, inputs), "neurons": stolen.width, "queries": stolen.queries,
        "queries_per_kd": stolen.queries / (inputs * width), "seconds": time.perf_counter() - started,
        "grid": options.get("grid"), "tau": options.get("tau"), "bounds": options.get("bounds"),
    }  # fmt: skip


def _name(row: dict[str, Any]) -> str:
    kind = {"random": "random", "clusters": f"clusters of spread {row['size']:g}"}.get(
        row["kind"], f"bumps of width {row['size']:g}"
    )
    if row["method"] != "paper":
        return kind
    line = f" with tau = {row['tau']:.3g}" if row.get("tau") else ""
    return f"{kind}, as printed{line}" + (" and the bounds R and B" if row.get("bounds") else "")


def table(result: dict[str, Any]) -> str:
    """Median and worst of the networks of each kind and size, and the bumps found against the grid."""
    lines = [
        "| networks | inputs, neurons | relative squared error, median | worst | queries / (k d) | neurons returned "
        "| seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in result["networks"]:
        groups.setdefault((_name(row), row["inputs"], row["width"]), []).append(row)
    for (name, inputs, width), rows in groups.items():
        errors, queries, neurons = ([row[key] for row in rows] for key in ("error", "queries_per_kd", "neurons"))
        lines.append(
            f"| {name} | {inputs}, {width} | {statistics.median(errors):.0e} | {max(errors):.0e} "
            f"| {max(queries):.1f} | {min(neurons)} to {max(neurons)} | {max(row['seconds'] for row in rows):.1f} |"
        )
    lines += ["", "Networks of six bumps whose bumps were found, by the samples that a line starts with:", ""]
    lines += ["| width | " + " | ".join(f"{grid:,}" for grid in GRIDS) + " |", "|---" * (len(GRIDS) + 1) + "|"]
    for size in BUMPS:
        cells = []
        for grid in GRIDS:
            tried = [row for row in result["bumps"] if row["size"] == size and row["grid"] == grid]
            cells.append(f"{sum(row['error'] < FOUND for row in tried)} of {len(tried)}")
        lines.append(f"| {size:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _draw(bumps: list[dict[str, Any]], path: Path) -> None:
    figure, axes = plots.new_axes(6, 4)
    for size in BUMPS:
        shares = []
        for grid in GRIDS:
            tried = [row for row in bumps if row["size"] == size and row["grid"] == grid]
            shares.append(sum(row["error"] < FOUND for row in tried) / len(tried) if tried else math.nan)
        axes.plot(GRIDS, shares, marker="o", label=f"width {size:g}")
    axes.set(xscale="log", xlabel="samples a line starts with", ylabel="share of networks found", ylim=(-0.05, 1.05))
    axes.grid(alpha=0.3)
    axes.legend()
    plots.save(figure, path)
