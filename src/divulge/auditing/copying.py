"""Can they copy my model? Exact extraction by the prediction client and by the explanation client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from divulge.auditing.fidelity import FAITHFUL, judge_of
from divulge.auditing.finding import Adversary, Finding, Outcome, severity_of
from divulge.auditing.probe import Probe, TimeUp, deadline
from divulge.auditing.target import Target
from divulge.errors import BudgetExhausted, DivulgeError
from divulge.extraction.result import CLOSE
from divulge.oracles.base import Access, Oracle
from divulge.report.document import asked

FRESH_POINTS = 1000
REMEDIES: dict[Access, str] = {
    "value": "Answer decisions only, or behind a guard, and limit how much one client may ask.",
    "gradient": "Do not serve raw gradients; each one gives away as much as hundreds of predictions.",
}


def extract(target: Target, oracle: Oracle, access: Access) -> Any:
    """The exact attack for this access; with gradients also for two hidden layers, where one is not enough."""
    from divulge import extraction

    if access == "value":
        return extraction.from_values(oracle, seed=target.seed)
    deep = target.kind == "piecewise linear"
    if deep and target.model is not None:
        return extraction.deep_from_gradients(oracle, seed=target.seed)
    found = extraction.from_gradients(oracle, seed=target.seed)
    if found.exact or not deep:
        return found
    deeper = extraction.deep_from_gradients(oracle, seed=target.seed)
    return replace(deeper, ledger=found.ledger + deeper.ledger) if deeper.exact else found


def _attempt(target: Target, access: Access, seconds: float) -> tuple[Any, DivulgeError | None]:
    """The copy; where time or budget ended too soon, the one that was there by then, and what ended it."""
    try:
        with deadline(seconds):
            return extract(target, target.oracle(access), access), None
    except (TimeUp, BudgetExhausted) as error:
        if error.partial is None:
            raise
        return error.partial, error


def _obstacle(access: Access) -> Any:
    def obstacle(target: Target) -> str:
        if not target.grants(access):
            return f"the access granted ({target.access}) does not include {access} queries."
        if target.kind in ("smooth", "piecewise constant"):
            return f"it is {target.description}; exact extraction is for piecewise-linear ones."
        if target.kind == "piecewise linear" and target.model is not None:
            if access == "value":
                return f"it is {target.description}; exact extraction from values reaches one hidden layer."
            if not _two_hidden(target.model, target.input_dim):
                return (
                    f"it is {target.description}; exact extraction from gradients reaches two fully connected hidden "
                    "layers, the first no wider than the input."
                )
        return ""

    return obstacle


def _two_hidden(model: nn.Module, inputs: int) -> bool:
    layers = [layer for layer in model.modules() if not list(layer.children())]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    plain = all(isinstance(layer, nn.Linear | nn.ReLU | nn.Flatten | nn.Identity) for layer in layers)
    return plain and len(linear) == 3 and linear[0].out_features <= inputs


def _probe(access: Access) -> Any:
    adversary: Adversary = "explanation client" if access == "gradient" else "prediction client"

    def run(target: Target, seconds: float) -> Finding:
        found, stopped = _attempt(target, access, seconds)
        points = target.affordable(FRESH_POINTS)
        worst = found.check(target.oracle("value"), points, seed=target.seed + 1)
        judge = judge_of(target, _rows(target))
        likeness = judge.likeness(found.model)
        close = worst <= CLOSE * found.scale
        outcome: Outcome = "succeeded" if found.exact or (close and likeness >= FAITHFUL) else judge.outcome(likeness)
        if stopped is not None and outcome == "failed":
            raise stopped
        what = "predictions" if access == "value" else "gradients (a saliency explanation)"
        name = "exactly" if found.exact else f"in {judge.told(likeness)}"
        if not found.exact and judge.outcome(likeness) == "failed":
            name = f"to {worst / found.scale:.0e} of its answers' spread"
        return Finding(
            name=f"copy-from-{access}s",
            question="copy",
            adversary=adversary,
            title=f"{asked(found.ledger)} are enough to copy the model {name}"
            if outcome != "failed"
            else f"Exact extraction from {access} queries did not succeed",
            outcome=outcome,
            severity=severity_of("copy", adversary, outcome),
            meaning=f"Whoever may ask for {what} can rebuild the model and stop asking you."
            if outcome != "failed"
            else f"The attack ran and did not rebuild the model: {found.reason}",
            certainty=f"The copy was compared with the model on {points:,} fresh inputs; the largest difference "
            f"was {worst:.2g}." + ("" if found.exact else f" Not exact: {found.reason}"),
            measures={
                "exact": found.exact,
                "hidden_units_found": found.width,
                "worst_difference": worst,
                "output_spread": found.scale,
                "same_decision" if judge.values is None else "variance_explained": likeness,
                "queries_per_parameter": found.queries / max(1, sum(p.numel() for p in found.model.parameters())),
            },
            ledger=found.ledger,
            seconds=found.seconds,
            seed=target.seed,
            remedies=(REMEDIES[access],) if outcome != "failed" else (),
            command=target.command(
                "extract", "--access", access, *(["--method", "deep"] if found.method == "deep" else [])
            ),
            notes=tuple(found.notes),
        )

    return run


def _rows(target: Target) -> Tensor:
    """What copies are judged by: the training inputs, or Gaussian ones where there are none."""
    if target.inputs is not None:
        return target.inputs[:FRESH_POINTS]
    generator = torch.Generator().manual_seed(target.seed + 2)
    return torch.randn(FRESH_POINTS, target.input_dim, generator=generator, dtype=torch.float64)


PROBES = (
    Probe("copy-from-values", "Exact copy from predictions", _obstacle("value"), _probe("value"), share=2.0),
    Probe("copy-from-gradients", "Exact copy from explanations", _obstacle("gradient"), _probe("gradient"), share=2.0),
)
