"""Balle et al. 2022, figure 5: the error of reconstructors against the number of shadow models that they learn from.

Three reconstructors of the same shadow models: the paper's network as printed, one that starts from ridge's answer
and learns what is left, and ridge regression. Errors are mean squared errors, LPIPS where its weights have been
downloaded (``perceptual``), and the Kullback-Leibler divergence between a classifier's answers on target and
reconstruction, beside the nearest digit that the adversary holds: a known one, or one of the most shadow rows. Shadow
models and the printed network's products are made in bfloat16 where the processor has it. ``metrics`` says how LPIPS
and the error go together.
"""

from __future__ import annotations

import json
import time
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from divulge import informed
from divulge.core import plots
from divulge.informed.reconstructor import Method
from divulge.informed.shadow_models.training import Precision, Shadows
from experiments.papers import perceptual
from experiments.papers import targets as kept

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.papers.balle import Lab

METHODS: tuple[Method, ...] = ("ridge", "network", "paper")
COUNTS = {False: (1000, 2000, 4000, 8000, 16_000), True: (1000, 2000, 4000, 8000, 16_000, 38_000)}
"""Numbers of shadow models, by whether full."""
PRINTED = {False: (1000, 8000), True: COUNTS[True]}
"""The same for the printed network, which takes far longer to learn."""
METRIC_COUNTS = (500, 1000)
"""The same for LPIPS."""
CLASSIFIER = "mnist/two-conv-small"


def fast() -> Precision:
    """bfloat16 on processors that multiply in it, float32 on others."""
    has = (getattr(torch.cpu, name, bool) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return "bfloat16" if any(one() for one in has) else "float32"


def curve(lab: Lab) -> dict[str, Any]:
    """Every reconstructor at every number of shadow models; each point is kept on disk when it is measured."""
    recipe, fixed, (X, y), models = lab.default_models("elu")
    precision, classifier, shadows = fast(), kept.target(CLASSIFIER), _shadows(lab)
    pool = shadows.X, shadows.y
    path = lab.out / "networks.json"
    points: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for count, method in product(COUNTS[lab.full], METHODS):
        if f"{method}, {count}" in points or (method == "paper" and count not in PRINTED[lab.full]):
            continue
        some, began = shadows.subset(count), time.process_time()
        attack = informed.reconstructor(
            recipe, *fixed, some.X, some.y, models=some, method=method, precision=precision, seed=lab.seed
        )
        spent = time.process_time() - began
        records = attack(models)
        found = {**lab.judged(records, (X, y), fixed, pool, classifier), **_lpips(records, X)}
        points[f"{method}, {count}"] = {"fit_processor_seconds": spent, "precision": precision, **found}
        path.write_text(json.dumps(points, indent=2) + "\n")
        picture(points, lab.out / "figure5.png")
    return {"paper": 0.0094, "curve": points}


def _shadows(lab: Lab) -> Shadows:
    """The most shadow models of the curve, kept on disk."""
    most, precision = COUNTS[lab.full][-1], fast()
    folder = lab.out / f"shadows-elu-{precision}-{most}"
    return informed.shadows(
        lab.recipe(), *lab.fixed(), *lab.pool(most), precision=precision, folder=folder, workers=lab.workers
    )


def _lpips(records: list[informed.Record], X: Tensor) -> dict[str, float]:
    """The mean LPIPS of reconstructions, where its weights have been downloaded."""
    if perceptual.present() is None:
        return {}
    rebuilt = torch.stack([record.x for record in records]).float()
    return {"lpips": float(perceptual.load()(rebuilt, X.flatten(1), (1, 28, 28)).mean())}


def metrics(lab: Lab) -> dict[str, Any]:
    """LPIPS beside the mean squared error (figure 5a): ridge on few shadow models, and the nearest digit held."""
    from scipy.stats import spearmanr

    measure, shape = perceptual.load(), (1, 28, 28)
    recipe, fixed, (X, y), models = lab.default_models("elu")
    truth = X.flatten(1)
    result: dict[str, Any] = {"paper": {"mean": 0.0089, "lpips": 0.0382}, "attacked": len(X)}
    pool = lab.pool(METRIC_COUNTS[-1])
    shadows = informed.shadows(recipe, *fixed, *pool, folder=lab.out / f"shadows-elu-{len(pool[0])}")
    held = torch.cat([fixed[0], pool[0]]).flatten(1)
    near = held[informed.baseline_errors(X, y, held, torch.cat([fixed[1], pool[1]])).neighbour]
    rows = {"nearest digit": near}
    for count in METRIC_COUNTS:
        some = shadows.subset(count)
        attack = informed.reconstructor(recipe, *fixed, some.X, some.y, models=some)
        rows[f"ridge, {count}"] = torch.stack([record.x for record in attack(models)]).float()
    for name, rebuilt in rows.items():
        errors, distances = (rebuilt - truth).square().mean(dim=1), measure(rebuilt, truth, shape)
        rank = spearmanr(errors.numpy(), distances.numpy())
        result[name] = {
            "mean": float(errors.mean()), "lpips": float(distances.mean()), "spearman": float(rank.statistic),
        }  # fmt: skip
    return result


def picture(points: dict[str, Any], path: Path) -> Path:
    """Figure 5, c and d: mean squared error, divergence and LPIPS against the number of shadow models."""
    measures = {"mean_mse": "mean squared error", "mean_kl": "KL divergence", "lpips": "LPIPS"}
    measures = {key: title for key, title in measures.items() if all(key in point for point in points.values())}
    figure = plots.new_figure(4.5 * len(measures), 3.6)
    for place, (measure, title) in enumerate(measures.items()):
        panel = figure.add_subplot(
            1, len(measures), place + 1, xscale="log", yscale="log", title=title, xlabel="shadow models"
        )
        for method in METHODS:
            there = [count for count in COUNTS[True] if f"{method}, {count}" in points]
            panel.plot(there, [points[f"{method}, {count}"][measure] for count in there], marker="o", label=method)
        if measure == "mean_mse":
            panel.axhline(next(iter(points.values()))["nearest"], color="#666", ls="--", label="nearest digit held")
            panel.axhline(0.0094, color="#a33", ls=":", label="Balle 2022, 59,000 shadow models")
        every = sorted({int(name.split(", ")[1]) for name in points})
        panel.set_xticks(every, [f"{count:,}" for count in every])
        panel.set_xticks([], minor=True)
        panel.legend(fontsize=7)
    return plots.save(figure, path)


def carried_over(lab: Lab, count: int = 1000) -> dict[str, Any]:
    """The network carried over to another fixed set by a little more training (appendix B)."""
    recipe, fixed, _, _ = lab.default_models("elu")
    shadows, precision = _shadows(lab).subset(count), fast()
    attack = informed.reconstructor(
        recipe, *fixed, shadows.X, shadows.y, models=shadows, method="paper", precision=precision
    )
    other, few = lab.rows(3000, 1000), lab.pool(count // 4)
    own = informed.shadows(recipe, *other, *few)
    again = lab.targets(30)
    there = lab.released(recipe, other, again)
    result: dict[str, Any] = {"shadows": count, "own": len(few[0])}
    for name, tune in (("tuned", attack), ("from scratch", None)):
        carried = informed.reconstructor(
            recipe, *other, *few, models=own, method="paper", epochs=20, tune=tune, precision=precision, seed=lab.seed
        )
        result[name] = lab.judged(carried(there), again, other)["mean_mse"]
    return result
