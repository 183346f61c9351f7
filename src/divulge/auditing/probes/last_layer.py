"""Can they copy a part of my model? The width and the weights of its last layer, from answers with many outputs.

A model with more outputs than its last layer has inputs shows that layer to the prediction client (Carlini et al. 2024,
``divulge.extraction.last_layer``). The rows that are asked are the data, and beyond it rows drawn between and around
rows of the data, so that numbers which the data alone does not move show too; tokens are drawn.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from divulge.auditing import commands
from divulge.auditing.probes.probe import Probe, deadline
from divulge.auditing.sentences import copies
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target, drawn_rows
from divulge.extraction.last_layer import CHECKS, FIRST, LastLayer
from divulge.oracles.guards.logit_bias import LogitBias
from divulge.report.findings import ADVERSARIES, Finding, Outcome

NAME = "last-layer"
MANY = 32
"""Outputs from which on the attack is run: the last layer of a model with fewer is seldom narrower than that."""
NARROW = 0.9
"""A space that fills more of the outputs than this says no more than that some outputs depend on others."""
NUMBERS = 1 << 27
"""The most numbers in the answers: a gibibyte."""
ROW_NUMBERS, ALWAYS = 1 << 22, 256
"""Numbers in the rows that are asked: more take seconds to draw. So many rows are asked in any case: two rounds."""


def _obstacle(target: Target) -> str:
    if not target.grants("value"):
        return f"the access granted ({target.access}) does not include values."
    if target.output_dim < MANY:
        return f"it has {target.output_dim} outputs; a last layer shows where there are many more than it has inputs."
    if target.kind in ("constant", "piecewise constant"):
        return f"it is {target.description}, and has no last layer."
    if target.kind == "linear" and target.kind_is_known:
        return f"it is {target.description}; exact extraction does better."
    if _most(target) < CHECKS + 4:
        return f"{_most(target)} queries are too few; give the audit a budget of at least {FIRST}."
    return ""


def _most(target: Target) -> int:
    """Rows that may be asked: a few more than there are outputs, where budget and memory allow them."""
    drawn = max(ALWAYS, ROW_NUMBERS // target.input_dim)
    most = min(target.output_dim + CHECKS + 8, NUMBERS // target.output_dim, drawn)
    return most if target.options.budget is None else min(most, target.options.budget)


def _rows(target: Target) -> Tensor:
    """Rows to ask: half of the data, and rows between and around others; or drawn where there is no data."""
    most, generator = _most(target), torch.Generator().manual_seed(target.seed)
    known = target.example_inputs
    drawn = drawn_rows(most, target.input_dim, target.vocabulary, generator)
    if known is None:
        return drawn
    if target.vocabulary is None:
        known = known.double()
        first, second = (known[torch.randint(len(known), (most,), generator=generator)] for _ in range(2))
        share = torch.rand(most, 1, generator=generator, dtype=torch.float64)
        drawn = first + share * (second - first) + known.std(dim=0) * drawn
    chosen = torch.randperm(len(known), generator=generator)[: most // 2]
    drawn[: len(chosen)] = known[chosen].double()
    return drawn[torch.randperm(most, generator=generator)]


def _run(target: Target, seconds: float) -> Finding:
    from divulge import extraction

    started = time.perf_counter()
    with deadline(seconds):
        found = extraction.last_layer(target.oracle("value"), _rows(target), seed=target.seed)
    outcome: Outcome = "partly" if found.success and found.width <= NARROW * target.output_dim else "failed"
    truth = _layer_of(target)
    return Finding(
        name=NAME,
        question="copy",
        adversary=ADVERSARIES["value"],
        title=copies.last_layer_title(outcome, found.queries, found.width, target.output_dim),
        outcome=outcome,
        severity=severity_of("copy", ADVERSARIES["value"], outcome),
        meaning=copies.last_layer_meaning(outcome, found.reason, found.width, target.output_dim),
        certainty=copies.last_layer_certainty(CHECKS, found.error, _missed(target, found, truth)),
        measures={
            "width_found": found.width,
            "outputs": target.output_dim,
            "outside_of_the_space": found.error,
            **({} if truth is None else {"true_width": truth.shape[1], "missed": _missed(target, found, truth)}),
        },
        ledger=found.ledger,
        seconds=time.perf_counter() - started,
        seed=target.seed,
        command=commands.extract(target, "value", method="last-layer"),
        notes=tuple(found.notes),
    )


def _layer_of(target: Target) -> Tensor | None:
    """The weights of the true last layer, where the auditor holds a network that ends in one; else None."""
    layers = target.held.modules() if isinstance(target.held, nn.Module) else ()
    linear: list[Any] = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return linear[-1].weight.detach() if linear and linear[-1].out_features == target.output_dim else None


def _missed(target: Target, found: LastLayer, truth: Tensor | None) -> float | None:
    """The part of the true layer that the space misses, once a shift of all outputs is taken off where answers do."""
    if truth is None or not found.success:
        return None
    shifted = bool(found.notes) or isinstance(target.oracle("value"), LogitBias)
    return found.distance(truth - truth.mean(dim=0, keepdim=True) if shifted else truth)


def _seconds(target: Target) -> float:
    """Twice the rows that a layer of a fifth of the outputs takes, and their singular values."""
    rows = min(_most(target), max(2 * FIRST, target.output_dim // 2))
    return 0.5 + rows * target.seconds_per_row + 4e-10 * rows**2 * target.output_dim


PROBES = (Probe(NAME, "The last layer from predictions", _obstacle, _run, _seconds, "medium"),)
