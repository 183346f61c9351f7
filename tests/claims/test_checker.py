"""The checker catches what is false: reports of a real audit, each edited to claim something that does not hold."""

from __future__ import annotations

import copy
import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from experiments.claims import checks, tables
from experiments.claims.checks import (
    attributes,
    contents,
    copies,
    kinds,
    membership,
    protections,
    records,
    secrecy,
    verdicts,
)
from experiments.claims.checks.statistics import share_interval
from experiments.claims.recording import Call, audited
from experiments.claims.zoo import MODELS
from torch import nn

COPY = "copy-from-values"


@pytest.fixture(scope="module")
def subject():
    return MODELS["linear inside, curved outside"]()


@pytest.fixture(scope="module")
def honest(subject):
    """The audit of a function of six numbers, with the copy that its attack returned."""
    return audited(subject, time_allowed=5.0)


def edited(audit, change):
    """The same audit with a report that was changed."""
    report = copy.deepcopy(audit.report)
    change(report)
    return dataclasses.replace(audit, report=report)


def finding(**fields):
    plain = {
        "name": COPY, "question": "copy", "adversary": "prediction client", "title": "", "outcome": "failed",
        "severity": "none", "meaning": "", "measures": {}, "remedies": [], "tables": [],
    }  # fmt: skip
    return {**plain, **fields}


def false_claims(audit, subject):
    return {one.where for one in checks.wrong(checks.check(audit, subject, rerun=False))}


def wrong_copy(width, outputs=1):
    """A network that copies nothing."""
    network = nn.Linear(width, outputs).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    return network


def with_copy(audit, subject, said, *, model):
    """An audit with one finding about one copy."""
    call = Call(COPY, "extraction.from_values", (), {}, SimpleNamespace(exact=True, model=model))
    report = {**audit.report, "findings": [said], "skipped": [], "state": "taken", "severity": "high"}
    return dataclasses.replace(audit, report=report, calls=[call])


@pytest.mark.slow
def test_an_honest_report_has_no_false_claim(honest, subject):
    assert not checks.wrong(checks.check(honest, subject, rerun=False))


def test_a_copy_that_is_said_to_be_exact_and_is_not(honest, subject):
    said = finding(title="1 prediction is enough to copy the model exactly", outcome="succeeded", severity="high",
                   measures={"exact": True, "judging_rows": 50, "hidden_units_found": 0})  # fmt: skip
    assert COPY in false_claims(with_copy(honest, subject, said, model=wrong_copy(6)), subject)


def test_an_exact_copy_passes(honest):
    linear = MODELS["linear, far from zero"]()
    model = nn.Linear(6, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(1e-3 * np.linspace(-1.0, 1.5, 6))[None])
        model.bias.fill_(1e6)
    said = finding(title="copied exactly", outcome="succeeded", severity="high",
                   measures={"exact": True, "judging_rows": 50, "hidden_units_found": 0})  # fmt: skip
    assert COPY not in false_claims(with_copy(honest, linear, said, model=model), linear)


def test_a_claim_without_a_copy(honest, subject):
    def claim(report):
        report["findings"] = [
            finding(outcome="succeeded", severity="high", measures={"exact": True, "judging_rows": 50})
        ]

    assert COPY in false_claims(dataclasses.replace(edited(honest, claim), calls=[]), subject)


def test_a_share_of_the_variance_that_is_not_there(honest, subject):
    said = finding(outcome="failed", measures={"exact": False, "judging_rows": 1000, "variance_explained": 0.93})
    assert COPY in false_claims(with_copy(honest, subject, said, model=wrong_copy(6)), subject)


@pytest.mark.parametrize("kind", ["a linear model", "a piecewise-constant model, such as a forest of trees"])
def test_a_kind_that_the_model_is_not(honest, subject, kind):
    lie = edited(honest, lambda report: report["target"].update(kind=kind))
    assert checks.wrong(kinds.check(lie, subject))


def test_the_kinds_of_the_zoo_hold_by_finite_differences():
    for name in ("ridge, diabetes", "tree, houses", "SVR, diabetes", "constant target", "clipped function"):
        one = MODELS[name]()
        seen = kinds.measured(one)
        expected = {
            "linear": seen["straight"] == 1 and seen["flat"] == 0,
            "piecewise constant": seen["flat"] > 0.5 and seen["constant"] < 1,
            "smooth": seen["straight"] < 0.5,
            "constant": seen["constant"] == 1,
            "piecewise linear": seen["straight"] > 0.5 and seen["constant"] < 1,
        }
        assert expected[one.kind], (name, seen)


