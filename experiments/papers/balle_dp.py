"""Balle et al. 2022, section VI-D and appendix E (figures 9, 10 and 15): the informed attack against private training,
beside the bounds.

One model is released for each target record and each epsilon, trained on full batches with clipped gradients and noise:
for MNIST a perceptron 784-10-10 (clipped to norm 1), for CIFAR-10 the convolutional network of table VI (to norm 10).
The adversary knows the other records, the recipe and the initial weights, not the noise. Beside the error of the
reconstructions and the accuracy that is kept, which the figures have, stands what section VII proves: the share of
targets rebuilt to within eta, and the chance that no attacker can exceed. kappa, the blind guess's chance, is estimated
from training pictures. epsilon = infinity clips and adds no noise.

The adversary's attack is ``divulge.informed.private_attack``. Beside it, for MNIST at two epsilons, stands an attack
of the paper's kind, learned from noisy shadow models (our ridge reconstructor in the network's place). Targets, fixed
and shadow records come from the training pictures; the test pictures judge the accuracy.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from divulge import datasets
from divulge.core import plots
from divulge.core.progress import report
from divulge.core.statistics import clopper_pearson
from divulge.core.workers import Workers
from divulge.informed import baseline_errors
from divulge.informed.private_attack import PrivateAttack, learn
from divulge.informed.shadow_models import ridge
from divulge.protection import Kappa, Schedule, bound_curves, estimate_kappa, guarantees
from divulge.protection.recommend import TIGHT
from divulge.training import Privacy, Recipe, evaluate
from divulge.training.private import accounting
from divulge.training.private.trainer import train_many
from experiments.papers.balle_dp_pages import draw_errors, draw_success, name, table
from experiments.plan import Plan

EPSILONS = (1.0, 10.0, 100.0, 1e3, 1e4, math.inf)
DELTA = 1e-5
SHOWN = 8
_TARGET_STREAM = 1_000_000  # noise seeds of the targets, apart from those of the attack's own rehearsals


@dataclass(frozen=True)
class Study:
    """One data set, the training of its released models, and how many records of each kind there are."""

    data: str
    recipe: Recipe
    """With the paper's clipping; the noise is replaced."""
    fixed: int
    shadows: int
    targets: int
    etas: tuple[float, ...]
    """Mean squared errors within which a reconstruction counts."""
    blind: int
    """Pictures that the blind guess's chance is estimated from."""
    noisy_shadows: int = 0
    """Shadow models of the reconstructor that learns from noisy ones,"""
    noisy_at: tuple[float, ...] = (1e3, 1e4)
    """and the epsilons at which it is tried."""
    accuracy_fixed: int | None = None
    """Train one more model an epsilon on so many records to judge the accuracy; by default the released ones do."""

    def private(self, noise_multiplier: float) -> Recipe:
        """The released models' training with this noise."""
        assert self.recipe.privacy is not None
        privacy = dataclasses.replace(self.recipe.privacy, noise_multiplier=noise_multiplier)
        return dataclasses.replace(self.recipe, privacy=privacy)

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.recipe.epochs)


PERCEPTRON = Recipe(
    widths=[784, 10, 10], activation="elu", learning_rate=0.2, momentum=0.9, epochs=100,
    privacy=Privacy(noise_multiplier=1.0, clip=1.0, noise_seed=0),
)  # fmt: skip
CONVOLUTIONAL = Recipe(
    architecture="balle-cnn", learning_rate=0.01, momentum=0.9, epochs=100,
    privacy=Privacy(noise_multiplier=1.0, clip=10.0, noise_seed=0),
)  # fmt: skip
MNIST = Study("mnist", PERCEPTRON, 300, 2000, 100, (0.01, 0.02), 60_000, noisy_shadows=1000)
CIFAR = Study(
    "cifar10", dataclasses.replace(CONVOLUTIONAL, epochs=25), 50, 290, 24, (0.02, 0.03), 10_000, accuracy_fixed=1000
)
SMALL = (MNIST, CIFAR)
FULL = (
    dataclasses.replace(MNIST, fixed=10_000, shadows=49_000, targets=1000, noisy_shadows=24_500),
    dataclasses.replace(
        CIFAR, recipe=CONVOLUTIONAL, fixed=5000, shadows=44_000, targets=1000, blind=50_000, accuracy_fixed=None
    ),
)


def run(plan: Plan) -> dict[str, Any]:
    """For each data set a folder with results.json (every target's error), table.md, errors.png (figures 9 and 15),
    pictures.png (figure 10) and success-ETA.png (beside the bounds).

    Models are kept as they are trained: a run that was killed goes on where it stopped.
    """
    studies = FULL if plan.full else SMALL
    plan.check([study.data for study in studies])
    results = {}
    for study in studies:
        if not plan.begins(study.data):
            continue
        chosen = study if plan.seeds is None else dataclasses.replace(study, targets=plan.seeds)
        found = measure(
            chosen, datasets.load(study.data), plan.out / study.data, models=plan.out / "models", seed=plan.seed,
            workers=plan.workers,
        )  # fmt: skip
        results[study.data] = found
        plan.show(study.data, found)
    return results


