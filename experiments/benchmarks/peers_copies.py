"""Learned copies of a five-minute audit beside ART's CopycatCNN and KnockoffNets, at the same queries in one run.

The targets are a Fashion-MNIST network (convolutions, batch normalisation, SiLU) and a CIFAR-10 ResNet, trained here
and kept under results/peers_copies. ``divulge.audit`` runs with its defaults: five minutes, and the 10,000 test
pictures, of which half may be asked about and 1,000 of the others judge. ART's attacks get the same pictures to ask
about, the same student, and as many passes as ours, or their own default of ten where that is more; the same 1,000
pictures judge them. CopycatCNN learns from labels, KnockoffNets from probabilities of random pictures (its adaptive
choice fits one picture at a time, which batch normalisation does not allow). ART has an environment of its own;
``python -m experiments peers_copies`` needs a package index, Fashion-MNIST and CIFAR-10.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import divulge
from divulge.auditing.fidelity import judge_of
from divulge.auditing.opening import open_target
from divulge.auditing.options import AuditOptions
from divulge.auditing.probes.learned_copy import pool_of
from divulge.auditing.students import BATCH, RATE, plan_for, steps_of_convolutions
from divulge.core.errors import MissingPackage
from experiments.benchmarks.peers_art import environment
from experiments.plan import Plan

WORKER = Path(__file__).parents[1] / "peers" / "copies.py"
EPOCHS = 10
"""ART's default."""
KNOWN = 10_000
"""Training pictures that the audit is given, as the training data of the target."""
ACCESS = ("copy-by-learning", "copy-by-learning-from-labels")
ATTACKS = ("CopycatCNN", "KnockoffNets")


# -- the targets ------------------------------------------------------------------------------------------------------


