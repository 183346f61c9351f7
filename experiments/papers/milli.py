"""Milli et al. 2019, section 5 and appendix D: copies learned from values and from gradients, on MNIST and CIFAR-10.

Each ``Row`` is one line of a figure: a target, a student, what is asked and shown, and numbers of queries. Every copy
is one point of ``points.jsonl``; a run that was stopped goes on where it ended, and single rows can be measured by
``python -m experiments by_training``. Without ``full`` only the rows that a small machine does in minutes
are measured, once each: softmax regression and the 2-layer network. Splits and targets are those of targets.py.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import divulge
from divulge import models
from divulge.core.progress import report
from divulge.extraction.by_training import by_training
from divulge.extraction.students.learning_curve import LearningCurve, Point
from divulge.oracles.base import Oracle
from divulge.oracles.guards import Smoothed
from divulge.oracles.guards.explained import Explained
from experiments.papers import milli_figure, milli_saliency, milli_shared_noise
from experiments.papers.targets import TARGETS, labels, parts, target
from experiments.plan import Plan

FIGURE_ONE, FIGURE_FIVE = "figure 1", "figure 5"
SAMPLES = 10
"""SmoothGrad's samples, as in the paper's appendix D."""


@dataclass(frozen=True)
class Row:
    """One line of a figure. ``options`` are those of ``by_training``; ``steps`` shortens the fit."""

    figure: str
    name: str
    target: str
    queries: Sequence[int]
    student: str = ""
    """Name of the target whose architecture it has; the target's own if empty."""
    options: dict[str, Any] = field(default_factory=dict)
    output: str | None = None
    smooth: float = 0.0
    """SmoothGrad's standard deviation, in units of the data's own."""
    samples: int = SAMPLES
    shared: bool = False
    """Whether SmoothGrad takes the same points around every query, and the student knows them."""
    explain: str = ""
    spread: bool = False
    """Whether Gaussian queries have the mean and deviation of the data: N(0, I) of standardised inputs."""
    small: bool = False
    """Whether it is measured without ``full``."""


VALUES: dict[str, Any] = {"match": "values"}
PRINTED: dict[str, Any] = {"match": "values", "method": "paper"}
SHORT: dict[str, Any] = {"steps": 600}
LONG: dict[str, Any] = {"steps": 4800, "weight": 1.0}


