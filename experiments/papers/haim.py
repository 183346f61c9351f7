"""Haim et al. 2022: training data out of weights, by our recipe and the printed one on the same targets.

Targets are d-1000-1000-1 networks trained to their margin on MNIST (odd or even) and CIFAR-10 (animals or vehicles),
half of each class, the training mean subtracted. The attack is blind: it is told neither how many pictures there were
nor their mean; the mean is added when its samples are scored, as the authors do. Beside every count stand the same for
pictures that the network never saw and for the same attack on broken weights.
"""

from __future__ import annotations

import json
import re
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge import reconstruction
from divulge.core.progress import report
from divulge.models.weight_matrices import Network, read
from divulge.reconstruction import PaperSettings, baselines, rebalance
from divulge.reconstruction.kkt_solver import SEPARATED
from divulge.training import diagnose, margin
from experiments.papers import haim_circle, haim_printed
from experiments.papers.haim_counts import match, scored
from experiments.papers.haim_targets import PLAIN_RATE, Case, target
from experiments.plan import Plan

SETS = 3
PRINTED = {  # good runs of the authors' own search
    "mnist": PaperSettings(),
    "cifar10": PaperSettings(learning_rate=0.555, initial_scale=8.9e-4, lambda_min=0.498, alpha=19.0),
}
CASES = {
    Case("cifar10", 50): 3, Case("mnist", 50): 3, Case("cifar10", 10): 3, Case("cifar10", 500, 300): 3,
    Case("cifar10", 50, hidden=(100, 100)): 1, Case("cifar10", 50, hidden=(1000, 500, 100)): 1,
    Case("cifar10", 50, hidden=(1000, 500, 100, 50)): 1, Case("cifar10", 50, bias="all"): 1, Case("mnist", 100): 1,
    Case("cifar10", 100): 1, Case("cifar10", 10, standard=True): 3, Case("cifar10", 50, standard=True): 3,
    Case("cifar10", 50, epochs=10_000): 1, Case("mnist", 50, epochs=10_000): 1,
    Case("cifar10", 10, epochs=5000, batch=5): 3, Case("cifar10", 50, epochs=1000, batch=5): 3,
    Case("cifar10", 50, classes=10): 3, Case("cifar10", 50, epochs=5000, decay=1e-3): 3,
    Case("cifar10", 50, epochs=5000, decay=1e-3, square=True): 3,
}  # fmt: skip
LARGE = {
    Case("mnist", 500, 300): 1, Case("cifar10", 500, 300, epochs=1000, batch=50): 1,
    Case("cifar10", 1000, 200, epochs=500, batch=50): 1, Case("cifar10", 500, 300, (100, 100)): 1,
    Case("cifar10", 500, 300, (1000, 500, 100)): 1, Case("cifar10", 500, 300, (1000, 500, 100, 50)): 1,
    Case("cifar10", 500, 300, bias="all"): 1,
}  # fmt: skip
FULL = dict.fromkeys((
    Case("cifar10", 500, 900), Case("mnist", 500, 900), Case("mnist", 100), Case("cifar10", 100),
    Case("cifar10", 500, 900, (100, 100)),
    Case("cifar10", 500, 900, (1000, 500, 100)), Case("cifar10", 500, 900, (1000, 500, 100, 50)),
    Case("cifar10", 500, 900, bias="all"), Case("cifar10", 500, 900, epochs=10_000),
    Case("mnist", 500, 900, epochs=10_000), Case("cifar10", 500, 900, epochs=2000, batch=50),
    Case("cifar10", 1000, 1800), Case("mnist", 1000, 1800),
), 3)  # fmt: skip
"""Cases and how many targets of each."""
RACE, COPIED = Case("cifar10", 10), Case("mnist", 10)
TRAINING = {False: (Case("mnist", 50), 300.0), True: (Case("mnist", 500), 20 * 3600.0)}
"""What is trained by plain gradient descent too, and for how many seconds at most."""
FEWER = 100
"""Plain descent stops after this many times our epochs."""


