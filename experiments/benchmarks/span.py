"""What span recovery costs: against the bare computation, the printed algorithms, and through a real HTTP server.

python -m experiments span --only            # a few minutes on one core; writes results/span.json
python -m experiments span --only gradients  # one part: gradients, methods, labels, printed, http
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import divulge
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
    parts = {part.__name__: part for part in (gradients, methods, labels, printed, http)}
    return plan.measure("span", parts)
