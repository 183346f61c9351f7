"""From a prediction endpoint to training pictures: extraction, orientation, re-balancing, reconstruction.

A d-h-1 ReLU network is trained to a KKT point on a few pictures (odd digits against even, or animals against vehicles;
training mean subtracted) and served over real HTTP. The client may ask for values only. It extracts the network exactly
(Milli et al. 2019), brings the copy to the scaling that gradient flow leaves, and reads training pictures out of it
(Haim et al. 2022): once told the training mean, and once without, when the mean is fitted with the pictures. Beside it
stands the same from the true weights. Pictures that the network never saw are the control.

A network with two hidden layers is served with its gradients, as an explanation endpoint, and the client asks for them.
Its first layer starts small and the next ones as torch starts them; the copy's first layer is scaled by its noise.

A client that is shown decisions only copies a small network from them, up to a factor of the output, which the
reconstruction does not need. That takes too many requests for this experiment's server, and asks the model directly.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import divulge
from divulge import datasets, reconstruction
from divulge.auditing.chain import weights_of_copy
from divulge.core.errors import DivulgeError
from divulge.extraction import Extraction, LabelCopy
from divulge.models import MLP
from divulge.oracles import Access
from divulge.reconstruction import matching
from divulge.training import margin
from experiments.plan import Plan

ALIKE, UNSEEN = 0.9, 200
BATCHES = 4  # of four restarts each
START = 4e-3  # standard deviation of the first layer's initial weights
EXTRA_EPOCHS = 2000  # past a loss of 1e-6: closer to the KKT point


@dataclass(frozen=True)
class Case:
    """What the network was trained on, and how wide it is; at most as many units as inputs, or flips stay open."""

    data: str
    n: int
    width: int
    layers: int = 1
    access: Access = "value"

    @property
    def name(self) -> str:
        each = "" if self.layers == 1 else f" in each of {self.layers} layers"
        return f"{self.data}, {self.n} pictures, {self.width} units{each}, from {self.access}s"

    def start(self, inputs: int, seed: int) -> MLP:
        """The untrained network."""
        widths = [inputs, *[self.width] * self.layers, 1]
        return margin.network(widths, first_scale=START, balanced=self.layers == 1, seed=seed)


CASES = {
    Case("mnist", 20, 128): 5, Case("mnist", 50, 256): 1, Case("cifar10", 20, 128): 1,
    Case("mnist", 10, 32, layers=2, access="gradient"): 3, Case("mnist", 10, 16, access="label"): 3,
}  # fmt: skip
"""The sets of each case by default; ``full`` takes four times as many."""


def run(plan: Plan) -> dict[str, Any]:
    """Fresh sets of pictures, one row each; chain.json, chain.md and the pairs found are written."""
    jobs = [(case, number) for case, sets in CASES.items() for number in plan.seeds_of(sets * (4 if plan.full else 1))]
    plan.check([case.name for case in CASES])
    done: dict[tuple[Case, int], dict[str, Any]] = {}
    result: dict[str, Any] = {"seed": plan.seed, "rows": [], "means": []}

    def keep(job: tuple[Case, int], row: dict[str, Any]) -> None:
        done[job] = row
        rows = [done[one] for one in jobs if one in done]
        result.update(rows=rows, means=means(rows))
        (plan.out / "chain.json").write_text(json.dumps(result, indent=2) + "\n")
        (plan.out / "chain.md").write_text(table(result))
        plan.show(f"{job[0].name}, set {job[1]}", row)

    plan.run(partial(_set, plan.out), jobs, lambda job: job[0].name, keep)
    return result


def _set(out: Path, job: tuple[Case, int]) -> dict[str, Any]:
    case, number = job
    return one_set(case, number, picture=out / f"{case.data}-{case.n}-set-{number}.png")


def one_set(case: Case, seed: int, *, picture: Path | None = None) -> dict[str, Any]:
    """The whole chain on the pictures that ``seed`` chooses."""
    started = time.perf_counter()
    data = datasets.load(case.data).binary()
    X, y = data.subset(case.n, seed=seed).train
    X, mean = X.double(), X.double().mean(dim=0)
    others = torch.randperm(len(data.test.X), generator=torch.Generator().manual_seed(seed))[:UNSEEN]
    unseen = data.test.X[others].double()
    began, worked = time.perf_counter(), time.process_time()
    start = case.start(X.shape[1], seed)
    model = margin.to_margin(start, X - mean, y, extra_epochs=EXTRA_EPOCHS).model
    trained = time.perf_counter()
    row: dict[str, Any] = {"case": case.name, "seed": seed, "n": case.n, "load_seconds": began - started}
    copy, told = (
        copied_from_labels(model, X - mean, seed) if case.access == "label" else extracted(model, seed, case.access)
    )
    done = time.perf_counter()

    def judged(source: nn.Module | Extraction | LabelCopy, known: bool, picture: Path | None = None) -> dict[str, Any]:
        return rebuilt(source, X - mean, unseen - mean, mean, known=known, seed=seed, picture=picture)

    row |= {**told, "copy": judged(copy, True, picture)}
    finished = time.perf_counter()
    row["processor_seconds"] = time.process_time() - worked
    row |= {
        "train_seconds": trained - began, "extract_seconds": done - trained, "rebuild_seconds": finished - done,
        "seconds": finished - began, "weights": judged(model, True), "mean_unknown": judged(copy, False),
    }  # fmt: skip
    return row


def extracted(model: nn.Module, seed: int, access: Access) -> tuple[Extraction, dict[str, Any]]:
    """A copy of the model from values or gradients over HTTP, and what it cost."""
    from divulge import serving

    with serving.running(model, gradients=access == "gradient") as url:
        oracle = divulge.oracle(url, access=access)
        attack = divulge.extraction.from_gradients if access == "gradient" else divulge.extraction.from_values
        copy = attack(oracle, seed=seed)
        told = {"queries": copy.queries, "requests": oracle.ledger.requests, "exact": copy.exact, "width": copy.width}
        told["worst_error"] = copy.check(oracle, 1000) / copy.scale
    return copy, told


def copied_from_labels(model: nn.Module, X: Tensor, seed: int) -> tuple[LabelCopy, dict[str, Any]]:
    """A copy of the model from its decisions, and what it cost; its error is the share of rows decided otherwise."""
    oracle = divulge.oracle(model, access="label")
    copy = divulge.extraction.from_labels(oracle, scale=float(X.std()), seed=seed)
    told = {"queries": copy.queries, "requests": copy.requests, "exact": copy.equivalent, "width": copy.width}
    return copy, {**told, "worst_error": copy.check(oracle, 1000)}


def rebuilt(
    source: nn.Module | Extraction | LabelCopy, X: Tensor, unseen: Tensor, mean: Tensor, *, known: bool, seed: int,
    picture: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What is read out of weights or a copy, with the mean ``known`` or fitted, and how much of it is right.

    An unseen picture above the threshold may be the twin of a training picture, alike to within the same threshold.
    """
    try:
        model = weights_of_copy(source) if isinstance(source, Extraction | LabelCopy) else source
        found = reconstruction.from_weights(model, mean=mean if known else None, seed=seed, batches=BATCHES)
    except DivulgeError as error:
        return {"found": 0, "samples": 0, "unseen_above": 0, "twins_above": 0, "why": str(error)}
    match = found.match(X, unseen, mean=mean, threshold=ALIKE)
    if picture is not None and len(found.samples):
        match.picture(picture)
    assert match.control is not None
    above = match.control.correlation > ALIKE
    twins = matching.correlation(X + mean, unseen + mean).amax(dim=0) > ALIKE
    return {
        "found": match.found(), "samples": len(found.samples), "unseen_above": int(above.sum()),
        "twins_above": int((above & twins).sum()),
    }  # fmt: skip