def run(plan: Plan) -> dict[str, Any]:
    """Write haim.json, haim.md and the figures; what an earlier run left there is not measured again."""
    out, full, seed = plan.out, plan.full, plan.seed
    result = _left(out, full, seed) or {"seed": seed, "full": full, "cases": []}
    cases = {**CASES, **(FULL if full else LARGE)}
    seeds = plan.seeds_of(SETS)
    parts: dict[str, Callable[[], Any]] = {
        "race": lambda: [race(RACE, s) for s in seeds],
        "copies": lambda: [copied(COPIED, s) for s in seeds],
        "circle": lambda: haim_circle.run(out, seeds=seeds),
        "search of appendix B.2": lambda: haim_printed.searched(out, seed),
        "baselines on pictures": lambda: haim_printed.baselines_on_pictures(seeds),
        "training": lambda: trainings(TRAINING[full][0], seed, seconds=TRAINING[full][1]),
    }
    plan.check([*(case.name for case in cases), *parts])

    def keep_case(job: tuple[Case, int], row: dict[str, Any]) -> None:
        result["cases"].append(row)
        keep(result, out)
        plan.show(f"{job[0].name}, set {job[1]}", row)

    done = {(row["case"], row["seconds"], row["seed"]) for row in result["cases"]}
    jobs = [(case, s) for case, targets in cases.items() for s in plan.seeds_of(targets)]
    jobs = [job for job in jobs if (job[0].name, job[0].seconds, job[1]) not in done]
    plan.run(partial(_case, out), jobs, lambda job: job[0].name, keep_case)
    for part, measure in parts.items():
        if part not in result and plan.begins(part):
            result[part] = measure()
            keep(result, out)
            plan.show(part, result[part])
    return result


def _case(out: Path, job: tuple[Case, int]) -> dict[str, Any]:
    return attacked(*job, out)


def _left(out: Path, full: bool, seed: int) -> dict[str, Any] | None:
    """What an earlier run of the same experiment wrote."""
    path = out / "haim.json"
    left: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return left if left.get("seed") == seed and left.get("full") == full else None


def keep(result: dict[str, Any], out: Path) -> None:
    """What is done so far, on disk."""
    (out / "haim.json").write_text(json.dumps(result, indent=2) + "\n")
    (out / "haim.md").write_text(tables(result))


# -- the pictures -----------------------------------------------------------------------------------------------------


def attacked(case: Case, seed: int, out: Path) -> dict[str, Any]:
    """One target: the blind attack, the same on broken weights, and the training pictures as if they had been found."""
    there = target(case, seed)
    began = time.process_time()
    blind = reconstruction.from_weights(there.model, seed=seed, seconds=case.seconds)
    computed = time.process_time() - began
    nothing = reconstruction.from_weights(
        baselines.broken(there.model, seed=seed), seed=seed, n=blind.rank, restarts=2,
        seconds=None if case.seconds is None else case.seconds / 4,
    )  # fmt: skip
    matched = match(blind.samples, there)
    if len(blind.samples):
        name = re.sub(r"[^a-z0-9]+", "-", f"{case.name}-{seed}")
        matched.picture(out / f"{name}-pairs.png")
        with torch.no_grad():
            matched.margin_plot(out / f"{name}-margins.png", there.model(there.X.float()))
    return {
        "case": case.name, "seed": seed, **{k: v for k, v in asdict(case).items() if k != "hidden"},
        "epochs": there.epochs, "train_seconds": there.seconds, **there.reached, "rank": blind.rank,
        "processor_seconds": computed,
        "blind": scored(blind.samples, there, blind.seconds),
        "everything": scored(blind.samples if blind.everything is None else blind.everything, there, blind.seconds),
        "broken": scored(nothing.samples, there, nothing.seconds),
        "themselves": scored(there.X, there, blind.seconds),
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }  # fmt: skip


def race(case: Case, seed: int, *, times: float = 50.0) -> dict[str, Any]:
    """One short restart of ours, all its samples kept; then the printed recipe on that target, ``times`` as long."""
    there = target(case, seed)
    short = replace(SEPARATED, steps=60)
    ours = reconstruction.from_weights(there.model, seed=seed, restarts=1, at_least=1, settings=short)
    theirs = reconstruction.from_weights(
        there.model, method="paper", n=case.n, seed=seed, settings=PRINTED[case.data], seconds=times * ours.seconds
    )
    return {"case": case.name, "seed": seed, "times": times, "ours": scored(ours.samples, there, ours.seconds),
            "printed": scored(theirs.samples, there, theirs.seconds), "notes": theirs.notes}  # fmt: skip


# -- training, and copies ---------------------------------------------------------------------------------------------


def trainings(case: Case, seed: int, *, seconds: float) -> dict[str, Any]:
    """Epochs to a loss below 1e-6, and how far plain gradient descent gets in ``seconds`` at the paper's rate.

    The logistic loss pulls no harder than its own size, so that 1 / loss grows by at most rate * |grad Phi|^2 in an
    epoch; the steepest sample at the end of our training tells how many epochs plain descent needs at least.
    """
    there = target(case, seed)
    model = margin.network([there.X.shape[1], *case.hidden, 1], seed=seed, dtype=torch.float32)
    X, signs = there.X.float(), (2 * there.y - 1).float()
    parameters = list(model.parameters())
    epoch, loss, began = 0, 1.0, time.perf_counter()
    while loss >= 1e-6 and epoch < FEWER * there.epochs and time.perf_counter() - began < seconds:
        losses = nn.functional.softplus(-signs * model(X)[:, 0]).mean()
        loss = float(losses.detach())
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(losses, parameters), strict=True):
                parameter.sub_(gradient, alpha=PLAIN_RATE)
        if epoch % 100 == 0:
            report("plain gradient descent", time.perf_counter() - began, seconds, loss=f"{loss:.1e}")
        epoch += 1
    steepest = _steepest(read(there.model), there.X)
    return {
        "case": case.name, "epochs": there.epochs, "seconds": there.seconds, "plain_epochs": epoch,
        "plain_loss": loss, "plain_seconds": time.perf_counter() - began, "steepest": steepest,
        "plain_at_least": round(1e6 / (PLAIN_RATE * steepest)),
    }  # fmt: skip


