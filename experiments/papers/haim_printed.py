"""Haim et al. 2022, appendix B.2 and section 5.4: the printed search, its best run to the end, and the two baselines.

The search draws 100 settings at random from the printed ranges and judges each by the training pictures, as the
authors did; the best of them then runs to 100,000 iterations, and is counted on the way. The paper gives 100 runs of 30
GPU-minutes to d-1000-1000-1 and up to 1,000 pictures; here it is d-100-100-1 (figure 8) and ten digits, of which an
iteration takes a few milliseconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from divulge import reconstruction
from divulge.reconstruction import PaperSettings, baselines
from experiments.papers.haim_counts import scored
from experiments.papers.haim_targets import Case, target

CASE = Case("mnist", 10, hidden=(100, 100))
TRIALS, SHORT = 100, 500
"""Runs of the search, and iterations of each."""
STOPS = (1000, 3000, 10_000, 30_000, 100_000)
"""Iterations after which the best run is counted; the last is the paper's own number."""
PICTURES = (Case("cifar10", 50), Case("mnist", 50))
STARTS, STEPS = 200, 200
"""Of model inversion, at four scales."""


def searched(out: Path, seed: int) -> dict[str, Any]:
    """The search on one target, its best settings to the end, and our attack on the same target."""
    there, storage = target(CASE, seed), out / "search.db"
    best = reconstruction.search(
        there.model, n=CASE.n, training_inputs=there.X, trials=TRIALS, settings=PaperSettings(iterations=SHORT),
        storage=storage, method="paper", seed=seed,
    )  # fmt: skip
    path = out / f"printed-curve-{seed}.json"
    curve: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    for stop in STOPS[len(curve) :]:
        began = time.process_time()
        found = reconstruction.from_weights(
            there.model, method="paper", n=CASE.n, seed=seed, settings=replace(best.settings, iterations=stop),
            checkpoint=out / "printed",
        )  # fmt: skip
        row = {"iterations": stop, "residual": found.residual, **scored(found.samples, there, found.seconds)}
        curve.append({**row, "processor_seconds": time.process_time() - began})
        path.write_text(json.dumps(curve))
    ours = reconstruction.from_weights(there.model, seed=seed)
    return {
        "case": CASE.name, "seed": seed, "trials": best.trials, "iterations": SHORT, "search_seconds": best.seconds,
        "settings": asdict(best.settings), "score": best.score, "curve": curve,
        "ours": {"residual": ours.residual, **scored(ours.samples, there, ours.seconds)},
    }  # fmt: skip


def baselines_on_pictures(seeds: range) -> list[dict[str, Any]]:
    """Model inversion and the first layer's weights, counted as the attack is (figures 5 and 12 to 15)."""
    rows = []
    for case in PICTURES:
        for seed in seeds:
            there = target(case, seed)
            began = time.perf_counter()
            inverted = baselines.model_inversion(there.model, starts=STARTS, steps=STEPS, mean=there.mean, seed=seed)
            seconds = time.perf_counter() - began
            rows.append({
                "case": case.name, "seed": seed, "model inversion": scored(inverted, there, seconds),
                "first-layer weights": scored(baselines.first_layer(there.model), there, 0.0),
            })  # fmt: skip
    return rows


COUNTS = ("samples", "alike", "ssim_0.4", "ssim_0.9", "above_threshold", "unseen_alike", "unseen_ssim_0.4")
HEAD = "samples | correlation > 0.9 | SSIM > 0.4 | SSIM > 0.9 | where < 1 % of unseen pass | unseen, correlation > 0.9 "
HEAD += "| unseen, SSIM > 0.4 |"


def _cells(row: dict[str, Any]) -> str:
    return " | ".join(f"{row[key]:.1%}" if key.startswith("unseen") else str(row[key]) for key in COUNTS) + " |"


def search_table(told: dict[str, Any]) -> str:
    """The search and the curve as Markdown."""
    rows = [(f"printed, {row['iterations']:,} iterations", row) for row in told["curve"]] + [("ours", told["ours"])]
    settings = ", ".join(f"{name} {told['settings'][name]:.3g}" for name in
                         ("learning_rate", "initial_scale", "lambda_min", "alpha"))  # fmt: skip
    lines = [
        f"{told['case']}, set {told['seed']}: {told['trials']} random settings of {told['iterations']:,} iterations in "
        f"{told['search_seconds']:.0f} s; the best ({settings}) has a mean best correlation of {told['score']:.3f}.",
        "", f"| run | residual | {HEAD}", "|" + "---|" * 9,
        *(f"| {name} | {row['residual']:.3f} | {_cells(row)}" for name, row in rows),
    ]  # fmt: skip
    return "\n".join(lines)


def baseline_table(rows: list[dict[str, Any]]) -> str:
    """The baselines as Markdown."""
    lines = [f"| baseline | target | set | {HEAD}", "|" + "---|" * 10]
    lines += [
        f"| {name} | {row['case']} | {row['seed']} | {_cells(row[name])}"
        for name in ("model inversion", "first-layer weights") for row in rows
    ]  # fmt: skip
    return "\n".join(lines)


TABLES: dict[str, Callable[[Any], str]] = {
    "search of appendix B.2": search_table, "baselines on pictures": baseline_table,
}  # fmt: skip
