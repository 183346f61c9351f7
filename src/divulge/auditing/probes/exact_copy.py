"""Can they copy my model? Exact extraction by the prediction client and by the explanation client.

A model that answers in steps is taken for trees, any other for a ReLU network. Rounded answers look like steps too:
where nothing but the answers says that it is trees, both are tried.

An extraction calls itself exact after a check on fresh points. The audit also compares the decisions on the
data: a copy that decides otherwise there is not called exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from divulge.auditing import commands
from divulge.auditing.fidelity import FAITHFUL, Judge, judge_of, judging_rows
from divulge.auditing.probes.probe import Probe, TimeUp, deadline
from divulge.auditing.sentences import copies
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.core.errors import BudgetExhausted, DivulgeError
from divulge.extraction.result import CLOSE
from divulge.extraction.tree_result import TreeCopy
from divulge.oracles.base import Oracle
from divulge.report.findings import ADVERSARIES, Finding, Outcome
from divulge.report.text import asked

FRESH_POINTS = 1000
AGREES = 0.995
"""An exact copy shares at least this part of the decisions on the data; ties and rounding explain no more."""
LAYERS = 8
"""Hidden layers that exact extraction looks for."""
TREE_ROWS = 50_000
"""About what a small tree takes: thousands of rows, and tens of thousands with many columns."""
ExactAccess = Literal["value", "gradient"]


def extract(target: Target, access: ExactAccess) -> Any:
    """The result of the exact attack for this access, computed once in an audit."""
    key = f"exact copy from {access}s"
    if key not in target.memo:
        target.memo[key] = _extract(target, target.oracle(access), access)
    return target.memo[key]


def _extract(target: Target, oracle: Oracle, access: ExactAccess) -> Any:
    """The exact attack for this access; of two that fit, the exact one, or the one that is closer on the data."""
    from divulge import extraction

    options: dict[str, Any] = {"inputs": target.example_inputs, "seed": target.seed}
    if target.kind == "piecewise constant" and target.kind_is_known:
        return extraction.from_tree_values(oracle, **options)
    found = (extraction.from_values if access == "value" else extraction.from_gradients)(oracle, **options)
    if found.exact or target.kind != "piecewise constant":
        return found
    trees = extraction.from_tree_values(oracle, **options)
    if trees.exact:
        return trees
    rows, labels, unseen = judging_rows(target)
    judge = judge_of(target, rows, labels, unseen=unseen)
    copies_found: tuple[Any, ...] = (found, trees)
    return max(copies_found, key=lambda one: judge.likeness(one.model))


def _attempt(target: Target, access: ExactAccess, seconds: float) -> tuple[Any, DivulgeError | None]:
    """The copy; where time or budget ended too soon, the one that was there by then, and what ended it."""
    try:
        with deadline(seconds):
            return extract(target, access), None
    except (TimeUp, BudgetExhausted) as error:
        if error.partial is None:
            raise
        return error.partial, error


def _obstacle(access: ExactAccess) -> Callable[[Target], str]:
    def obstacle(target: Target) -> str:
        if not target.grants(access):
            return f"the access granted ({target.access}) does not include {access} queries."
        if target.vocabulary is not None:
            return copies.TOKENS
        if target.kind == "piecewise constant" and access == "gradient":
            return copies.no_copy_fits(target.description, "it has no gradients; its values say where its steps are.")
        if not target.kind_is_known:  # a guess skips no attack
            return ""
        if target.kind == "smooth":
            return copies.no_copy_fits(target.description, "exact extraction is for piecewise-linear ones.")
        return too_deep_to_copy(target)

    return obstacle


def too_deep_to_copy(target: Target) -> str:
    """Why a network of several layers cannot be copied exactly; empty if it may be."""
    if target.kind != "piecewise linear" or not target.kind_is_known or target.model is None:
        return ""
    if next(target.model.parameters()).dtype != torch.float64:
        return copies.no_copy_fits(
            target.description, "exact extraction of several hidden layers needs answers in float64."
        )
    if not _fully_connected(target.model):
        return copies.no_copy_fits(
            target.description, f"exact extraction reaches {LAYERS} fully connected hidden layers."
        )
    return ""


def _fully_connected(model: nn.Module) -> bool:
    layers = [layer for layer in model.modules() if not list(layer.children())]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    plain = all(isinstance(layer, nn.Linear | nn.ReLU | nn.Flatten | nn.Identity) for layer in layers)
    return plain and len(linear) <= LAYERS + 1


def _run(access: ExactAccess) -> Callable[[Target, float], Finding]:
    def run(target: Target, seconds: float) -> Finding:
        found, stopped = _attempt(target, access, seconds)
        rows, labels, unseen = judging_rows(target)
        judge = judge_of(target, rows, labels, unseen=unseen)
        likeness = judge.likeness(found.model)
        vetoed = bool(found.exact) and contradicts(judge, likeness)
        points = target.affordable(FRESH_POINTS)
        worst = found.check(target.oracle("value"), points, seed=target.seed + 1)
        outcome = _outcome(target, found, judge, likeness, worst, vetoed=vetoed)
        if stopped is not None and outcome == "failed":
            raise stopped
        return _finding(target, access, found, judge, likeness, worst, points, outcome, vetoed=vetoed)

    return run


def contradicts(judge: Judge, likeness: float) -> bool:
    """Whether a copy that calls itself exact answers the data otherwise than the model; one row may be a tie."""
    return (1 - likeness) * len(judge.rows) > 1 and likeness < AGREES


def _outcome(target: Target, found: Any, judge: Judge, likeness: float, worst: float, *, vetoed: bool) -> Outcome:
    if _trivial(target, judge):
        return "failed"  # a constant is no model to take
    if found.exact and not vetoed:
        return "succeeded"
    if worst <= CLOSE * found.scale and likeness >= FAITHFUL:
        return "succeeded"
    return judge.outcome(likeness)


def _trivial(target: Target, judge: Judge) -> bool:
    """Whether the model answers the same everywhere: a linear one that predicts one quantity for all rows does."""
    return judge.constant and (target.kind == "constant" or (judge.quantity and target.kind == "linear"))


def _finding(
    target: Target, access: ExactAccess, found: Any, judge: Judge, likeness: float, worst: float, points: int,
    outcome: Outcome, *, vetoed: bool,
) -> Finding:  # fmt: skip
    exact = bool(found.exact) and not vetoed
    how = "exactly" if exact else f"in {copies.likeness(likeness, judge.quantity)}"
    if not exact and judge.outcome(likeness) == "failed":
        how = copies.off_by(worst / found.scale if found.scale else worst)
    adversary = ADVERSARIES[access]
    trivial = outcome == "failed" and _trivial(target, judge)
    return Finding(
        name=f"copy-from-{access}s",
        question="copy",
        adversary=adversary,
        title=copies.exact_title(outcome, asked(found.cost, shown=target.answers), how, access)
        if not trivial
        else "The model is constant: there is nothing to copy",
        outcome=outcome,
        severity=severity_of("copy", adversary, outcome),
        meaning=copies.constant(len(judge.rows))
        if trivial
        else copies.exact_meaning(outcome, target.answers, access, found.reason, vetoed),
        certainty=copies.exact_certainty(points, worst, exact, found.reason, vetoed, likeness),
        measures={
            "exact": exact,
            **_size(found),
            "worst_difference": worst,
            "output_spread": found.scale,
            "same_decision" if judge.values is None else "variance_explained": likeness,
            **judge.measures(found.model),
            "judging_rows": len(judge.rows),
        },
        ledger=found.cost,
        seconds=found.seconds,
        seed=target.seed,
        untested=_untested(outcome, access),
        command=commands.extract(target, access, method="trees" if isinstance(found, TreeCopy) else ""),
        notes=tuple(found.notes),
    )


def _size(found: Any) -> dict[str, Any]:
    """How large the copy is: neurons and what each of its parameters cost, or leaves and thresholds."""
    if isinstance(found, TreeCopy):
        return {"leaves_found": found.leaves, "thresholds_found": found.thresholds}
    parameters = sum(p.numel() for p in found.model.parameters())
    return {
        "hidden_units_found": found.width,
        "hidden_layers_found": sum(width > 0 for width in found.widths),
        "queries_per_parameter": found.queries / max(1, parameters),
    }


def _untested(outcome: Outcome, access: ExactAccess) -> tuple[str, ...]:
    if outcome not in ("succeeded", "partly"):
        return ()
    return (copies.labels_slow_down(),) if access == "value" else (copies.no_gradients(), copies.labels_slow_down())


def _seconds(access: ExactAccess) -> Callable[[Target], float]:
    def seconds(target: Target) -> float:
        """From runs on one core: a linear model takes under a second, a hidden layer grows with its weights."""
        if target.kind == "linear":
            return 1.0
        if target.kind == "piecewise constant":
            return 5.0 + TREE_ROWS * target.seconds_per_row
        weights = target.parameters or 30 * target.input_dim
        queries = 20 * weights if access == "value" else 4 * weights / target.input_dim
        return 1.0 + (2e-4 if access == "value" else 2e-5) * weights + queries * target.seconds_per_row

    return seconds


PROBES = (
    Probe("copy-from-values", "Exact copy from predictions", _obstacle("value"), _run("value"), _seconds("value"),
          "high"),
    Probe("copy-from-gradients", "Exact copy from explanations", _obstacle("gradient"), _run("gradient"),
          _seconds("gradient"), "high"),
)  # fmt: skip