def _steepest(network: Network, X: Tensor) -> float:
    """The largest squared gradient of the output by the weights over the rows of X."""
    hidden, out = network.forward(X)
    deltas = network.backward(hidden, torch.ones_like(out))
    inputs = [X, *(torch.relu(Z) for Z in hidden)]
    parts = zip(inputs, deltas, network.biases, strict=True)
    return float(sum((H.square().sum(1) + (b is not None)) * D.square().sum(1) for H, D, b in parts).max())  # type: ignore[union-attr]


def copied(case: Case, seed: int) -> dict[str, Any]:
    """What a copy with its units in another order and at other scales gives, once re-balanced."""
    there = target(case, seed)
    disguise = disguised(read(there.model), seed).module().float()
    row: dict[str, Any] = {"case": case.name, "seed": seed}
    for name, model in (
        ("original", there.model), ("copy", disguise), ("rebalanced", rebalance.rebalance(disguise).float()),
    ):  # fmt: skip
        found = reconstruction.from_weights(model, seed=seed, mean=there.mean, n=case.n)
        residual = diagnose(model, there.X, there.y).layers[0]
        row[name] = {"residual": residual, **scored(found.samples, there, found.seconds)}
    return row


def disguised(network: Network, seed: int) -> Network:
    """The same function, its first hidden units in another order and scaled by exp(N(0, 1))."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.randn(len(network.weights[0]), generator=generator, dtype=torch.float64).exp()
    order = torch.randperm(len(scale), generator=generator)
    bias = network.biases[0]
    first = (network.weights[0] * scale[:, None])[order]
    weights = (first, (network.weights[1] / scale)[:, order], *network.weights[2:])
    return Network(weights, (None if bias is None else (bias * scale)[order], *network.biases[1:]))


# -- tables -----------------------------------------------------------------------------------------------------------


def tables(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = [
        "| target | set | who | samples | correlation > 0.9 | SSIM > 0.4 | SSIM > 0.9 | unseen, correlation > 0.9 "
        "| unseen, SSIM > 0.4 | where < 1 % of unseen pass | p | seconds |",
        "|" + "---|" * 12,
    ]
    for row in result["cases"]:
        for who, name in (("blind", "kept"), ("everything", "all candidates"), ("broken", "broken weights"),
                          ("themselves", "the training pictures themselves")):  # fmt: skip
            lines += [_line(row["case"], row["seed"], name, row[who])] if who in row else []
    for row in result.get("race", []):
        lines.append(_line(row["case"], row["seed"], "one short restart", row["ours"]))
        lines.append(_line(row["case"], row["seed"], f"printed, {row['times']:.0f} times as long", row["printed"]))
    for row in result.get("copies", []):
        lines += [_line(row["case"], row["seed"], who, row[who]) for who in ("original", "copy", "rebalanced")]
    if "training" in result:
        t = result["training"]
        lines += ["", (
            f"Training, {t['case']}, to a loss below 1e-6: {t['epochs']:,} epochs ({t['seconds']:.1f} s); plain "
            f"gradient descent is at {t['plain_loss']:.1e} after {t['plain_epochs']:,} ({t['plain_seconds']:.0f} s), "
            f"and needs at least {t['plain_at_least']:,}."
        )]  # fmt: skip
    for part, told in haim_printed.TABLES.items():
        lines += ["", told(result[part])] if part in result else []
    if "circle" in result:
        lines += ["", haim_circle.table(result["circle"])]
    return "\n".join(lines) + "\n"


def _line(case: str, seed: int, who: str, s: dict[str, Any]) -> str:
    return (
        f"| {case} | {seed} | {who} | {s['samples']} | {s['alike']} | {s['ssim_0.4']} | {s['ssim_0.9']} "
        f"| {s['unseen_alike']:.1%} | {s['unseen_ssim_0.4']:.1%} | {s['above_threshold']} at {s['threshold']:.2f} "
        f"| {s['p_value']:.1e} | {s['seconds']:.1f} |"
    )