def test_a_verdict_that_says_less_or_more_than_what_ran(honest, subject):
    for state in {"taken", "not taken", "inconclusive"} - {verdicts.expected_state(honest.report)}:
        lie = edited(honest, lambda report, state=state: report.update(state=state))
        assert "verdict" in {one.where for one in checks.wrong(verdicts.check(lie, subject))}


def test_an_attack_that_did_not_finish_is_not_a_failed_one():
    report = {"findings": [], "skipped": [{"name": COPY, "ending": "unfinished", "reason": ""}]}
    assert verdicts.expected_state(report) == "inconclusive"
    report["skipped"][0]["ending"] = "failed"
    assert verdicts.expected_state(report) == "not taken"


def test_a_severity_that_the_rule_does_not_give(honest, subject):
    def claim(report):
        report["findings"] = [finding(outcome="succeeded", severity="low")]

    assert COPY in {one.where for one in checks.wrong(verdicts.check(edited(honest, claim), subject))}


def test_an_audit_that_took_too_long(honest, subject):
    late = dataclasses.replace(honest, seconds=1.2 * honest.allowed)
    assert "time" in {one.where for one in checks.wrong(verdicts.check(late, subject))}


@pytest.mark.parametrize(
    ("fail_on", "require", "ending", "severity", "code"),
    [
        ("high", (), "failed", "high", 5),
        ("high", (), "failed", "none", 0),
        ("high", (), "unfinished", "none", 6),
        ("critical", (), "unfinished", "none", 6),
        (None, (COPY,), "unfinished", "none", 6),
        (None, (COPY,), "failed", "none", 0),
    ],
)
def test_exit_codes_by_the_written_rule(fail_on, require, ending, severity, code):
    other = finding(name="span-from-values", question="span", outcome="succeeded", severity=severity)
    report = {"findings": [other], "skipped": [{"name": COPY, "ending": ending, "reason": ""}], "severity": severity}
    stake = {COPY: "critical", "span-from-values": "medium"}
    assert verdicts.expected_code(report, fail_on=fail_on, require=require, stake=stake) == code


def test_a_printed_record(honest, subject):
    row = np.asarray(subject.table.training.X)[3]
    lie = dataclasses.replace(honest, pages=honest.pages + json.dumps([f"{cell:.6g}" for cell in row]))
    assert not checks.wrong(secrecy.check(honest, subject))
    assert checks.wrong(secrecy.check(lie, subject))


def test_a_printed_name(honest):
    table = tables.patients(60)
    named = dataclasses.replace(MODELS["ridge, diabetes"](), table=table)
    lie = dataclasses.replace(honest, pages=str(table.training.X.index[0]))
    assert checks.wrong(secrecy.check(lie, named))


def test_a_record_that_is_only_right_in_its_largest_column(honest):
    houses = MODELS["ridge, houses"]()
    X = np.asarray(houses.table.training.X)
    guess = X.mean(axis=0)
    guess[-1] = X[5, -1] * (1 + 1e-9)  # nearly all of the error in raw units is in this column
    record = SimpleNamespace(x=guess)
    call = Call("informed-linear", "informed.glm", (None, np.delete(X, 5, axis=0), None), {}, record)
    assert not records.rebuilt(call, X)
    record.x = X[5] * (1 + 1e-9)
    assert records.rebuilt(call, X)


def test_a_blind_guess_that_is_better_than_stated(subject):
    table = MODELS["duplicated rows"]().table
    said = finding(measures={"accepted_error_mse": 0.5, "blind_guess_upper_limit": 0.001})
    alike = dataclasses.replace(subject, table=dataclasses.replace(table, heldout=table.training))
    assert checks.wrong(protections._blind_guess(said, alike))
    honest = finding(measures={"accepted_error_mse": 0.5, "blind_guess_upper_limit": 0.9})
    assert not checks.wrong(protections._blind_guess(honest, alike))


def test_noise_that_does_not_give_the_stated_epsilon():
    said = {"sampling_rate": 1.0, "training_steps": 100, "blind_guess_upper_limit": 0.01, "accepted_chance": 0.05,
            "delta": 1e-5}  # fmt: skip
    lie = finding(title="Private training at epsilon 0.2 would", meaning="noise multiplier 20,", measures=said)
    assert checks.wrong(protections._noise(lie))


def test_the_gaussian_mechanism_in_closed_form():
    assert protections.delta_of(1.0, 1.0) == pytest.approx(0.1269, abs=1e-3)
    assert share_interval(0, 100)[0] == 0
    assert share_interval(100, 100)[1] == 1


# -- copies from labels, membership, hidden columns and the file ------------------------------------------------------


