"""The data that the models are trained on: scikit-learn's sets in their own units, and tables made for a purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine, make_classification

from experiments.claims.subject import Array, Rows, Table


def split(X: Any, y: Array, *, training: float = 0.4, unseen: float = 0.3, seed: int = 0) -> Table:
    """Three parts of a data set, drawn at random."""
    order = np.random.default_rng(seed).permutation(len(y))
    first, second = int(training * len(y)), int((training + unseen) * len(y))
    parts = [order[:first], order[first:second], order[second:]]
    take = X.iloc if hasattr(X, "iloc") else X
    return Table(*(Rows(take[part], y[part]) for part in parts))


def cancer() -> Table:
    """569 patients, 30 measurements from 1e-3 to 1e3, two classes."""
    return split(*load_breast_cancer(return_X_y=True))


def diabetes() -> Table:
    """442 patients, 10 measurements in clinical units, a quantity."""
    return split(*load_diabetes(return_X_y=True, scaled=False))


def wine() -> Table:
    """178 wines, 13 measurements, three classes."""
    return split(*load_wine(return_X_y=True))


def iris() -> Table:
    """150 flowers, 4 measurements, three classes."""
    return split(*load_iris(return_X_y=True))


def digits() -> Table:
    """1,797 pictures of 8 x 8, ten classes."""
    X, y = load_digits(return_X_y=True)
    return split(X / 16, y)


def odd_or_even(rows: int = 1797) -> Table:
    """The digits with two classes."""
    X, y = load_digits(return_X_y=True)
    return split(X[:rows] / 16, y[:rows] % 2)


def houses(rows: int = 1500, seed: int = 0) -> Table:
    """A quantity from eight columns whose units go from 1e-6 to 1e9."""
    random = np.random.default_rng(seed)
    units = 10.0 ** np.array([-6, -3, -1, 0, 2, 4, 6, 9])
    plain = random.lognormal(sigma=0.5, size=(rows, 8))
    y = 1e5 * (plain @ np.arange(1.0, 9.0) + plain[:, 0] * plain[:, 7] + random.standard_normal(rows))
    return split(plain * units, y)


def loans(rows: int = 1500, seed: int = 0) -> Table:
    """Two classes from eight columns whose units go from 1e-6 to 1e9."""
    random = np.random.default_rng(seed)
    units = 10.0 ** np.array([-6, -3, -1, 0, 2, 4, 6, 9])
    plain = random.lognormal(sigma=0.5, size=(rows, 8))
    chance = 1 / (1 + np.exp(-(plain @ np.array([2.0, -1, 1, -2, 1, 1, -1, -1]))))
    return split(plain * units, (random.random(rows) < chance).astype(int))


def rare(rows: int = 3000, seed: int = 0) -> Table:
    """Two classes, one of them with 4 % of the rows."""
    X, y = make_classification(rows, 10, n_informative=6, weights=[0.96], class_sep=1.5, flip_y=0.0, random_state=seed)
    return split(X, y)


def patients(rows: int = 600, seed: int = 0) -> Table:
    """A data frame with names, a category and three numbers; two classes."""
    import pandas as pd

    random = np.random.default_rng(seed)
    ward = random.choice(["cardiology", "surgery", "oncology"], size=rows)
    age, pressure, dose = random.normal(60, 12, rows), random.normal(130, 15, rows), random.lognormal(0, 1, rows)
    frame = pd.DataFrame({"ward": ward, "age": age, "pressure": pressure, "dose": dose})
    frame.index = [f"patient Zq{number:04d}" for number in range(rows)]
    y = (0.05 * (age - 60) + 0.03 * (pressure - 130) + (ward == "surgery") + random.normal(0, 0.5, rows) > 0.3).astype(
        int
    )
    return split(frame, y)
