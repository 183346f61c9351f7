"""Models of other libraries, fitted to scikit-learn's own data; the library's own answers are the truth."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.claims import zoo as claims
from experiments.claims.subject import Array, Rows, Subject, Table
from experiments.zoo.wheels import NotThere

CHOSEN = (
    "ridge, diabetes", "softmax regression, wine", "SVC, cancer", "Gaussian process, diabetes", "neighbours, cancer",
    "tree, iris", "forest, cancer", "calibrated SVC, cancer", "grid search of SVC, cancer", "voting, cancer",
)  # fmt: skip
"""Models of the claims experiment that are part of this one."""


def cancer() -> Table:
    """scikit-learn's breast-cancer table in three parts, standardised."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    order = np.random.default_rng(0).permutation(len(X))
    return Table(*(Rows(X[part], y[part]) for part in np.array_split(order, 3)))


def _answering(model: Any, table: Table, values: Callable[[Array], Array], **options: Any) -> Subject:
    def decide(X: Array) -> Array:
        shown = values(X)
        return shown.argmax(axis=1) if shown.shape[1] > 1 else (shown[:, 0] > 0).astype(int)

    return Subject(model, table, decide, lambda X: [values(X)], "none", options)


def _needs(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise NotThere(f"{name} is not installed; run it where make test-extras runs") from error


def catboost_file() -> Subject:
    """CatBoost's own file."""
    catboost, table = _needs("catboost"), cancer()
    model = catboost.CatBoostClassifier(iterations=30, verbose=False, allow_writing_files=False, random_seed=0)
    model.fit(*table.training)
    path = Path(tempfile.mkdtemp()) / "model.cbm"
    model.save_model(str(path))
    return _answering(str(path), table, lambda X: model.predict(X, prediction_type="RawFormulaVal").reshape(len(X), -1))


def keras_file() -> Subject:
    """A Keras network of dense layers in its own file."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras, table = _needs("keras"), cancer()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(*table.training, epochs=30, verbose=0)
    path = Path(tempfile.mkdtemp()) / "model.keras"
    model.save(path)
    return _answering(str(path), table, lambda X: np.asarray(model.predict(np.float32(X), verbose=0), dtype=np.float64))


def text_folder() -> Subject:
    """A small BERT classifier of random weights, as transformers saves it, on random token ids."""
    transformers = _needs("transformers")
    import torch

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=500, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=4,
        initializer_range=0.5,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)

    def values(X: Array) -> Array:
        with torch.no_grad():
            return np.asarray(model(torch.as_tensor(np.rint(X)).long()).logits, dtype=np.float64)

    X = np.random.default_rng(0).integers(0, 500, (900, 16)).astype(np.float64)
    y = values(X).argmax(axis=1)
    return _answering(folder, Table(*(Rows(X[k : k + 300], y[k : k + 300]) for k in (0, 300, 600))), values)


def booster_file(package: str, ending: str) -> Callable[[], Subject]:
    """The native file of XGBoost or LightGBM."""

    def make() -> Subject:
        library, table = _needs(package), cancer()
        estimator = library.XGBClassifier if package == "xgboost" else library.LGBMClassifier
        options = {"n_estimators": 20, **({} if package == "xgboost" else {"verbose": -1})}
        model = estimator(**options).fit(*table.training)
        path = Path(tempfile.mkdtemp()) / f"model{ending}"
        (model.get_booster() if package == "xgboost" else model.booster_).save_model(str(path))
        raw = {"output_margin": True} if package == "xgboost" else {"raw_score": True}
        return _answering(str(path), table, lambda X: np.asarray(model.predict(X, **raw)).reshape(len(X), -1))

    return make


def skl2onnx_file() -> Subject:
    """A forest of scikit-learn as skl2onnx writes it, with its ZipMap."""
    skl2onnx, onnxruntime, table = _needs("skl2onnx"), _needs("onnxruntime"), cancer()
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(20, random_state=0).fit(*table.training)
    path = Path(tempfile.mkdtemp()) / "forest.onnx"
    path.write_bytes(skl2onnx.to_onnx(model, np.float32(table.training.X[:1])).SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more of them add the votes in another order, which decides ties otherwise
    session = onnxruntime.InferenceSession(str(path), options)

    def answers(X: Array) -> list[Any]:
        return list(session.run(None, {session.get_inputs()[0].name: np.float32(X)}))

    def shares(X: Array) -> list[Array]:
        return [np.array([[row[one] for one in sorted(row)] for row in answers(X)[1]])]

    return Subject(str(path), table, lambda X: np.asarray(answers(X)[0]), shares, "none", {})


LIBRARIES: dict[str, Callable[[], Subject]] = {
    **{name: claims.MODELS[name] for name in CHOSEN},
    "XGBoost .json": booster_file("xgboost", ".json"),
    "XGBoost .ubj": booster_file("xgboost", ".ubj"),
    "LightGBM .txt": booster_file("lightgbm", ".txt"),
    "CatBoost .cbm": catboost_file,
    "Keras .keras": keras_file,
    "transformers folder, text": text_folder,
    "skl2onnx forest": skl2onnx_file,
}
