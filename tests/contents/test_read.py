"""What stands in a model: rows are found, undone and compared, and nothing else is called a record."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity, KNeighborsClassifier, LocalOutlierFactor, NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, OneClassSVM
from typer.testing import CliRunner

from divulge import contents
from divulge.cli import app
from divulge.core.errors import UnsupportedModel, UntrustedFile

X, y = load_breast_cancer(return_X_y=True)
X, y = X[:150, :8], y[:150]

KEEPS_ALL = {
    "neighbours": KNeighborsClassifier(),
    "behind a scaler": make_pipeline(StandardScaler(), KNeighborsClassifier()),
    "kernel ridge": KernelRidge(kernel="rbf"),
    "Gaussian process": GaussianProcessRegressor(),
    "Gaussian process of classes": make_pipeline(MinMaxScaler(), GaussianProcessClassifier()),
    "outliers": LocalOutlierFactor(novelty=True),
    "density": KernelDensity(),
    "imputer before a linear model": make_pipeline(KNNImputer(), LogisticRegression(max_iter=5000)),
}


@pytest.mark.parametrize("model", KEEPS_ALL.values(), ids=KEEPS_ALL)
def test_models_that_are_their_data_give_every_row_in_the_units_of_the_input(model):
    found = contents.read(model.fit(X, y))
    np.testing.assert_allclose(found.records, X, rtol=1e-9)
    assert found.verbatim


KEEPS_SOME = {
    "SVC": SVC(),
    "SVR behind a scaler": make_pipeline(MinMaxScaler(), SVR()),
    "one class": OneClassSVM(),
    "search": GridSearchCV(make_pipeline(StandardScaler(), SVC()), {"svc__C": [1, 10]}),
    "vote": VotingClassifier([("linear", LogisticRegression(max_iter=5000)), ("svc", SVC())]),
    "bagging": BaggingClassifier(KNeighborsClassifier(), 3, random_state=0),
    "all components": make_pipeline(PCA(), SVC()),
}


@pytest.mark.parametrize("model", KEEPS_SOME.values(), ids=KEEPS_SOME)
def test_rows_that_are_kept_equal_training_rows(model):
    found = contents.read(model.fit(X, y), X)
    held = found.of_kind("records")[0]
    assert held.count >= 5
    assert held.in_training_data == held.count


def test_rows_of_selected_columns_leave_the_others_unknown():
    rows = contents.read(make_pipeline(SelectKBest(k=3), SVC()).fit(X, y), X).of_kind("records")[0]
    assert np.isnan(rows.rows).all(axis=0).sum() == 5
    assert rows.in_training_data == rows.count


def test_a_table_of_mixed_columns_comes_back_in_words():
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"age": draw.integers(20, 80, 60).astype(float), "job": ["clerk"] * 59 + ["astronaut"]})
    split = ColumnTransformer([("n", StandardScaler(), ["age"]), ("c", OneHotEncoder(), ["job"])])
    found = contents.read(make_pipeline(split, KNeighborsClassifier()).fit(table, draw.integers(0, 2, 60)), table)
    assert found.of_kind("records")[0].in_training_data == 60
    assert found.records[-1].tolist() == [table["age"].iloc[-1], "astronaut"]
    assert "One category occurs in one record only" in found.of_kind("categories")[0].detail


def test_a_scaler_gives_an_insider_the_missing_record():
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    held = contents.read(model, X).of_kind("sums")[0]
    assert held.where == 'model["standardscaler"].mean_'
    assert "150 records" in held.detail
    scaler = model[0]
    np.testing.assert_allclose(scaler.n_samples_seen_ * scaler.mean_ - X[1:].sum(axis=0), X[0], rtol=1e-9)


def test_extremes_are_values_of_single_records():
    held = contents.read(make_pipeline(MinMaxScaler(), LogisticRegression()).fit(X, y), X).of_kind("values")
    alone = sum((X[:, j] == X[:, j].min()).sum() == 1 for j in range(8))
    assert f"{alone} of them occur in exactly one record" in held[0].detail


# -- what is not a record ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [LinearSVC(), LogisticRegression(max_iter=9000), RandomForestClassifier(5)], ids=type)
def test_models_without_rows_have_none(model):
    found = contents.read(model.fit(X, y), X)
    assert not found.success
    assert found.records is None


def test_a_precomputed_kernel_is_no_record():
    assert contents.read(SVC(kernel="precomputed").fit(X @ X.T, y)).records is None
    distances = np.abs(X[:, None, 0] - X[None, :, 0])
    assert contents.read(KNeighborsClassifier(metric="precomputed").fit(distances, y)).records is None


@pytest.mark.parametrize("step", [PCA(3), KBinsDiscretizer(4, encode="ordinal")], ids=["PCA", "bins"])
def test_rows_behind_a_step_that_loses_something_are_features(step):
    found = contents.read(make_pipeline(step, KNeighborsClassifier()).fit(X, y))
    assert found.of_kind("records")[0].count == 150
    assert not found.verbatim
    assert "cannot be undone" in found.of_kind("records")[0].detail


def test_rows_of_other_data_are_not_called_verbatim():
    found = contents.read(KNeighborsClassifier().fit(X[:100], y[:100]), X[100:] + 0.1)
    assert found.of_kind("records")[0].in_training_data == 0
    assert not found.verbatim


def test_centres_are_means_unless_a_cluster_has_one_record():
    assert contents.read(KMeans(2, n_init=1, random_state=0).fit(X), X).records is None
    lonely = np.vstack([X, X[:1] + 1e6])
    assert contents.read(KMeans(2, n_init=3, random_state=0).fit(lonely), lonely).records.tolist() == [
        pytest.approx(lonely[-1])
    ]
    assert contents.read(NearestCentroid().fit(X, y), X).records is None


def test_rows_that_are_equal_by_chance_are_no_finding():
    draw = np.random.default_rng(0)
    binary = draw.integers(0, 2, (200, 4)).astype(float)
    weights = {"layer": torch.tensor(draw.integers(0, 2, (16, 4)), dtype=torch.float32)}
    assert not contents.read(weights, binary).success


def test_a_memory_of_examples_in_a_network_is_found():
    class Memory(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("examples", torch.tensor(X[:20], dtype=torch.float32))
            self.layer = torch.nn.Linear(8, 2)

    held = contents.read(Memory(), X).holdings
    assert [(h.where, h.count) for h in held] == [("examples", 20)]
    assert not contents.read(torch.nn.Linear(8, 150), X).success


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (make_pipeline(StandardScaler(), KNeighborsClassifier()), 150),
        (make_pipeline(MinMaxScaler(), SVR()), None),
        (make_pipeline(StandardScaler(), SVC()), None),
    ],
    ids=["neighbours", "SVR", "SVC"],
)
def test_onnx_files_hold_the_same_rows(model, rows, tmp_path):
    from skl2onnx import to_onnx

    (tmp_path / "m.onnx").write_bytes(to_onnx(model.fit(X, y), X[:1].astype(np.float32)).SerializeToString())
    found = contents.read(tmp_path / "m.onnx", X)
    held = found.of_kind("records")[0]
    assert held.in_training_data == held.count == (rows or len(model[-1].support_vectors_))
    assert contents.read(tmp_path / "m.onnx").verbatim


@pytest.mark.slow
def test_lightgbm_writes_extremes_and_categories(tmp_path):
    import lightgbm

    table = pd.DataFrame({"a": X[:, 0], "b": pd.Categorical(["x", "y", "z"] * 50)})
    model = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(table, y)
    model.booster_.save_model(tmp_path / "m.txt")
    for source in (model, tmp_path / "m.txt"):
        held = contents.read(source).holdings
        assert {("pandas_categorical", "categories"), ("leaf_count", "counts")} <= {(h.where, h.kind) for h in held}
    extremes = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(X, y)
    assert [(h.where, h.count) for h in contents.read(extremes).of_kind("values")] == [("feature_infos", 16)]
    written = extremes.booster_.model_to_string()
    assert f"[{X[:, 0].min():.17g}:{X[:, 0].max():.17g}]" in written


def test_safetensors_are_compared_with_the_data(tmp_path):
    from safetensors.torch import save_file

    save_file({"bank": torch.tensor(X[:30]), "w": torch.randn(30, 8)}, tmp_path / "m.safetensors")
    assert [h.where for h in contents.read(tmp_path / "m.safetensors", X).holdings] == ["bank"]


def test_a_function_has_nothing_to_look_through():
    with pytest.raises(UnsupportedModel, match="nothing to look through"):
        contents.read(lambda rows: rows)


def test_missing_values_that_were_filled_in_are_said_by_the_imputer():
    holes = X.copy()
    holes[::7, 2] = np.nan
    found = contents.read(make_pipeline(SimpleImputer(), SVC()).fit(holes, y))
    assert [h.kind for h in found.holdings] == ["records", "values"]


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_lists_places_and_shows_a_record_only_when_asked(tmp_path):
    import joblib

    joblib.dump(KNeighborsClassifier().fit(X, y), tmp_path / "m.joblib")
    run = CliRunner().invoke
    assert run(app, ["contents", str(tmp_path / "m.joblib")]).exit_code == UntrustedFile.exit_code
    said = run(app, ["contents", str(tmp_path / "m.joblib"), "--trust-pickle", "--json"])
    assert said.exit_code == 0
    answer = json.loads(said.stdout)
    assert answer["holdings"][0]["where"] == "model._fit_X"
    assert "record" not in answer
    shown = run(app, ["contents", str(tmp_path / "m.joblib"), "--trust-pickle", "--json", "--show-records"])
    assert json.loads(shown.stdout)["record"] == X[0].tolist()


def test_the_command_exits_with_3_where_nothing_was_found(tmp_path):
    import joblib

    joblib.dump(LogisticRegression(max_iter=9000).fit(X, y), tmp_path / "m.joblib")
    said = CliRunner().invoke(app, ["contents", str(tmp_path / "m.joblib"), "--trust-pickle"])
    assert said.exit_code == 3
