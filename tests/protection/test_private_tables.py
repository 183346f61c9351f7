"""Private training for tables of mixed columns: features that look at no private record."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from divulge.errors import InvalidInput
from divulge.oracles.local.table_view import TableView
from divulge.oracles.local.viewed_estimator import ViewedEstimator
from divulge.protection import Limits, price
from divulge.protection.private_tables import TableCoding, table_training
from divulge.protection.private_training import Sides


def people(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    draw = np.random.default_rng(seed)
    table = pd.DataFrame({"age": draw.integers(18, 90, n), "job": draw.choice(["cook", "nurse", "pilot"], n)})
    pay = pd.Series(draw.normal(50, 10, n)).where(draw.random(n) > 0.2)
    y = (table.age / 30 + 2 * (table.job == "pilot") + draw.normal(size=n) > 2.5).astype(int)
    return table.assign(pay=pay), y.to_numpy()


def pipeline():
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["job"]))
    return make_pipeline(columns, LogisticRegression())


def test_codes_go_there_and_back() -> None:
    table, _ = people(50, 0)
    view = TableView(table)
    rows = view.encode(table)
    coding = TableCoding(view, rows)
    features = coding.transform(rows)
    assert features.shape == (50, 1 + 3 + 2)  # age, three jobs, pay and whether it is missing
    assert np.array_equal(features[:, 1:4].sum(axis=1), np.ones(50))
    assert np.allclose(coding.inverse_transform(features), rows)
    assert coding.ranges.shape == (6, 2)
    assert (coding.ranges[:, 0] < coding.ranges[:, 1]).all()


def test_a_category_that_only_a_private_record_has_gives_nothing_away() -> None:
    """The features and ranges are the same with it and without it."""
    (table, y), (others, v) = people(60, 0), people(60, 1)
    rare = table.assign(job=table.job.where(table.index != 3, "astronaut"))
    view = TableView(pd.concat([rare, others], ignore_index=True))
    found = []
    for own in (rare, rare[rare.job != "astronaut"]):
        sides = Sides(torch.from_numpy(view.encode(own)), torch.from_numpy(y[: len(own)]),
                      torch.from_numpy(view.encode(others)), torch.from_numpy(v))  # fmt: skip
        found.append(table_training(ViewedEstimator(pipeline(), view), sides, 1e-3, "ranges", "scaled"))
    assert np.array_equal(found[0].ranges, found[1].ranges)
    assert found[0].coding is not None
    coded = found[0].coding.transform(view.encode(rare.iloc[[3]]))[0]
    assert not coded[1:4].any()  # none of the known jobs


@pytest.mark.parametrize(
    "private",
    [{"age": 500}, {"pay": -1e6}, {"level": None}, {"level": 40.0}, {"job": "astronaut"}],
    ids=["largest number", "smallest number", "only missing one", "only other one", "only such category"],
)
def test_one_private_record_does_not_move_the_features_of_another(private) -> None:
    """Whatever range, category or gap it alone has: scaled features of the others are the same to rounding."""
    (table, _), (others, _) = people(60, 0), people(60, 1)
    table, others = table.assign(level=7.0), others.assign(level=7.0)
    moved = table.copy()
    for name, value in private.items():
        moved[name] = moved[name].astype(object).where(moved.index > 0, value).astype(table[name].dtype)
    found = []
    for own in (table, moved):
        view = TableView(pd.concat([own, others], ignore_index=True))
        coding = TableCoding(view, view.encode(others))
        low, high = coding.ranges.T
        found.append((coding.transform(view.encode(table[1:])) - low) / (high - low))
    assert found[0].shape == found[1].shape
    assert np.allclose(found[0], found[1], atol=1e-6)


def test_tables_of_numbers_and_labels_of_any_kind() -> None:
    members, unseen = people(60, 0), people(60, 1)
    short = {"epsilons": [64.0], "runs": 1, "targets": 2, "shadows": 0, "hidden_columns": 0}
    found = set()
    for names in ([0, 1], [1, 2], ["no", "yes"]):
        own, other = ((X, np.array(names)[y]) for X, y in (members, unseen))
        found.add(tuple(point.accuracy for point in price(pipeline(), own, other, **short).points))
    assert len(found) == 1
    draw = np.random.default_rng(0)
    numbers = [(X[["age"]].assign(height=draw.normal(170, 10, len(X))), y) for X, y in (members, unseen)]
    scaled = make_pipeline(StandardScaler(), LogisticRegression())
    curve = price(scaled, *numbers, ranges=[(0, 120), (100, 220)], **short)
    assert curve.points[-1].rebuilt.value == 1  # without noise, through the scaler


@pytest.mark.slow
def test_the_curve_of_a_table_is_that_of_its_attacks() -> None:
    members, unseen = people(150, 0), people(150, 1)
    curve = price(
        pipeline(), members, unseen, epsilons=[1.0, 64.0], limits=Limits((0.05, 0.01)), runs=1, targets=8, shadows=0,
        hidden_columns=0,
    )  # fmt: skip
    found = {point.epsilon: point for point in curve.points}
    assert found[float("inf")].accuracy > 0.7
    assert found[64.0].accuracy > 0.6
    assert found[1.0].rebuilt is not None
    assert found[1.0].rebuilt.value <= found[float("inf")].rebuilt.value
    assert found[1.0].membership_bound < found[64.0].membership_bound <= 1


def test_what_is_not_taken_says_so() -> None:
    members, unseen = people(60, 0), people(60, 1)
    with pytest.raises(InvalidInput, match="same columns"):
        price(pipeline(), members, (unseen[0].drop(columns="pay"), unseen[1]))
    with pytest.raises(InvalidInput, match="Ranges"):
        price(pipeline(), members, unseen, ranges=[(0, 1)] * 3)
    with pytest.raises(InvalidInput, match="pipeline"):
        price(lambda X, y, epsilon, seed: None, members, unseen)
