"""Haim et al. 2022: training data out of weights, by our recipe and the printed one on the same targets.

Targets are d-1000-1000-1 networks trained to their margin on MNIST (odd or even) and CIFAR-10 (animals or vehicles),
half of each class, the training mean subtracted. The attack is blind: it is told neither how many pictures there were
nor their mean; the mean is added when its samples are scored, as the authors do. Beside every count stand the same for
pictures that the network never saw and for the same attack on broken weights.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge import datasets, reconstruction
from divulge import workers as parallel
from divulge.progress import report
from divulge.reconstruction import PaperSettings, Reconstruction, Settings, balance, baselines, margin, matching
from divulge.reconstruction.network import Network, read
from divulge.reproduce import haim_circle

ALIKE, UNSEEN = 0.9, 500
PRINTED = {  # good runs of the authors' own search
    "mnist": PaperSettings(),
    "cifar10": PaperSettings(learning_rate=0.555, initial_scale=8.9e-4, lambda_min=0.498, alpha=19.0),
}


@dataclass(frozen=True)
class Case:
    """A target and how hard it is attacked."""

    data: str
    n: int
    batches: int = 1
    restarts: int = 4
    hidden: tuple[int, ...] = (1000, 1000)
    bias: Any = "first"

    @property
    def name(self) -> str:
        kind = "" if self.bias == "first" else ", biases everywhere"
        return f"{self.data}, n = {self.n}, {'-'.join(map(str, self.hidden))}{kind}"


CASES = (Case("cifar10", 10, 2), Case("cifar10", 50, 2, 2), Case("mnist", 50, 2, 2))
FULL = (
    *CASES, Case("mnist", 10, 2), Case("mnist", 100, 3, 2), Case("cifar10", 100, 3, 2), Case("mnist", 500, 2, 2),
    Case("cifar10", 500, 2, 2), Case("cifar10", 500, 2, 2, (100, 100)), Case("cifar10", 500, 2, 2, (1000, 500, 100)),
    Case("cifar10", 500, 2, 2, (1000, 500, 100, 50)), Case("cifar10", 500, 2, 2, bias="all"),
)  # fmt: skip
RACE, COPIED = Case("cifar10", 10), {False: Case("mnist", 10), True: Case("mnist", 50)}
TRAINING = {False: Case("mnist", 10), True: Case("mnist", 500)}


@dataclass(frozen=True)
class Target:
    """A trained network and what it was trained on (centred), and pictures that it never saw."""

    model: nn.Module
    X: Tensor
    y: Tensor
    unseen: Tensor
    mean: Tensor
    epochs: int
    seconds: float


def run(out: Path, *, full: bool, seed: int, workers: parallel.Workers = None) -> dict[str, Any]:
    """Write haim.json, haim.md and the figures to ``out``; ``full`` takes all cases, three targets each."""
    cases, targets = (FULL, 3) if full else (CASES, 1)
    seeds = range(seed, seed + targets)
    result: dict[str, Any] = {"seed": seed, "full": full, "circle": haim_circle.run(out, seeds=seeds), "cases": []}
    for part, measure in (
        ("race", lambda: race(RACE, seed)), ("training", lambda: trainings(TRAINING[full], seed)),
        ("copies", lambda: [copied(COPIED[full], number) for number in seeds]),
    ):  # fmt: skip
        keep(result, out)
        result[part] = measure()
    jobs = [(case, number) for case in cases for number in seeds]
    done: dict[int, dict[str, Any]] = {}

    def keep_case(place: int, row: dict[str, Any]) -> None:
        done[place] = row
        result["cases"] = [done[index] for index in sorted(done)]
        keep(result, out)

    parallel.run(partial(_case, out), jobs, workers=workers, on_done=keep_case, stage="haim")
    return result


def _case(out: Path, job: tuple[Case, int]) -> dict[str, Any]:
    return attacked(*job, out)


def keep(result: dict[str, Any], out: Path) -> None:
    """What is done so far, on disk."""
    (out / "haim.json").write_text(json.dumps(result, indent=2) + "\n")
    (out / "haim.md").write_text(tables(result))


def target(case: Case, seed: int) -> Target:
    """The network of a case, trained to a loss of 1e-6 on the pictures that ``seed`` chooses."""
    data = datasets.load(case.data).binary()
    chosen = data.subset(case.n // 2, seed=seed, per_class=True)
    X, mean = chosen.train.X.double(), chosen.train.X.double().mean(dim=0)
    others = torch.randperm(len(data.test.X), generator=torch.Generator().manual_seed(seed))[:UNSEEN]
    start = margin.network([X.shape[1], *case.hidden, 1], bias=case.bias, seed=seed, dtype=torch.float32)
    trained = margin.to_margin(start, X - mean, chosen.train.y)
    return Target(
        trained.model, X - mean, chosen.train.y, data.test.X[others].double() - mean, mean, trained.epochs,
        trained.seconds,
    )  # fmt: skip


# -- the pictures -----------------------------------------------------------------------------------------------------


def attacked(case: Case, seed: int, out: Path) -> dict[str, Any]:
    """One target: the blind attack, and one batch on broken weights."""
    there = target(case, seed)
    attack = partial(reconstruction.from_weights, seed=seed, restarts=case.restarts)
    blind = attack(there.model, batches=case.batches)
    nothing = attack(baselines.broken(there.model, seed=seed), n=blind.rank)
    match = _match(blind.samples, there)
    if len(blind.samples):
        name = f"{case.data}-{case.n}-{'-'.join(map(str, case.hidden))}-{case.bias}-{seed}"
        match.picture(out / f"{name}-pairs.png")
        with torch.no_grad():
            match.margin_plot(out / f"{name}-margins.png", there.model(there.X.float()))
    return {
        "case": case.name, "seed": seed, **{k: v for k, v in asdict(case).items() if k != "hidden"},
        "epochs": there.epochs, "train_seconds": there.seconds, "rank": blind.rank, "blind": scored(blind, there),
        "broken": scored(nothing, there),
    }  # fmt: skip


def _match(samples: Tensor, there: Target, *, stretch: bool = False) -> matching.Match:
    return matching.match(samples, there.X, unseen=there.unseen, mean=there.mean, threshold=ALIKE, stretch=stretch)


def scored(found: Reconstruction, there: Target) -> dict[str, Any]:
    """Counts at the yardsticks of the paper and ours, for training pictures and, as shares, for unseen ones."""
    clipped, stretched = (_match(found.samples, there, stretch=stretch) for stretch in (False, True))
    control = clipped.control
    assert clipped.ssim is not None
    assert stretched.ssim is not None
    assert control is not None
    assert stretched.control is not None
    assert stretched.control.ssim is not None
    return {
        "samples": len(found.samples), "seconds": found.seconds, "alike": clipped.found(ALIKE),
        "ssim_0.4": int((stretched.ssim > 0.4).sum()), "ssim_0.9": int((clipped.ssim > 0.9).sum()),
        "unseen_alike": float((control.correlation > ALIKE).double().mean()),
        "unseen_ssim_0.4": float((stretched.control.ssim > 0.4).double().mean()), "p_value": clipped.p_value,
    }  # fmt: skip


def race(case: Case, seed: int, *, times: float = 50.0) -> dict[str, Any]:
    """One short restart of ours, all its samples kept; then the printed recipe on that target, ``times`` as long."""
    there = target(case, seed)
    ours = reconstruction.from_weights(there.model, seed=seed, restarts=1, at_least=1, settings=Settings(steps=100))
    theirs = reconstruction.from_weights(
        there.model, method="paper", n=case.n, seed=seed, settings=PRINTED[case.data], seconds=times * ours.seconds
    )
    return {"case": case.name, "times": times, "ours": scored(ours, there), "printed": scored(theirs, there),
            "notes": theirs.notes}  # fmt: skip


# -- training, and copies ---------------------------------------------------------------------------------------------


def trainings(case: Case, seed: int, *, times: int = 100) -> dict[str, Any]:
    """Epochs to a loss below 1e-6; plain gradient descent is given ``times`` as many."""
    there = target(case, seed)
    model = margin.network([there.X.shape[1], *case.hidden, 1], seed=seed, dtype=torch.float32)
    X, signs = there.X.float(), (2 * there.y - 1).float()
    parameters = list(model.parameters())
    epochs, began = times * there.epochs, time.perf_counter()
    for epoch in range(epochs):
        losses = nn.functional.softplus(-signs * model(X)[:, 0]).mean()
        loss = float(losses.detach())
        if loss < 1e-6:
            break
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(losses, parameters), strict=True):
                parameter.sub_(gradient, alpha=0.01)  # the paper's learning rate
        if epoch % 100 == 0:
            report("plain gradient descent", epoch, epochs, loss=f"{loss:.1e}")
    return {
        "case": case.name, "epochs": there.epochs, "seconds": there.seconds, "plain_epochs": epoch + 1,
        "plain_loss": loss, "plain_seconds": time.perf_counter() - began,
    }  # fmt: skip


def copied(case: Case, seed: int) -> dict[str, Any]:
    """What a copy with its units in another order and at other scales gives, once re-balanced."""
    there = target(case, seed)
    disguise = disguised(read(there.model), seed).module().float()
    row: dict[str, Any] = {"case": case.name, "seed": seed}
    for name, model in (
        ("original", there.model), ("copy", disguise), ("rebalanced", balance.rebalance(disguise).float()),
    ):  # fmt: skip
        found = reconstruction.from_weights(model, seed=seed, mean=there.mean, n=case.n)
        row[name] = {"residual": margin.diagnose(model, there.X, there.y).layers[0], **scored(found, there)}
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
        "| unseen, SSIM > 0.4 | p | seconds |",
        "|" + "---|" * 11,
    ]
    for row in result["cases"]:
        for who, name in (("blind", "blind"), ("broken", "broken weights")):
            lines.append(_line(row["case"], row["seed"], name, row[who]))
    if "race" in result:
        r = result["race"]
        lines.append(_line(r["case"], result["seed"], "blind, one short restart", r["ours"]))
        lines.append(_line(r["case"], result["seed"], f"printed, {r['times']:.0f} times as long", r["printed"]))
    for row in result.get("copies", []):
        lines += [_line(row["case"], row["seed"], who, row[who]) for who in ("original", "copy", "rebalanced")]
    if "training" in result:
        t = result["training"]
        lines += ["", (
            f"Training, {t['case']}, to a loss below 1e-6: {t['epochs']:,} epochs ({t['seconds']:.1f} s); plain "
            f"gradient descent is at {t['plain_loss']:.1e} after {t['plain_epochs']:,} ({t['plain_seconds']:.0f} s)."
        )]  # fmt: skip
    if "circle" in result:
        lines += ["", haim_circle.table(result["circle"])]
    return "\n".join(lines) + "\n"


def _line(case: str, seed: int, who: str, s: dict[str, Any]) -> str:
    return (
        f"| {case} | {seed} | {who} | {s['samples']} | {s['alike']} | {s['ssim_0.4']} | {s['ssim_0.9']} "
        f"| {s['unseen_alike']:.1%} | {s['unseen_ssim_0.4']:.1%} | {s['p_value']:.1e} | {s['seconds']:.0f} |"
    )
