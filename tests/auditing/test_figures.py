"""The figures of an audit, and what leaves the machine with its report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import divulge
from divulge import datasets
from divulge.auditing import Finding, Probe, registry
from divulge.auditing.fidelity import Judge
from divulge.auditing.probes import exact_copy, learned_copy, span
from divulge.core.errors import InvalidInput
from divulge.report.verdict import gate

PATIENT = "Jane Q. Public"


def relu_network(seed: int = 0) -> nn.Module:
    return divulge.Recipe(widths=[8, 4, 1], loss="logistic", precision="float64", seed=seed).initial_model()


def only(monkeypatch: pytest.MonkeyPatch, *probes: Probe) -> None:
    monkeypatch.setattr(registry, "available_probes", lambda: list(probes))


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_exact_copy_that_contradicts_the_model_on_the_data_is_not_called_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, exact_copy.PROBES[0])
    generator = torch.Generator().manual_seed(0)
    far = torch.randn(200, 4, generator=generator, dtype=torch.float64) * 3 + 1000

    def two_faced(X: Any) -> Any:
        X = np.asarray(X)
        return np.where(X[:, 0] < 500, X.sum(axis=1), (X[:, 1] - X[:, 2]) * 50)  # another function where the data lies

    y = torch.as_tensor(two_faced(far.numpy()) > 0).long()
    attack = divulge.extraction.from_values

    def asks_elsewhere(oracle: Any, *, inputs: Any, seed: int) -> Any:
        """The attack of a client who does not know where the data lies."""
        return attack(oracle, seed=seed)

    monkeypatch.setattr(divulge.extraction, "from_values", asks_elsewhere)
    report = divulge.audit(two_faced, (far, y), input_shape=(4,), access="value", time=30)
    copied = [f for f in report.findings if f.name == "copy-from-values"]
    assert not any(finding.measures["exact"] for finding in copied)


def test_shares_stand_beside_balanced_ones_and_the_area_under_the_curve() -> None:
    labels = torch.tensor([0] * 90 + [1] * 10)
    rows = torch.cat([torch.zeros(90, 1), torch.ones(10, 1)]).double()
    always = nn.Linear(1, 1).double()
    with torch.no_grad():
        always.weight.zero_()
        always.bias.fill_(-1.0)
    measures = Judge(rows, labels, None, labels, True).measures(always)
    assert measures["right_answers_of_the_copy"] == pytest.approx(0.9)
    assert measures["balanced_accuracy_of_the_copy"] == pytest.approx(0.5)
    assert measures["balanced_same_decision"] == pytest.approx(0.5)
    assert measures["auc_of_the_copy"] == pytest.approx(0.5)


@pytest.mark.slow
def test_a_learned_copy_is_measured_over_draws_with_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_copy, "QUERIES", (30,))
    monkeypatch.setattr(learned_copy, "LONGER", 1e9)
    monkeypatch.setattr(learned_copy, "DRAWS", 3)
    only(monkeypatch, learned_copy.PROBES[1])
    digits = datasets.load("digits").binary()
    model = divulge.Recipe(widths=[64, 16, 1], loss="logistic", epochs=20, batch_size=64).train(*digits.train)
    [found] = divulge.audit(model, digits, unseen=digits.test, time=400, access="label").findings
    assert found.measures["draws"] == 3
    [(_, mean, lowest, highest, *_)] = found.tables[0].rows
    assert lowest < mean < highest
    assert found.measures["same_decision"] == pytest.approx(mean)
    assert " to " in found.measures["interval"]
    assert "one hidden layer of 128 ReLU units" in found.certainty
    assert "inputs that the model never saw" in found.certainty


def test_the_one_direction_of_a_linear_model_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, *span.PROBES)
    [found] = divulge.audit(nn.Linear(30, 1).double(), time=20).findings
    assert found.severity == "none"
    assert "as every linear model" in found.title


def test_a_constant_model_has_nothing_to_copy() -> None:
    report = divulge.audit(lambda X: np.full(len(X), 3.0), input_shape=(4,), time=20)
    assert report.severity == "none"
    assert all(finding.severity == "none" for finding in report.findings)


@pytest.mark.parametrize("name", ["LinearRegression", "KNeighborsRegressor", "RandomForestRegressor"])
def test_a_regression_on_a_constant_target_has_nothing_to_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn import ensemble, linear_model, neighbors

    only(monkeypatch, *exact_copy.PROBES, *learned_copy.PROBES)
    fitted: Any = next(getattr(part, name) for part in (ensemble, linear_model, neighbors) if hasattr(part, name))()
    X, y = np.random.default_rng(3).standard_normal((200, 6)), np.full(200, 152.3)
    report = divulge.audit(fitted.fit(X, y), (X, y), time=20)
    assert report.severity == "none"
    assert any("there is nothing to copy" in found.title for found in report.findings) or name != "LinearRegression"


# -- what leaves the machine ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_records_are_not_shown_unless_asked_for(tmp_path: Path) -> None:
    from sklearn.linear_model import Ridge

    table = datasets.load("diabetes")
    X, y = table.train.X.double().numpy(), table.train.y.double().numpy()
    X[:, 0] += np.arange(len(X)) * 1e-3
    model = Ridge().fit(X, y)
    for shown in (False, True):
        report = divulge.audit(
            model, (X, y), columns=table.columns, time=30, show_records=shown, out=tmp_path / str(shown)
        )
        rebuilt = next(f for f in report.findings if f.name == "informed-linear")
        assert any(part.records for part in rebuilt.tables) == shown
        first = rebuilt.tables[0].rows[0][0]
        secret = re.compile(rf"(?<![\d.]){re.escape(f'{X[first, 0]:.4g}')}(?!\d)")
        pages = [report.html(), report.markdown(), report.json(), json.dumps(report.as_dict(), default=str)]
        kept = (tmp_path / str(shown) / "findings" / "informed-linear.json").read_text()
        assert bool(secret.search(pages[0])) == shown
        assert ("its values" in kept) == shown
        assert all(("its values" in page) == shown for page in pages)


def test_an_error_does_not_quote_a_record() -> None:
    for data in (([[PATIENT] * 8], [0]), (torch.zeros(2, 8), [PATIENT, "b"])):
        with pytest.raises(InvalidInput) as raised:
            divulge.audit(relu_network(), data, time=1)
        assert PATIENT not in str(raised.value)


def test_ctrl_c_before_the_first_finding_still_makes_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    for place in ("divulge.auditing.audit.open_target", "divulge.auditing.schedule._fitting"):
        with monkeypatch.context() as patch:
            module, _, name = place.rpartition(".")
            patch.setattr(__import__("sys").modules[module], name, stopped)
            report = divulge.audit(relu_network(), time=30)
        assert report.interrupted
        assert report.state == "inconclusive"
        assert "stopped early" in report.html()


def test_a_gate_is_not_green_after_a_student_of_only_thirty_queries() -> None:
    def student(**measures: int) -> Finding:
        return Finding(
            "copy-by-learning-from-labels", "copy", "label client", "A copy agrees in 71%", "partly", "medium",
            "It is a rough copy.", "Judged on 50 inputs.", measures=measures,
        )  # fmt: skip

    assert gate([student()], [], fail_on="high").result == "met"
    short = gate([student(queries_needed_to_say_more=100)], [], fail_on="high")
    assert short.result == "inconclusive"
    assert "100 queries" in short.reason
    assert gate([student(queries_needed_to_say_more=100)], [], fail_on="medium").result == "not met"
    assert gate([student(queries_needed_to_say_more=100)], [], fail_on="critical").result == "met"