def _rows() -> Iterator[Row]:
    one, two = "mnist/one-hidden", "mnist/two-conv"
    fewer = "mnist/two-conv-small"
    for output in ("logits", "probabilities"):
        yield Row("2", f"softmax regression, {output}", "mnist/softmax", [1], output=output, small=True)
    yield Row("2", "two-conv, gradients", two, [10, 30, 100])
    chosen = {"steps": 600, "choose": "k-means", "unlabelled": True}
    yield Row("2", "two-conv, k-means and self-training", two, [10], options=chosen)
    yield Row("2", "two-conv, values", two, [10, 30, 100, 300, 1000], options={**SHORT, **VALUES})
    yield Row("2", "two-conv, values as printed", two, [10, 30, 100, 300, 1000, 3000], options={**SHORT, **PRINTED})
    yield Row("2", "2-layer, gradients", one, [10, 20, 30, 100], small=True)
    yield Row("2", "2-layer, k-means and self-training", one, [10], options=chosen, small=True)
    yield Row("2", "2-layer, gradients as printed", one, [10, 30, 100], options={"method": "paper"}, small=True)
    yield Row("2", "two-conv, gradients as printed", two, [10, 100], options={**SHORT, "method": "paper"})
    values = [10, 30, 100, 300, 1000, 3000, 10_000]
    yield Row("2", "2-layer, values", one, values, options=VALUES, small=True)
    yield Row("2", "2-layer, values as printed", one, values, options=PRINTED, small=True)
    yield Row("2", "2-layer, probabilities", one, [30, 100], output="probabilities", small=True)
    for sigma in (1, 10, 100, 1000):
        yield Row("2", f"2-layer, SmoothGrad at {sigma:,} sigma", one, [100], smooth=sigma, small=True)
        yield Row("2", f"two-conv, SmoothGrad at {sigma:,} sigma", two, [100], smooth=sigma, options={"steps": 1200})
    yield Row("3", "1-layer by 2-layer", "mnist/softmax", [10, 100], student=one, small=True)
    yield Row("3", "1-layer by 2-layer, values", "mnist/softmax", [10, 100], student=one, options=VALUES, small=True)
    yield Row("3", "2-layer by 1-layer", one, [10, 100], student="mnist/softmax", small=True)
    yield Row("3", "2-layer by 1-layer, values", one, [10, 100], student="mnist/softmax", options=VALUES, small=True)
    yield Row("3", "2-layer by two-conv", one, [10, 100], student=two, options=SHORT)
    yield Row("3", "2-layer by two-conv, values", one, [10, 100], student=two, options={**SHORT, **VALUES})
    yield Row("3", "two-conv by 2-layer", two, [10, 100], student=one, options=SHORT)
    yield Row("3", "two-conv by 2-layer, values", two, [10, 100], student=one, options={**SHORT, **VALUES})
    yield Row("4", "2-layer, Gaussian queries", one, [10, 20, 30, 100], options={"inputs": "gaussian"}, small=True)
    yield Row("4", "2-layer, Gaussian queries, values", one, [100, 1000], options={"inputs": "gaussian", **VALUES})
    yield Row("4", "two-conv, Gaussian queries", two, [10, 100], options={"inputs": "gaussian"})
    yield Row("4", "small two-conv, gradients", fewer, [10, 30, 100])
    yield Row("2", "small two-conv, values", fewer, [100], options=VALUES)
    for sigma in (1, 10, 1000):
        yield Row("2", f"small two-conv, SmoothGrad at {sigma:,} sigma", fewer, [100], smooth=sigma)
    yield from _sizes()
    yield from _known_noise()
    yield from _cifar_rows()
    yield Row("-", "2-layer, captum saliency (absolute)", one, [100], explain="saliency", small=True)
    yield Row("-", "2-layer, captum integrated gradients", one, [100], explain="integrated-gradients", small=True)
    yield Row("-", "2-layer, captum integrated gradients, Gaussian queries", one, [30, 100],
              explain="integrated-gradients", options={"inputs": "gaussian"}, small=True)  # fmt: skip
    yield Row("-", "2-layer, predicted class only", one, [100], options={"classes": "predicted"}, small=True)
    yield Row("-", "2-layer, values, active", one, [100, 300, 1000], options={**VALUES, "choose": "active"}, small=True)


def _sizes() -> Iterator[Row]:
    """Gaussian queries of two-conv networks from 455,000 weights down, in the range of the pictures and with their mean
    and deviation; and the other rows of the network of PyTorch's own example, which may be the paper's."""
    for size in ("half", "small", "example", "tiny"):
        title, network = f"{size} two-conv", f"mnist/two-conv-{size}"
        long = {"steps": 4800, "inputs": "gaussian"}
        yield Row("4", f"{title}, Gaussian queries", network, [10, 100], options=long)
        yield Row("4", f"{title}, Gaussian queries of the data's spread", network, [10, 100], options=LONG, spread=True)
    yield Row("4", "two-conv, Gaussian queries of the data's spread", "mnist/two-conv", [10, 100], options=LONG,
              spread=True)  # fmt: skip
    yield Row("4", "small two-conv, short fit to Gaussian queries of the data's spread", "mnist/two-conv-small", [10],
              options={"weight": 1.0}, spread=True)  # fmt: skip
    yield Row("4", "small two-conv, probabilities at Gaussian queries of the data's spread", "mnist/two-conv-small",
              [10], options=LONG, output="probabilities", spread=True)  # fmt: skip
    example, title = "mnist/two-conv-example", "example two-conv"
    yield Row("2", f"{title}, gradients", example, [10, 30, 100])
    yield Row("2", f"{title}, values", example, [10, 100, 1000, 10_000], options=VALUES)
    yield Row("2", f"{title}, values as printed", example, [10, 100, 1000, 10_000], options=PRINTED)
    yield Row("4", f"{title}, values at Gaussian queries of the data's spread", example, [10, 100, 1000, 10_000],
              options=VALUES, spread=True)  # fmt: skip
    for sigma in (1, 10, 100, 1000):
        yield Row("2", f"{title}, SmoothGrad at {sigma:,} sigma", example, [100], smooth=sigma)
    cifar, title = "cifar10/two-conv-example", "CIFAR-10 example two-conv"
    yield Row("2", f"{title}, gradients", cifar, [10, 100])
    yield Row("4", f"{title}, Gaussian queries of the data's spread", cifar, [10, 100], options={"weight": 1.0},
              spread=True)  # fmt: skip


