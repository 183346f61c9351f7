"""What span recovery costs: against the bare computation, the printed algorithms, and through a real HTTP server.

python -m experiments span --only            # a few minutes on one core; writes results/span.json
python -m experiments span --only gradients  # one part: gradients, methods, labels, rank16, raw, printed, http
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import divulge
from divulge.core.errors import AttackFailed
from divulge.models import MLP
from divulge.span import from_gradients, from_labels
from experiments.plan import Plan

PAPER = [784, 80, 40, 30, 20, 10]


def network(widths: list[int], seed: int, *, activation: str = "relu", balanced: bool = False) -> MLP:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MLP(widths, activation=activation).double()
        X = torch.randn(400, widths[0], dtype=torch.float64)
    if balanced:
        with torch.no_grad():
            model[-1].bias -= model(X).median()
    return model.eval()


def timed(run: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    best, answer = math.inf, None
    for _ in range(repeats):
        began = time.perf_counter()
        answer = run()
        best = min(best, time.perf_counter() - began)
    return best, answer


class FirstOutput(nn.Module):
    """One output of a network: what the paper differentiates."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.input_shape = model, (3072,)

    def forward(self, X: Tensor) -> Tensor:
        return self.model(X)[:, :1]


def gradients() -> list[dict[str, Any]]:
    """1,000 gradients of a 3072-1024-512-10 network and their decomposition, against doing just that by hand."""
    model = network([3072, 1024, 512, 10], 0)
    X = torch.randn(1000, 3072, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def bare(outputs: int) -> Tensor:
        rows = X.clone().requires_grad_()
        values = model(rows)
        columns = [torch.autograd.grad(values[:, k].sum(), rows, retain_graph=True)[0] for k in range(outputs)]
        return torch.linalg.svd(torch.cat(columns), full_matrices=False)[1]

    told = []
    for name, target, outputs in (("first output", FirstOutput(model), 1), ("all ten outputs", model, 10)):
        hand, _ = timed(lambda outputs=outputs: bare(outputs), 3 if outputs == 1 else 1)
        ours, span = timed(
            lambda target=target: from_gradients(
                divulge.oracle(target, access="gradient"), adaptive=False, samples=1000
            ),
            3 if outputs == 1 else 1,
        )
        told.append({"what": f"1,000 gradients, {name}", "bare_seconds": hand, "seconds": ours, "ratio": ours / hand,
                     "rank": span.rank})  # fmt: skip
    ours, span = timed(lambda: from_gradients(divulge.oracle(model, access="gradient")), 1)
    told.append({"what": "adaptive, all ten outputs, to the full rank", "bare_seconds": None, "seconds": ours,
                 "ratio": None, "rank": span.rank, "queries": span.queries})  # fmt: skip
    return told


def methods() -> list[dict[str, Any]]:
    """Queries to rank 80 of the paper's network: the printed algorithm and ours, ten seeds."""
    told = []
    for name, options, access in (
        ("printed, k log k gradients of one output", {"method": "paper", "rank": 80}, "gradient"),
        ("ours, one output", {"outputs": 0}, "gradient"),
        ("ours, ten outputs", {}, "gradient"),
        ("ours, ten outputs, values only", {}, "value"),
    ):
        spans = []
        for seed in range(10):
            model = network(PAPER, seed)
            span = from_gradients(divulge.oracle(model, access=access), seed=seed, **options)
            spans.append((span, span.angle_to(model[0].weight.detach())))
        told.append(
            {
                "what": name,
                "ranks": [span.rank for span, _ in spans],
                "gradients": [span.ledger.gradient for span, _ in spans],
                "values": [span.ledger.value for span, _ in spans],
                "largest_angle": max(angle for _, angle in spans),
            }
        )
    return told


def labels() -> list[dict[str, Any]]:
    """Hard labels: rank, sine of the largest angle, labels per rank and input."""
    told = []
    sizes = ((50, 5), (50, 20), (200, 10), (784, 5), (784, 20))
    cases = [(act, n, k, s) for act in ("tanh", "softplus") for n, k in sizes for s in range(3)]
    for activation, n, k, seed in cases:
        model = network([n, k, 2 * k, 1], seed, activation=activation, balanced=True)
        told.append(_label_row(f"{activation} {n}-{k}-{2 * k}-1", model, n, k, seed))
    for widths in ([30, 6, 10, 4], [50, 10, 20, 10], [64, 16, 10], [200, 20, 30, 10]):
        told += [_label_row(f"relu {widths}", network(widths, seed), widths[0], widths[1], seed) for seed in range(3)]
    return told


def _label_row(name: str, model: MLP, n: int, k: int, seed: int) -> dict[str, Any]:
    span = from_labels(divulge.oracle(model, access="label"), seed=seed)
    angle = span.angle_to(model[0].weight.detach())
    return {"what": name, "seed": seed, "rank": span.rank, "of": k, "sine": math.sin(angle),
            "estimated": span.threshold, "labels_per_rank_and_input": span.queries / (k * n),
            "seconds": span.seconds}  # fmt: skip


def rank16() -> list[dict[str, Any]]:
    """Networks of rank 16 from labels: how many come out whole, and how many that do not are called complete."""
    told = []
    for activation in ("relu", "tanh"):
        for widths in ([30, 16, 8, 1], [30, 16, 2], [40, 16, 10, 3]):
            spans = []
            for seed in range(1000, 1010):
                model = network(widths, seed, activation=activation, balanced=widths[-1] == 1)
                spans.append(from_labels(divulge.oracle(model, access="label"), seed=seed))
            short = [span for span in spans if span.rank < widths[1]]
            told.append({"what": f"{activation} {widths}", "networks": len(spans), "whole": len(spans) - len(short),
                         "short, and said so": sum(not span.complete for span in short),
                         "short, and called complete": sum(span.complete for span in short)})  # fmt: skip
    return told


def raw() -> list[dict[str, Any]]:
    """Tables in their own units: columns whose spreads differ by up to eight orders of magnitude, far from zero."""
    told = []
    for what, access, recover, careful in (
        ("gradients", "gradient", from_gradients, {}),
        ("gradients, risk 0.05", "gradient", from_gradients, {"risk": 0.05}),
        ("values", "value", from_gradients, {}), ("labels", "label", from_labels, {}),
    ):  # fmt: skip
        for around in ("the data", "zero"):
            ranks, angles, complete = [], [], []
            for seed in range(1000, 1020):
                model, X, spread = _on_raw_table(seed)
                options = {**careful, **({"inputs": X} if around == "the data" else {})}
                try:
                    span = recover(divulge.oracle(model, access=access), seed=seed, **options)
                except AttackFailed:
                    continue
                ranks.append(span.rank)
                complete.append(span.complete)
                angles.append(_standard_angle(span.basis, model[0].weight.detach(), spread))
            told.append({"what": f"{what}, around {around}", "networks": 20, "whole": ranks.count(5),
                         "largest_angle": max((a for a, r in zip(angles, ranks, strict=True) if r == 5), default=None),
                         "short, and called complete": sum(c and r < 5 for c, r in zip(complete, ranks, strict=True)),
                         "failed": 20 - len(ranks)})  # fmt: skip
    return told


def _on_raw_table(seed: int, d: int = 20, k: int = 5) -> tuple[MLP, Tensor, Tensor]:
    """A network d-k-12-3 that standardises its columns in its first layer, 200 rows of its table, and their spreads."""
    generator = torch.Generator().manual_seed(seed)
    spread = 10 ** (8 * torch.rand(d, generator=generator, dtype=torch.float64) - 3)
    offset = 5 * spread * torch.randn(d, generator=generator, dtype=torch.float64)
    model = network([d, k, 12, 3], seed)
    with torch.no_grad():
        model[0].weight /= spread
        model[0].bias -= model[0].weight @ offset
    return model, offset + spread * torch.randn(200, d, generator=generator, dtype=torch.float64), spread


def _standard_angle(basis: Tensor, first: Tensor, spread: Tensor) -> float:
    """The largest angle between the two row spaces once every column has a spread of one."""
    found, true = (torch.linalg.qr((rows * spread).T).Q for rows in (basis, first))
    missed = found - true @ (true.T @ found) if len(basis) <= len(first) else true - found @ (found.T @ true)
    return math.asin(min(1.0, float(torch.linalg.matrix_norm(missed, 2)))) if len(basis) else math.pi / 2


def printed() -> list[dict[str, Any]]:
    """Algorithm 2 as printed, by the length of its numbers, beside ours in float64, on 8-2-4-1."""
    told = []
    for activation in ("tanh", "softplus"):
        model = network([8, 2, 4, 1], 0, activation=activation, balanced=True)
        for bits, options in (
            (53, {"method": "paper"}),
            *((bits, {"precision": "extended", "bits": bits}) for bits in (64, 96, 128, 256)),
            (53, {}),
        ):
            span = from_labels(divulge.oracle(model, access="weights"), 2, **options)
            told.append({"what": activation, "method": span.method, "bits": bits, "rank": span.rank,
                         "angle": span.angle_to(model[0].weight.detach()), "labels": span.queries,
                         "seconds": span.seconds})  # fmt: skip
    return told


def http() -> list[dict[str, Any]]:
    """Values only, through a server on this machine."""
    from divulge.serving import running

    told = []
    for seed in range(3):
        model = network(PAPER, seed)
        with running(model) as url:
            span = from_gradients(divulge.oracle(url, access="value"), seed=seed)
        told.append({"what": f"{PAPER}, values over HTTP", "seed": seed, "rank": span.rank,
                     "angle": span.angle_to(model[0].weight.detach()), "values": span.ledger.value,
                     "requests": span.ledger.requests, "seconds": span.seconds})  # fmt: skip
    return told


def run(plan: Plan) -> dict[str, Any]:
    """Every part: what it asks, and how far the span is off."""
    parts = {part.__name__: part for part in (gradients, methods, labels, rank16, raw, printed, http)}
    return plan.measure("span", parts)
