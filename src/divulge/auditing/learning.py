"""Can they copy my model? A student fitted to its answers, where exact extraction does not reach."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from divulge.auditing.fidelity import Judge, judge_of
from divulge.auditing.finding import ADVERSARIES, Finding, Picture, Table, severity_of
from divulge.auditing.probe import Probe, TimeUp, deadline
from divulge.auditing.target import Target
from divulge.errors import BudgetExhausted
from divulge.oracles.base import Access, Spent
from divulge.report.pictures import curve

QUERIES = (30, 100, 300)
STUDENT = 128
"""Hidden units of the student, a network with one hidden layer: the attacker does not know the architecture."""


def _obstacle(target: Target) -> str:
    if not target.grants("value"):
        return f"the access granted ({target.access}) does not include values."
    if target.kind == "linear" or (target.kind == "one hidden ReLU layer" and target.model is not None):
        return f"it is {target.description}; exact extraction does better."
    return _no_data(target)


def _labels_obstacle(target: Target) -> str:
    if target.labels is not None and target.labels.is_floating_point():
        return "it predicts a quantity, and makes no decisions to learn from."
    return _no_data(target)


def _no_data(target: Target) -> str:
    known = target.unseen if target.unseen is not None else target.inputs
    if known is None:
        return "no data was given to ask about; give inputs like the model's own."
    if len(known) < 2 * QUERIES[0]:
        return f"{len(known)} inputs are too few to learn from and judge by; give at least {2 * QUERIES[0]}."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    return _learned(target, seconds, "gradient" if target.grants("gradient") else "value", "copy-by-learning")


def _run_labels(target: Target, seconds: float) -> Finding:
    return _learned(target, seconds, "label", "copy-by-learning-from-labels")


def _learned(target: Target, seconds: float, access: Access, name: str) -> Finding:
    started = time.perf_counter()
    pool, judges, answers = _pool(target)
    judge = judge_of(target, judges)
    answers = None if answers is None else answers[: len(judge.rows)]
    rows: list[tuple[int, float, float | None]] = []
    asked, note = dict[int, Spent](), ""
    for count in (count for count in QUERIES if count <= len(pool)):
        try:
            with deadline(seconds - (time.perf_counter() - started)):
                [point] = target.kept(partial(_point, target, access, pool, judge, answers), [count], name)
        except (TimeUp, BudgetExhausted) as error:
            if not rows:
                raise
            note = "The curve ends there, because the " + ("time" if isinstance(error, TimeUp) else "budget") + " did."
            break
        asked[count] = Spent(**point["ledger"])
        rows.append((count, point["likeness"], point["accuracy"]))
    count, best, accuracy = max(rows, key=lambda row: row[1])
    outcome = judge.outcome(best)
    return Finding(
        name=name,
        question="copy",
        adversary=ADVERSARIES[access],
        title=f"A student fitted to {count:,} {access} queries copies the model in {judge.told(best)}",
        outcome=outcome,
        severity=severity_of("copy", ADVERSARIES[access], outcome),
        meaning={
            "succeeded": "Whoever may ask this often has a model that does the same job.",
            "partly": "Whoever may ask this often has a model that does most of the same job.",
            "failed": "The student learned from so few answers does not replace the model.",
        }[outcome],
        certainty=f"Measured on {len(judge.rows):,} inputs that the student was not fitted to; one run.",
        measures={
            "same_decision" if judge.values is None else "variance_explained": best,
            "by_always_answering_the_same": judge.chance,
            **_accuracies(judge, answers, accuracy),
            "student": f"one hidden layer of {STUDENT}",
        },
        ledger=asked[count],
        seconds=time.perf_counter() - started,
        seed=target.seed,
        remedies=(_limit(rows, judge, access),) if outcome != "failed" else (),
        command=target.command("audit", "--access", access, *target.data_option),
        pictures=(_picture(rows, access, judge),) if len(rows) > 1 else (),
        tables=(_table(rows, judge, answers),),
        notes=(note,) if note else (),
    )


def _limit(rows: list[tuple[int, float, float | None]], judge: Judge, access: Access) -> str:
    """The most queries on the curve from which no copy was had."""
    safe = [count for count, likeness, _ in rows if judge.outcome(likeness) == "failed"]
    told = f"{max(safe):,}, from which no copy was had here" if safe else f"fewer than {rows[0][0]:,}"
    rest = "" if access == "label" else ", or answer labels only"
    return f"Limit a client to {told} ({access} queries about inputs like the training data){rest}."


def _picture(rows: list[tuple[int, float, float | None]], access: Access, judge: Judge) -> Picture:
    counts = [float(row[0]) for row in rows]
    lines = [("fidelity: as the model", counts, [row[1] for row in rows])]
    if rows[0][2] is not None:
        lines.append(("accuracy: as the labels", counts, [float(row[2] or 0) for row in rows]))
    label = "same decision" if judge.values is None else "variance explained"
    png = curve(lines, x_label=f"{access} queries", y_label=f"{label} on fresh inputs", log_x=True)
    words = f"Fidelity goes from {rows[0][1]:.1%} at {rows[0][0]} queries to {rows[-1][1]:.1%} at {rows[-1][0]}"
    return Picture(png, words, "How good a copy is against what it cost.")


def _table(rows: list[tuple[int, float, float | None]], judge: Judge, answers: Tensor | None) -> Table:
    name = "same decisions" if judge.values is None else "variance explained"
    if answers is None:
        return Table("Copies against queries", ("queries", name), tuple(row[:2] for row in rows))
    return Table("Copies against queries", ("queries", name, "right answers"), tuple(rows))


def _accuracies(judge: Judge, answers: Tensor | None, student: float | None) -> dict[str, Any]:
    if answers is None:
        return {}
    own = float((judge.decisions == answers).double().mean())
    return {"right_answers_of_the_student": student, "right_answers_of_the_model": own}


def _point(
    target: Target, access: Access, pool: Tensor, judge: Judge, answers: Tensor | None, count: int
) -> dict[str, Any]:
    """A student of so many queries, judged."""
    from divulge import extraction, oracle
    from divulge.protection.endpoint import labels_as_logits

    student: dict[str, Any] = {
        "architecture": "mlp", "widths": [target.input_dim, STUDENT, target.output_dim], "activation": "relu",
    }  # fmt: skip
    view = target.oracle(access)
    options: dict[str, Any] = {"match": "both" if access == "gradient" else "values"}
    asked = labels_as_logits(view) if access == "label" else view
    if access == "label":
        options["target_output"] = "logits"
    before = view.ledger.snapshot()  # what told the shape of the answers is no part of the attack
    copy = extraction.by_training(asked, student, pool, queries=count, seed=target.seed, **options)
    accuracy = None
    if answers is not None:
        accuracy = float((oracle(copy.model).label(judge.rows) == answers).double().mean())
    spent = view.ledger.snapshot() - before
    return {"likeness": judge.likeness(copy.model), "accuracy": accuracy, "ledger": asdict(spent)}


def _pool(target: Target) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs to ask about, and others to judge by with their labels: unseen ones where there are any."""
    seen = target.unseen is None
    known, labels = (target.inputs, target.labels) if seen else (target.unseen, target.unseen_labels)
    assert known is not None
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(target.seed))
    half = len(known) // 2
    judges = order[half : half + 1000]
    classes = labels is not None and not labels.is_floating_point()
    return known[order[:half]], known[judges], labels[judges].long() if labels is not None and classes else None


PROBES = (
    Probe("copy-by-learning", "A copy by learning from answers", _obstacle, _run, share=2.0),
    Probe(
        "copy-by-learning-from-labels", "A copy by learning from decisions", _labels_obstacle, _run_labels, share=1.0
    ),
)