def _cifar_rows() -> Iterator[Row]:
    """CIFAR-10: figures 2 to 4."""
    cifar = "cifar10/two-conv"
    yield Row("2", "CIFAR-10 two-conv, gradients", cifar, [10, 100], options={"steps": 2000})
    yield Row("2", "CIFAR-10 two-conv, values", cifar, [100, 1000, 10_000], options=VALUES)
    for name in ("vgg11", "resnet18"):
        network, title = f"cifar10/{name}", f"CIFAR-10 {name} at 1/16 width"
        yield Row("2", f"{title}, gradients", network, [10, 100, 1000], options={"steps": 300})
        yield Row("2", f"{title}, values", network, [10, 100, 1000], options={"steps": 300, **VALUES})
        wider, title = f"{network}-quarter", f"CIFAR-10 {name} at 1/4 width"
        yield Row("2", f"{title}, gradients", wider, [10, 100, 1000])
        yield Row("2", f"{title}, values", wider, [10, 100, 1000, 10_000], options=VALUES)
    for name, other in (("vgg11", "resnet18"), ("resnet18", "vgg11")):
        network, title, student = f"cifar10/{name}", f"CIFAR-10 {name} by {other} at 1/16 width", f"cifar10/{other}"
        yield Row("3", f"{title}, gradients", network, [10, 100], student, {"steps": 300})
        yield Row("3", f"{title}, values", network, [10, 100], student, {"steps": 300, **VALUES})
    noise, less = {"inputs": "gaussian"}, "cifar10/two-conv-small"
    yield Row("4", "CIFAR-10 small two-conv, gradients", less, [10, 100])
    yield Row("4", "CIFAR-10 small two-conv, Gaussian queries", less, [10, 100], options=noise)
    yield Row("4", "CIFAR-10 small two-conv, Gaussian queries, values", less, [100, 1000], options={**noise, **VALUES})


def _known_noise() -> Iterator[Row]:
    """SmoothGrad on scikit-learn's digits, where a student can be averaged over the same points in seconds."""
    digits, short = "digits/two-conv", {"steps": 800}
    yield Row("-", "digits two-conv, gradients", digits, [100], options={**short, "weight": 1.0})
    yield Row("-", "digits two-conv, values", digits, [100], options={**short, **VALUES})
    for sigma in (1, 10, 1000):
        for shared in (False, True):
            name = f"digits two-conv, SmoothGrad at {sigma:,} sigma" + (", noise known" if shared else "")
            yield Row("-", name, digits, [100], options={**short, "weight": 1.0}, smooth=sigma, samples=5,
                      shared=shared)  # fmt: skip


ROWS = {row.name: row for row in _rows()}


