"""The insider against tables: the steps and kinds of columns that pipelines have in practice."""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge
from sklearn.model_selection import GridSearchCV
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
from divulge.errors import InvalidInput, UnsupportedModel, WrongShape

NUMBERS = ["age", "pay"]


def people(n: int = 80, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    draw = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": draw.integers(18, 90, n),
            "pay": draw.lognormal(10, 1, n),
            "job": draw.choice(["cook", "nurse", "pilot"], n),
            "town": draw.choice(list("abcd"), n),
            "smokes": draw.random(n) < 0.4,
        }
    )
    score = table.age / 30 + 2 * (table.job == "pilot") + table.smokes + draw.normal(size=n)
    return table, score.to_numpy()


def scaled(*others):
    return make_column_transformer((StandardScaler(), NUMBERS), *others)


def rebuilt(model, table, y, row=0):
    keep = np.arange(len(table)) != row
    return informed.glm(model, table[keep], y[keep])


def test_an_imputer_s_indicator_says_that_a_number_was_missing():
    table, y = people()
    table = table.assign(pay=table.pay.where(table.index % 5 > 0))
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    columns = make_column_transformer((numbers, NUMBERS), (OneHotEncoder(), ["job"]))
    model = make_pipeline(columns, Ridge()).fit(table, y)
    assert math.isnan(rebuilt(model, table, y, 0).row["pay"])
    present = rebuilt(model, table, y, 1)
    assert present.trusted
    assert present.row["pay"] == pytest.approx(table.pay[1])


@pytest.mark.parametrize(
    "steps",
    [(SimpleImputer(), StandardScaler()), (StandardScaler(), SimpleImputer()), (KNNImputer(), StandardScaler())],
)
def test_a_number_that_an_imputer_may_have_put_in_is_named(steps):
    table, y = people()
    table = table.assign(pay=table.pay.where(table.index % 5 > 0))
    columns = make_column_transformer((make_pipeline(*steps), NUMBERS))
    model = make_pipeline(columns, Ridge()).fit(table, y)
    missing, present = (rebuilt(model, table, y, row) for row in (0, 1))
    assert any("missing value: pay" in note for note in missing.notes)
    assert not any("missing value" in note for note in present.notes)
    assert present.predicted_error < 1e-20  # of the numbers that the scaler saw, not of those that are missing


def test_known_rows_as_a_list_or_an_array_and_those_that_do_not_fit():
    table, y = people()
    model = make_pipeline(scaled((OneHotEncoder(), ["job"])), Ridge()).fit(table, y)
    for known in (table.to_numpy()[1:], table.to_numpy()[1:].tolist()):
        assert informed.glm(model, known, y[1:]).row["pay"] == pytest.approx(table.pay[0])
    for known in (table[:0], table.to_numpy()[1:, 0], np.hstack([table.to_numpy()[1:]] * 2)):
        with pytest.raises(WrongShape):
            informed.glm(model, known, y[1:])
    for known in (table.assign(job="astronaut"), table.assign(age="old")):
        with pytest.raises(InvalidInput, match="does not take the known rows"):
            informed.glm(model, known[1:], y[1:])


def test_what_a_constant_stands_for_is_missing():
    table, y = people()
    table = table.assign(job=table.job.astype(object).where(table.index % 6 > 0, np.nan))
    text = make_pipeline(SimpleImputer(strategy="constant", fill_value="none given"), OneHotEncoder())
    model = make_pipeline(scaled((text, ["job"])), Ridge()).fit(table, y)
    assert pd.isna(rebuilt(model, table, y, 0).row["job"])
    assert rebuilt(model, table, y, 1).row["job"] == table.job[1]


@pytest.mark.parametrize(
    "column",
    [
        lambda table: pd.Categorical(table.job, categories=["cook", "nurse", "pilot", "nobody"]),
        lambda table: table.smokes.astype("boolean").mask(table.index % 5 == 1),
        lambda table: table.job.where(table.index > 0, None),  # nobody else's is missing
    ],
    ids=["category that nobody has", "missing booleans", "the only missing one"],
)
def test_kinds_of_columns(column):
    table, y = people()
    table = table.assign(job=column(table))
    model = make_pipeline(scaled((OneHotEncoder(), ["job"])), Ridge()).fit(table, y)
    for row in range(2):
        record = rebuilt(model, table, y, row)
        assert record.trusted
        value = record.row["job"]
        assert (pd.isna(value) and pd.isna(table.job[row])) or value == table.job[row]


@pytest.mark.parametrize("scaler", ["passthrough", StandardScaler()])
def test_numbers_beside_true_and_false(scaler):
    table, y = people()
    columns = make_column_transformer((scaler, [*NUMBERS, "smokes"]), (OneHotEncoder(), ["job"]))
    record = rebuilt(make_pipeline(columns, Ridge()).fit(table, y), table, y, 3)
    assert record.row["age"] == pytest.approx(table.age[3])
    assert record.row["smokes"] == table.smokes[3]


