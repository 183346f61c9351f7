"""Balle et al. 2022, section VI-D, figures 9 and 10: the informed attack against private training, beside the bounds.

One model (784-10-10, ELU, 100 full-batch steps with momentum, gradients clipped to norm 1, delta 1e-5) is released for
each target record and each epsilon; the adversary knows the other records, the recipe and the initial weights, not the
noise. Beside the error of the reconstructions and the accuracy that is kept, which the figure has, stands what section
VII proves: the share of targets rebuilt to within eta, and the chance that no attacker can exceed. kappa, the blind
guess's chance, is estimated from the 60,000 training pictures. epsilon = infinity clips and adds no noise.

The adversary's attack is ``divulge.protection.private_attack``. Beside it, at two epsilons, stands an attack of the
paper's kind, learned from noisy shadow models (our ridge reconstructor in the network's place). Targets, fixed and
shadow records come from the training pictures; the 10,000 test pictures judge the accuracy.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

from divulge import datasets
from divulge.informed import ridge, yardsticks
from divulge.progress import report
from divulge.protection import Kappa, Page, Schedule, accounting, estimate_kappa, guarantees, page
from divulge.protection.page import TIGHT, ZCDP, chance, epsilon_axes, legend_above
from divulge.protection.private_attack import PrivateAttack, learn
from divulge.protection.private_training import train_many
from divulge.report.pictures import picture_grid
from divulge.training import Privacy, Recipe
from divulge.workers import Workers

EPSILONS = (1.0, 10.0, 100.0, 1e3, 1e4, math.inf)
ETAS = (0.01, 0.02)
"""Mean squared errors within which a reconstruction counts; the paper's nearest-neighbour oracle is at 0.0232."""
DELTA = 1e-5
RIDGE_AT, RIDGE_SHARE = (1e3, 1e4), 0.5
"""Where the reconstructor from noisy shadow models is tried too, and from which share of the shadow records."""
SHOWN = 8
_TARGET_STREAM = 1_000_000  # noise seeds of the targets, apart from those of the attack's own rehearsals


@dataclass(frozen=True)
class Scale:
    """How many records of each kind."""

    fixed: int
    shadows: int
    targets: int


SMALL, FULL = Scale(300, 2000, 100), Scale(10_000, 49_000, 1000)


