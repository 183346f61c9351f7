"""The insider against pipelines that take tables of mixed columns: whole rows, categories included."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

from divulge import informed
from divulge.errors import UnsupportedModel, WrongShape

NUMBERS, CATEGORIES = ["age", "income"], ["job", "town", "grade", "smokes"]


@pytest.fixture(scope="module")
def patients() -> tuple[pd.DataFrame, np.ndarray]:
    draw = np.random.default_rng(0)
    n = 200
    grade = pd.Categorical(draw.choice(["low", "mid", "high"], n), categories=["low", "mid", "high"], ordered=True)
    table = pd.DataFrame(
        {
            "age": draw.integers(18, 90, n),
            "income": draw.lognormal(10, 1, n),
            "job": draw.choice(["cook", "pilot", "nurse", "clerk"], n),
            "town": draw.choice(list("abcdefgh"), n),
            "grade": grade,
            "smokes": draw.random(n) < 0.3,
            "unused": draw.normal(size=n),
        }
    )
    score = table.age / 30 + 2 * (table.job == "pilot") + table.smokes + draw.normal(size=n)
    return table, score.to_numpy()


def without(table, y, row):
    keep = np.arange(len(table)) != row
    return table[keep], y[keep]


def same(found, truth):
    for name, value in found.items():
        if name in NUMBERS:
            assert value == pytest.approx(truth[name], rel=1e-6), name
        elif value is not None:
            assert value == truth[name], name
    return True


@pytest.mark.parametrize("drop", [None, "first"])
def test_text_labels_numbers_and_categories_of_a_logistic_pipeline_come_back(patients, drop):
    table, score = patients
    y = np.where(score > 2.2, "yes", "no").astype(object)
    columns = make_column_transformer((StandardScaler(), NUMBERS), (OneHotEncoder(drop=drop), CATEGORIES))
    model = make_pipeline(columns, LogisticRegression(tol=1e-8, max_iter=5000)).fit(table, y)
    for row in range(4):
        record = informed.glm(model, *without(table, y, row))
        assert record.trusted
        assert same(record.row, table.iloc[row])
        assert record.y == y[row]
        assert record.row["unused"] is None


def test_the_scaler_gives_the_numbers_where_the_solver_stopped_early(patients):
    """Default tolerance: the equations alone are off by some percent, n * mean - sum is not."""
    table, score = patients
    y = (score > 2.2).astype(int)
    columns = make_column_transformer((StandardScaler(), NUMBERS), (OneHotEncoder(), CATEGORIES))
    model = make_pipeline(columns, LogisticRegression()).fit(table, y)
    found = [informed.glm(model, *without(table, y, row)) for row in range(8)]
    trusted = [(row, record) for row, record in enumerate(found) if record.trusted]
    assert len(trusted) >= 4
    assert all(same(record.row, table.iloc[row]) for row, record in trusted)


@pytest.mark.parametrize("final", [Ridge(), PoissonRegressor(alpha=0.1, tol=1e-8, max_iter=10_000)])
def test_ordinal_codes_are_undone(patients, final):
    table, score = patients
    y = np.round(np.exp(score / 3))
    columns = make_column_transformer((MinMaxScaler(), NUMBERS), (OrdinalEncoder(), CATEGORIES))
    model = make_pipeline(columns, final).fit(table, y)
    record = informed.glm(model, *without(table, y, 3))
    assert record.trusted
    assert {name: record.row[name] for name in CATEGORIES} == dict(table.iloc[3][CATEGORIES])
    assert record.row["age"] == pytest.approx(table.age[3], abs=1)


def test_values_that_an_encoder_takes_together_are_not_told_apart(patients):
    table, score = patients
    columns = make_column_transformer(
        (StandardScaler(), NUMBERS), (OneHotEncoder(min_frequency=60, handle_unknown="infrequent_if_exist"), ["town"])
    )
    model = make_pipeline(columns, Ridge()).fit(table, score)
    record = informed.glm(model, *without(table, score, 0))
    assert record.row["town"] is None
    assert any("town" in note for note in record.notes)


def test_missing_values_and_imputers(patients):
    table, score = patients
    table = table.assign(income=table.income.where(np.arange(len(table)) % 10 > 0))
    job = table.job.where(np.arange(len(table)) % 9 > 0, None)
    table = table.assign(job=job)
    numeric = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer(
        (numeric, make_column_selector(dtype_include="number")), (OneHotEncoder(), ["job", "town"])
    )
    model = make_pipeline(columns, Ridge()).fit(table, score)
    missing = informed.glm(model, *without(table, score, 0))
    assert missing.row["income"] == pytest.approx(table.income.mean())  # what the imputer put there
    assert pd.isna(missing.row["job"])
    present = informed.glm(model, *without(table, score, 4))
    assert present.row["income"] == pytest.approx(table.income[4])
    assert present.row["job"] == table.job[4]


def test_a_step_without_a_way_back_leaves_its_columns_out(patients):
    table, score = patients
    columns = make_column_transformer((FunctionTransformer(np.log1p), NUMBERS), (OneHotEncoder(), ["job"]))
    record = informed.glm(make_pipeline(columns, Ridge()).fit(table, score), *without(table, score, 0))
    assert record.row["income"] is None
    assert record.row["job"] == table.job[0]


@pytest.mark.parametrize("off", [1, 40])
def test_a_wrong_row_among_the_known_ones_is_not_trusted(patients, off):
    """The scaler's mean and the equations then give different numbers."""
    table, score = patients
    columns = make_column_transformer((StandardScaler(), NUMBERS), (OneHotEncoder(), CATEGORIES))
    model = make_pipeline(columns, Ridge()).fit(table, score)
    known, y = without(table, score, 0)
    known = known.assign(age=known.age.where(known.index != 7, known.age[7] + off))
    record = informed.glm(model, known, y)
    assert record.row["age"] != pytest.approx(table.age[0], abs=1e-6)
    assert not record.trusted


def test_arrays_with_numbered_columns():
    draw = np.random.default_rng(1)
    X = np.column_stack([draw.normal(50, 10, 120), draw.integers(0, 4, 120)])
    y = X @ [0.1, 1.0] + draw.normal(size=120)
    model = make_pipeline(make_column_transformer((StandardScaler(), [0]), (OneHotEncoder(), [1])), Ridge()).fit(X, y)
    record = informed.glm(model, X[1:], y[1:])
    assert record.row["0"] == pytest.approx(X[0, 0])
    assert record.row["1"] == X[0, 1]


def test_what_cannot_be_solved_says_so(patients):
    table, score = patients
    columns = make_column_transformer((StandardScaler(), NUMBERS), (TargetEncoder(), ["job"]))
    model = make_pipeline(columns, Ridge()).fit(table, score)
    with pytest.raises(UnsupportedModel, match="TargetEncoder"):
        informed.glm(model, *without(table, score, 0))
    model = make_pipeline(make_column_transformer((StandardScaler(), NUMBERS)), Ridge()).fit(table, score)
    with pytest.raises(WrongShape, match="age"):
        informed.glm(model, table.drop(columns="age").assign(other=1.0)[1:], score[1:])