def test_texts_are_not_rebuilt_and_do_not_keep_the_rest_from_it():
    table, y = people()
    draw = np.random.default_rng(1)
    table = table.assign(note=[" ".join(draw.choice(["fever", "cough", "rash"], 3)) for _ in range(len(table))])
    model = make_pipeline(scaled((CountVectorizer(), "note")), Ridge()).fit(table, y)
    record = rebuilt(model, table, y)
    assert record.trusted
    assert record.row["note"] is None
    assert record.row["pay"] == pytest.approx(table.pay[0])


def test_features_that_a_later_step_drops_are_not_claimed():
    table, y = people()
    for numbers in (StandardScaler(), MinMaxScaler()):
        columns = make_column_transformer((numbers, NUMBERS), (OrdinalEncoder(), ["job", "town"]))
        model = make_pipeline(columns, SelectKBest(f_regression, k=2), Ridge()).fit(table, y)
        dropped = {"town", *np.array([*NUMBERS, "job", "town"])[~model[1].get_support()]}
        for row in range(3):
            record = rebuilt(model, table, y, row)
            for name in ("job", "town"):
                assert record.row[name] == (None if name in dropped else table[name][row])
            if not record.trusted:
                assert "drop or merge 2 of 4 columns" in record.reason


def test_numbers_that_only_a_scaler_shows_are_given_and_not_trusted():
    table, y = people()
    columns = scaled((OneHotEncoder(sparse_output=False), ["job"]))
    record = rebuilt(make_pipeline(columns, PCA(3), Ridge()).fit(table, y), table, y)
    assert record.row["pay"] == pytest.approx(table.pay[0])
    assert record.row["job"] is None
    assert not record.trusted


@pytest.mark.parametrize("step", [SelectKBest(f_regression, k=1), FunctionTransformer(np.log1p)])
def test_rows_of_numbers_that_do_not_come_back_are_not_trusted(step):
    table, y = people()
    X = table[NUMBERS].to_numpy(dtype=np.float64)
    record = informed.glm(make_pipeline(MinMaxScaler(), step, Ridge()).fit(X, y), X[1:], y[1:])
    assert not record.trusted
    assert "drop or merge" in record.reason


def test_an_imputer_before_numbers_without_gaps_is_no_obstacle():
    table, y = people()
    X = table[NUMBERS].to_numpy(dtype=np.float64)
    record = informed.glm(make_pipeline(SimpleImputer(), MinMaxScaler(), Ridge()).fit(X, y), X[1:], y[1:])
    assert record.trusted
    assert record.error(X[0]) < 1e-9


def test_gaps_are_filled_as_the_model_s_imputer_does_and_columns_ordered_as_it_takes_them():
    table, y = people()
    table = table[NUMBERS].assign(pay=table.pay.where(table.index % 5 != 1))
    model = make_pipeline(SimpleImputer(), MinMaxScaler(), Ridge()).fit(table, y)
    record = informed.glm(model, table[1:][["pay", "age"]], y[1:])
    assert record.trusted
    assert record.error(table.iloc[0].tolist()) < 1e-9


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of defaults that scikit-learn changes
def test_a_search_and_cross_validation_release_the_same_equations():
    table, score = people()
    y = np.where(score > 2.5, "yes", "no")
    columns = scaled((OneHotEncoder(), ["job"]))
    plain = make_pipeline(columns, LogisticRegression(tol=1e-8, max_iter=5000))
    search = GridSearchCV(plain, {"logisticregression__C": [0.1, 1.0]}, cv=2)
    crossed = make_pipeline(columns, LogisticRegressionCV(Cs=[1.0], cv=2, tol=1e-8, max_iter=5000))
    for model in (search, crossed):
        record = rebuilt(model.fit(table, y), table, y)
        assert record.trusted
        assert (record.row["job"], record.y) == (table.job[0], y[0])


def test_a_target_encoder_is_found_wherever_it_is():
    table, y = people()
    inside = make_column_transformer((TargetEncoder(), ["job"]))
    with pytest.raises(UnsupportedModel, match="TargetEncoder"):
        rebuilt(make_pipeline(scaled((inside, ["job"])), Ridge()).fit(table, y), table, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_categories_alone_are_trusted_only_where_training_again_gives_the_model():
    """A solver that stopped after five rounds: what lies near a code by chance is no evidence."""
    claims = []
    for seed in range(6):
        table, score = people(10, seed)
        y = (score > np.median(score)).astype(int)
        model = LogisticRegression(C=100.0, max_iter=5, solver="saga", tol=1e-3, random_state=0)
        model = make_pipeline(make_column_transformer((OneHotEncoder(), ["job"])), model).fit(table, y)
        found = [(row, rebuilt(model, table, y, row)) for row in range(2)]
        claims += [(one.row["job"], one.y) == (table.job[row], y[row]) for row, one in found if one.trusted]
    assert all(claims)
