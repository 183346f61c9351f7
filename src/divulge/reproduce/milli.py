"""Milli et al. 2019, figures 2, 3 and 4: copies learned from values and from gradients.

Splits as in the paper: the target learns from 50,000 of MNIST's training pictures (40,000 of CIFAR-10's), the copy
queries 10,000 others, and 10,000 test pictures judge. Without ``full`` it runs at a scale that a small machine does in
minutes: scikit-learn's digits for every experiment on MNIST's shallow networks, few queries, two repeats.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import divulge
from divulge.datasets import Dataset, Rows, split
from divulge.extraction.curves import LearningCurve, learning_curve
from divulge.oracles.base import Oracle
from divulge.oracles.guards import Smoothed
from divulge.training import Recipe

KINDS = ("gradients", "values", "values, as printed")
SMALL_STUDENT: dict[str, dict[str, Any]] = {"one-hidden": {"width": 32}, "two-conv": {"filters": [8, 8], "dense": 32}}


@dataclass(frozen=True)
class Experiment:
    """One panel of a figure: a target, a student, where the queries come from, what stands in front of the target."""

    name: str
    data: str
    target: str
    student: str
    inputs: str = "data"
    smooth: float = 0.0
    """SmoothGrad's standard deviation, in units of the data's own."""


def experiments(*, full: bool) -> list[Experiment]:
    """The panels, in the order of the figures."""
    mnist = "mnist" if full else "digits"
    panels = [Experiment(f"figure 2: {name}", mnist, name, name) for name in ("softmax", "one-hidden", "two-conv")]
    panels.append(Experiment("figure 2: one-hidden, SmoothGrad", mnist, "one-hidden", "one-hidden", smooth=1.0))
    pairs = [
        ("softmax", "one-hidden"),
        ("one-hidden", "softmax"),
        ("one-hidden", "two-conv"),
        ("two-conv", "one-hidden"),
    ]
    panels += [Experiment(f"figure 3: {target} by {student}", mnist, target, student) for target, student in pairs]
    panels += [
        Experiment(f"figure 4: {name}, Gaussian queries", mnist, name, name, inputs="gaussian")
        for name in ("one-hidden", "two-conv")
    ]
    if full:
        cifar = [("two-conv", "two-conv"), ("vgg11", "vgg11"), ("resnet18", "resnet18"), ("vgg11", "resnet18"),
                 ("resnet18", "vgg11")]  # fmt: skip
        panels += [
            Experiment(f"CIFAR-10: {target} by {student}", "cifar10", target, student) for target, student in cifar
        ]
    return panels


def run(out: Path, *, full: bool, seed: int) -> dict[str, Any]:
    """Every panel's curve: results.json with every point, table.md, and a picture for each."""
    chosen = experiments(full=full)
    queries = (10, 30, 100, 300, 1000, 10_000) if full else (10, 30, 100)
    targets: dict[tuple[str, str], Any] = {}
    results: dict[str, Any] = {}
    for panel in chosen:
        data = divulge.datasets.load(panel.data)
        own, other = _parts(data)
        key = panel.data, panel.target
        if key not in targets:
            targets[key] = _target(panel.target, data, own, full=full, seed=seed)
        curve = _curve(panel, targets[key], data, other, queries, full=full, seed=seed)
        results[panel.name] = {**curve.as_dict(), "table": curve.table("accuracy"), "ratio at 90 %": _ratios(curve)}
        curve.plot(out / f"{panel.name.replace(':', '').replace(',', '').replace(' ', '-')}.png", "accuracy")
        (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        (out / "table.md").write_text(_markdown(results))
    return {"panels": list(results), "out": str(out)}


def _parts(data: Dataset) -> tuple[Rows, Rows]:
    n = len(data.train.X)
    aside = 10_000 if n >= 50_000 else n // 3
    own, other = split(data.train, n - aside, aside, seed=0)
    return own, other


def _target(name: str, data: Dataset, rows: Rows, *, full: bool, seed: int) -> Any:
    options = {} if full else SMALL_STUDENT.get(name, {})
    spec = {"architecture": name, "shape": list(data.shape), "outputs": len(data.classes), **options}
    recipe = Recipe(
        architecture=spec,
        loss="cross-entropy",
        optimiser="adam",
        learning_rate=3e-3,
        epochs=20,
        batch_size=64,
        seed=seed,
    )
    return recipe.train(rows.X, rows.y)


def _curve(
    panel: Experiment, target: Any, data: Dataset, other: Rows, queries: tuple[int, ...], *, full: bool, seed: int
) -> LearningCurve:
    front: Callable[[Oracle], Oracle] = lambda oracle: oracle  # noqa: E731
    if panel.smooth:
        sigma = panel.smooth * float(other.X.std())
        front = lambda oracle: Smoothed(oracle, sigma, samples=10, seed=seed)  # noqa: E731
    student = {
        "architecture": panel.student,
        "shape": list(data.shape),
        **({} if full else SMALL_STUDENT.get(panel.student, {})),
    }
    return learning_curve(
        front(divulge.oracle(target, access="gradient")),
        student,
        "gaussian" if panel.inputs == "gaussian" else other.X,
        test=(data.test.X, data.test.y),
        queries=queries,
        kinds=KINDS,
        repeats=5 if full else 2,
        seed=seed,
        steps=None if full else 300,
    )


def _ratios(curve: LearningCurve) -> dict[str, float | None]:
    return {kind: curve.ratio(0.9, more=kind, what="accuracy") for kind in KINDS[1:]}


def _markdown(results: dict[str, Any]) -> str:
    lines = ["| panel | kind | queries | accuracy | +/- |", "|---|---|---|---|---|"]
    for name, result in results.items():
        for row in result["table"]:
            mean, band = 100 * row["mean"], 100 * row["band"]
            lines.append(f"| {name} | {row['kind']} | {row['queries']:,} | {mean:.1f} | {band:.1f} |")
    return "\n".join(lines) + "\n"
