"""The student of a learned copy fits the data, and the curve goes up to the budget."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

import divulge
from divulge.auditing.fidelity import Judge
from divulge.auditing.opening import open_target
from divulge.auditing.options import AuditOptions
from divulge.auditing.probes.learned_copy import PROBES, Point, _counts, _early, _table
from divulge.auditing.students import StudentPlan, learned, plan_for, steps_of_convolutions
from divulge.core.errors import InvalidInput
from divulge.oracles.ledger import Spent

X, y = load_breast_cancer(return_X_y=True)


def target(model, data=(X, y), **options):
    return open_target(model, data, AuditOptions(**options))


@pytest.fixture(scope="module")
def forest():
    return RandomForestClassifier(20, random_state=0).fit(X[:300], y[:300])


@pytest.mark.slow
def test_a_forest_is_learned_by_a_forest_and_early(forest):
    aim = target(forest)
    assert aim.kind == "piecewise constant"
    assert plan_for(aim, torch.tensor(X), "value").kind == "trees"
    assert _early(aim)
    view = aim.oracle("value")
    copy = learned(plan_for(aim, torch.tensor(X), "value"), view, "value", torch.tensor(X[300:450]), 150, 0)
    rest = torch.tensor(X[450:])
    same = (divulge.oracle(copy).label(rest) == aim.oracle("label").label(rest)).double().mean()
    assert float(same) > 0.9
    assert view.ledger.value == 150


def test_pictures_get_convolutions_and_small_ones_do_not():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10), torch.nn.Tanh())
    pictures = torch.rand(60, 1, 28, 28)
    aim = target(net, (pictures, torch.zeros(60, dtype=torch.long)), shape=(1, 28, 28))
    plan = plan_for(aim, pictures.flatten(1), "value")
    assert plan.kind == "convolutions"
    assert plan.student()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.slow
def test_columns_in_units_of_their_own_are_standardised(forest):
    plan = StudentPlan("network", True, (30,), 2)
    view = divulge.oracle(forest, access="value")
    copy = learned(plan, view, "value", torch.tensor(X[300:]), 200, 0)
    rest = torch.tensor(X[:100])
    assert float((divulge.oracle(copy).label(rest) == divulge.oracle(forest).label(rest)).double().mean()) > 0.85


def test_the_curve_ends_at_the_budget_and_gradients_earlier(forest):
    assert _counts(target(forest, budget=500), 5000, "value") == [30, 100, 300, 500]
    assert _counts(target(forest), 5000, "value")[-2:] == [3000, 5000]
    assert _counts(target(forest), 5000, "gradient")[-1] == 300


def test_a_network_without_a_shape_takes_it_from_the_data():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    aim = target(net, (torch.rand(20, 1, 9, 9), torch.zeros(20, dtype=torch.long)))
    assert aim.input_dim == 81


def test_trees_have_no_gradients_to_match():
    with pytest.raises(InvalidInput, match="no gradients"):
        divulge.extraction.by_training(
            divulge.oracle(torch.nn.Linear(3, 2), access="gradient"), "trees", torch.rand(9, 3)
        )


def test_every_access_has_a_learned_copy():
    assert [probe.name for probe in PROBES] == [
        "copy-by-learning", "copy-by-learning-from-labels", "copy-by-learning-from-gradients",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_student_of_pictures_is_normalised_by_its_batches_and_ends_in_evaluation_mode():
    plan = StudentPlan("convolutions", False, (1, 16, 16), 3)
    pictures = 50 * torch.rand(90, 256, generator=torch.Generator().manual_seed(0))  # in units of their own
    weights = torch.randn(256, 3, generator=torch.Generator().manual_seed(1)).double() / 16
    view = divulge.oracle(lambda rows: torch.as_tensor(rows) @ weights, input_shape=(256,))
    copy = learned(plan, view, "value", pictures.double(), 90, 0)
    assert not copy.training
    followed = [layer.num_batches_tracked for layer in copy.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    assert min(map(int, followed)) >= steps_of_convolutions(90) == 150  # one for each step
    with pytest.raises(InvalidInput, match="train_norms"):
        divulge.extraction.by_training(
            divulge.oracle(torch.nn.Linear(4, 2)), "softmax", torch.rand(20, 4), match="both", train_norms=True
        )


def test_a_price_is_said_for_every_number_of_queries():
    points = [Point(100, (0.9,), {}, Spent(value=100)), Point(3000, (0.95,), {}, Spent(value=3000))]
    judge = Judge(torch.zeros(3, 2), torch.tensor([0, 1, 0]), None)
    table = _table(points, judge, 1.5)
    assert [row[-1] for row in table.rows] == [0.15, 4.5]
    assert "price" not in _table(points, judge, None).columns