def measure(row: Row, queries: int, seed: int) -> dict[str, Any]:
    """One copy and how good it is."""
    data = divulge.datasets.load(TARGETS[row.target].data)
    _, other = parts(data)
    model = target(row.target)
    if TARGETS[row.target].architecture == "softmax":
        model = model.double()
    options = dict(row.options)
    inputs = options.pop("inputs", other.X)
    if row.spread:
        noise = torch.randn(queries, *other.X.shape[1:], generator=torch.Generator().manual_seed(seed))
        inputs = other.X.mean() + other.X.std() * noise
    if options.get("unlabelled"):
        options["unlabelled"] = other.X
    before = torch.get_num_threads()
    oracle, student = _oracle(row, model, float(other.X.std()), seed), _student(row)
    if row.shared:
        noise = milli_shared_noise.points(row.samples, oracle.input_dim, row.smooth * float(other.X.std()), seed)
        oracle = milli_shared_noise.SharedNoise(divulge.oracle(model, access="gradient"), noise)
        built = models.build(student, shape=data.shape, outputs=len(data.classes), seed=1000 + seed)
        student = milli_shared_noise.Averaged(built, noise)
    copy = by_training(oracle, student, inputs, queries=queries, seed=seed, **options)
    copied = copy.model.inner if row.shared else copy.model
    said, got = labels(model, data.test.X), labels(copied, data.test.X)
    right = data.test.y
    return {
        "row": row.name, "queries": queries, "seed": seed, "threads": before, "seconds": copy.seconds,
        "accuracy": float((got == right).double().mean()), "agreement": float((got == said).double().mean()),
        "target": float((said == right).double().mean()), "steps": copy.facts["steps"], "exact": copy.exact,
        "weights_off": _weights_off(copied, model),
        **{name: fact for name, fact in copy.facts.items() if name.startswith("gradient_error")},
        "solved": any("solved" in note for note in copy.notes),
    }  # fmt: skip


def _oracle(row: Row, model: nn.Module, spread: float, seed: int) -> Oracle:
    oracle: Oracle = divulge.oracle(model, access="gradient", output=row.output)
    if row.smooth:
        oracle = Smoothed(oracle, row.smooth * spread, samples=row.samples, seed=seed)
    return Explained(oracle, row.explain) if row.explain else oracle  # type: ignore[arg-type]


def _student(row: Row) -> dict[str, Any]:
    made = TARGETS[row.student or row.target]
    return {"architecture": made.architecture, **made.options}


def _weights_off(copy: nn.Module, model: nn.Module) -> float | None:
    """For a linear target and copy: the largest difference of weights, less what softmax cannot see."""
    layers = [[part for part in one.modules() if isinstance(part, nn.Linear)] for one in (copy, model)]
    if [len(found) for found in layers] != [1, 1]:
        return None
    gap = layers[0][0].weight.detach().double() - layers[1][0].weight.detach().double()
    return float(torch.minimum(gap.abs().max(), (gap - gap.mean(dim=0)).abs().max()))


# -- all of them ------------------------------------------------------------------------------------------------------


def run(plan: Plan) -> dict[str, Any]:
    """Measure what points.jsonl does not hold yet; then results.json, table.md and a picture for each figure."""
    out = plan.out
    rows = [row for row in ROWS.values() if plan.full or row.small or plan.only]
    plan.check([FIGURE_ONE, FIGURE_FIVE, *(row.name for row in rows)])
    drawn: dict[str, Any] = {FIGURE_ONE: milli_figure.draw(out, plan.seed)} if plan.wants(FIGURE_ONE) else {}
    if plan.wants(FIGURE_FIVE) and (plan.full or plan.only):  # it trains a network on MNIST
        drawn[FIGURE_FIVE] = _saliency(out, plan.seed)
        for row in drawn[FIGURE_FIVE]:
            plan.show(FIGURE_FIVE, row)
    wanted = [(row, q, s) for row in rows for q in row.queries for s in plan.seeds_of(5 if plan.full else 1)]
    held = {(point["row"], point["queries"], point["seed"]) for point in read(out)}
    missing = [job for job in wanted if (job[0].name, job[1], job[2]) not in held and plan.wants(job[0].name)]
    for name in sorted({row.target for row, _, _ in missing}):  # trained once, before several workers want it
        target(name)

    def keep(job: tuple[Row, int, int], point: dict[str, Any]) -> None:
        add(out, point)
        plan.show(f"{job[0].name}, {job[1]} queries, seed {job[2]}", point)

    plan.run(_measured, missing, lambda job: job[0].name, keep)
    points = read(out)
    (out / "results.json").write_text(json.dumps(points, indent=1) + "\n")
    (out / "table.md").write_text(table(points))
    for figure, network in sorted({(row.figure, row.target) for row in ROWS.values() if row.figure != "-"}):
        _picture(out, figure, network, points)
    return {**drawn, "points": len(points), "ratio at 95 %": ratios(points), "out": str(out)}


