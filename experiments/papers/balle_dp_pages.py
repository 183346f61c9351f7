"""What ``divulge reproduce balle-dp`` writes of a measured study: the table and the figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from divulge.core import plots
from divulge.protection import BoundCurves
from divulge.protection.recommend import RENYI, TIGHT, ZCDP, chance, epsilon_axes, legend_above


def name(epsilon: Any) -> str:
    """An epsilon for a person; no noise is infinite, in results "inf"."""
    return "no noise" if epsilon in ("inf", math.inf) else f"epsilon {epsilon:g}"


def table(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    etas = list(result["kappa"])
    heads = [f"within {eta} (95 % interval) | bound, tight | bound, Corollary 4" for eta in etas]
    lines = [
        f"{result['targets']} targets, {result['fixed']:,} fixed and {result['shadows']:,} shadow records, "
        f"{result['steps']} steps, seed {result['seed']}; nearest held record {result['nearest_neighbour']:.4f}, "
        f"class mean {result['class_mean']:.4f}; blind guess "
        + ", ".join(f"{chance(math.log(result['kappa'][eta]['upper']))} within {eta}" for eta in etas)
        + f"; accuracy of models on {result['accuracy_fixed']:,} records; {result['seconds'] / 60:.1f} minutes.",
        "",
        "| epsilon | noise multiplier | mean squared error (median) | ridge, noisy shadows | label right | "
        "test accuracy | " + " | ".join(heads) + " |",
        "|---|---|---|---|---|---|" + "---|---|---|" * len(etas),
    ]  # fmt: skip
    for point in result["points"]:
        cells = []
        for eta in etas:
            got = point["success"][eta]
            low, high = got["interval"]
            corollary = got["bounds"].get(ZCDP, 1.0)
            cells.append(f"{got['share']:.0%} ({low:.0%} to {high:.0%}) | {got['bounds'][TIGHT]:.3g} | {corollary:.3g}")
        ridged = f"{point['ridge_mean_mse']:.4f}" if "ridge_mean_mse" in point else ""
        lines.append(
            f"| {point['epsilon']} | {point['noise_multiplier']:.3g} | {point['mean_mse']:.4f} "
            f"({point['median_mse']:.4f}) | {ridged} | {point['label_accuracy']:.0%} | {point['test_accuracy']:.1%} | "
            + " | ".join(cells) + " |"
        )  # fmt: skip
    return "\n".join(lines) + "\n"


def draw_success(result: dict[str, Any], eta: float, bounds: BoundCurves, path: Path) -> None:
    """The share of targets rebuilt to within eta against epsilon, with the bounds."""
    figure, axes = _figure(result)
    for bound, logs in bounds.log_gammas.items():
        wide = 3.5 if bound == RENYI else 1.2  # Corollary 4 lies over it
        axes.plot(bounds.epsilons, [math.exp(log) for log in logs], label=f"bound: {bound}", linewidth=wide)
    points = [point["success"][str(eta)] for point in result["points"]]
    shares = [point["share"] for point in points]
    reach = [[max(0.0, s - p["interval"][0]) for s, p in zip(shares, points, strict=True)],
             [max(0.0, p["interval"][1] - s) for s, p in zip(shares, points, strict=True)]]  # fmt: skip
    axes.errorbar(_places(result), shares, yerr=reach, fmt="ko", capsize=3, label="measured: the informed attack")
    axes.axhline(math.exp(bounds.log_kappa), color="grey", linestyle=":", label="blind guess, at most")
    axes.set_ylabel(f"chance of a mean squared error within {eta:g}")
    legend_above(axes)
    plots.save(figure, path)


def draw_errors(result: dict[str, Any], path: Path) -> None:
    """Figures 9 and 15: the error of reconstructions and the accuracy that is kept against epsilon."""
    figure, axes = _figure(result)
    places = _places(result)
    axes.plot(places, [point["mean_mse"] for point in result["points"]], "o-", label="the informed attack")
    axes.axhline(result["class_mean"], color="grey", linestyle="--", label="class mean")
    axes.axhline(result["nearest_neighbour"], color="grey", linestyle=":", label="nearest held record")
    axes.set_ylabel("mean squared error of reconstructions")
    axes.set_ylim(bottom=0)
    right = axes.twinx()
    right.plot(places, [100 * point["test_accuracy"] for point in result["points"]], "s-", color="C3", label="accuracy")
    right.set_ylabel("test accuracy (%)")
    right.set_ylim(0, 100)
    legend_above(axes, right)
    plots.save(figure, path)


def _places(result: dict[str, Any]) -> list[float]:
    """Where each point stands on the axis of epsilon: no noise one decade after the last."""
    return [1e5 if point["epsilon"] == "inf" else point["epsilon"] for point in result["points"]]


def _figure(result: dict[str, Any]) -> tuple[Any, Any]:
    figure, axes = epsilon_axes(result["delta"])
    axes.set_xticks([1, 10, 100, 1e3, 1e4, 1e5], ["1", "10", "100", "1,000", "10,000", "no noise"])
    return figure, axes