def garments() -> nn.Module:
    """Three convolutions with batch normalisation and SiLU."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip


def colours() -> nn.Module:
    """ResNet-18 with an eighth of its channels."""
    return nn.Sequential(nn.Unflatten(1, (3, 32, 32)), divulge.models.build("resnet18", shape=(3, 32, 32), width=1 / 8))


TARGETS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "Fashion-MNIST CNN": ("fashion-mnist", garments, (1, 28, 28), 20_000, 4),
    "CIFAR-10 ResNet": ("cifar10", colours, (3, 32, 32), 25_000, 5),
}
"""Data, network, shape of a picture, training pictures, and passes over them."""


def trained(name: str, folder: Path, seed: int) -> nn.Module:
    """The target, trained by Adam in batches of 128 with a learning rate that rises and falls; kept in the folder."""
    data, make, shape, count, passes = TARGETS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        path = folder / f"{data}-{seed}.pt"
        if path.is_file():
            model.load_state_dict(torch.load(path, weights_only=True))
            return model.eval()
        X, y = divulge.datasets.load(data).train
        order = torch.randperm(len(X))[:count]
        steps = passes * (count // 128)
        optimiser = torch.optim.Adam(model.parameters())
        pace = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, total_steps=steps)
        for step in range(steps):
            place = step % (count // 128)
            order = order[torch.randperm(count)] if place == 0 else order
            rows = order[128 * place : 128 * (place + 1)]
            pictures = X[rows].float()
            if shape[0] == 3:
                pictures = varied(pictures.reshape(-1, *shape)).flatten(1)
            optimiser.zero_grad()
            functional.cross_entropy(model(pictures), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            pace.step()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), path)
    return model.eval()


def varied(pictures: Tensor) -> Tensor:
    """Half of the pictures mirrored, and all moved by up to two pixels."""
    flip = torch.rand(len(pictures)) < 0.5
    pictures = torch.where(flip[:, None, None, None], pictures.flip(3), pictures)
    down, right = torch.randint(-2, 3, (2,)).tolist()
    return pictures.roll((down, right), dims=(2, 3))


def accuracy(model: nn.Module, X: Tensor, y: Tensor) -> float:
    """Share of right answers."""
    with torch.no_grad():
        right = [model(part.float()).argmax(1) == own for part, own in zip(X.split(500), y.split(500), strict=True)]
    return float(torch.cat(right).double().mean())


# -- ours and theirs --------------------------------------------------------------------------------------------------


def audited(model: nn.Module, data: Any, shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """The learned copies of a default audit: what each number of queries came to, and how long the audit took."""
    known = tuple(part[:KNOWN] for part in data.train)
    began = time.perf_counter()
    report = divulge.audit(model, known, unseen=data.test, shape=shape, seed=seed)
    rows: dict[str, Any] = {"seconds": time.perf_counter() - began, "severity": report.severity, "curves": {}}
    for finding in report.findings:
        if finding.name in ACCESS:
            table = finding.tables[0]
            rows["curves"][finding.name] = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            rows[f"{finding.name}: seconds"] = finding.seconds
    return rows


def asked_and_judging(model: nn.Module, data: Any, shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """What the audit asks about and judges by, with the answers of the target, and the student that it fits."""
    known = tuple(part[:KNOWN] for part in data.train)
    target = open_target(model, known, AuditOptions(unseen=data.test, shape=shape, seed=seed))
    pool, rows, labels = pool_of(target)
    judge = judge_of(target, rows, labels, unseen=True)
    student = plan_for(target, pool, "value").student()
    return {"pool": pool.float(), "rows": judge.rows.float(), "decisions": judge.decisions, "student": student}


def beside(python: Path, folder: Path, name: str, seed: int) -> dict[str, Any]:
    """One target: the audit, then ART's attacks at every number of queries of the audit's curve."""
    data_name, _, shape, _, _ = TARGETS[name]
    data = divulge.datasets.load(data_name)
    model = trained(name, folder, seed)
    row: dict[str, Any] = {"accuracy": accuracy(model, *data.test), "audit": audited(model, data, shape, seed)}
    asked = asked_and_judging(model, data, shape, seed)
    curve = row["audit"]["curves"].get(ACCESS[0], [])
    jobs = [
        {"attack": attack, "queries": queries, "batch": min(BATCH, queries), "rate": RATE, "seed": seed,
         "passes": max(EPOCHS, -(-steps_of_convolutions(queries) * min(BATCH, queries) // queries))}
        for queries in (point["queries"] for point in curve)
        for attack in ATTACKS
    ]  # fmt: skip
    return row | {"art": art(python, model, asked, shape, jobs)}


def art(
    python: Path, model: nn.Module, asked: dict[str, Any], shape: tuple[int, ...], jobs: list[dict[str, Any]]
) -> dict[str, Any]:
    """ART's attacks in its own environment: agreement with the target on the judging pictures, and seconds."""
    pool = asked["pool"]
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        torch.jit.trace(model, pool[:2]).save(folder / "target.pt")  # type: ignore[no-untyped-call]
        torch.jit.script(asked["student"].float()).save(folder / "student.pt")
        np.savez(folder / "pictures.npz", pool=pool.reshape(-1, *shape).numpy(),
                 rows=asked["rows"].reshape(-1, *shape).numpy(), decisions=asked["decisions"].numpy())  # fmt: skip
        command = [str(python), str(WORKER), str(folder), json.dumps(jobs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    rows = {f"{one['attack']}, {one['queries']}": one for one in found}
    if done.returncode:
        rows["failure"] = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]
    return rows


def table(results: dict[str, Any]) -> str:
    """The results as a table of Markdown."""
    lines = [
        "| target | queries | ours, values | ours, labels | CopycatCNN | KnockoffNets |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        values, labels = (
            {point["queries"]: point["same decisions"] for point in row["audit"]["curves"].get(kind, [])}
            for kind in ACCESS
        )
        for queries, share in values.items():
            own = f"{labels[queries]:.1%}" if queries in labels else ""
            theirs = [shown(row["art"].get(f"{attack}, {queries}", {})) for attack in ATTACKS]
            lines.append(
                f"| {name} ({row['accuracy']:.1%}) | {queries:,} | {share:.1%} | {own} | {' | '.join(theirs)} |"
            )
    return "\n".join([*lines, ""])


def shown(found: dict[str, Any]) -> str:
    """An agreement of ART with its seconds; nothing where it did not come to an end."""
    return f"{found['agreement']:.1%} ({found['seconds']:.0f} s)" if "agreement" in found else ""


def run(plan: Plan) -> dict[str, Any]:
    """Both targets, and the table of all that were run so far."""
    try:
        python = environment("art-torch", "torch==2.13.0")
    except subprocess.CalledProcessError as error:
        raise MissingPackage("ART could not be installed; this comparison needs a package index.") from error
    folder = plan.out / "peers_copies"
    results = plan.measure("peers_copies", {
        f"{name}, seed {seed}": partial(beside, python, folder, name, seed)
        for name in TARGETS
        for seed in plan.seeds_of(1)
    })  # fmt: skip
    (plan.out / "peers_copies.md").write_text(table(results))
    return results
