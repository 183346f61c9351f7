"""Can they copy my model? A student fitted to its answers, where exact extraction does not reach."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from divulge.auditing.finding import Adversary, Finding, Outcome, Picture, Table, severity_of
from divulge.auditing.probe import Probe, TimeUp, deadline
from divulge.auditing.target import KINDS, Target
from divulge.errors import BudgetExhausted
from divulge.oracles.base import Access, Spent
from divulge.report.pictures import curve

QUERIES = (30, 100, 300)
STUDENT = 128
"""Hidden units of the student, a network with one hidden layer: the attacker does not know the architecture."""
FAITHFUL, USEFUL = 0.98, 0.9
"""Agreement from which the copy counts as taken, and as partly taken."""


def _obstacle(target: Target) -> str:
    if not target.grants("value"):
        return f"the access granted ({target.access}) does not include values."
    if target.kind == "linear" or (target.kind == "one hidden ReLU layer" and target.model is not None):
        return f"it is {KINDS[target.kind]}; exact extraction does better."
    if target.inputs is None and target.unseen is None:
        return "no data was given to ask about; give inputs like the model's own."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    started = time.perf_counter()
    access: Access = "gradient" if target.grants("gradient") else "value"
    adversary: Adversary = "explanation client" if access == "gradient" else "prediction client"
    pool, judges = _pool(target)
    truth = target.oracle("label").label(judges)
    rows: list[tuple[int, float]] = []
    ledger, note = Spent(), ""
    for count in (count for count in QUERIES if count <= len(pool)):
        try:
            with deadline(seconds - (time.perf_counter() - started)):
                agreement, ledger = _agreement(target, access, pool, judges, truth, count)
        except (TimeUp, BudgetExhausted) as error:
            note = f"The curve ends there: {error}"
            break
        rows.append((count, agreement))
    if not rows:
        raise TimeUp(note or f"{len(pool)} inputs are too few to learn from; give at least {QUERIES[0]}.")
    best = max(agreement for _, agreement in rows)
    outcome: Outcome = "succeeded" if best >= FAITHFUL else "partly" if best >= USEFUL else "failed"
    png = curve(
        [("agreement", [c for c, _ in rows], [a for _, a in rows])],
        x_label=f"{access} queries", y_label="same decision on fresh inputs", log_x=True,
    )  # fmt: skip
    return Finding(
        name="copy-by-learning",
        question="copy",
        adversary=adversary,
        title=f"A student fitted to {rows[-1][0]:,} {access} queries decides as the model does in {best:.1%} of cases",
        outcome=outcome,
        severity=severity_of("copy", adversary, outcome),
        meaning="Whoever may ask this often has a model that does the same job."
        if outcome != "failed"
        else "The student learned from so few answers does not replace the model.",
        certainty=f"Agreement was measured on {len(judges):,} inputs that the student was not fitted to; one run.",
        measures={"agreement": best, "student": f"one hidden layer of {STUDENT}"},
        ledger=ledger,
        seconds=time.perf_counter() - started,
        seed=target.seed,
        remedies=(
            f"Limit a client to fewer than {rows[0][0]:,} queries, where the curve begins, or answer labels only.",
        )
        if outcome != "failed"
        else (),
        command=f"divulge extract {target.address} --method training --access {access} --data DATA",
        pictures=(Picture(png, f"Agreement reaches {best:.1%} at {rows[-1][0]} queries", "The learning curve."),),
        tables=(Table("Agreement against queries", ("queries", "agreement"), tuple(rows)),),
        notes=(note,) if note else (),
    )


def _agreement(
    target: Target, access: Access, pool: Tensor, judges: Tensor, truth: Tensor, count: int
) -> tuple[float, Spent]:
    from divulge import extraction, oracle

    student: dict[str, Any] = {
        "architecture": "mlp", "widths": [target.input_dim, STUDENT, target.output_dim], "activation": "relu",
    }  # fmt: skip
    copy = extraction.by_training(
        target.oracle(access),
        student,
        pool,
        queries=count,
        match="both" if access == "gradient" else "values",
        seed=target.seed,
    )
    return float((oracle(copy.model).label(judges) == truth).double().mean()), copy.ledger


def _pool(target: Target) -> tuple[Tensor, Tensor]:
    """Inputs to ask about and others to judge by: unseen ones where there are any."""
    known = target.unseen if target.unseen is not None else target.inputs
    assert known is not None
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(target.seed))
    half = len(known) // 2
    return known[order[:half]], known[order[half : half + 1000]]


PROBES = (Probe("copy-by-learning", "A copy by learning from answers", _obstacle, _run, share=2.0),)