def means(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each case: pictures found each way and unseen ones above the threshold, on average."""
    told = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        here = [row for row in rows if row["case"] == case]
        told[case] = {name: sum(row[name]["found"] for row in here) / len(here)
                      for name in ("copy", "weights", "mean_unknown")}  # fmt: skip
        told[case]["unseen_above"] = sum(row["copy"]["unseen_above"] for row in here) / len(here)
        told[case]["seconds"] = sum(row["seconds"] for row in here) / len(here)
    return told


def table(result: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [
        "| trained on | set | queries | requests | copy's worst error / spread | from the copy | samples "
        "| from the weights | mean unknown | unseen above 0.9 (twins) | seconds (train, extract, rebuild) "
        "| of processor |",
        "|" + "---|" * 12,
    ]
    lines += [
        f"| {r['case']} | {r['seed']} | {r['queries']:,} | {r['requests']} | {r['worst_error']:.1e} "
        f"| {r['copy']['found']}/{r['n']} | {r['copy']['samples']} | {r['weights']['found']} "
        f"| {r['mean_unknown']['found']} | {r['copy']['unseen_above']}/{UNSEEN} ({r['copy']['twins_above']}) "
        f"| {r['seconds']:.0f} ({r['train_seconds']:.0f}, {r['extract_seconds']:.0f}, {r['rebuild_seconds']:.0f}) "
        f"| {r['processor_seconds']:.0f} |"
        for r in result["rows"]
    ]
    lines += [
        f"| **{case}** | mean | | | | **{m['copy']:.1f}** | | {m['weights']:.1f} | {m['mean_unknown']:.1f} "
        f"| {m['unseen_above']:.1f} | {m['seconds']:.0f} | |"
        for case, m in result["means"].items()
    ]
    return "\n".join(lines) + "\n"