def measure(
    study: Study, data: datasets.Dataset, out: Path, *, models: Path, seed: int, workers: Workers = None
) -> dict[str, Any]:
    """The experiment on any pictures that the study's model takes."""
    began = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {"workers": workers, "folder": models}
    fixed, shadow, targets, large = _split(data.train, study, seed)
    statistics = learn(study.recipe, *fixed, *shadow, **kept)
    kappas = {eta: estimate_kappa(data.train.X[: study.blind], eta, seed=seed) for eta in study.etas}
    baselines = baseline_errors(*targets, torch.cat([fixed[0], shadow[0]]), torch.cat([fixed[1], shadow[1]]))
    points: list[dict[str, Any]] = []
    pictures = [("target", targets[0][:SHOWN])]
    for turn, epsilon in enumerate(EPSILONS):
        report("epsilon", turn, len(EPSILONS), epsilon=epsilon)
        noise = 0.0 if math.isinf(epsilon) else accounting.noise_for(epsilon, delta=DELTA, steps=study.schedule.steps)
        attack = statistics.against(noise, seed=seed, **kept)
        seeds = [_TARGET_STREAM + seed + number for number in range(study.targets)]
        weights = train_many(study.private(noise), *fixed, *targets, seeds, **kept)
        rows, labels = attack(weights)
        pictures.append((name(epsilon), rows[:SHOWN]))
        point = _point(study, epsilon, attack, rows, labels, targets, kappas)
        judged = weights if large is None else train_many(study.private(noise), *large, seeds[:1], **kept)
        point["test_accuracy"] = _accuracy(study.recipe, judged, data.test)
        if study.noisy_shadows and epsilon in study.noisy_at:
            some = shadow[0][: study.noisy_shadows], shadow[1][: study.noisy_shadows]
            noisy = train_many(study.private(noise), *fixed, *some, list(range(len(some[0]))), **kept)
            point["ridge_mean_mse"] = _ridge_error(noisy, weights, statistics.reference, some, targets)
        points.append(point)
    result = {
        "seed": seed, "data": data.name, "fixed": study.fixed, "shadows": study.shadows, "targets": study.targets,
        "delta": DELTA, "steps": study.schedule.steps, "accuracy_fixed": study.accuracy_fixed or study.fixed + 1,
        "kappa": {str(eta): {"upper": k.upper, "estimate": k.estimate, "records": k.records}
                  for eta, k in kappas.items()},
        "nearest_neighbour": float(baselines.nearest.mean()), "class_mean": float(baselines.class_mean.mean()),
        "points": points, "seconds": time.perf_counter() - began,
    }  # fmt: skip
    plots.save(plots.grid_of_pictures(pictures, data.shape), out / "pictures.png")
    _write(result, study, out)
    return result


def _write(result: dict[str, Any], study: Study, out: Path) -> None:
    (out / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    (out / "table.md").write_text(table(result))
    draw_errors(result, out / "errors.png")
    for eta in study.etas:
        kappa = result["kappa"][str(eta)]["upper"]
        grid = bound_curves(math.log(kappa), schedule=study.schedule, delta=DELTA)
        draw_success(result, eta, grid, out / f"success-{eta:g}.png")


Rows = tuple[Tensor, Tensor]


def _split(
    rows: datasets.Rows, study: Study, seed: int
) -> tuple[Rows, Rows, Rows, tuple[Tensor, Tensor, Tensor, Tensor] | None]:
    """Fixed, shadow and target records; and those of the model that judges the accuracy, its last one apart."""
    order = torch.randperm(len(rows.X), generator=torch.Generator().manual_seed(seed))
    sizes = [study.fixed, study.shadows, study.targets, study.accuracy_fixed or 0]
    *parts, more = torch.split(order[: sum(sizes)], sizes)
    fixed, shadow, targets = ((rows.X[part], rows.y[part]) for part in parts)
    if study.accuracy_fixed is None:
        return fixed, shadow, targets, None
    return fixed, shadow, targets, (rows.X[more[:-1]], rows.y[more[:-1]], rows.X[more[-1:]], rows.y[more[-1:]])


def _point(
    study: Study,
    epsilon: float,
    attack: PrivateAttack,
    rows: Tensor,
    labels: Tensor,
    targets: Rows,
    kappas: dict[float, Kappa],
) -> dict[str, Any]:
    """What the attack got at one epsilon, and what no attack can exceed there."""
    errors = (rows - targets[0].flatten(1).double()).square().mean(dim=1)
    success = {}
    for eta, kappa in kappas.items():
        hits = int((errors <= eta).sum())
        allowed = {TIGHT: 1.0}
        if attack.noise_multiplier > 0:
            log_kappa = math.log(kappa.upper)
            _, logs = guarantees(attack.noise_multiplier, log_kappa=log_kappa, schedule=study.schedule, delta=DELTA)
            allowed = {bound: math.exp(log) for bound, log in logs.items()}
        success[str(eta)] = {
            "share": hits / len(errors),
            "interval": clopper_pearson(hits, len(errors)),
            "bounds": allowed,
        }
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


def _ridge_error(noisy: Tensor, released: Tensor, reference: Tensor, shadow: Rows, targets: Rows) -> float:
    """The mean squared error of a ridge reconstructor learned from noisy shadow models."""
    learned, seen = (torch.nn.functional.normalize(theta.double() - reference, dim=1) for theta in (noisy, released))
    fitted = ridge.fit(learned, learned, *shadow)
    rows = fitted.rows(seen, fitted.label(seen)).clamp(0, 1)
    return float((rows - targets[0].double()).square().mean())


def _accuracy(recipe: Recipe, weights: Tensor, test: datasets.Rows) -> float:
    """The mean test accuracy of models with these weights [B, P]."""
    model = recipe.initial_model()
    found = []
    for theta in weights:
        torch.nn.utils.vector_to_parameters(theta, model.parameters())
        found.append(evaluate(model, *test).accuracy or 0.0)
    return sum(found) / len(found)