def test_a_copy_from_labels_that_is_said_to_be_equivalent_and_is_not():
    tanh = MODELS["saturated tanh"]()
    said = finding(
        name="copy-from-labels", measures={"equivalent": True, "judging_rows": 50}, outcome="succeeded", severity="high"
    )
    right = nn.Linear(6, 1).double()
    with torch.no_grad():
        right.weight.copy_(torch.tensor(np.linspace(-1.0, 1.5, 6))[None])
        right.bias.zero_()
    for model, holds in ((right, True), (wrong_copy(6), False)):
        call = Call("copy-from-labels", "extraction.from_labels", (), {}, SimpleNamespace(model=model))
        assert bool(checks.wrong(copies._label_claims(said, [call], tanh))) is not holds


def scored(members, others):
    return SimpleNamespace(scores=members, non_member_scores=others, method="combined")


@pytest.mark.slow
def test_figures_of_membership_that_the_scores_do_not_give():
    draw = np.random.default_rng(0)
    members, others = draw.normal(0.5, 1, 400), draw.normal(0, 1, 400)
    auc = membership.area(members, others)
    for stated, epsilon, holds in ((auc, 0.1, True), (auc + 0.1, 0.1, False), (auc, 9.0, False)):
        said = finding(name="membership", measures={"auc": stated, "epsilon_at_least": epsilon})
        assert bool(checks.wrong(membership._figures(said, [scored(members, others)]))) is not holds


def test_members_that_are_said_to_be_safe_and_are_not():
    nearest = MODELS["nearest neighbour, diabetes"]()
    said = finding(name="membership", title="The membership attack does not tell", severity="none")
    assert checks.wrong(membership._losses(said, nearest))
    ridge = MODELS["ridge, diabetes"]()
    assert not checks.wrong(membership._losses(said, ridge))


def test_rows_that_nobody_trained_on_are_not_told_apart():
    said = finding(name="membership", title="Training records can be told from others", severity="high")
    assert membership._strangers(said, MODELS["saw-tooth"]()).true


def hidden(right):
    """An attack on a column of coin flips, with this share of right guesses."""
    draw = np.random.default_rng(1)
    X = np.column_stack([draw.integers(0, 2, 400), draw.normal(size=(400, 3))]).astype(float)
    guesses = np.where(draw.random(400) < right, X[:, 0], 1 - X[:, 0]).astype(int)
    result = SimpleNamespace(column=(0,), values=np.array([[0.0], [1.0]]), guesses=guesses, quantity=False)
    return Call("attribute-inference", "attributes.attack", (None, X, draw.integers(0, 2, 400)), {"column": 0}, result)


@pytest.mark.slow
def test_a_column_that_is_said_to_be_given_away_and_is_not():
    for right, stated, holds in ((0.9, 0.9, True), (0.5, 0.9, False)):
        rows = {"0": ("0", stated, 0.5, 0.4, 0.3)}
        assert bool(checks.wrong(attributes._column(hidden(right), rows))) is not holds
    said = finding(name="attribute-inference", title="The model gives away column 0", severity="high")
    rows = {"0": ("0", 0.3, 0.2, 0.1, 0.05)}
    assert not attributes._beyond(said, [hidden(0.3)], rows).true  # a coin does better
    rows = {"0": ("0", 0.9, 0.5, 0.4, 0.3)}
    assert attributes._beyond(said, [hidden(0.9)], rows).true


def test_records_that_are_said_to_stand_in_the_file_and_do_not():
    one = MODELS["neighbours, cancer"]()
    rows = np.asarray(one.table.training.X)
    said = finding(name="file-contents", title=f"{len(rows)} training records stand in the file", severity="critical")
    for held, holds in ((rows, True), (rows + 1.0, False)):
        holding = SimpleNamespace(where="model._fit_X", kind="records", count=len(rows), detail="", rows=held,
                                  in_training_data=len(rows))  # fmt: skip
        result = SimpleNamespace(holdings=(holding,))
        assert bool(checks.wrong(contents._holdings(said, result, one))) is not holds


def test_a_row_of_mixed_columns_counts_if_it_is_nearer_than_every_other():
    frame = pd.DataFrame({"ward": ["a", "b", "c", "a"], "age": [30.0, 40.0, 50.0, 60.0]}, index=list("wxyz"))
    subject = SimpleNamespace(table=SimpleNamespace(training=SimpleNamespace(X=frame)))
    for row, right in (
        ({"ward": "b", "age": 41.0}, True),
        ({"ward": "c", "age": 55.0}, False),
        ({"ward": None, "age": None}, False),
    ):
        call = SimpleNamespace(
            attack="informed.glm", arguments=(None, frame.drop(index="x")), result=SimpleNamespace(row=row)
        )
        assert records.row_is_rebuilt(call, subject) is right
