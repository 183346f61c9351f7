"""Models trained on awkward data: constants, one row, duplicates, rare classes; and models trained privately."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.claims import tables
from experiments.claims.subject import Rows, Subject, Table
from experiments.claims.zoo import networks
from experiments.claims.zoo.estimators import subject

PRIVATE_NOISE, PRIVATE_STEPS = 8.0, 60


def constant_target() -> Subject:
    """A regression whose target was the same in every row."""
    table = tables.diabetes()
    training = Rows(table.training.X, np.full(len(table.training.y), 7.0))
    table = Table(training, table.unseen, table.heldout)
    return subject(LinearRegression().fit(*training), table, "constant")


def constant_column() -> Subject:
    """A logistic regression with a column that never changes."""
    table = tables.cancer()
    parts = [Rows(np.column_stack([rows.X, np.full(len(rows.y), 5.0)]), rows.y) for rows in
             (table.training, table.unseen, table.heldout)]  # fmt: skip
    table = Table(*parts)
    return subject(make_pipeline(StandardScaler(), LogisticRegression()).fit(*table.training), table, "linear")


def one_row() -> Subject:
    """A ridge regression fitted to a single row."""
    table = tables.diabetes()
    table = Table(Rows(table.training.X[:1], table.training.y[:1]), table.unseen, table.heldout)
    return subject(Ridge().fit(*table.training), table, "constant")


def one_neighbour() -> Subject:
    """A nearest neighbour that knows one row."""
    table = tables.diabetes()
    table = Table(Rows(table.training.X[:1], table.training.y[:1]), table.unseen, table.heldout)
    return subject(KNeighborsRegressor(1).fit(*table.training), table, "constant")


def duplicates() -> Subject:
    """A logistic regression whose training rows are ten rows, repeated."""
    table = tables.cancer()
    place = np.arange(200) % 10
    training = Rows(table.training.X[place], table.training.y[place])
    table = Table(training, table.unseen, table.heldout)
    return subject(make_pipeline(StandardScaler(), LogisticRegression()).fit(*training), table, "linear")


def always_the_same() -> Subject:
    """A classifier that says the most common class."""
    table = tables.rare()
    return subject(DummyClassifier().fit(*table.training), table, "constant")


def rare_logistic() -> Subject:
    """A logistic regression for a rare class."""
    table = tables.rare()
    return subject(LogisticRegression().fit(*table.training), table, "linear")


def rare_forest() -> Subject:
    """A forest for a rare class."""
    table = tables.rare()
    return subject(RandomForestClassifier(40, random_state=0).fit(*table.training), table, "piecewise constant")


def private_network() -> Subject:
    """A network that divulge trained with differential privacy, with its recipe."""
    from divulge import Recipe
    from divulge.training import Privacy

    table = tables.odd_or_even(600)
    recipe = Recipe(
        widths=[64, 16, 1], loss="logistic", epochs=PRIVATE_STEPS, learning_rate=0.5, seed=0,
        privacy=Privacy(noise_multiplier=PRIVATE_NOISE, noise_seed=0),
    )  # fmt: skip
    model = recipe.train(*table.training)
    made = networks.subject(model, table, "one hidden ReLU layer", recipe=recipe, shape=(1, 8, 8))
    return Subject(made.model, table, made.decide, made.scores, made.kind, made.options, 16,
                   (PRIVATE_NOISE, PRIVATE_STEPS))  # fmt: skip


def memorised() -> Subject:
    """A network trained to fit twenty pictures, with its recipe."""
    from divulge import Recipe

    table = tables.odd_or_even(600)
    training = Rows(table.training.X[:20], table.training.y[:20])
    table = Table(training, table.unseen, table.heldout)
    recipe = Recipe(widths=[64, 100, 1], loss="logistic", epochs=2000, learning_rate=0.5, seed=0)
    model = recipe.train(*training)
    return networks.subject(model, table, "one hidden ReLU layer", recipe=recipe, shape=(1, 8, 8))


MODELS: dict[str, Callable[[], Subject]] = {
    "constant target": constant_target,
    "constant column": constant_column,
    "one row": one_row,
    "one neighbour": one_neighbour,
    "duplicated rows": duplicates,
    "most common class": always_the_same,
    "logistic regression, rare class": rare_logistic,
    "forest, rare class": rare_forest,
    "private network": private_network,
    "memorised pictures": memorised,
}
