"""How an audit judges: the kind of model, what counts as a copy or a record, what stops it, and how to repeat it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import divulge
from divulge import datasets
from divulge.auditing.fidelity import Judge, judge_of
from divulge.auditing.kinds import kind_by_asking, kind_by_layers, kind_of_module
from divulge.auditing.opening import open_target
from divulge.auditing.options import AuditOptions
from divulge.auditing.probes import label_copy, learned_copy
from divulge.auditing.probes.learned_copy import Point, _outcome
from divulge.auditing.sentences import copies
from divulge.core.result import Spent
from divulge.core.statistics import clopper_pearson
from divulge.report.findings import Finding, Table


def relu_network(h: int = 4, seed: int = 0, k: int = 1) -> nn.Sequential:
    loss: Any = "logistic" if k == 1 else "cross-entropy"
    recipe = divulge.Recipe(widths=[8, h, k], loss=loss, precision="float64", seed=seed)
    return nn.Sequential(*recipe.initial_model().children())


def test_a_closed_form_is_found_where_the_network_reader_sees_none() -> None:
    from sklearn.linear_model import PoissonRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    from divulge.auditing.probes.informed import _linear_obstacle, _run_linear

    table = datasets.load("diabetes")
    X, y = table.train.X.double().numpy(), table.train.y.double().numpy()
    models = [PoissonRegressor(tol=1e-12, max_iter=2000), make_pipeline(StandardScaler(), LinearSVC())]
    poisson, svc = (
        open_target(model.fit(X, labels), (X, labels), AuditOptions())
        for model, labels in zip(models, (y, y > y.mean()), strict=True)
    )
    assert _linear_obstacle(svc) == "there is no closed form for LinearSVC."
    assert _linear_obstacle(poisson) == ""
    assert _run_linear(poisson, 30.0).outcome == "succeeded"


def test_kinds_are_told_apart_from_inside_and_outside() -> None:
    linear = nn.Linear(5, 2).double()
    deep = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    assert kind_by_layers(linear) == kind_by_asking(divulge.oracle(linear)) == "linear"
    assert kind_by_layers(nn.Sequential(linear, nn.Linear(2, 1).double())) == "linear"
    assert kind_by_layers(deep) == kind_by_asking(divulge.oracle(deep)) == "piecewise linear"
    assert kind_by_layers(relu_network()) == "one hidden ReLU layer"
    assert kind_by_asking(divulge.oracle(relu_network().float())) == "piecewise linear"
    assert kind_by_layers(nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())) == "smooth"


@pytest.mark.parametrize(
    ("decisions", "likeness", "outcome"),
    [
        ([-1, 1], 0.99, "succeeded"),
        ([0, 1], 0.92, "partly"),
        ([0, 1], 0.89, "failed"),
        ([0] * 19 + [1], 0.95, "failed"),  # so good is whoever always says 0
        ([0] * 19 + [1], 0.98, "succeeded"),
        ([0, 0], 1.0, "failed"),  # nothing was decided
    ],
)
def test_a_copy_counts_by_the_written_rule(decisions: list[int], likeness: float, outcome: str) -> None:
    assert Judge(torch.zeros(len(decisions), 1), torch.tensor(decisions), None).outcome(likeness) == outcome


@pytest.mark.slow
def test_a_copy_to_the_precision_of_the_answers_counts_whatever_the_data(only_probes: Any) -> None:
    only_probes("copy-from-values")
    model = relu_network(k=2).float()
    with torch.no_grad():
        model[2].bias += torch.tensor([10.0, 0.0])  # decides the same everywhere, so decisions tell nothing
    rows = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    report = divulge.audit(model, (rows, torch.zeros(60).long()), access="value", time=20)
    copied = next(f for f in report.findings if f.name == "copy-from-values")
    assert not copied.measures["exact"]
    assert copied.severity == "high"
    assert "of its answers' spread" in copied.title


@pytest.mark.slow
def test_data_that_the_model_cannot_read_is_said_first(only_probes: Any) -> None:
    only_probes("copy-from-values")
    from sklearn.datasets import load_diabetes, load_iris
    from sklearn.linear_model import LogisticRegression, Ridge

    for load, model in ((load_iris, LogisticRegression(max_iter=1000)), (load_diabetes, Ridge(alpha=1e-3))):
        X, y = load(return_X_y=True)
        model.fit(X, y + 1)
        right, wrong = ((rows, y + 1) for rows in (X, -10 * X - 50))
        said = [divulge.audit(model, data, access="value", time=2).verdict[-1] for data in (right, wrong)]
        assert ["as the model takes it" in sentence for sentence in said] == [False, True]


def test_some_of_the_span_is_not_told_as_all_of_it() -> None:
    from divulge.auditing.probes.span import _judged
    from divulge.auditing.sentences import spans

    figures = {"decisions_changed_under_noise": 0, "largest_output_change": 15.0, "output_spread": 25.0}
    outcome, notes = _judged("succeeded", figures, allowed=1e-6)
    assert outcome == "partly"
    assert "up to 0.6 of their spread" in notes[0]
    assert "ignores" not in spans.meaning(outcome, 8, 22, linear=False)
    assert "ignores 22 directions" in spans.meaning("succeeded", 8, 22, linear=False)


@pytest.mark.slow
def test_what_predicts_a_quantity_is_judged_by_its_variance(only_probes: Any) -> None:
    from sklearn.linear_model import Ridge

    only_probes("copy-from-values")

    table = datasets.load("diabetes")
    model = Ridge().fit(table.train.X.double().numpy(), table.train.y.double().numpy())
    report = divulge.audit(model, table, access="value", guard="round:0", time=30)
    copied = next(f for f in report.findings if f.name == "copy-from-values")
    assert copied.measures["variance_explained"] > 0.98
    assert copied.outcome == "succeeded"
    assert not copied.measures["exact"]
    assert "of its variance" in copied.title


def test_a_softmax_on_top_does_not_hide_the_network(only_probes: Any) -> None:
    only_probes("copy-from-values")
    model = nn.Sequential(*relu_network(k=3), nn.Softmax(dim=1))
    assert kind_of_module(model) == ("one hidden ReLU layer", True)
    assert kind_by_asking(divulge.oracle(model)) == "piecewise linear"
    report = divulge.audit(model, access="value", time=30)
    assert next(f for f in report.findings if f.name == "copy-from-values").outcome == "succeeded"


def test_a_forest_is_told_from_a_network() -> None:
    from sklearn.ensemble import RandomForestClassifier

    for name in ("iris", "breast-cancer"):
        X, y = datasets.load(name).train
        forest = RandomForestClassifier(10, random_state=0).fit(X.numpy(), y.numpy())
        assert kind_by_asking(divulge.oracle(forest)) == "piecewise constant"
    for seed in range(3):
        assert kind_by_asking(divulge.oracle(relu_network(seed=seed, h=1))) == "piecewise linear"


def test_matches_that_chance_explains_are_no_finding() -> None:
    from divulge.auditing.probes.training_data import UNLIKELY, _chance

    assert _chance(1, 120, 0.01, 30) > UNLIKELY
    assert _chance(8, 10, 0.01, 300) < 1e-9
    assert _chance(0, 10, 0.01, 300) == 1.0


def test_findings_name_only_the_protection_that_was_measured_or_proven_against_them() -> None:
    from divulge.auditing.remedies import GUARDS, PRIVATE_TRAINING, with_protection

    def taken(name: str, question: Any, adversary: Any, **more: Any) -> Finding:
        return Finding(name, question, adversary, "t", "succeeded", "high", "m", "c", **more)

    columns = (
        "guard",
        "decisions changed",
        "answers changed / spread",
        "attack",
        "same decisions",
        "rows asked",
        "note",
    )
    rows = [
        ("none", 0.0, 0.0, "exact copy from values", 1.0, 200, "exact"),
        ("none", 0.0, 0.0, "learned copy from labels", 0.95, 300, ""),
        ("round:2", 0.01, 0.1, "exact copy from values", 0.6, 600, ""),
        ("round:2", 0.01, 0.1, "learned copy from labels", 0.95, 300, ""),
        ("noise:1", 0.0, 0.0, "exact copy from values", 1.0, 200, ""),
    ]
    study = Finding(GUARDS, "protection", None, "t", "succeeded", "none", "m", "c", remedies=("limit",),
                    tables=(Table("Attacks behind each guard", columns, tuple(rows)),))  # fmt: skip
    noise = Finding(PRIVATE_TRAINING, "protection", None, "t", "succeeded", "none", "m", "c", remedies=("noise",))
    exact = taken("copy-from-values", "copy", "prediction client")
    learned = taken("copy-by-learning-from-labels", "copy", "label client")
    other = taken("copy-from-gradients", "copy", "explanation client")
    record = taken("informed-network", "informed", "insider")
    scaler = taken("informed-linear", "informed", "insider", measures={"leaks_through": "StandardScaler"})
    failed = Finding("failed", "informed", "insider", "t", "failed", "none", "m", "c")
    said = {f.name: f.remedies for f in with_protection([exact, learned, other, record, scaler, failed, study, noise])}
    [guard] = said["copy-from-values"]
    assert guard.startswith("Guard round:2: this attack agreed in 60.0% instead of 100%")
    assert guard.endswith("It does not stop the learned copy from labels.")
    assert said["copy-by-learning-from-labels"] == ()  # no guard changed anything
    assert said["copy-from-gradients"] == ()  # it was not run again behind a guard
    assert said["informed-network"] == ("noise",)
    assert said["informed-linear"] == ()  # the theorem does not cover the scaler
    assert said["failed"] == ()
    assert with_protection([record])[0].remedies == ()


@pytest.mark.slow
def test_commands_repeat_a_finding_as_it_was_made(tmp_path: Path, only_probes: Any) -> None:
    only_probes("copy-from-values", "span-from-values")
    recipe = divulge.Recipe(widths=[8, 4, 1], loss="logistic", precision="float64")
    folder = tmp_path / "my model"
    divulge.models.save(recipe.initial_model(), folder)
    plain, guarded = (divulge.audit(folder, access="value", guard=guard, time=20) for guard in ("", "round:9"))
    for report, said in ((plain, ""), (guarded, " --guard round:9")):
        commands = {finding.name: finding.command for finding in report.findings}
        assert commands["copy-from-values"] == f"divulge extract '{folder}' --access value{said} --seed 0"
    assert commands["span-from-values"] == f"divulge audit '{folder}' --access value --guard round:9 --seed 0"


def test_a_learned_copy_is_judged_by_the_lower_end_of_its_interval():
    judge = Judge(torch.zeros(200, 1), torch.arange(200) % 2, None)

    def outcome(*draws):
        return _outcome(judge, Point(30, draws, {}, Spent()))

    assert outcome(0.99, 0.99, 0.99) == "succeeded"
    assert outcome(0.985, 0.96, 0.99) == "partly"
    assert outcome(0.85, 0.97) == "inconclusive"
    assert outcome(0.7, 0.72, 0.71) == "failed"


def test_after_the_last_draw_the_mean_decides():
    judge = Judge(torch.zeros(200, 1), torch.arange(200) % 2, None)
    around = (0.93, 0.89, 0.92, 0.90, 0.93)
    assert _outcome(judge, Point(84, around[:4], {}, Spent())) == "inconclusive"
    assert _outcome(judge, Point(84, around, {}, Spent())) == "partly"
    assert _outcome(judge, Point(84, tuple(share - 0.02 for share in around), {}, Spent())) == "failed"


def test_a_title_that_is_open_says_so_and_claims_no_copy():
    said = copies.student_title("inconclusive", 30, "label", 0.81, False, 0.61, 1.0, 2)
    assert said.endswith("too uncertain to call it a copy or none")
    assert "61.0% to 100%" in said
    assert "mean" not in said


def test_a_title_without_a_copy_says_what_a_constant_would_reproduce():
    said = copies.student_title("failed", 30, "value", 0.95, False, 0.9, 1.0, 2, 0.96)
    assert said.endswith("it reproduces 95.0% of its decisions, and always answering the same 96.0%")
    assert "same" not in copies.student_title("failed", 30, "value", -27.2, True, -30.0, -20.0, 2, 0.0)


def test_the_stated_interval_of_a_copy_knows_how_few_rows_judged_it():
    alike = Point(30, (0.96, 0.96, 0.96), {}, Spent())
    assert alike.interval == (0.96, 0.96)
    few, many = alike.interval_beyond(75), alike.interval_beyond(7500)
    assert few[0] < 0.9 < many[0] < 0.96 < many[1] < few[1] <= 1
    varied = Point(30, (0.90, 0.96, 0.99), {}, Spent())
    assert varied.interval_beyond(75)[0] < min(varied.interval[0], clopper_pearson(71, 75)[0])


def never_negative() -> nn.Module:
    """A share that is positive or rounds to 0, as a sigmoid does: its sign is no decision."""
    model = nn.Sequential(nn.Linear(4, 1), nn.ReLU())
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1e-6, 0.0, 0.0, 0.0]]))
        model[0].bias.zero_()
    return model


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_the_sign_of_an_answer_that_is_never_negative_is_no_decision(shift: float) -> None:
    rows = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)) + shift
    target = open_target(never_negative(), None, AuditOptions(unseen=rows.numpy(), access="value"))
    judge = judge_of(target, rows)
    assert judge.quantity
    decided = judge.of_decisions()
    assert not decided.quantity
    assert decided.likeness(never_negative()) == 1.0
    assert decided.constant == (shift > 0)


def test_a_copy_from_labels_is_judged_by_decisions_whatever_the_values_are() -> None:
    """Positive answers alone: the labels are one, and a share of variance is nothing that labels can show."""
    rows = torch.rand(400, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        model[2].weight.abs_()
        model[2].bias.fill_(1.0)
    target = open_target(model, None, AuditOptions(unseen=rows.numpy(), access="value"))
    learned = next(probe for probe in learned_copy.PROBES if probe.name == "copy-by-learning-from-labels")
    for probe in (*label_copy.PROBES, learned):
        found = probe.run(target, 20.0)
        assert 0 <= found.measures["same_decision"] <= 1
        assert "variance_explained" not in found.measures