def _saliency(out: Path, seed: int) -> list[dict[str, Any]]:
    data = divulge.datasets.load("mnist")
    few = data.test.X[seed * milli_saliency.SHOWN :][: milli_saliency.SHOWN]
    return milli_saliency.draw(target("mnist/two-conv-example"), few, float(data.train.X.std()), out, seed)


def _measured(job: tuple[Row, int, int]) -> dict[str, Any]:
    row, queries, seed = job
    report("copies", row=row.name, queries=queries)
    return measure(row, queries, seed)


def read(out: Path) -> list[dict[str, Any]]:
    """The points measured so far of rows that still exist; of one that was measured again, the last."""
    path = out / "points.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    points = {(point["row"], point["queries"], point["seed"]): point for point in map(json.loads, lines)}
    return [point for point in points.values() if point["row"] in ROWS]


def add(out: Path, point: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "points.jsonl").open("a") as file:
        file.write(json.dumps(point) + "\n")


def table(points: Sequence[dict[str, Any]]) -> str:
    """Mean accuracy and agreement of every row and number of queries, in the order of the rows."""
    lines = ["| figure | row | queries | accuracy (%) | agreement (%) | target (%) | seeds | seconds |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in ROWS.values():
        for q in sorted({point["queries"] for point in points if point["row"] == row.name}):
            some = [point for point in points if (point["row"], point["queries"]) == (row.name, q)]
            mean = {key: statistics.fmean(point[key] for point in some) for key in ("target", "seconds")}
            shown = " | ".join(_spread([100 * point[key] for point in some]) for key in ("accuracy", "agreement"))
            lines.append(
                f"| {row.figure} | {row.name} | {q:,} | {shown} | {100 * mean['target']:.2f} | {len(some)} "
                f"| {mean['seconds']:.0f} |"
            )
    return "\n".join(lines) + "\n"


def _spread(numbers: Sequence[float]) -> str:
    least = f" (least {min(numbers):.2f})" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):.2f}{least}"


def curve(points: Sequence[dict[str, Any]], names: Sequence[str]) -> LearningCurve:
    made = [Point(point["row"], point["queries"], point["seed"], point["agreement"], point["accuracy"],
                  point["seconds"]) for point in points if point["row"] in names]  # fmt: skip
    return LearningCurve(tuple(made), 10_000)


def ratios(points: Sequence[dict[str, Any]], level: float = 0.95) -> dict[str, float | None]:
    """How many times more values than gradients reach the level, for both networks and both ways to fit values."""
    found = {}
    for network in ("2-layer", "two-conv"):
        for way in ("values", "values as printed"):
            few, many = f"{network}, gradients", f"{network}, {way}"
            found[many] = curve(points, [few, many]).ratio(level, fewer=few, more=many, what="accuracy")
    return found


def _picture(out: Path, figure: str, network: str, points: Sequence[dict[str, Any]]) -> None:
    """The rows of one target in one figure that were measured at several numbers of queries."""
    several = [
        row.name
        for row in ROWS.values()
        if (row.figure, row.target) == (figure, network)
        and len({point["queries"] for point in points if point["row"] == row.name}) > 1
    ]
    if several:
        curve(points, several).plot(out / f"figure-{figure}-{network.replace('/', '-')}.png", "accuracy")
