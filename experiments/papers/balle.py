"""Balle et al. 2022, sections V and VI and the appendices: one MNIST digit out of a model, all others being known.

Every line of Table II for MNIST, figure 5 (shadow models), figure 7 (mini-batches), Table III (learning rates), and the
appendices B (transfer), C (a start near convergence), K (epochs) and L (gradient norms); and the CIFAR-10 network on a
reduced fixed set. The released models are trained by the recipe itself, one by one. Where the paper trains a
reconstructor for each line, the lines here are attacked by inverting training (``divulge.informed.direct``), which
needs no shadow models; figure 5 and the black box are done both ways. Results are written as they come, and a run that
was stopped goes on where it was.

The digits of a seed: 1,000 targets, 1,000 others on which settings were tried, 10,000 to be known, the rest shadows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divulge import datasets, informed
from divulge.core import workers as parallel
from divulge.core.errors import DivulgeError
from divulge.informed.released_view import flat_weights
from divulge.informed.shadow_models.training import Shadows
from divulge.training import Recipe
from divulge.training.batched.shared_setup import with_row
from experiments.papers import balle_lines, balle_networks, balle_pictures, balle_unknown_start
from experiments.papers.balle_factors import FACTORS, LINES, RUNS, Factor
from experiments.papers.balle_pages import judged, table
from experiments.papers.balle_zero_gradients import zero_gradients
from experiments.plan import Plan

Rows = tuple[Tensor, Tensor]
DEFAULT: dict[str, Any] = {
    "widths": [784, 10, 10], "activation": "elu", "loss": "cross-entropy", "learning_rate": 0.2, "momentum": 0.9,
    "epochs": 100,
}  # fmt: skip
PAPER = {"elu": 0.0094, "relu": 0.0182}
COUNT = {"elu": 100, "relu": 24}
"""Targets of the reconstructors, by activation."""


def run(plan: Plan) -> dict[str, Any]:
    """Every part; ``full`` takes 200 targets a line and 38,000 shadow models, ``seeds`` so many targets a line."""
    out, full, seed = plan.out, plan.full, plan.seed
    lab = Lab(out, full, seed, plan.workers, plan.seeds)
    tasks: dict[str, Callable[[], dict[str, Any]]] = {
        "shadow models (figure 5)": lambda: shadow_curve(lab, "elu"),
        "direct from shadow models": lambda: from_shadows(lab, "elu"),
        "black box": lambda: black_box(lab),
        "CIFAR-10 network": lambda: cifar(lab),
        "CIFAR-10 reconstructor network": lambda: cifar_network(lab),
        **{f"direct: {factor.name}": _direct_task(lab, factor) for factor in FACTORS},
        "shadow models, ReLU": lambda: shadow_curve(lab, "relu"),
        "direct from shadow models, ReLU": lambda: from_shadows(lab, "relu"),
        "gradient norms (appendix L)": lambda: gradient_norms(lab),
        "zero gradients (figure 22)": lambda: zero_gradients(*_pictures(lab, 8)[:3], lab.out),
        "out-of-distribution shadows": lambda: other_distribution(lab),
        "reconstructor networks (figure 5)": lambda: balle_networks.curve(lab),
        "LPIPS (figure 5)": lambda: balle_networks.metrics(lab),
        "another fixed set (figure 12)": lambda: balle_networks.carried_over(lab),
        "unknown initial weights (table III)": lambda: balle_unknown_start.unknown_start(lab),
        "membership beside (figure 11)": lambda: balle_unknown_start.membership_beside(lab),
        **balle_lines.lines(lab, list(LINES)),
        **balle_pictures.lines(lab, _pictures),
    }
    plan.check(list(tasks))
    path = out / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    asked = {"full": full, "seed": seed, "targets_asked": plan.seeds}
    for name, task in tasks.items():
        kept = results.get(name, {})
        if (kept and {"targets_asked": None, **kept}.items() >= asked.items()) or not plan.begins(name):
            continue
        started = time.perf_counter()
        results[name] = {**task(), "seconds": time.perf_counter() - started, **asked}
        path.write_text(json.dumps(results, indent=2) + "\n")
        (out / "table.md").write_text(table(results))
        plan.show(name, results[name])
    return {"experiments": list(results), "out": str(out)}


@dataclass(frozen=True)
class Lab:
    """The digits, and models trained on them."""

    out: Path
    full: bool
    seed: int
    workers: parallel.Workers = None
    count: int | None = None
    """Targets of each line; the line's own number by default."""

    def rows(self, first: int, count: int) -> Rows:
        """Digits by their place in the seed's order."""
        data = datasets.load("mnist").train
        order = torch.randperm(len(data.X), generator=torch.Generator().manual_seed(self.seed))
        chosen = order[first : first + count]
        return data.X[chosen], data.y[chosen]

    def targets(self, count: int, first: int = 0) -> Rows:
        return self.rows(first, self.count or (200 if self.full else count))

    def fixed(self, count: int = 1000) -> Rows:
        return self.rows(2000, count)

    def pool(self, count: int | None = None) -> Rows:
        """The rows for shadow models."""
        return self.rows(12_000, count or (38_000 if self.full else 8000))

    def recipe(self, **change: Any) -> Recipe:
        return Recipe(**{**DEFAULT, "seed": self.seed, **change})

    def released(self, recipe: Recipe, fixed: Rows, targets: Rows, start: nn.Module | None = None) -> list[nn.Module]:
        """A model for each target, trained on the fixed rows and it."""
        train = partial(_release, recipe, fixed, start)
        pairs = list(zip(*targets, strict=True))
        return parallel.run(train, pairs, workers=self.workers, stage="training released models")

    def default_models(self, activation: str) -> tuple[Recipe, Rows, Rows, list[nn.Module]]:
        """The recipe, known rows, targets and released models of the reconstructors, kept on disk."""
        recipe, fixed = self.recipe(activation=activation), self.fixed()
        targets = self.targets(COUNT[activation])
        path = self.out / f"released-{activation}-{len(targets[0])}.npy"
        if not path.exists():
            found = self.released(recipe, fixed, targets)
            np.save(path, torch.stack([flat_weights(model) for model in found]).numpy())
        models = []
        for weights in torch.from_numpy(np.load(path)):
            model = recipe.initial_model()
            nn.utils.vector_to_parameters(weights.to(recipe.dtype), model.parameters())
            models.append(model)
        return recipe, fixed, targets, models

    def judged(
        self, records: list[informed.Record], targets: Rows, fixed: Rows, pool: Rows | None = None,
        classifier: nn.Module | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """How good reconstructions of digits are, beside what needs no attack."""
        held = tuple(torch.cat([a, b]) for a, b in zip(fixed, pool or self.pool(), strict=True))
        return judged(records, targets, held, shape=(1, 28, 28), classifier=classifier)

    def shadow_count(self, activation: str) -> int:
        return len(self.pool()[0]) if activation == "elu" else 2000

    def shadows(self, recipe: Recipe, count: int) -> Shadows:
        """Shadow models, kept on disk."""
        X, y = self.pool(count)
        folder = self.out / f"shadows-{recipe.activation}-{count}"
        return informed.shadows(recipe, *self.fixed(), X, y, folder=folder, workers=self.workers)


def _release(recipe: Recipe, fixed: Rows, start: nn.Module | None, target: tuple[Tensor, Tensor]) -> nn.Module:
    return recipe.train(*with_row(*fixed, *target, len(fixed[0])), start=start)


# -- inverting training -----------------------------------------------------------------------------------------------


def _direct_task(lab: Lab, factor: Factor) -> Callable[[], dict[str, Any]]:
    return lambda: direct_line(lab, factor)


def direct_line(lab: Lab, factor: Factor) -> dict[str, Any]:
    """One line of the tables, by inverting training."""
    fixed, targets = lab.fixed(factor.fixed), lab.targets(factor.targets, factor.first)
    secret = lab.recipe(**factor.change)
    start = None
    if factor.pretrained:  # on digits that are neither known nor targets
        start = secret.train(*lab.rows(50_000, 10_000))
    if factor.unknown:
        secret = replace(secret, seed=secret.seed + 1)
    if factor.unknown == "order":
        start = lab.recipe(**factor.change).initial_model()
    models = lab.released(secret, fixed, targets, start)
    found = {"paper": factor.paper, "runs": factor.runs, "fixed": factor.fixed}
    try:
        records = informed.direct(
            lab.recipe(**factor.change), models, *fixed, runs=factor.runs, initial=start, seed=lab.seed
        )
    except DivulgeError as error:
        return {**found, "refused": str(error)}
    return {**found, **lab.judged(records, targets, fixed)}


# -- learning from shadow models --------------------------------------------------------------------------------------


@cache
def fitted(lab: Lab, activation: str, count: int) -> informed.Reconstructor:
    """The ridge reconstructor of so many shadow models."""
    recipe, fixed, _, _ = lab.default_models(activation)
    shadows = lab.shadows(recipe, lab.shadow_count(activation)).subset(count)
    return informed.reconstructor(recipe, *fixed, *_first(lab.pool(), count), models=shadows)


def shadow_curve(lab: Lab, activation: str) -> dict[str, Any]:
    """The ridge reconstructor against the number of shadow models (figure 5), and on the second layer alone."""
    recipe, fixed, targets, models = lab.default_models(activation)
    most = lab.shadow_count(activation)
    shadows = lab.shadows(recipe, most)
    curve = {}
    for count in (1000, 2000, 8000, 38_000):
        if count > most:
            break
        attack = fitted(lab, activation, count)
        records = attack(models)
        curve[count] = {**lab.judged(records, targets, fixed), "fit_seconds": attack.seconds}
    found = informed.baseline_errors(*targets, *fixed)
    path = lab.out / f"ridge-{activation}.png"
    informed.picture(records, targets[0], fixed[0], found.neighbour, path, shape=(1, 28, 28))
    attack = informed.reconstructor(recipe, *fixed, *_first(lab.pool(), most), models=shadows, layers=[1])
    layer = lab.judged(attack(models), targets, fixed)
    return {"paper": PAPER[activation], "curve": curve, "second layer": {"paper": 0.0124, **layer}}


def from_shadows(lab: Lab, activation: str) -> dict[str, Any]:
    """Training inverted, starting where the ridge reconstructor ends."""
    recipe, fixed, targets, models = lab.default_models(activation)
    most = lab.shadow_count(activation)
    attack = fitted(lab, activation, most)
    count, runs = (20, 86) if activation == "elu" else (12, 88)
    count = len(models) if lab.full else count
    starts = attack(models[:count])
    labels = [record.y for record in starts]
    records = informed.direct(recipe, models[:count], *fixed, start=starts, labels=labels, runs=runs)
    own = _first(targets, count)
    started = informed.score(starts, *own, *fixed).as_dict()["mean_mse"]
    return {"paper": PAPER[activation], "shadows": most, "ridge": started, **lab.judged(records, own, fixed)}


def black_box(lab: Lab) -> dict[str, Any]:
    """Logits on 200 probes only: ridge on shadow models, and training inverted from where that ends."""
    recipe, fixed, targets, models = lab.default_models("elu")
    X, y = lab.pool()
    shadows = lab.shadows(recipe, len(X))
    attack = informed.reconstructor(recipe, *fixed, X, y, models=shadows, access="logits", probes=X[:200])
    records = attack(models)
    count = len(records) if lab.full else 20
    better = informed.direct(
        recipe, models[:count], *fixed, access="logits", probes=X[:200], start=records[:count], runs=RUNS,
        labels=[record.y for record in records[:count]],
    )  # fmt: skip
    return {
        "paper": 0.0110,
        "ridge": lab.judged(records, targets, fixed),
        "direct": lab.judged(better, _first(targets, count), fixed),
    }


def other_distribution(lab: Lab) -> dict[str, Any]:
    """Shadow rows that are no digits (section VI-B has CIFAR-100 for CIFAR-10): clothes of Fashion-MNIST."""
    recipe, fixed, targets, models = lab.default_models("elu")
    count = 20_000 if lab.full else 2000
    clothes = datasets.load("fashion-mnist").train
    pool = clothes.X[:count], clothes.y[:count]
    shadows = informed.shadows(recipe, *fixed, *pool, folder=lab.out / f"shadows-clothes-{count}")
    attack = informed.reconstructor(recipe, *fixed, *pool, models=shadows)
    return {"shadows": count, **lab.judged(attack(models), targets, fixed)}


def gradient_norms(lab: Lab) -> dict[str, Any]:
    """Whether targets with larger gradients are harder: rank correlations with the ridge error (figure 21)."""
    from scipy.stats import spearmanr

    recipe, fixed, targets, models = lab.default_models("elu")
    attack = fitted(lab, "elu", lab.shadow_count("elu"))
    count = len(models) if lab.full else 40
    rows = list(zip(*_first(targets, count), strict=True))
    errors = [record.error(x) for record, (x, _) in zip(attack(models[:count]), rows, strict=True)]
    norms = [_norms_along(recipe, fixed, x, y) for x, y in rows]
    correlation = spearmanr(errors, norms)
    return {"spearman": float(correlation.statistic), "p": float(correlation.pvalue), "targets": count}


def _norms_along(recipe: Recipe, fixed: Rows, x: Tensor, y: Tensor) -> float:
    """The sum over training steps of the norm of the target's own gradient."""
    X, labels = with_row(*fixed, x, y, len(fixed[0]))
    model = recipe.initial_model().train()
    descent = recipe.descent(model.parameters())
    total = 0.0
    for _ in range(recipe.epochs):
        own = torch.autograd.grad(recipe.loss_of(model(X[-1:]), labels[-1:]), list(model.parameters()))
        total += float(torch.cat([part.flatten() for part in own]).norm())
        descent.clear()
        recipe.loss_of(model(X), labels).backward()  # type: ignore[no-untyped-call]
        descent.step()
    return total


def _first(rows: Rows, count: int) -> Rows:
    return rows[0][:count], rows[1][:count]


# -- the convolutional network ----------------------------------------------------------------------------------------


def cifar(lab: Lab) -> dict[str, Any]:
    """The CIFAR-10 network of Table VI, inverted on a fixed set that one core can afford."""
    recipe, known, targets, _ = _pictures(lab, 20)
    models = lab.released(recipe, known, targets)
    pairs = zip(models, targets[1].tolist(), strict=True)
    records = parallel.run(partial(_inverted, recipe, known), pairs, workers=lab.workers, stage="inverting training")
    return {
        "paper": 0.0049, "fixed": len(known[0]), "epochs": recipe.epochs, "weights": len(flat_weights(models[0])),
        **judged(records, targets, known, shape=(3, 32, 32)),
    }  # fmt: skip


def _inverted(recipe: Recipe, known: Rows, released: tuple[nn.Module, int]) -> informed.Record:
    model, label = released
    record: informed.Record = informed.direct(recipe, model, *known, labels=[label], runs=43)
    return record


def cifar_network(lab: Lab) -> dict[str, Any]:
    """The paper's reconstructor for the same models: what a shadow model and a pass over them cost, and its error."""
    recipe, known, targets, pool = _pictures(lab, 20 if lab.full else 4)
    epochs = 100 if lab.full else 10
    started = time.perf_counter()
    shadows = informed.shadows(recipe, *known, *pool, workers=lab.workers)
    trained = time.perf_counter() - started
    attack = informed.reconstructor(recipe, *known, *pool, models=shadows, method="paper", epochs=epochs)
    return {
        "paper": 0.0049, "shadows": len(pool[0]), "network_epochs": epochs, "seconds_a_shadow": trained / len(pool[0]),
        "fit_seconds": attack.seconds,
        **judged(attack(lab.released(recipe, known, targets)), targets, known, shape=(3, 32, 32)),
    }  # fmt: skip


def _pictures(lab: Lab, count: int, known: int = 50) -> tuple[Recipe, Rows, Rows, Rows]:
    """The recipe of the CIFAR-10 network, known pictures, ``count`` targets, and pictures for shadow models."""
    fixed, shadows, epochs = (500, 5000, 100) if lab.full else (known, 100, 25)
    data = datasets.load("cifar10").train
    order = torch.randperm(len(data.X), generator=torch.Generator().manual_seed(lab.seed))
    recipe = Recipe(
        architecture="balle-cnn", loss="cross-entropy", learning_rate=0.01, momentum=0.9, epochs=epochs, seed=lab.seed
    )
    parts = torch.split(order[: fixed + count + shadows], [fixed, count, shadows])
    held, targets, pool = ((data.X[part], data.y[part]) for part in parts)
    return recipe, held, targets, pool
