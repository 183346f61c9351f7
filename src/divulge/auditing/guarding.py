"""The guards at an endpoint: what each leaves of every copy and costs, and how many rows a client may be answered."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch

from divulge.auditing.finding import Finding, Table
from divulge.auditing.probe import Probe, TimeUp, deadline
from divulge.auditing.target import Target
from divulge.errors import AttackFailed

FIDELITY = 0.9
"""A copy that decides alike this often is a copy; guards and budgets are judged by it."""
HARMLESS = 0.02
"""A guard that changes more decisions than this is not recommended."""
QUERIES, COUNTS = 300, (30, 100, 300)
STEPS, JUDGES = 500, 500
Measured = dict[str, tuple[Any, list[Any]]]
"""The price of each guard and what each attack got behind it (``protection.endpoint``); "" is no guard."""


def _obstacle(target: Target) -> str:
    if not target.grants("value"):
        return f"the access granted ({target.access}) shows no numbers to guard."
    if target.guards:
        return f"the guards in front of it ({target.guards}) are what the other findings measured."
    if target.address.startswith(("http://", "https://")):
        return "it is remote, and every guard would ask it anew; rehearse with divulge serve --guard on a copy of it."
    if target.inputs is None and target.unseen is None:
        return "no data was given to ask about and to judge copies by."
    if target.labels is not None and target.labels.is_floating_point():
        return "it predicts a quantity; guards are judged by decisions."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    from divulge.extraction.curves import LearningCurve
    from divulge.protection import endpoint

    started = time.perf_counter()
    scene = _scene(target)
    common = float(torch.bincount(target.oracle("label").label(scene.judges).cpu()).max()) / len(scene.judges)
    if common >= FIDELITY:
        raise AttackFailed(f"{common:.1%} of the decisions are the same, so agreement does not tell a copy from none.")
    attacks = _attacks(target)
    measured: Measured = {}
    curve: LearningCurve | None = None
    notes = []
    try:
        with deadline(seconds):
            plain = [endpoint.left_by("", attack, scene) for attack in attacks]
            measured[""] = endpoint.price_of("", scene), plain
            learned = [attack for attack in attacks if attack.startswith("learned")]
            counts = [count for count in COUNTS if count <= len(scene.pool)]
            curve = endpoint.learning_curve("", scene, counts, attacks=learned)
            patience = 3 * max(left.queries for left in plain)
            for name in _guards(target, scene):
                lefts = [endpoint.left_by(name, attack, scene, budget=patience) for attack in attacks]
                measured[name] = endpoint.price_of(name, scene), lefts
    except TimeUp as error:
        if curve is None:  # without it a limit would be too generous
            raise
        notes.append(f"The table ends there: {error}")
    budget = endpoint.query_budget(FIDELITY, exact=measured[""][1], curve=curve)
    finding = _told(target, measured, budget, curve)
    return dataclasses.replace(finding, seconds=time.perf_counter() - started, notes=(*finding.notes, *notes))


def _scene(target: Target) -> Any:
    from divulge.protection.endpoint import Scene

    known = target.unseen if target.unseen is not None else target.inputs
    assert known is not None
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(target.seed))
    half = len(known) // 2
    pool, judges = known[order[:half]], known[order[half : half + JUDGES]]
    return Scene(target.make_oracle, pool, judges, learned_from=min(QUERIES, half), steps=STEPS, seed=target.seed)


def _attacks(target: Target) -> list[Any]:
    exact = ["exact copy from values"] if target.kind in ("linear", "one hidden ReLU layer") else []
    return [*exact, "learned copy from values", "learned copy from labels"]


def _guards(target: Target, scene: Any) -> list[str]:
    """The guards that are tried: noise in proportion to the answers."""
    spread = float(scene.make("value").value(scene.judges).double().std())
    several = ["top:1"] if target.output_dim > 1 else []
    return ["round:2", f"noise:{0.1 * spread:.2g}", *several, "label"]


def _told(target: Target, measured: Measured, budget: Any, curve: Any) -> Finding:
    best = _recommended(measured)
    stops, fails = _verdicts(measured)
    fewest = min(point.queries for point in curve.points)
    untried = budget.rows is not None and budget.rows == fewest - 1  # less may do as well
    if best is not None:
        rows = max(left.queries for left in measured[best][1])
        title = f"The guard {best} keeps copies from {rows:,} rows below {FIDELITY:.0%} agreement"
    elif budget.rows is not None:
        tried = "No guard tried keeps" if len(measured) > 1 else "Nothing but a limit was tried that keeps"
        title = f"{tried} copies below {FIDELITY:.0%} agreement; " + (
            f"{fewest:,} rows, the fewest tried, are enough" if untried else f"a limit of {budget.rows:,} rows does"
        )
    else:
        title = f"Without any guard no copy reached {FIDELITY:.0%} agreement"
    limit = f"No copy reached {FIDELITY:.0%} agreement within the rows tried here."
    if untried:
        limit = (
            f"Limit a client to fewer than {fewest:,} rows: so few, the fewest tried, give a copy of {FIDELITY:.0%} "
            f"agreement (the {budget.attack})."
        )
    elif budget.rows is not None:
        limit = (
            f"Limit a client to {budget.rows:,} rows: before that no attack tried has a copy of {FIDELITY:.0%} "
            f"agreement (the {budget.attack} is there first)."
        )
    return Finding(
        name="protection-at-the-endpoint",
        question="protection",
        adversary=None,
        title=title,
        outcome="succeeded",
        severity="none",
        meaning=limit,
        certainty=f"Each attack was run behind each guard once and judged on up to {JUDGES} inputs it had not asked "
        "about. A client who asks more, or knows more, may do better.",
        measures={"fidelity": FIDELITY, "rows_a_client_may_be_answered": budget.rows, "guard": best},
        seed=target.seed,
        remedies=(limit, *stops),
        command=target.command("audit", "--guard", best or "label", *target.data_option),
        tables=_tables(measured, curve),
        notes=tuple(fails),
    )


def _strongest(lefts: list[Any]) -> Any:
    return max(lefts, key=lambda left: left.score)


def _recommended(measured: Measured) -> str | None:
    """The guard that stops every copy and changes the fewest decisions, if there is one that hardly changes any."""
    enough = {
        name: price.decisions_changed
        for name, (price, lefts) in measured.items()
        if name and _strongest(lefts).score < FIDELITY and price.decisions_changed <= HARMLESS
    }
    return min(enough, key=lambda name: enough[name]) if enough else None


def _verdicts(measured: Measured) -> tuple[list[str], list[str]]:
    """The guards that keep copies below the fidelity, and those that do not, each with its price."""
    stops, fails = [], []
    for name, (price, lefts) in measured.items():
        left = _strongest(lefts)
        told = (
            f"the best attack ({left.attack}, {left.queries:,} rows) agrees in {left.score:.1%}, and "
            f"{price.decisions_changed:.1%} of honest decisions change (measured here)."
        )
        if name and left.score < FIDELITY:
            stops.append(f"Guard {name}: {told}")
        elif name:
            fails.append(f"Guard {name} is not enough: {told}")
    return stops, fails


def _tables(measured: Measured, curve: Any) -> tuple[Table, ...]:
    rows = [
        (name or "none", price.decisions_changed, price.answer_error, left.attack, left.score, left.queries,
         left.note or ("exact" if left.exact else ""))
        for name, (price, lefts) in measured.items() for left in lefts
    ]  # fmt: skip
    columns = (
        "guard",
        "decisions changed",
        "answers changed / spread",
        "attack",
        "same decisions",
        "rows asked",
        "note",
    )
    tables = [Table("Attacks behind each guard", columns, tuple(rows))]
    points = tuple((point.kind, point.queries, point.agreement) for point in curve.points)
    tables.append(Table("Learned copies without a guard", ("from", "rows asked", "same decisions"), points))
    return tuple(tables)


PROBES = (Probe("protection-at-the-endpoint", "Guards at the endpoint", _obstacle, _run, share=2.0),)