def recipe_of(noise_multiplier: float) -> Recipe:
    """The paper's training of the released model (table V), with this noise."""
    return Recipe(
        widths=[784, 10, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=100,
        privacy=Privacy(noise_multiplier=noise_multiplier, clip=1.0, noise_seed=0),
    )  # fmt: skip


def run(out: Path, *, full: bool, seed: int, workers: Workers = None) -> dict[str, Any]:
    """results.json with every target's error, table.md, success.png (beside the bounds), figure9.png, figure10.png.

    Models are kept in a folder as they are trained: a run that was killed goes on where it stopped.
    """
    return measure(datasets.load("mnist"), FULL if full else SMALL, out, seed=seed, workers=workers)


def measure(data: datasets.Dataset, scale: Scale, out: Path, *, seed: int, workers: Workers = None) -> dict[str, Any]:
    """The experiment on any pictures of 784 pixels in ten classes."""
    began = time.perf_counter()
    kept: dict[str, Any] = {"workers": workers, "folder": out / "models"}
    fixed, shadow, targets = _split(data.train, scale, seed)
    shadowed = learn(recipe_of(1.0), *fixed, *shadow, **kept)
    prepared = time.perf_counter() - began
    kappas = {eta: estimate_kappa(data.train.X, eta, seed=seed) for eta in ETAS}
    rods = yardsticks(*targets, torch.cat([fixed[0], shadow[0]]), torch.cat([fixed[1], shadow[1]]))
    points: list[dict[str, Any]] = []
    pictures = [("target", targets[0][:SHOWN])]
    for turn, epsilon in enumerate(EPSILONS):
        report("epsilon", turn, len(EPSILONS), epsilon=epsilon)
        noise = 0.0 if math.isinf(epsilon) else accounting.noise_for(epsilon, delta=DELTA, steps=100)
        attack = shadowed.against(noise, seed=seed, **kept)
        seeds = [_TARGET_STREAM + seed + number for number in range(scale.targets)]
        weights = train_many(recipe_of(noise), *fixed, *targets, seeds, **kept)
        rows, labels = attack(weights)
        pictures.append((_name(epsilon), rows[:SHOWN]))
        points.append(
            {
                **_point(epsilon, attack, rows, labels, targets, kappas),
                "test_accuracy": float(_accuracies(weights, *data.test).mean()),
            }
        )
        if epsilon in RIDGE_AT:
            half = round(RIDGE_SHARE * scale.shadows)
            some = shadow[0][:half], shadow[1][:half]
            noisy = train_many(recipe_of(noise), *fixed, *some, list(range(half)), **kept)
            points[-1]["ridge_mean_mse"] = _ridge_error(noisy, weights, shadowed.reference, some, targets)
    result = {
        "seed": seed, "fixed": scale.fixed, "shadows": scale.shadows, "targets": scale.targets, "delta": DELTA,
        "kappa": {str(eta): {"upper": k.upper, "estimate": k.estimate, "records": k.records}
                  for eta, k in kappas.items()},
        "nearest_neighbour": float(rods.nearest.mean()), "class_mean": float(rods.class_mean.mean()),
        "points": points, "seconds_to_prepare": prepared, "seconds": time.perf_counter() - began,
    }  # fmt: skip
    (out / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    (out / "table.md").write_text(table(result))
    (out / "figure10.png").write_bytes(picture_grid(pictures, data.shape))
    for eta, kappa in kappas.items():
        grid = page(math.log(kappa.upper), schedule=Schedule(100), delta=DELTA)
        _draw_success(result, eta, grid, out / f"success-{eta:g}.png")
    _draw_figure_9(result, out / "figure9.png")
    return result


def _split(rows: datasets.Rows, scale: Scale, seed: int) -> list[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(rows.X), generator=torch.Generator().manual_seed(seed))
    sizes = [scale.fixed, scale.shadows, scale.targets]
    parts = torch.split(order[: sum(sizes)], sizes)
    return [(rows.X[part], rows.y[part]) for part in parts]


def _point(
    epsilon: float,
    attack: PrivateAttack,
    rows: Tensor,
    labels: Tensor,
    targets: tuple[Tensor, Tensor],
    kappas: dict[float, Kappa],
) -> dict[str, Any]:
    """What the attack got at one epsilon, and what no attack can exceed there."""
    errors = (rows - targets[0].double()).square().mean(dim=1)
    success = {}
    for eta, kappa in kappas.items():
        hits = int((errors <= eta).sum())
        allowed = {TIGHT: 1.0}
        if attack.noise_multiplier > 0:
            log_kappa = math.log(kappa.upper)
            _, logs = guarantees(attack.noise_multiplier, log_kappa=log_kappa, schedule=Schedule(100), delta=DELTA)
            allowed = {name: math.exp(log) for name, log in logs.items()}
        success[str(eta)] = {"share": hits / len(errors), "interval": _interval(hits, len(errors)), "bounds": allowed}
    return {
        "epsilon": epsilon if math.isfinite(epsilon) else "inf",
        "noise_multiplier": attack.noise_multiplier,
        "noise_in_a_weight": attack.noise,
        "noise_assumed": attack.assumed,
        "mean_mse": float(errors.mean()),
        "median_mse": float(errors.median()),
        "label_accuracy": float((labels == targets[1]).double().mean()),
        "success": success,
        "mse": errors.tolist(),
    }


def _ridge_error(
    noisy: Tensor, released: Tensor, reference: Tensor, shadow: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]
) -> float:
    """The mean squared error of a ridge reconstructor learned from noisy shadow models."""
    learned, seen = (torch.nn.functional.normalize(theta.double() - reference, dim=1) for theta in (noisy, released))
    fitted = ridge.fit(learned, learned, *shadow)
    rows = fitted.rows(seen, fitted.label(seen)).clamp(0, 1)
    return float((rows - targets[0].double()).square().mean())


def _interval(hits: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson, 95 %."""
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, trials - hits + 1))
    return low, 1.0 if hits == trials else float(beta.ppf(0.975, hits + 1, trials - hits))


def _accuracies(weights: Tensor, X: Tensor, y: Tensor) -> Tensor:
    """The test accuracy of every released model [B]."""
    W1, b1, W2, b2 = torch.split(weights, [7840, 10, 100, 10], dim=1)
    right = torch.zeros(len(weights))
    for part, labels in zip(torch.split(X, 1000), torch.split(y, 1000), strict=True):
        hidden = torch.nn.functional.elu((W1.reshape(-1, 784) @ part.T).view(len(weights), 10, -1) + b1[:, :, None])
        outputs = torch.baddbmm(b2[:, :, None], W2.view(-1, 10, 10), hidden)
        right += (outputs.argmax(dim=1) == labels).sum(dim=1)
    return right / len(y)


# -- what is written --------------------------------------------------------------------------------------------------


def _name(epsilon: Any) -> str:
    return "no noise" if epsilon in ("inf", math.inf) else f"epsilon {epsilon:g}"


def table(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    etas = list(result["kappa"])
    heads = [f"within {eta} (95 % interval) | bound, tight | bound, Corollary 4" for eta in etas]
    lines = [
        f"{result['targets']} targets, {result['fixed']:,} fixed and {result['shadows']:,} shadow records, seed "
        f"{result['seed']}; nearest held record {result['nearest_neighbour']:.4f}, class mean "
        f"{result['class_mean']:.4f}; blind guess "
        + ", ".join(f"{chance(math.log(result['kappa'][eta]['upper']))} within {eta}" for eta in etas)
        + f"; {result['seconds'] / 60:.1f} minutes.",
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


def _places(result: dict[str, Any]) -> list[float]:
    """Where each point stands on the axis of epsilon: no noise one decade after the last."""
    return [1e5 if point["epsilon"] == "inf" else point["epsilon"] for point in result["points"]]


def _figure() -> tuple[Any, Any]:
    figure, axes = epsilon_axes(DELTA)
    axes.set_xticks([1, 10, 100, 1e3, 1e4, 1e5], ["1", "10", "100", "1,000", "10,000", "no noise"])
    return figure, axes


def _draw_success(result: dict[str, Any], eta: float, bounds: Page, path: Path) -> None:
    figure, axes = _figure()
    for name, logs in bounds.log_gammas.items():
        axes.plot(bounds.epsilons, [math.exp(log) for log in logs], label=f"bound: {name}", linewidth=1.2)
    points = [point["success"][str(eta)] for point in result["points"]]
    shares = [point["share"] for point in points]
    reach = [[max(0.0, s - p["interval"][0]) for s, p in zip(shares, points, strict=True)],
             [max(0.0, p["interval"][1] - s) for s, p in zip(shares, points, strict=True)]]  # fmt: skip
    axes.errorbar(_places(result), shares, yerr=reach, fmt="ko", capsize=3, label="measured: the informed attack")
    axes.axhline(math.exp(bounds.log_kappa), color="grey", linestyle=":", label="blind guess, at most")
    axes.set_ylabel(f"chance of a mean squared error within {eta:g}")
    legend_above(axes)
    figure.savefig(path, dpi=110)


def _draw_figure_9(result: dict[str, Any], path: Path) -> None:
    figure, axes = _figure()
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
    figure.savefig(path, dpi=110)
